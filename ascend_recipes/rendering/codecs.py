"""How a value of the recipe is written in a command, and read back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ascend_recipes.schema.base import Json

Convert: TypeAlias = "Callable[[Json], Json]"

_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_UNITS = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
"""Suffixes of vLLM's `human_readable_int` (vllm/utils/argparse_utils.py)."""

_WORDS: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Codec:
    """A pair of conversions; `decode` raises ValueError for what the recipe cannot say."""

    encode: Convert
    """Recipe value to argument; none leaves the argument out."""
    decode: Convert
    """Argument to recipe value."""


def count(value: Json) -> Json:
    """A whole number, also as text and with the suffixes that vLLM takes: `128k`, `1M`.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | float):
        raise ValueError(f"{value!r} is not a whole number")
    text = str(value).strip()
    if human := _HUMAN.fullmatch(text):
        return int(float(human[1]) * _UNITS[human[2]])
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def number(value: Json) -> Json:
    """A number, also as text.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def truth(value: Json) -> Json:
    """A truth value, also as text or as 0 and 1.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, bool):
        return value
    found = _WORDS.get(str(value).strip().lower())
    if found is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return found


def text(value: Json) -> Json:
    """A text; numbers are read as they are written.

    Raises:
        ValueError: a list or an object.
    """
    if isinstance(value, dict | list) or value is None:
        raise ValueError(f"{value!r} is no text")
    return str(value)


def choice(*pairs: tuple[Json, Json], read: tuple[tuple[Json, Json], ...] = ()) -> Codec:
    """Recipe value beside argument; the first pair that fits is taken.

    Args:
        pairs: what is written and read.
        read: what is read besides, never written.
    """

    def encode(value: Json) -> Json:
        return next((argument for chosen, argument in pairs if chosen == value), None)

    def decode(value: Json) -> Json:
        for chosen, argument in (*pairs, *read):
            if argument is not None and _same(argument, value):
                return chosen
        raise ValueError(f"{value!r} has no counterpart in a recipe")

    return Codec(encode, decode)


def implied(argument: Json) -> Codec:
    """An argument that follows whenever the recipe value is set; it says nothing by itself."""

    def encode(value: Json) -> Json:
        return argument if value else None

    def decode(value: Json) -> Json:
        if not _same(argument, value):
            raise ValueError(f"{value!r} is not {argument!r}, which always goes with it")
        return None

    return Codec(encode, decode)


def _same(argument: Json, value: Json) -> bool:
    """Whether an argument was given as this value: `1`, `"1"` and `true` are one."""
    if isinstance(argument, bool | int) and isinstance(value, bool | int | str):
        return str(int(argument)) == str(value).strip().lower().replace("true", "1").replace(
            "false", "0"
        )
    return argument == value


def _split(value: Json) -> Json:
    if isinstance(value, list):
        return [count(item) for item in value]
    return [count(item) for item in str(value).split(",")]


def _joined(value: Json) -> Json:
    return ",".join(map(str, value)) if isinstance(value, list) and value else None


def _if_true(value: Json) -> Json:
    return True if value is True else None


def _as_variable(value: Json) -> Json:
    return None if value is None else str(int(value) if isinstance(value, bool) else value)


COUNT = Codec(lambda value: value, count)
NUMBER = Codec(lambda value: value, number)
TEXT = Codec(lambda value: value, text)
SWITCH = Codec(lambda value: value, truth)
"""True is `--flag`, false is `--no-flag`."""
ON = Codec(_if_true, truth)
"""Only true is written."""
NEGATED = Codec(lambda value: not value, lambda value: not truth(value))
POSITIVE = Codec(lambda value: value or None, count)
"""A size of which 0 means none."""
MAPPING = Codec(lambda value: value or None, lambda value: value)
COUNTS = Codec(lambda value: value or None, _split)
VARIABLE_COUNT = Codec(_as_variable, count)
VARIABLE_COUNTS = Codec(_joined, _split)

_METHODS = choice(("mtp", "mtp"), ("dspark", "dspark"))


def _decode_method(value: Json) -> Json:
    """vLLM spells the same drafter after models too: `…_mtp` (vllm/config/speculative.py)."""
    return _METHODS.decode("mtp" if str(value).endswith("_mtp") else value)


DRAFTER = Codec(_METHODS.encode, _decode_method)
"""Speculative methods that a recipe has a drafter for."""
