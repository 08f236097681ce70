"""Builds stand-ins for the CANN libraries that torch_npu links to, so that it loads without CANN.

Usage: `python scripts/cann_stub.py <folder that holds torch_npu/> <output folder>`

Every symbol that torch_npu wants and nobody here has becomes a function that returns 0. With them
torch_npu registers its operator schemas and its Meta kernels work; nothing that touches a device
does. Needs gcc and nm.
"""

import ctypes
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = ("ascendcl", "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "atb")
"""What the wheel's libraries name as needed; the first one gets all symbols."""

_DATA = ("_ZTV", "_ZTI", "_ZTS")
"""Beginnings of mangled names that are tables, not functions."""


def missing_symbols(site: Path) -> list[str]:
    """Symbols that torch_npu's libraries want and neither they, torch, Python nor libc define.

    Args:
        site: Folder that holds `torch_npu/`.
    """
    own = [*(site / "torch_npu").rglob("*.so"), *site.glob("torch_npu.libs/*.so*")]
    wanted = {name for path in own for name in _symbols(path, "--undefined-only")}
    defined = {name for path in [*own, *_torch_libraries()] for name in _symbols(path, "--defined")}
    process = ctypes.CDLL(None)
    return sorted(name for name in wanted - defined if not _has(process, name))


def build_stub(site: Path, output: Path) -> int:
    """Write the libraries and return how many symbols they stand in for."""
    if missing := [tool for tool in ("gcc", "nm") if shutil.which(tool) is None]:
        raise SystemExit(f"{' and '.join(missing)} not found: install gcc and binutils")
    names = missing_symbols(site)
    output.mkdir(parents=True, exist_ok=True)
    source = output / "stub.c"
    source.write_text("".join(map(_definition, names)), encoding="utf-8")
    empty = output / "empty.c"
    empty.write_text("", encoding="utf-8")
    for library in LIBRARIES:
        text = source if library == LIBRARIES[0] else empty
        target = output / f"lib{library}.so"
        command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{target.name}", "-o", target]
        subprocess.run([*command, text], check=True)
    return len(names)


def _definition(name: str) -> str:
    return f"char {name}[512];\n" if name.startswith(_DATA) else f"long {name}() {{ return 0; }}\n"


def _symbols(path: Path, which: str) -> set[str]:
    """Names in the dynamic table; weak and versioned ones belong to the system's libraries."""
    found = subprocess.run(["nm", "-D", which, path], capture_output=True, text=True, check=True)
    lines = [line.split() for line in found.stdout.splitlines()]
    return {words[-1] for words in lines if "@" not in words[-1] and words[-2] not in "wv"}


def _torch_libraries() -> list[Path]:
    # Located, not imported: that takes seconds and would load an installed torch_npu.
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("torch is not installed in this environment")
    return sorted((Path(spec.origin).parent / "lib").glob("*.so*"))


def _has(library: ctypes.CDLL, name: str) -> bool:
    try:
        library[name]
    except AttributeError:
        return False
    return True


if __name__ == "__main__":
    print(build_stub(Path(sys.argv[1]), Path(sys.argv[2])), "symbols")
