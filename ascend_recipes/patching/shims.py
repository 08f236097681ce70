"""Names of torch that the device runtime lends, read from its source without importing torch."""

import ast

from ascend_recipes.paths import PACKAGE

RUNTIME = "worker/device/npu.py"
"""The one module that names what an NPU substitutes."""


def device_shims() -> tuple[str, ...]:
    """Dotted names that `NpuRuntime.substitutes` lists, sorted."""
    tree = ast.parse((PACKAGE / RUNTIME).read_text(encoding="utf-8"))
    (function,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "substitutes"
    )
    found = (node for node in ast.walk(function) if isinstance(node, ast.Dict))
    keys = (key for node in found for key in node.keys)
    return tuple(sorted(str(key.value) for key in keys if isinstance(key, ast.Constant)))
