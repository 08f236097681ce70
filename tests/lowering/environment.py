"""The lowering environment as the tests see it, and what makes a lowered kernel acceptable."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "lowering" / "bin" / "python"
REMEDY = "run `make checks`, which makes .venv/lowering"

TARGETS = {"a2": "Ascend910B3", "a3": "Ascend910_9382", "a5": "Ascend950PR_9589"}
"""One part of each generation, as the compiler names it."""
VECTOR_MEMORY = {"a2": 192 * 1024, "a3": 192 * 1024, "a5": 248 * 1024}
"""Unified buffer of a vector core, in bytes."""


@dataclass(frozen=True, kw_only=True)
class LoweringCase:
    """A kernel at the sizes of one launch."""

    file: Path
    kernel: str
    signature: dict[str, str]
    """Types of the arguments that are no constants: `*bf16`, `i32`, `fp32`."""
    constants: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = ", ".join(f"{key}={value}" for key, value in self.constants.items())
        return f"{self.kernel}({sizes})"


def lower(cases: Sequence[LoweringCase], hardware: str) -> list[dict[str, Any]]:
    """Lower kernels for one generation, in a process of the lowering environment."""
    assert PYTHON.is_file(), REMEDY
    request = [
        {**vars(case), "file": str(case.file), "target": TARGETS[hardware]} for case in cases
    ]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("request.json", "response.json")]
        paths[0].write_text(json.dumps(request))
        # No PYTHONPATH and no compilers of the machine: only what set-up has installed.
        done = subprocess.run(
            [PYTHON, Path(__file__).with_name("lower.py"), *paths],
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{REMEDY}"
        return json.loads(paths[1].read_text())


def problems(result: dict[str, Any], hardware: str) -> list[str]:
    """Why a kernel is not acceptable on a generation; empty if it is."""
    if not result["lowered"]:
        return [f"stops at {result['stage']}: {result['message']}"]
    found = []
    if result["inline_assembly"]:
        found.append(f"holds {result['inline_assembly']} pieces of inline assembly")
    if result["missing"]:
        found.append(f"calls {', '.join(result['missing'])}, which the device library lacks")
    used = result["peak"].get("ub", 0)
    if used > VECTOR_MEMORY[hardware]:
        found.append(f"needs {used} bytes of vector memory, has {VECTOR_MEMORY[hardware]}")
    if result["reported_ub"] not in (None, used):
        found.append(f"uses {used} bytes as we count, {result['reported_ub']} as the compiler does")
    return found


def interpret(script: Path) -> dict[str, Any]:
    """Run a script of this folder under Triton's interpreter, in the project's environment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "response.json"
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, script, path],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(path.read_text())
