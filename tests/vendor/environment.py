"""The vendor environment as the tests see it: where it is, and how to ask it something."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "vendor"
TORCH_NPU = FOLDER / "torch_npu"
"""Folder that holds the public wheel's package, beside the project's own torch."""
STUB = FOLDER / "cann_stub"
PACKAGE = FOLDER / "vllm_ascend"
"""Host code and READMEs of vllm-ascend's source package."""
SOURCE = PACKAGE / "csrc" / "torch_binding.cpp"
"""Its operator definitions."""
REMEDY = "run `make checks`, which fills .venv/vendor"


@dataclass(frozen=True)
class Call:
    """One call of a vendor operator, arguments in JSON form (see `recording.json_of`)."""

    operator: str
    """`npu::npu_rms_norm`."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    overload: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the dispatcher and the Meta kernel of the vendor say about a call."""

    bound: bool
    error: str
    outputs: list[dict[str, Any]] | None
    """Shape and dtype of every output; none without a Meta kernel."""


@dataclass(frozen=True)
class Answer:
    """What the vendor environment says."""

    schemas: dict[str, list[str]]
    meta: dict[str, bool]
    """Whether an operator has a Meta kernel."""
    verdicts: list[Verdict]
    registered: list[str]
    torch_npu: str


def ask(
    *,
    calls: Sequence[Call] = (),
    operators: Iterable[str] = (),
    definitions: Sequence[str] = (),
) -> Answer:
    """Load torch_npu in a process of its own and ask it about operators and calls.

    Args:
        calls: Calls to bind and to run on the meta device.
        operators: Dispatcher names whose schemas are wanted.
        definitions: Schemas to define first, for namespaces that torch_npu does not have.
    """
    assert TORCH_NPU.is_dir() and STUB.is_dir(), REMEDY
    request = {
        "definitions": list(definitions),
        "operators": sorted(operators),
        "calls": [vars(call) for call in calls],
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("request.json", "response.json")]
        paths[0].write_text(json.dumps(request))
        _run_child(paths)
        response = json.loads(paths[1].read_text())
    return Answer(
        schemas=response["schemas"],
        meta=response["meta"],
        verdicts=[Verdict(**item) for item in response["calls"]],
        registered=response["registered"],
        torch_npu=response["torch_npu"],
    )


def _run_child(paths: Sequence[Path]) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", ""),
        "PYTHONPATH": str(TORCH_NPU),
        "LD_LIBRARY_PATH": str(STUB),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
    }
    child = Path(__file__).with_name("child.py")
    done = subprocess.run(
        [sys.executable, child, *paths],
        env=environment,
        cwd=paths[0].parent,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}\n{REMEDY}"
