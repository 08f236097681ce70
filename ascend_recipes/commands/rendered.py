"""`explain` for rendered commands: what gives a flag, JSON key or variable, and what a field gives.

A name is written as on the command line: `--max-num-seqs`, `--additional-config.enable_dsa_cp`,
`HCCL_BUFFSIZE`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ascend_recipes.commands.explain import RECIPE, Explanation, explain, schema_source, schema_text
from ascend_recipes.compose import Composition
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import recipe_error
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.rendering.command import RenderedCommand
from ascend_recipes.rendering.render import field_value
from ascend_recipes.rendering.table import ROWS, Row, rows_by_target
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.suggest import closest
from ascend_recipes.surface import load_surface
from ascend_recipes.surface.flags import resolve_flag

COMMAND = "command"
_MODEL = "MODEL"
"""Target of the one argument without a flag."""

_VARIABLE = re.compile(r"\$?[A-Z][A-Z0-9_]*\Z")
_PATH = re.compile(rf"\b(?:{'|'.join(Recipe.model_fields)})\.[a-z_]+(?:\.[a-zA-Z_]+)*|^nodes$")
_ROLE = re.compile(r"roles\.[a-z]+\.(?=[a-z]+\.)")
_ROW = re.compile(r"(models|quantization) row (\S+)")


def is_argument(key: str) -> bool:
    """Whether a key names a flag or a variable rather than a value of plan or recipe."""
    return key.startswith("--") or _VARIABLE.match(key) is not None


def explain_argument(
    composition: Composition, planned: PlannedLaunch, key: str
) -> tuple[Explanation, ...]:
    """Explain a flag, a key inside a JSON flag, or a variable, for each process that differs.

    The native runtime has no commands: there it is the plan's engine, server or environment that
    says the same.

    Raises:
        RecipeError: neither a command nor the plan says it (exit code 2).
    """
    commands = planned.commands
    if not commands:
        if found := _planned_argument(composition, planned, key):
            return found
        fix = f"ascend-run explain {key} recipe={composition.name} runtime=vllm_ascend"
        raise recipe_error("explain.no_commands", at=key, fix=fix, exit_code=ExitCode.USAGE)
    target = _canonical(key, planned.resolved)
    found = tuple(_said(target, commands, composition, planned.resolved))
    found = found or tuple(_unsaid(target, composition, planned.resolved))
    if not found:
        raise _not_rendered(key, target, commands, planned.resolved)
    return found


def _planned_argument(
    composition: Composition, planned: PlannedLaunch, key: str
) -> tuple[Explanation, ...]:
    """Values of the plan under the name of a flag or a variable; none where it has no such."""
    name = key.removeprefix("$")
    places = [f"env.{name}"]
    if key.startswith("--"):
        head, dot, rest = key.partition(".")
        resolved = planned.resolved
        known = resolve_flag(load_surface(resolved.runtime.vllm[resolved.runtime_version]), head)
        name = (known[0].name if known else head).removeprefix("--").replace("-", "_")
        places = [f"engine.{name}{dot}{rest}", f"server.{name}{dot}{rest}"]
    leaves = explain(composition, planned)
    return tuple(item for item in leaves if any(_names(place, item.key) for place in places))


def with_rendering(found: Sequence[Explanation], planned: PlannedLaunch) -> tuple[Explanation, ...]:
    """Recipe values with the arguments that they are rendered into."""
    commands = planned.commands
    return tuple(
        replace(item, renders=tuple(_renders(item.key, commands))) if item.part == RECIPE else item
        for item in found
    )


def _canonical(key: str, resolved: ResolvedRecipe) -> str:
    """The name under which rendering knows an argument; other spellings of flags are known."""
    if not key.startswith("--"):
        return f"${key.removeprefix('$')}"
    head, dot, rest = key.partition(".")
    if head == "--model":
        return _MODEL
    known = resolve_flag(load_surface(resolved.runtime_version), head)
    return f"{known[0].name if known else head}{dot}{rest}"


def _said(
    target: str,
    commands: Sequence[RenderedCommand],
    composition: Composition,
    resolved: ResolvedRecipe,
) -> Iterator[Explanation]:
    """What the commands say, equal processes together."""
    groups: dict[tuple[str, str, str], list[RenderedCommand]] = {}
    for command in commands:
        values = argument_values(command)
        for name, because in command.reasons.items():
            if _names(target, name) and not isinstance(values.get(name), dict):
                spelled = json.dumps(values.get(name), ensure_ascii=False)
                groups.setdefault((name, spelled, because), []).append(command)
    for (name, spelled, because), members in groups.items():
        yield Explanation(
            key=name,
            part=COMMAND,
            value=json.loads(spelled),
            layers=_layers(because, composition, resolved),
            because=_because(because, resolved.recipe),
            processes=tuple(_processes(members, commands)),
        )


def _unsaid(
    target: str, composition: Composition, resolved: ResolvedRecipe
) -> Iterator[Explanation]:
    """Fields that would say it, where their value is what the runtime does by itself."""
    for row in _rows(target, resolved):
        held = field_value(resolved.recipe, row.path)
        if held is not None:
            yield Explanation(
                key=target,
                part=COMMAND,
                value=None,
                layers=_layers(row.path, composition, resolved),
                because=f"left out: {row.path} = {json.dumps(held.value)}; "
                + schema_text(row.path, resolved.recipe),
            )


def _rows(target: str, resolved: ResolvedRecipe) -> tuple[Row, ...]:
    versions = resolved.runtime.versions
    return tuple(
        row
        for row in rows_by_target().get(target, ())
        if row.serves(resolved.runtime_version, versions)
    )


def argument_values(command: RenderedCommand) -> dict[str, Json]:
    """Value of every target of a command: flags, keys inside JSON flags, variables, the model."""
    values: dict[str, Json] = {f"${name}": value for name, value in command.env.items()}
    words = list(command.argv[2:])
    values[_MODEL] = words.pop(0)
    for flag, value in _flags(words):
        values.update(_leaves(flag, value))
    return values


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Json]]:
    """Flags with their values, as rendering writes them."""
    index = 0
    while index < len(words):
        flag, equals, attached = words[index].partition("=")
        index += 1
        taken = [attached] if equals else []
        while index < len(words) and not words[index].startswith("--"):
            taken.append(words[index])
            index += 1
        read = [_read(word) for word in taken]
        if read:
            yield flag, read[0] if len(read) == 1 else read
        else:
            yield flag.replace("--no-", "--", 1), not flag.startswith("--no-")


def _read(word: str) -> Json:
    try:
        value: Json = json.loads(word)
    except ValueError:
        return word
    return value


def _leaves(target: str, value: Json) -> Iterator[tuple[str, Json]]:
    yield target, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{target}.{key}", item)


def _layers(because: str, composition: Composition, resolved: ResolvedRecipe) -> tuple[str, ...]:
    """Lines that set what a reason names: a recipe path, or a row of the registry."""
    if row := _ROW.search(because):
        table = resolved.registry.models if row[1] == "models" else resolved.registry.quantization
        return (str(table.source(row[2])),)
    if (path := _path(because)) is None:
        return (because,)
    shared = _ROLE.sub("", path)
    set_by = [
        *composition.provenance.get(shared, ()),
        *(composition.provenance.get(path, ()) if path != shared else ()),
    ]
    below = [
        layers[-1]
        for key, layers in composition.provenance.items()
        if key.startswith(f"{path}.") and not set_by
    ]
    schema = schema_source(shared, resolved.recipe)
    return tuple(dict.fromkeys(map(str, (schema, *set_by, *below))))


def _because(because: str, recipe: Recipe) -> str:
    path = _path(because)
    if path is None:
        return because
    return f"{because}: {schema_text(_ROLE.sub('', path), recipe)}"


def _path(because: str) -> str | None:
    found = _PATH.search(because)
    return found[0] if found else None


def _processes(
    members: Sequence[RenderedCommand], commands: Sequence[RenderedCommand]
) -> Iterator[str]:
    """Names of processes; a role where all of its processes are meant, nothing for all."""
    if len(members) == len(commands):
        return
    for role in dict.fromkeys(item.role for item in commands):
        everyone = [item for item in commands if item.role == role]
        meant = [item for item in members if item.role == role]
        if len(meant) == len(everyone):
            yield role
            continue
        for item in meant:
            rank = "" if item.rank is None else f" rank {item.rank}"
            yield f"{role} node {item.node}{rank}"


def _renders(path: str, commands: Iterable[RenderedCommand]) -> Iterator[str]:
    """Arguments that follow from a recipe path, each once, with the values that they get."""
    seen: dict[str, list[str]] = {}
    for command in commands:
        values = argument_values(command)
        for target, because in command.reasons.items():
            value = values.get(target)
            if _gives(path, because, target) and not isinstance(value, dict):
                told = seen.setdefault(target, [])
                if (text := json.dumps(value, ensure_ascii=False)) not in told:
                    told.append(text)
    for target, texts in seen.items():
        yield f"{target} = {', '.join(texts)}"


def _gives(path: str, because: str, target: str) -> bool:
    """Whether a reason names a recipe path, or the mapping that holds it under the same key."""
    if re.search(rf"(?<![\w.]){re.escape(path)}(?![\w.])", because):
        return True
    around, _, key = path.rpartition(".")
    return because == around and target.rpartition(".")[2] == key


def _names(key: str, target: str) -> bool:
    return target == key or target.startswith(f"{key}.")


def _not_rendered(
    key: str, target: str, commands: Sequence[RenderedCommand], resolved: ResolvedRecipe
) -> RecipeError:
    """Nothing says it: a flag that could be added by its own name, or one that does not exist."""
    version = resolved.runtime_version
    surface = load_surface(version)
    verdict = surface.judge_flag(target) if target.startswith("--") else None
    if target.startswith("$"):
        fix = f"env.{target[1:]}=VALUE"
    elif verdict is None and "." not in target:
        fix = f"extra_args.{target.removeprefix('--').replace('-', '_')}=VALUE"
    else:
        fix = verdict.fix if verdict else ""
        fix = fix or _alike(target, {item for command in commands for item in command.reasons})
    return recipe_error(
        "explain.not_rendered", at=key, fix=fix, exit_code=ExitCode.USAGE, key=key, version=version
    )


def _alike(target: str, rendered: Iterable[str]) -> str:
    """An argument with nearly the same last name; what lists them all where none is near."""
    names = {_last(name): name for name in (*rendered, *(row.target for row in ROWS))}
    found = closest(_last(target), names)
    return names[found] if found else "ascend-run plan recipe=… runtime=vllm_ascend"


def _last(target: str) -> str:
    return target.rpartition(".")[2].lstrip("-$").replace("_", "-")
