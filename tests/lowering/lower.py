"""Lowers Triton kernels to HIVM. Runs inside the lowering environment: triton-ascend, no torch.

`python lower.py request.json response.json`. A case names a kernel, the types of its arguments,
its constants and a target; the answer says which stage it reached and what was found there. One
process serves one generation, because triton-ascend keeps the generation in a global.
"""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROCESSES = 2
"""Compilers of the last stage that run at once."""
OPTIONS_A2_A3 = {"multibuffer": True, "enable_auto_bind_sub_block": True}
OPTIONS_A5 = {
    "compile_on_910_95": True,
    "multibuffer": False,
    "enable_auto_bind_sub_block": False,
    "enable_select_analysis": True,
}
MEMORY = {"ub": "ub", "cbuf": "l1", "cc": "l0c"}
"""Address spaces of the final IR and what people call them."""
CONSTANT = re.compile(r"(%\w+) = (?:arith\.constant |llvm\.mlir\.constant\()(\d+) : i64")
BUFFER = re.compile(
    r"hivm\.hir\.pointer_cast\(([^)]*)\) : memref<([^,>]+), #hivm\.address_space<(\w+)>"
)
REPORTED = re.compile(r"Allocated UB size = (\d+) bits")


def is_a5(target):
    return target.startswith("Ascend950")


def load_kernel(path, name):
    """A kernel from its file, without importing the package that holds it."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def to_ttir(case):
    """Stage 1: Triton's own IR, made by its front end."""
    import triton
    from triton._C.libtriton import ir
    from triton.backends.ascend import compiler as ascend
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = load_kernel(case["file"], case["kernel"])
    names = kernel.arg_names
    signature = {key: case["signature"].get(key, "constexpr") for key in names}
    signature = {key: kind for key, kind in signature.items() if kind != "constexpr"}
    target = GPUTarget("npu", case["target"], 0)
    backend = triton.compiler.make_backend(target)
    defaults = OPTIONS_A5 if is_a5(case["target"]) else OPTIONS_A2_A3
    options = backend.parse_options({**defaults, **case.get("options", {})})
    source = ASTSource(kernel, signature, case["constants"])
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        options, backend.get_codegen_implementation(), backend.get_module_map(), context
    )
    metadata = {"target": target, **options.__dict__}
    return ascend.make_ttir(module, metadata, options), metadata, options


def to_linalg(module, metadata, options):
    """Stage 2: structured operations on tensors, made by triton-adapter-opt."""
    from triton.backends.ascend import compiler as ascend

    text = ascend.ttir_to_linalg(module, metadata, options, named_ops=True)
    return ascend._parse_linalg_metadata(text, metadata)[0]


def to_hivm(text, case, folder):
    """Stage 3: the last IR of the open compiler; memory is planned and synchronized in it.

    The closed compiler that would come next is absent, so the exit code says nothing: the IR is
    written exactly if every open pass has succeeded.
    """
    import ascendnpuir

    binary = Path(ascendnpuir.__file__).parent / "bin" / "bishengir-compile"
    source = Path(folder) / "kernel.ttadapter.mlir"
    source.write_text(text)
    flags = ["--enable-hfusion-compile=true", "--enable-triton-kernel-compile=true"]
    if is_a5(case["target"]):
        binary = binary.with_name("bishengir-compile-a5")
        flags += ["--enable-auto-multi-buffer=false", "--enable-auto-bind-sub-block=false"]
        flags += ["--enable-print-memory-allocated-size"]
    else:
        flags += ["--enable-hivm-compile=true"]
        flags += ["--enable-auto-multi-buffer=true", "--enable-auto-bind-sub-block=true"]
    command = [binary, source, f"--target={case['target']}", *flags, f"--save-temps={folder}"]
    done = subprocess.run(
        [*command, "-o", Path(folder) / "kernel"], capture_output=True, text=True, timeout=120
    )
    found = Path(folder) / "module.hivm.opt.mlir"
    if not found.is_file():
        raise RuntimeError(gist(done.stderr))
    reported = REPORTED.findall(done.stdout + done.stderr)
    return found.read_text(), int(reported[-1]) // 8 if reported else None


def gist(text):
    """The lines of a compiler's output that say what is wrong; its beginning if none does."""
    lines = [line for line in text.splitlines() if "error:" in line or "Assertion" in line]
    return "; ".join(lines)[:800] or text[:800]


def peak_memory(hivm):
    """Highest end of any buffer, in bytes, for each on-chip memory."""
    peak, constants = {}, {}
    for line in hivm.splitlines():
        if "func.func" in line:
            constants = {}  # names of values begin anew
        elif found := CONSTANT.search(line):
            constants[found[1]] = int(found[2])
        elif found := BUFFER.search(line):
            name = MEMORY.get(found[3], found[3])
            for offset in found[1].split(","):
                end = constants[offset.strip()] + bytes_of(found[2])
                peak[name] = max(peak.get(name, 0), end)
    return peak


def bytes_of(shape):
    """Size of a buffer such as `64x16xbf16`; truth values are packed."""
    *sizes, kind = shape.split("x")
    bits = int(re.search(r"\d+", kind)[0])
    return -(-math.prod(map(int, sizes)) * bits // 8)


def library_calls(hivm):
    """Functions that the IR declares and leaves to the device library."""
    return sorted(set(re.findall(r"func\.func private @(\w+)", hivm)))


def missing_calls(hivm, target):
    """Calls that the shipped device library of A2 and A3 does not define; unknown on A5."""
    if is_a5(target):
        return None
    import ascendnpuir

    folder = Path(ascendnpuir.__file__).parent / "lib"
    library = b"".join(path.read_bytes() for path in sorted(folder.glob("meta_op.*.c220.bc")))
    return [name for name in library_calls(hivm) if f"_mlir_ciface_{name}".encode() not in library]


def start(case):
    """Stages 1 and 2, one after the other: Triton's front end knows one kernel at a time."""
    stage = "ttir"
    try:
        module, metadata, options = to_ttir(case)
        stage = "linalg"
        return case, to_linalg(module, metadata, options), None
    except subprocess.CalledProcessError as error:
        message = gist(error.stderr.decode())
    except Exception as error:  # noqa: BLE001 - every stage has its own errors
        message = f"{type(error).__name__}: {error}"
    return case, "", {"stage": stage, "lowered": False, "message": message}


def finish(started):
    """Stage 3, and what is to be known about its result."""
    case, text, failure = started
    if failure:
        return failure
    try:
        with tempfile.TemporaryDirectory() as folder:
            hivm, reported = to_hivm(text, case, folder)
    except RuntimeError as error:
        return {"stage": "hivm", "lowered": False, "message": str(error)}
    return {
        "stage": "done",
        "lowered": True,
        "message": "",
        "peak": peak_memory(hivm),
        "reported_ub": reported,
        "calls": len(library_calls(hivm)),
        "missing": missing_calls(hivm, case["target"]),
        "inline_assembly": hivm.count("llvm.inline_asm"),
    }


def main(request_path, response_path):
    cases = json.loads(Path(request_path).read_text())
    if any(is_a5(case["target"]) for case in cases):
        import triton.language as tl

        assert all(is_a5(case["target"]) for case in cases), "one generation a process"
        tl.dtype.to_ir.__globals__["is_compile_on_910_95"] = True
    with ThreadPoolExecutor(PROCESSES) as pool:
        results = list(pool.map(finish, [start(case) for case in cases]))
    Path(response_path).write_text(json.dumps(results))


if __name__ == "__main__":
    # A cache that a true compiler could read must never hold what was made here.
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        main(sys.argv[1], sys.argv[2])
