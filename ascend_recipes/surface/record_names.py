"""Records variables, architectures and overwritten fields from the sources of a release."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.surface import ValueKind
from ascend_recipes.surface.source_tree import (
    Module,
    SourceTree,
    Unknown,
    dotted_name,
)

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]")
_TABLES = ("environment_variables", "env_variables")
_READERS = ("getenv", "environ.get", "environ.pop")
_KINDS: dict[str, ValueKind] = {"bool": "bool", "int": "int", "float": "float", "str": "text"}
_OVERWRITING = "_fix_incompatible_config"


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable that the sources read."""

    source: str
    kind: ValueKind = "any"
    registered: bool = False


def record_variables(tree: SourceTree) -> dict[str, Variable]:
    """Variables in the package's own table, then those that it reads elsewhere.

    vLLM reads many variables of other software; of those elsewhere only its own are kept.
    """
    found = dict(_registered(tree))
    for module in tree.mentioning("environ", "getenv"):
        for name, node in _reads(module.tree):
            if tree.package != "vllm" or name.startswith("VLLM_"):
                found.setdefault(name, Variable(source=tree.cite(module, node)))
    return dict(sorted(found.items()))


def record_architectures(tree: SourceTree) -> dict[str, str]:
    """Architecture -> place of its registration."""
    if tree.package == "vllm":
        return dict(sorted(_listed(tree)))
    found: dict[str, str] = {}
    for module in tree.mentioning("register_model"):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and dotted_name(node.func).endswith(".register_model"):
                name = tree.value(module, node.args[0]) if node.args else None
                if isinstance(name, str):
                    found.setdefault(name, tree.cite(module, node))
    return dict(sorted(found.items()))


@dataclass(frozen=True, kw_only=True)
class Reset:
    """A field that the platform overwrites."""

    source: str
    value: Json


def record_resets(tree: SourceTree) -> dict[str, Reset]:
    """`parallelconfig.enable_dbo` -> what vllm-ascend sets it to."""
    module = tree.module(f"{tree.package}.platform")
    found: dict[str, Reset] = {}
    for node in ast.walk(module.tree) if module else ():
        if isinstance(node, ast.FunctionDef) and node.name == _OVERWRITING and module:
            for owner, name, value, place in _overwritten(node):
                plain = tree.value(module, value)
                if not isinstance(plain, Unknown) and not name.startswith("_"):
                    key = f"{owner.replace('_', '')}.{name}"
                    found[key] = Reset(source=tree.cite(module, place), value=plain)
    return dict(sorted(found.items()))


def _registered(tree: SourceTree) -> Iterator[tuple[str, Variable]]:
    module = tree.module(f"{tree.package}.envs")
    if module is None:
        return
    annotations = {
        node.target.id: node.annotation
        for node in ast.walk(module.tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for table in _TABLES:
        definition = module.definitions.get(table)
        if isinstance(definition, ast.Dict):
            for key, value in zip(definition.keys, definition.values, strict=True):
                if isinstance(key, ast.Constant):
                    name = str(key.value)
                    kind = _annotated(annotations.get(name)) or _returned(value)
                    source = tree.cite(module, key)
                    yield name, Variable(source=source, kind=kind, registered=True)


def _annotated(node: ast.expr | None) -> ValueKind | None:
    """Kind of `int | None` and the like; None where the annotation says more than one."""
    if node is None:
        return None
    names = [word for word in re.findall(r"\w+", ast.unparse(node)) if word != "None"]
    return _KINDS.get(names[0], "any") if len(names) == 1 else "any"


def _returned(node: ast.expr) -> ValueKind:
    """Kind of what `lambda: bool(int(os.getenv(…)))` returns."""
    if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Call):
        name = dotted_name(node.body.func)
        return "text" if name.endswith("getenv") else _KINDS.get(name, "any")
    return "any"


def _reads(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(tree):
        name: ast.expr | None = None
        if isinstance(node, ast.Call) and dotted_name(node.func).endswith(_READERS):
            name = node.args[0] if node.args else None
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            name = node.slice if _is_environment(node.value) else None
        elif isinstance(node, ast.Compare) and _is_environment(node.comparators[0]):
            name = node.left
        if isinstance(name, ast.Constant) and _VARIABLE.fullmatch(str(name.value)):
            yield str(name.value), node


def _is_environment(node: ast.expr) -> bool:
    return dotted_name(node) in ("os.environ", "environ")


def _listed(tree: SourceTree) -> Iterator[tuple[str, str]]:
    module = tree.module("vllm.model_executor.models.registry")
    assert isinstance(module, Module), f"no model registry below {tree.folder}"
    for name, definition in module.definitions.items():
        if name.startswith("_") and name.endswith("_MODELS") and isinstance(definition, ast.Dict):
            for key in definition.keys:
                if isinstance(key, ast.Constant):
                    yield str(key.value), tree.cite(module, key)


def _overwritten(
    function: ast.FunctionDef,
) -> Iterator[tuple[str, str, ast.expr, ast.AST]]:
    """Owner, field, value and place of each assignment to a field of a configuration."""
    aliases: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            aliases[node.targets[0].id] = _configuration(node.value, {})
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            if owner := _configuration(target.value, aliases):
                yield owner, target.attr, node.value, node
        elif isinstance(node, ast.For):
            yield from _looped(node, function, aliases)


def _looped(
    loop: ast.For, function: ast.FunctionDef, aliases: dict[str, str]
) -> Iterator[tuple[str, str, ast.expr, ast.AST]]:
    """`for flag in [...]: setattr(config, flag, False)`."""
    items = _named_list(loop.iter, function)
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and dotted_name(node.func) == "setattr":
            owner = _configuration(node.args[0], aliases)
            for item in items if owner else ():
                yield owner, str(item.value), node.args[2], item


def _named_list(node: ast.expr, function: ast.FunctionDef) -> list[ast.Constant]:
    if isinstance(node, ast.Name):
        for item in ast.walk(function):
            if isinstance(item, ast.Assign) and dotted_name(item.targets[0]) == node.id:
                return _named_list(item.value, function)
    if isinstance(node, ast.List | ast.Tuple):
        return [item for item in node.elts if isinstance(item, ast.Constant)]
    return []


def _configuration(node: ast.expr, aliases: dict[str, str]) -> str:
    """`parallel_config` of `vllm_config.parallel_config`, of a name for it, or of a getattr."""
    if isinstance(node, ast.IfExp):
        return _configuration(node.body, aliases)
    if isinstance(node, ast.Call) and dotted_name(node.func) == "getattr":
        name = node.args[1]
        text = str(name.value) if isinstance(name, ast.Constant) else ""
        return text if text.endswith("_config") else ""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, "")
    if isinstance(node, ast.Attribute) and node.attr.endswith("_config"):
        return "" if node.attr == "vllm_config" else node.attr
    return ""
