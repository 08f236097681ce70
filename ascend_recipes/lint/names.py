"""Judges what a command is told by name: flags, keys inside JSON, variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from ascend_recipes.errors import Finding, Source
from ascend_recipes.findings import finding
from ascend_recipes.lint.arguments import Argument, Arguments, BrokenJson, key_place, read_json
from ascend_recipes.lint.command import Word
from ascend_recipes.lint.source import Place
from ascend_recipes.schema.base import Json
from ascend_recipes.surface.flags import resolve_flag
from ascend_recipes.surface.load import Surface
from ascend_recipes.surface.verdict import UNSET, Unset

_ADDITIONAL = "--additional-config"
_SWITCHES = ("switch", "store_true")
_NUMBERS = ("int", "float")
_COLLECTED = frozenset({"--middleware"})
"""Flags of which every occurrence counts (`action="append"`)."""


def placed(item: Finding, file: str, place: Place) -> Finding:
    """The finding at a line of a file."""
    return replace(item, source=Source(origin=file, line=place.line))


def judge_arguments(arguments: Arguments, surface: Surface, file: str) -> Iterator[Finding]:
    """Findings about flags, their values and the keys in their JSON."""
    for word in arguments.strays:
        yield placed(finding("lint.stray_word", word=word.text), file, word.place())
    for item in arguments.items:
        yield from _judge_argument(item, surface, file)
    yield from _repetitions(arguments.items, surface, file)


def _judge_argument(item: Argument, surface: Surface, file: str) -> Iterator[Finding]:
    known = resolve_flag(surface, item.name)
    if known is not None and known[0].kind in _SWITCHES and item.values and "." not in item.name:
        # The parser takes the word behind a switch for another positional argument.
        for word in item.values:
            if not word.is_open:
                stray = finding("lint.stray_value", flag=item.name, word=word.text)
                yield placed(stray, file, word.place())
        item = replace(item, values=())
    if item.is_json:
        yield from _judge_json(item, surface, file)
        return
    is_number = known is not None and known[0].kind in _NUMBERS
    value = UNSET if is_number and item.is_placeholder else _plain(item)
    verdict = surface.judge_flag(item.name, value)
    if verdict is not None and not _is_abbreviation(item, surface):
        yield placed(verdict, file, item.place)


def _is_abbreviation(item: Argument, surface: Surface) -> bool:
    """Whether the parser completes the flag: it takes the beginning of exactly one."""
    if resolve_flag(surface, item.name) is not None or "." in item.name:
        return False
    return sum(1 for name in surface.flags if name.startswith(item.name) and "." not in name) == 1


def _plain(item: Argument) -> Json | Unset:
    """The value as far as the file tells it."""
    if not item.is_known:
        return UNSET
    if not item.values:
        return UNSET if item.name.startswith("--no-") else True
    if len(item.values) > 1:
        return [value.text for value in item.values]
    text = item.values[0].text
    if "." in item.name:
        from ascend_recipes.rendering.words import plain_value

        return plain_value(text)
    return text


def _judge_json(item: Argument, surface: Surface, file: str) -> Iterator[Finding]:
    word = item.values[0]
    value = read_json(word)
    if isinstance(value, BrokenJson):
        broken = finding(
            "lint.broken_json",
            at=item.name,
            fix=value.remedy,
            flag=item.name,
            line=value.place.line,
            column=value.place.column,
            reason=value.reason,
        )
        yield placed(broken, file, value.place)
        return
    known = resolve_flag(surface, item.name)
    # Items of a list may be objects themselves: `--lora-modules '{"name": …}'`.
    is_item = known is not None and known[0].kind == "list" and isinstance(value, dict)
    verdict = surface.judge_flag(item.name, UNSET if word.holes or is_item else value)
    if is_item:
        return
    if verdict is not None:
        yield placed(verdict, file, item.place)
    elif isinstance(value, dict):
        yield from _judge_keys(item, word, (), value, surface, file)


def _judge_keys(
    item: Argument,
    word: Word,
    above: tuple[str, ...],
    block: dict[str, Json],
    surface: Surface,
    file: str,
) -> Iterator[Finding]:
    """Keys of a block; what is inside a key that is wrong itself is not judged."""
    for key, value in block.items():
        path = (*above, key)
        given: Json | Unset = UNSET if word.holes and isinstance(value, dict) else value
        verdict = _judge_key(item, ".".join(path), given, surface)
        if verdict is not None:
            yield placed(verdict, file, key_place(word, path))
        elif isinstance(value, dict):
            yield from _judge_keys(item, word, path, value, surface, file)


def _judge_key(item: Argument, key: str, value: Json | Unset, surface: Surface) -> Finding | None:
    name = f"{item.name}.{key}"
    if name.startswith(f"{_ADDITIONAL}."):
        return surface.judge_key(name.removeprefix(f"{_ADDITIONAL}."), value)
    return surface.judge_flag(name, value)


def judge_variables(
    variables: Iterable[tuple[str, Word]], surface: Surface, file: str
) -> Iterator[Finding]:
    """Findings about environment variables."""
    for name, word in variables:
        verdict = _variable_verdict(surface, name)
        if verdict is not None:
            yield placed(replace(verdict, at=name), file, word.place())


@lru_cache(maxsize=4096)
def _variable_verdict(surface: Surface, name: str) -> Finding | None:
    """Kept, because a name that nobody knows is compared with every known one."""
    return surface.judge_variable(name)


def _repetitions(items: tuple[Argument, ...], surface: Surface, file: str) -> Iterator[Finding]:
    """Flags given more than once, in whatever spelling: the last one counts."""
    groups: dict[str, list[Argument]] = {}
    for item in items:
        known = resolve_flag(surface, item.name)
        flag = item.flag if known is None else known[0].name
        if flag not in _COLLECTED:
            groups.setdefault(flag, []).append(item)
    for flag, group in groups.items():
        dotted = [item for item in group if "." in item.name]
        whole = [item for item in group if "." not in item.name]
        names = [item.name for item in dotted]
        twice = [item for item in dotted if names.count(item.name) > 1]
        if len(whole) > 1 or (whole and dotted):
            yield _repetition(flag, whole, dotted, file)
        elif twice:
            alike = [replace(item, name=flag) for item in twice]
            yield _repetition(twice[0].name, alike, [], file)


def _repetition(flag: str, whole: list[Argument], dotted: list[Argument], file: str) -> Finding:
    # vLLM appends the keys of the dotted form as a JSON flag of its own, behind all others.
    kept = _content(dotted) if dotted else _content(whole[-1:])
    lost = [part for item in (whole if dotted else whole[:-1]) for part in _lost(item, kept)]
    places = [item.place for item in (*whole, *dotted)]
    lines = [place.line for place in places]
    if lost:
        repeated = finding("cli.duplicate_flag", at=flag, name=flag, lines=lines, lost=lost)
    else:
        repeated = finding("cli.same_flag_twice", at=flag, name=flag, lines=lines)
    return placed(repeated, file, places[-1])


def _content(items: list[Argument]) -> dict[str, Json]:
    """What is in force: keys of JSON with their values, or the one text under no key."""
    content: dict[str, Json] = {}
    for item in items:
        value = read_json(item.values[0]) if item.is_json else item.text or _sense(item)
        if isinstance(value, dict):
            content.update(value)
        elif "." in item.name:
            content[item.name.partition(".")[2].partition(".")[0]] = str(value)
        else:
            content[""] = str(value)
    return content


def _sense(item: Argument) -> str:
    return "off" if item.name.startswith("--no-") else "on"


def _lost(item: Argument, kept: dict[str, Json]) -> list[str]:
    """Parts of an argument that a later one overrules with something else."""
    return [
        key or str(value)
        for key, value in _content([item]).items()
        if key not in kept or kept[key] != value
    ]
