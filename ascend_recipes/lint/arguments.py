"""The arguments of a command as they were written: flags, values, and the keys in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ascend_recipes.lint.command import ServeCommand, Word
from ascend_recipes.lint.source import Place
from ascend_recipes.rendering.words import is_flag, split_flag
from ascend_recipes.schema.base import Json

_HOLE = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for an unknown part while JSON is parsed."""
_PLACEHOLDER = re.compile(
    r"<.*>|\{.*\}|\[.*\]|(?-i:[A-Z][A-Z0-9_]*)|x{2,}|\W*your[-_ ].*", re.IGNORECASE | re.DOTALL
)
"""`<port>`, `DEFAULT_PORT`, `xxxx`, `your_port`."""
_BARE_HOLE = re.compile(rf"(?<=[:\[,\s]){_HOLE}(?=\s*[,}}\]])")
_ELLIPSIS = re.compile(r"\.\.\.|…")
_ENDS_VALUES = re.compile(r"--|\.\.\.|…")
_REMEDIES = (
    (re.compile(r"\\"), "take away the backslash: inside single quotes it continues nothing"),
    (re.compile(r"#|//"), "take away the comment: JSON has none"),
    (re.compile(r"(True|False|None)\b"), "write true, false or null"),
    (re.compile(r"['A-Za-z<]"), "put names and texts in double quotes"),
    (re.compile(r'["{\[]'), "put a comma between the two values"),
)
"""How the text goes on where the parser stops, and what helps."""


@dataclass(frozen=True)
class BrokenJson:
    """A value that a JSON parser refuses."""

    place: Place
    reason: str
    """What the parser says."""
    remedy: str
    """What is probably meant, or empty."""


@dataclass(frozen=True)
class Argument:
    """One flag with its values, as it was written."""

    name: str
    """Long spelling with dashes; keys after the first dot are kept: `--compilation-config.mode`."""
    word: Word
    values: tuple[Word, ...] = ()

    @property
    def flag(self) -> str:
        """The flag without keys."""
        return self.name.partition(".")[0]

    @property
    def place(self) -> Place:
        """Where the flag stands."""
        return self.word.place()

    @property
    def is_known(self) -> bool:
        """Whether every part of every value is known."""
        return all(value.is_known for value in self.values)

    @property
    def is_placeholder(self) -> bool:
        """Whether the value is a word that a page or a template puts where a number belongs."""
        return bool(self.values) and all(_PLACEHOLDER.fullmatch(v.text) for v in self.values)

    @property
    def text(self) -> str:
        """The values as typed, without quotes."""
        return " ".join(value.text for value in self.values)

    @property
    def is_json(self) -> bool:
        """Whether the value is meant to be an object or a list of JSON."""
        return len(self.values) == 1 and self.values[0].text.lstrip()[:1] in ("{", "[")


@dataclass(frozen=True)
class Arguments:
    """Everything after `vllm serve`."""

    model: Word | None
    items: tuple[Argument, ...]
    strays: tuple[Word, ...]
    """Words that belong to no flag."""
    is_open: bool
    """Whether a variable that nothing sets may hold any further flags."""


def split_arguments(command: ServeCommand) -> Arguments:
    """Put the words of a command together; short flags get their long names."""
    rest = list(command.argv[2:])
    model = rest.pop(0) if rest and not is_flag(rest[0].text) else None
    items: list[Argument] = []
    strays: list[Word] = []
    is_open = False
    while rest:
        word = rest.pop(0)
        if word.text == "--":
            strays += rest
            break
        if is_flag(word.text):
            items.append(_argument(word, rest))
        elif word.is_open or _ELLIPSIS.fullmatch(word.text):
            is_open = True
        else:
            strays.append(word)
    return Arguments(model, tuple(items), tuple(strays), is_open)


def _argument(word: Word, rest: list[Word]) -> Argument:
    name, is_attached, value = split_flag(word.text)
    if is_attached:
        begin = len(word.text) - len(value)
        return Argument(name, word, (word.tail(begin),))
    values = []
    while rest and not is_flag(rest[0].text) and not _ENDS_VALUES.fullmatch(rest[0].text):
        values.append(rest.pop(0))
    return Argument(name, word, tuple(values))


def read_json(word: Word) -> Json | BrokenJson:
    """The value of a JSON argument without the parts that hold something unknown."""
    filled = _filled(word)
    for text in (filled, _BARE_HOLE.sub(f'"{_HOLE}"', filled)):
        try:
            parsed: Json = json.loads(text)
        except (ValueError, RecursionError):
            continue
        return _without_holes(parsed)
    try:
        json.loads(word.text)
    except json.JSONDecodeError as error:
        return BrokenJson(word.place(error.pos), error.msg, _remedy(word.text, error.pos))
    except (ValueError, RecursionError):
        return BrokenJson(word.place(), "nested too deeply", "")
    return None


def _filled(word: Word) -> str:
    """The text with one sign for each unknown part."""
    text = word.text
    for hole in reversed(word.holes):
        text = text[: hole.start] + _HOLE + text[hole.end :]
    return text


def _without_holes(value: Json) -> Json:
    if isinstance(value, list):
        return [_without_holes(item) for item in value if not _is_unknown(item)]
    if isinstance(value, dict):
        return {
            key: _without_holes(item)
            for key, item in value.items()
            if _HOLE not in key and not _is_unknown(item)
        }
    return value


def _is_unknown(value: Json) -> bool:
    """Whether a text, or a list that holds one, is unknown: part of a list says nothing."""
    if isinstance(value, list):
        return any(_is_unknown(item) for item in value)
    return isinstance(value, str) and _HOLE in value


def _remedy(text: str, position: int) -> str:
    """What is probably meant by a text that is no JSON."""
    before, after = text[:position].rstrip(), text[position:].lstrip()
    if _ELLIPSIS.search(text):
        return "write out what the dots leave out"
    if before.endswith(",") and after[:1] in ("}", "]"):
        return "take away the comma before the closing bracket"
    for sign, remedy in _REMEDIES:
        if sign.match(after):
            return remedy
    return _balance(text, after)


def _balance(text: str, after: str) -> str:
    missing = text.count("{") - text.count("}")
    if missing > 0 and not after:
        return f"add {'}' * missing}"
    return f"take away {'}' * -missing}" if missing < 0 and not after.strip("} \n\t") else ""


def key_place(word: Word, keys: Sequence[str]) -> Place:
    """Where a key of a JSON value stands; the value's own place if it is not found."""
    position = 0
    for key in keys:
        found = re.compile(rf'["\']{re.escape(key)}["\']\s*:').search(word.text, position)
        if found is None:
            break
        position = found.start()
    return word.place(position)


def leaves(value: Json, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every key of an object with its value, blocks before what is in them."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*prefix, key), item
            yield from leaves(item, (*prefix, key))
