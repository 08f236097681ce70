"""Override words: what a shell hands over, made fit for Hydra's grammar.

Hydra's override grammar knows neither JSON's quoted keys nor a second `=`, nor letters outside
ASCII in a bare value. Users paste all three, so values are rewritten here, before Hydra sees them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

from ascend_recipes.errors import ExitCode, Finding, RecipeError
from ascend_recipes.findings import finding

_BARE = re.compile(r"[A-Za-z0-9_/\-\\+.$%*@?|: \t]*\Z")
"""What Hydra takes in a value without quotes, besides its own brackets and quotes."""

_STRUCTURED = ("{", "[", "'", '"')
_FUNCTION = re.compile(r"[a-z]+\(.*\)\Z", re.DOTALL)
"""`choice(…)`, `range(…)` and the other functions of Hydra's grammar."""

_PAIRS = {"{": "}", "[": "]", "(": ")"}


def split_override(word: str) -> tuple[str, str | None]:
    """Key without its `+`, `++` or `~` prefix, and the value, if the word has one."""
    key, equals, value = word.partition("=")
    return key.lstrip("+~"), value if equals else None


def is_override(word: str) -> bool:
    """Whether a word is an override (`a.b=v`, `+a=v`, `~a`) rather than a command or a flag."""
    return "=" in word or word.startswith(("~", "+"))


def fit_for_hydra(word: str) -> str:
    """Rewrite the value of one override so that Hydra's grammar takes it, meaning unchanged."""
    key, equals, value = word.partition("=")
    if not equals:
        return word
    if value.startswith(("{", "[")) and (rewritten := _from_json(value)) is not None:
        return f"{key}={rewritten}"
    if value.startswith(_STRUCTURED) or _FUNCTION.match(value) or "${" in value:
        return word
    parts = split_top_level(value)
    if all(_BARE.match(part) for part in parts):
        return word
    return f"{key}=" + ",".join(part if _BARE.match(part) else _quoted(part) for part in parts)


def split_top_level(value: str) -> list[str]:
    """Split at commas that stand outside quotes and brackets."""
    parts, start, closers, quote = [], 0, [], ""
    for index, letter in enumerate(value):
        if quote:
            quote = "" if letter == quote and value[index - 1] != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _PAIRS:
            closers.append(_PAIRS[letter])
        elif closers and letter == closers[-1]:
            closers.pop()
        elif letter == "," and not closers:
            parts.append(value[start:index])
            start = index + 1
    parts.append(value[start:])
    return parts


def sweep(words: Sequence[str]) -> list[list[str]]:
    """Every combination of the comma lists in `words`, the last one varying fastest."""
    choices = []
    for word in words:
        key, equals, value = word.partition("=")
        options = _options(word, value) if equals else [""]
        choices.append([f"{key}={option}" for option in options] if equals else [word])
    return [list(combination) for combination in product(*choices)]


def check_no_sweep(words: Iterable[str]) -> None:
    """Refuse comma lists where a single value belongs.

    Raises:
        RecipeError: a value is a comma list.
    """
    for word in words:
        key, value = split_override(word)
        if value is not None and len(split_top_level(value)) > 1:
            several = finding(
                "override.sweep",
                at=key,
                key=key,
                value=value,
            )
            raise RecipeError((several,), ExitCode.USAGE)


def repeated_overrides(words: Iterable[str]) -> list[Finding]:
    """A warning for each key that is set more than once."""
    values: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for word in words:
        key, value = split_override(word)
        counts[key] += 1
        values[key] = word if value is None else value
    return [
        finding(
            "override.repeated",
            at=key,
            key=key,
            count=count,
            value=values[key],
        )
        for key, count in counts.items()
        if count > 1
    ]


def _options(word: str, value: str) -> list[str]:
    if not _FUNCTION.match(value):
        return split_top_level(value)
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override(word)
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [value]


def _from_json(value: str) -> str | None:
    try:
        return _render(json.loads(value))
    except ValueError:
        return None


def _render(value: object) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"{_key(key)}:{_render(v)}" for key, v in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_render, value)) + "]"
        case str():
            return _quoted(value)
        case _:
            return json.dumps(value)


def _key(key: str) -> str:
    if re.fullmatch(r"[A-Za-z_][\w.\-/]*", key, re.ASCII):
        return key
    raise ValueError(f"{key!r} cannot be a key of an override")


def _quoted(text: str) -> str:
    # In Hydra's quotes a backslash is itself unless it stands before a quote.
    escaped = re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"
