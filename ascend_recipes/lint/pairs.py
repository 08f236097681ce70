"""Judges prefill and decode commands as pairs: those of one file, and of scripts side by side.

Commands of one deployment stand together: prefill commands, and the decode commands after them; or
a script of each role in one folder. A decode command is judged with each of its prefill commands,
for every possibility that the text leaves open, and only what is said every time is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ascend_recipes.errors import Finding, RecipeError, Source
from ascend_recipes.lint.agreement import agreed_findings, one_at_a_time
from ascend_recipes.lint.arguments import read_json
from ascend_recipes.lint.files import MARKDOWN
from ascend_recipes.lint.offers import hold_in, with_words
from ascend_recipes.lint.places import TRANSFER_KEYS, place_of, typed_fix
from ascend_recipes.lint.recipe_rules import (
    FOR_ANY_MODEL,
    OF_COMMANDS,
    POSSIBLE_VARIABLES,
    known_part,
    possible_hardware,
    possible_models,
)
from ascend_recipes.lint.stand_ins import registry_with_stand_ins
from ascend_recipes.registry.load import Registry
from ascend_recipes.rendering.imported import ImportedCommand
from ascend_recipes.rendering.importing import import_command
from ascend_recipes.rendering.recipe_tree import recipe_tree
from ascend_recipes.rendering.table import TRANSFER
from ascend_recipes.resolve import ResolvedRecipe, look_up
from ascend_recipes.rules import PAIR_RULES, PairRule
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.roles import role_recipe

if TYPE_CHECKING:
    from ascend_recipes.lint.judge import JudgedCommand


@dataclass(frozen=True)
class _Half:
    """One command of a pair."""

    judged: JudgedCommand
    imported: ImportedCommand
    hardware: tuple[str, ...]
    """Generations that it may be for."""
    open_paths: frozenset[str]
    """Recipe paths of counts that variables hold."""

    @property
    def row(self) -> Json:
        """Row of its model; none where there is none, or only a run knows it."""
        return self.imported.overrides.get("model")

    @property
    def model(self) -> Json:
        """What tells deployments apart: the row, or else the name or path as it is written."""
        word = self.judged.arguments.model
        return self.row or (word.text if word is not None else None)


@dataclass(frozen=True)
class _Pair:
    """One recipe that the two commands of a pair may mean."""

    prefill: ImportedCommand
    decode: ImportedCommand
    declared: Mapping[str, Mapping[str, Json]]
    """Role -> sizes of both roles that its transfer declares."""
    hardware: str
    version: str
    registry: Registry

    def ask(self, rules: Iterable[PairRule]) -> list[tuple[PairRule, Finding]] | None:
        """What rules say, each with its rule; none if it makes no recipe."""
        try:
            prefill, decode = self._views(())
            return [(rule, item) for rule in rules for item in rule(prefill, decode)]
        except (ValidationError, RecipeError):
            return None

    def everything(self, added: Sequence[str] = ()) -> Sequence[Finding] | None:
        """What all rules say of the pair and of each role."""
        try:
            views = self._views(added)
            of_both = [item for rule in PAIR_RULES for item in rule(*views)]
            return of_both + [i for view in views for rule in OF_COMMANDS for i in rule(view)]
        except (ValidationError, RecipeError):
            return None

    def _views(self, added: Sequence[str]) -> tuple[ResolvedRecipe, ResolvedRecipe]:
        tree = recipe_tree(
            [self.prefill, self.decode],
            hardware=self.hardware,
            version=self.version,
            registry=self.registry,
        ).tree
        self._declare(tree)
        recipe = Recipe.model_validate_json(json.dumps(tree))
        changed = with_words(recipe, added) if added else recipe
        prefill, decode = (
            look_up(role_recipe(changed, role), self.registry, lambda _: None)
            for role in ("prefill", "decode")
        )
        return prefill, decode

    def _declare(self, tree: dict[str, Json]) -> None:
        """Put back what the import leaves to rendering: sizes that are written by hand."""
        for role, sizes in self.declared.items():
            options = f"roles.{role}.transfer.options"
            node: Json = tree
            for key in options.split("."):
                assert isinstance(node, dict)
                node = node.setdefault(key, {})
            assert isinstance(node, dict)
            node.update(sizes)


def judge_pairs(judged: Sequence[JudgedCommand], version: str) -> Iterator[Finding]:
    """What rules about both roles say of the commands of one file."""
    halves = [half for item in judged if (half := _half(item, version)) is not None]
    for prefills, decodes in _deployments(halves):
        for decode in decodes:
            yield from _agreed(prefills, decode, version)


def judge_folders(judged: Iterable[JudgedCommand], version: str) -> Iterator[Finding]:
    """What they say of scripts and manifests in one folder that hold one role each.

    Pages are left out: two that stand side by side tell of two deployments. So are files of which
    only a run knows what some of their commands are.
    """
    folders: dict[Path, dict[str, list[JudgedCommand]]] = {}
    for item in judged:
        path = Path(item.command.file)
        if path.suffix.lower() not in MARKDOWN and _moves_caches(item):
            folders.setdefault(path.parent, {}).setdefault(item.command.file, []).append(item)
    for files in folders.values():
        roles = _roles_apart(files.values(), version) if len(files) > 1 else {}
        for decode in roles.get("decode", ()):
            related = [half for half in roles.get("prefill", ()) if _are_related(half, decode)]
            yield from _agreed(related, decode, version)


def _roles_apart(files: Iterable[Sequence[JudgedCommand]], version: str) -> dict[str, list[_Half]]:
    """Commands by role, of files that hold one role and nothing unknown."""
    found: dict[str, list[_Half]] = {}
    for commands in files:
        halves = [half for item in commands if (half := _half(item, version)) is not None]
        roles = {half.imported.role for half in halves}
        if len(halves) == len(commands) and len(roles) == 1:
            found.setdefault(roles.pop(), []).extend(halves)
    return found


def _agreed(prefills: Sequence[_Half], decode: _Half, version: str) -> Iterator[Finding]:
    """What is said of a decode command with each of its prefill commands."""
    found = [_judge(prefill, decode, version) for prefill in prefills]
    for key, item in found[0].items() if found else ():
        if all(key in other for other in found):
            yield item


def _moves_caches(judged: JudgedCommand) -> bool:
    return any(item.flag == TRANSFER for item in judged.arguments.items)


def _half(judged: JudgedCommand, version: str) -> _Half | None:
    """A command with the role of a prefill or decode, as far as a run need not be asked."""
    if not _moves_caches(judged):
        return None
    reading = known_part(judged.command, judged.arguments)
    if judged.arguments.is_open or reading.unknown:
        return None
    registry = registry_with_stand_ins()
    imported = import_command(reading.argv, reading.env, version=version, registry=registry)
    if imported.role == "serve" or any(path.startswith("parallel.") for path in reading.counts):
        return None
    hardware = tuple(possible_hardware(judged.command))
    return _Half(judged, imported, hardware, frozenset(reading.counts))


def _deployments(halves: Sequence[_Half]) -> Iterator[tuple[list[_Half], list[_Half]]]:
    """Prefill and decode commands that belong together: files show one role after the other."""
    found: dict[str, list[_Half]] = {"prefill": [], "decode": []}
    for half in halves:
        role = half.imported.role
        if role == halves[0].imported.role and all(found.values()):
            yield found["prefill"], found["decode"]
            found = {"prefill": [], "decode": []}
        found[role].append(half)
    if all(found.values()):
        yield found["prefill"], found["decode"]


def _shared_hardware(prefill: _Half, decode: _Half) -> list[str]:
    return [name for name in decode.hardware if name in prefill.hardware]


def _are_related(prefill: _Half, decode: _Half) -> bool:
    """Whether the two may be of one deployment."""
    return prefill.model == decode.model and bool(_shared_hardware(prefill, decode))


def _judge(prefill: _Half, decode: _Half, version: str) -> dict[tuple[str, str], Finding]:
    """Findings of a pair by id and place, with their lines."""
    hardware = _shared_hardware(prefill, decode)
    ours, theirs = possible_models(prefill.imported), possible_models(decode.imported)
    if not _are_related(prefill, decode) or len(ours) != len(theirs):
        return {}
    registry = registry_with_stand_ins()
    declared = {"prefill": _declared(prefill), "decode": _declared(decode)}
    axes = (list(zip(ours, theirs, strict=True)), hardware, POSSIBLE_VARIABLES)
    possibilities = [
        _Pair(_with(first, env), _with(second, env), declared, name, version, registry)
        for (first, second), name, env in one_at_a_time(axes)
    ]
    agreed = agreed_findings(
        possibilities, PAIR_RULES, lambda item: _is_supported(item, prefill, decode)
    )
    held = hold_in(possibilities[0], agreed or ())
    return {(item.id, item.at): _placed(item, prefill, decode, version) for item in held}


def _declared(half: _Half) -> dict[str, Json]:
    """Sizes of both roles that a transfer declares, those that are numbers."""
    found: dict[str, Json] = {}
    for item in half.judged.arguments.items:
        tree = read_json(item.values[0]) if item.flag == TRANSFER and item.is_json else None
        extra = tree.get("kv_connector_extra_config") if isinstance(tree, dict) else None
        for role in ("prefill", "decode"):
            sizes = extra.get(role) if isinstance(extra, dict) else None
            if isinstance(sizes, dict):
                found[role] = {k: size for k, size in sizes.items() if isinstance(size, int)}
    return found


def _with(imported: ImportedCommand, env: object) -> ImportedCommand:
    assert isinstance(env, dict)
    return replace(imported, overrides={**env, **imported.overrides})


def _is_supported(item: Finding, prefill: _Half, decode: _Half) -> bool:
    """Whether both commands state what the finding is about, or need not."""
    path = _bare(item.at)
    for half in (prefill, decode):
        if path in half.imported.assumed or path in half.open_paths:
            return False
        if (
            path.startswith("drafter.")
            and "extra_args.speculative_config" in half.imported.overrides
        ):
            return False
        if path in TRANSFER_KEYS and not _says(half, TRANSFER_KEYS[path]):
            return False
    return prefill.row is not None or item.id.partition(".")[0] in FOR_ANY_MODEL


def _says(half: _Half, key: str) -> bool:
    """Whether the transfer of a command has a key."""
    return any(
        item.flag == TRANSFER and any(f'"{key}"' in word.text for word in item.values)
        for item in half.judged.arguments.items
    )


def _placed(item: Finding, prefill: _Half, decode: _Half, version: str) -> Finding:
    """The finding at the line of the role that it is about; prefill's where both say the same."""
    half = decode if item.at.startswith("roles.decode.") else prefill
    command, arguments = half.judged.command, half.judged.arguments
    line = place_of(item.at, command, arguments, version).line
    source = Source(origin=command.file, line=line)
    return replace(item, source=source, fix=typed_fix(item.fix, version))


def _bare(path: str) -> str:
    """A recipe path without the role in front."""
    return path.split(".", 2)[2] if path.startswith("roles.") and path.count(".") > 1 else path
