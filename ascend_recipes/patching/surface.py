"""What we rely on in vLLM: hooks, classes that we derive from, names that we import.

Read from our registry and sources without importing either side. A renamed hook breaks us as
silently as a drifted patch would, so all of it is in one report.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from ascend_recipes.patching.compatibility import Function
from ascend_recipes.patching.sources import FolderSources
from ascend_recipes.patching.tree import SourceTree, Symbol
from ascend_recipes.paths import PACKAGE
from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.hook import HookKind, HookRow

UPSTREAM = "vllm"

Exists: TypeAlias = Callable[[str], bool]
"""Whether vLLM itself defines a target."""

_FIXED_TARGETS = {
    HookKind.PLATFORM: "vllm.plugins:PLATFORM_PLUGINS_GROUP",
    HookKind.MODEL: "vllm.model_executor.models.registry:ModelRegistry",
    HookKind.QUANTIZATION: ("vllm.model_executor.layers.quantization:register_quantization_config"),
}
_CALLED_AS = {"forward_oot": "forward_native"}
"""Entry of ours -> method of vLLM whose arguments it receives and whose result it must equal."""

_STATE_BACKENDS = "vllm.v1.attention.backends.registry:MambaAttentionBackendEnum"


@dataclass(frozen=True, kw_only=True)
class Override:
    """A method of ours that stands in front of one of vLLM's."""

    name: str
    target: str
    """Method of vLLM, named on the class that we derive from."""
    node: Function
    calls_super: bool
    line: int


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A class of ours that derives from classes of vLLM."""

    ours: str
    bases: tuple[str, ...]
    """Classes of vLLM as we import them, nearest first."""
    methods: tuple[Override, ...]
    """Methods of ours; those that vLLM lacks are our own and override nothing."""


@dataclass(frozen=True, kw_only=True)
class HookUse:
    """One hook row with the definition that it depends on."""

    key: str
    row: HookRow
    target: str


@dataclass(frozen=True, kw_only=True)
class ImportUse:
    """A name that we import from vLLM."""

    target: str
    where: str
    """`file:line` below our package."""


@dataclass(frozen=True)
class Surface:
    """Everything of vLLM that we rely on by name."""

    hooks: tuple[HookUse, ...]
    extensions: tuple[Extension, ...]
    imports: tuple[ImportUse, ...]

    @cached_property
    def uses(self) -> dict[str, tuple[str, ...]]:
        """Definition of vLLM -> what of ours relies on it."""
        found: dict[str, list[str]] = {}
        for hook in self.hooks:
            found.setdefault(hook.target, []).append(f"hook {hook.key}")
        for extension in self.extensions:
            for base in extension.bases:
                found.setdefault(base, []).append(f"subclass {extension.ours}")
            for method in extension.methods:
                how = "with super" if method.calls_super else "without super"
                found.setdefault(method.target, []).append(f"override {extension.ours} {how}")
        for item in self.imports:
            found.setdefault(item.target, []).append(f"import {item.where.partition(':')[0]}")
        return {target: tuple(sorted(set(uses))) for target, uses in sorted(found.items())}


def our_surface(registry: Registry, exists: Exists) -> Surface:
    """Read our registry and sources.

    Args:
        registry: For the hook rows.
        exists: Tells which of our methods override one of vLLM's.
    """
    ours = SourceTree(FolderSources(PACKAGE.name, PACKAGE))
    hooks = tuple(_hook_uses(registry, exists))
    extensions: list[Extension] = []
    imports: list[ImportUse] = []
    for path in ours.sources.paths():
        text = ours.sources.read(path) or ""
        if UPSTREAM not in text or path.startswith(("_data/", "patching/")):
            continue
        tree = ast.parse(text)
        imports += _imports(tree, path)
        extensions += _extensions(tree, path, ours, exists)
    return Surface(hooks, tuple(extensions), tuple(imports))


def split_target(dotted: str, exists: Exists) -> str:
    """`module:qualname` for a dotted name; where nothing fits, the last part is the name."""
    parts = dotted.split(".")
    splits = [
        f"{'.'.join(parts[:length])}:{'.'.join(parts[length:])}"
        for length in range(len(parts) - 1, 0, -1)
    ]
    return next((split for split in splits if exists(split)), (splits or [dotted])[0])


def _hook_uses(registry: Registry, exists: Exists) -> Iterator[HookUse]:
    for key, row in registry.hooks.items():
        if row.kind in _FIXED_TARGETS:
            target = _FIXED_TARGETS[row.kind]
        elif row.kind is HookKind.STATE_BACKEND:
            target = f"{_STATE_BACKENDS}.{row.target}"
        else:
            target = row.target if ":" in row.target else split_target(row.target, exists)
        yield HookUse(key=key, row=row, target=target)


def _imports(tree: ast.Module, path: str) -> Iterator[ImportUse]:
    for node in ast.walk(tree):
        module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
        if module and isinstance(node, ast.ImportFrom) and module.partition(".")[0] == UPSTREAM:
            for alias in node.names:
                yield ImportUse(target=f"{module}:{alias.name}", where=f"{path}:{node.lineno}")


def _extensions(
    tree: ast.Module, path: str, ours: SourceTree, exists: Exists
) -> Iterator[Extension]:
    module = ".".join([PACKAGE.name, *path.removesuffix(".py").split("/")])
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        symbol = ours.find(f"{module}:{node.name}")
        bases = tuple(_upstream_bases(symbol, ours)) if symbol else ()
        if bases:
            methods = tuple(_overrides(node, bases, exists))
            yield Extension(ours=f"{module}:{node.name}", bases=bases, methods=methods)


def _upstream_bases(symbol: Symbol, ours: SourceTree) -> Iterator[str]:
    for base in ours.base_classes(symbol):
        if base.kind == "external" and base.home.partition(".")[0] == UPSTREAM:
            yield base.home


def _overrides(node: ast.ClassDef, bases: tuple[str, ...], exists: Exists) -> Iterator[Override]:
    for item in node.body:
        if not isinstance(item, Function):
            continue
        for base in bases:
            target = f"{base}.{_CALLED_AS.get(item.name, item.name)}"
            if exists(target):
                yield Override(
                    name=item.name,
                    target=target,
                    node=item,
                    calls_super=_calls_super(item),
                    line=item.lineno,
                )
                break


def _calls_super(node: Function) -> bool:
    return any(
        isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id == "super"
        for item in ast.walk(node)
    )
