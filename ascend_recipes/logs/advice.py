"""What to do about the messages of a log: in general, or with the values of one recipe."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ascend_recipes.commands.changes import spelled, value_at
from ascend_recipes.errors import Finding, Severity, Source
from ascend_recipes.findings import Phrase, finding, message_of, phrase
from ascend_recipes.logs.decode import Decoded, Match
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.log_message import Remedy

Judge = Callable[[str], bool]
"""Whether the rules accept the recipe with one more override."""

_JUDGED = 5
"""Messages whose remedies are tried on the recipe; the root is among the first."""
_DECIMALS = 3
_MORE, _LESS = Phrase("<more>", "<更大>"), Phrase("<less>", "<更小>")


@dataclass(frozen=True)
class RecipeAtHand:
    """The recipe behind a log."""

    tree: dict[str, Json]
    """The merged configuration."""
    findings: tuple[Finding, ...] = ()
    """What the rules say about it."""
    accepts: Judge = field(default=lambda _: True)


def log_findings(decoded: Decoded, path: str, recipe: RecipeAtHand | None) -> list[Finding]:
    """A finding for each known message, the likely root first; or what can be said instead.

    Args:
        decoded: what was found.
        path: name of the log, for people.
        recipe: whose values and rules make the remedies concrete.
    """
    if decoded.is_binary:
        return [finding("log.binary", path=path)]
    if decoded.size == 0:
        return [finding("log.empty", path=path)]
    if not decoded.matches:
        return [_nothing_known(decoded, path)]
    found = [
        _finding(match, path, recipe, judged=place < _JUDGED)
        for place, match in enumerate(decoded.matches)
    ]
    unknown = decoded.unknown
    if any(match.is_cause for match in decoded.matches) or not (unknown and unknown.is_exception):
        return found
    source = Source(origin=path, line=unknown.line)
    return [finding("log.unknown_error", source=source, error=unknown.excerpt), *found]


def _nothing_known(decoded: Decoded, path: str) -> Finding:
    none, unknown = phrase("log.none"), decoded.unknown
    return finding(
        "log.nothing_known",
        source=Source(origin=path, line=unknown.line if unknown else decoded.lines),
        lines=decoded.lines,
        error=unknown.excerpt if unknown else none,
        last=decoded.last_line or none,
    )


def _finding(match: Match, path: str, recipe: RecipeAtHand | None, *, judged: bool) -> Finding:
    message = match.message
    told = Phrase(message.help.en, message.help.zh)
    if recipe is not None:
        told = _concrete(match, recipe, told)
    fixes = list(_fixes(message.remedies, recipe, judged=judged))
    return Finding(
        id=f"log.{match.name}",
        severity=Severity(message.severity),
        message=message.cause.en,
        message_zh=message.cause.zh,
        why=told.en,
        why_zh=told.zh,
        at=", ".join(message.fields),
        source=Source(origin=path, line=match.first_line),
        fix=" or ".join(item.en for item in fixes),
        fix_zh=" 或 ".join(item.zh for item in fixes),
        evidence=message.source,
    )


def _concrete(match: Match, recipe: RecipeAtHand, told: Phrase) -> Phrase:
    """The help with the recipe's own values, and with what its rules said beforehand."""
    values = [(at, value_at(recipe.tree, at)) for at in match.message.fields]
    shown = [f"{at}={spelled(value)}" for at, value in values if _is_short(value)]
    if shown:
        told = phrase("log.now", help=told, fields=shown)
    foreseen = _foreseen(recipe.findings, match.message.rules)
    if foreseen:
        told = phrase("log.foreseen", help=told, findings=foreseen)
    return told


def _is_short(value: Json) -> bool:
    return value is not None and not isinstance(value, dict)


def _foreseen(findings: Sequence[Finding], rules: Collection[str]) -> list[Phrase]:
    said = [item for item in findings if item.id in rules]
    return [
        Phrase(f"{item.id}: {text.en}", f"{item.id}：{text.zh}")
        for item in said
        for text in (message_of(item),)
    ]


def _fixes(
    remedies: Sequence[Remedy], recipe: RecipeAtHand | None, *, judged: bool
) -> Iterator[Phrase]:
    for remedy in remedies:
        if recipe is None:
            yield _in_general(remedy)
        elif (word := _word(remedy, recipe.tree)) and (not judged or recipe.accepts(word)):
            yield Phrase(word, word)


def _in_general(remedy: Remedy) -> Phrase:
    if remedy.set is not None:
        return Phrase(f"{remedy.at}={remedy.set}", f"{remedy.at}={remedy.set}")
    assert remedy.times is not None
    text = _MORE if remedy.times > 1 else _LESS
    return Phrase(f"{remedy.at}={text.en}", f"{remedy.at}={text.zh}")


def _word(remedy: Remedy, tree: dict[str, Json]) -> str:
    """The override to append; empty where the recipe has it already, or has no number to change."""
    value = value_at(tree, remedy.at)
    if remedy.set is not None:
        current = value.get("kind") if isinstance(value, dict) else value
        return "" if spelled(current) == remedy.set else f"{remedy.at}={remedy.set}"
    number = _number(value) if value is not None else remedy.unset
    if number is None or remedy.times is None:
        return ""
    new = number * remedy.times
    # A fraction of the memory stays one; a count stays a count.
    counted = isinstance(number, int) or new.is_integer()
    return f"{remedy.at}={int(new) if counted else round(new, _DECIMALS)}"


def _number(value: Json) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return None
