"""Nothing outside the patcher and the device shims changes vllm, torch or transformers."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.boundaries.source_tree import PACKAGE, python_files

FOREIGN = frozenset({"vllm", "torch", "torch_npu", "torchvision", "transformers", "triton"})

DOORS = {
    "patching/patcher.py": "applies patch rows after checking all of them",
    "worker/device/current.py": "lends torch's device names in a context, listed in the receipt",
}
"""Files that may, and why."""


def foreign_names(tree: ast.AST) -> set[str]:
    """Names that a module binds to something foreign, through imports or plain assignments."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in FOREIGN:
                    found.add(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FOREIGN:
            found |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_foreign(node.value, found):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def _is_foreign(value: ast.expr, names: set[str]) -> bool:
    """Whether an expression is a foreign module or attribute: a path, or an import by name."""
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func)
        first = value.args[0] if value.args else None
        text = first.value if isinstance(first, ast.Constant) else ""
        imports = called.endswith("import_module") or called == "__import__"
        return imports and str(text).partition(".")[0] in FOREIGN
    return isinstance(value, ast.Name | ast.Attribute) and _root(value) in names


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _written(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Delete):
        targets = node.targets
    else:
        targets = []
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def changes(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every change to something foreign, or to `sys.modules`."""
    tree = ast.parse(source)
    names = foreign_names(tree)
    for node in ast.walk(tree):
        for target in _written(node):
            inside = isinstance(target, ast.Attribute | ast.Subscript)
            modules = ast.unparse(target).startswith("sys.modules[")
            if inside and (_root(target) in names or modules):
                yield node.lineno, ast.unparse(target)
        if isinstance(node, ast.Call) and _is_change(node):
            yield node.lineno, ast.unparse(node)


def _is_change(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    # What an argument that is not a constant stands for is unknown, so every use counts.
    if called in ("setattr", "delattr"):
        return ast.unparse(call.args[0]) != "self"
    return called in (
        "sys.modules.update",
        "sys.modules.setdefault",
        "sys.modules.pop",
        "object.__setattr__",
        "type.__setattr__",
    )


def violations(package: Path) -> list[str]:
    return [
        f"{path.relative_to(package).as_posix()}:{line}: {text}"
        for path in python_files(package)
        if path.relative_to(package).as_posix() not in DOORS
        for line, text in changes(path.read_text(encoding="utf-8"))
    ]


def test_nothing_else_changes_other_packages():
    assert violations(PACKAGE) == []


def test_every_door_exists_and_is_used():
    for name in DOORS:
        assert list(changes((PACKAGE / name).read_text(encoding="utf-8"))), name


def test_the_check_can_fail(tmp_path):
    package = tmp_path / "ascend_recipes"
    guilty = {
        "a.py": "import torch\ntorch.cuda.Event = None\n",
        "b.py": "import torch.nn as nn\nnn.Module.forward = None\n",
        "c.py": "def f():\n    from vllm.v1.outputs import Out\n    Out.field: int = 1\n",
        "d.py": "import importlib\nmodule = importlib.import_module('vllm.envs')\nmodule.X = 1\n",
        "e.py": "from vllm import envs\ntable = envs.environment\ntable['X'] = 1\n",
        "f.py": "def f(owner):\n    setattr(owner, 'name', 1)\n",
        "g.py": "import sys\nsys.modules['torch_npu'] = None\n",
        "h.py": "import transformers\ndel transformers.logging\n",
        "i.py": "import torch\ntorch.a, torch.b = 1, 2\n",
        "j.py": "import torch\ntorch.backends.x += 1\n",
    }
    innocent = {
        "k.py": "import torch\nx = torch.ones(1)\nx.grad = None\n",
        "l.py": "class A:\n    def f(self):\n        self.x = 1\n        setattr(self, 'y', 2)\n",
    }
    package.mkdir()
    for name, text in (guilty | innocent).items():
        (package / name).write_text(text)
    assert {line.partition(":")[0] for line in violations(package)} == set(guilty)
