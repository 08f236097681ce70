"""The text of a recipe file that was made of commands."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from ascend_recipes.rendering.recipe_tree import ImportedRecipe, Tree
from ascend_recipes.schema.base import Json

_PRESETS: Mapping[str, Mapping[str, str]] = {
    "attention": {},
    "cache": {},
    "quant": {},
    "drafter": {},
    "graph": {"full": "full_decode", "full_and_piecewise": "piecewise"},
    "runtime": {},
}
"""Groups whose preset gives the kind, and kinds that build on another one's preset."""

_ORDER = ("about", "source", "model", "hardware", "nodes")
_COMPOSED = ("schema_version", "name", "device", "scale")
"""What composition sets by itself."""

_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """Short lists and mappings stay on one line."""


def recipe_text(imported: ImportedRecipe) -> str:
    """A recipe file; what could not be carried over stands in comments at its top."""
    tree = {key: value for key, value in imported.tree.items() if key not in _COMPOSED}
    defaults = list(_defaults(tree))
    lines = ["# @package _global_", *_comments(imported)]
    lines += ["defaults:", *(f"  - override /{group}: {preset}" for group, preset in defaults)]
    ordered: Tree = {key: tree.pop(key) for key in _ORDER if key in tree}
    body = {key: value for key, value in (ordered | tree).items() if value != {}}
    text = yaml.dump(
        body,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=_WIDTH,
        default_flow_style=False,
    )
    return "\n".join(lines) + "\n" + text


def write_beside(text: str, path: Path) -> None:
    """Write a file whole: beside its place first, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _defaults(tree: Tree) -> Iterator[tuple[str, str]]:
    """Presets that bring the kinds; a kind that is its preset's own is not said again."""
    for group, instead in _PRESETS.items():
        section = tree.get(group)
        if not isinstance(section, dict):
            continue
        kind = str(section.get("kind"))
        yield group, instead.get(kind, kind)
        if kind not in instead:
            tree[group] = {key: value for key, value in section.items() if key != "kind"}
    if "roles" in tree:
        yield "roles", "split"


def _comments(imported: ImportedRecipe) -> Iterator[str]:
    if imported.unmapped:
        yield "# Not carried over:"
        for item in imported.unmapped:
            yield f"#   {item.target} {_short(item.value)}: {item.reason}"
    if imported.assumed:
        yield "# Not said by the command, taken as it would be:"
        for path, why in imported.assumed.items():
            yield f"#   {path}: {why}"
    if imported.site:
        yield "# For the site file:"
        dumped = yaml.safe_dump(dict(imported.site), sort_keys=False, allow_unicode=True)
        yield from (f"#   {line}" for line in dumped.splitlines())


def _short(value: str) -> str:
    line = " ".join(value.split())
    return line if len(line) <= _WIDTH // 2 else f"{line[: _WIDTH // 2]}…"


def _represent_list(dumper: yaml.SafeDumper, items: list[Json]) -> yaml.Node:
    flat = all(not isinstance(item, list | dict) for item in items) and len(str(items)) < _WIDTH
    numbers = flat and all(isinstance(item, int | float) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=numbers)


def _represent_dict(dumper: yaml.SafeDumper, tree: dict[str, Json]) -> yaml.Node:
    flat = all(not isinstance(item, list | dict) for item in tree.values())
    return dumper.represent_mapping(
        "tag:yaml.org,2002:map", tree, flow_style=bool(flat and len(str(tree)) < _WIDTH - 20)
    )


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(dict, _represent_dict)
