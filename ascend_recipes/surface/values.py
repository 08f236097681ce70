"""Whether a value has the form that a flag or key takes."""

import json
from collections.abc import Mapping

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.surface import ValueKind

_TYPES: Mapping[ValueKind, tuple[type, ...]] = {
    "switch": (bool,),
    "store_true": (bool,),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "text": (str,),
    "list": (list,),
    "json": (dict,),
}
_NAMES: Mapping[ValueKind, str] = {
    "switch": "bool",
    "store_true": "bool",
    "text": "string",
    "json": "object",
}
_NUMBERS = frozenset({"int", "float"})


def kind_name(kind: ValueKind) -> str:
    """The word that people use for a kind."""
    return _NAMES.get(kind, kind)


def shown(value: Json) -> str:
    """A value as JSON has it."""
    return json.dumps(value, ensure_ascii=False)


def fits_key(kind: ValueKind, value: Json) -> bool:
    """Whether a value of `--additional-config` has the type of its key.

    Whole numbers 0 and 1 pass for truth values, which is how Python counts; a text does not, since
    `"false"` is true.
    """
    if value is None or kind not in _TYPES:
        return True
    if kind == "bool":
        return isinstance(value, bool) or value in (0, 1)
    if kind in _NUMBERS and isinstance(value, bool):
        return False
    return isinstance(value, _TYPES[kind])


def fits_flag(kind: ValueKind, value: Json) -> bool:
    """Whether a flag takes a value, given as JSON or as the text of a command line."""
    if isinstance(value, bool):
        return kind in ("switch", "store_true", "optional_text", "text", "json_or_text")
    if not isinstance(value, str):
        return kind not in _TYPES or kind == "text" or isinstance(value, _TYPES[kind])
    if kind == "float":
        return _is_number(value)
    if kind == "int":
        # vLLM takes 32k and auto for some whole numbers; the digit is what all of them begin with.
        return value[:1].lstrip("-").isdigit() or value[1:2].isdigit() or value in ("auto", "None")
    return kind not in ("switch", "store_true")


def is_choice(choices: tuple[Json, ...] | None, value: Json) -> bool:
    """Whether a value is among the legal ones; items of a list are asked one by one."""
    if choices is None or value is None:
        return True
    if isinstance(value, list):
        return all(is_choice(choices, item) for item in value)
    if isinstance(value, bool):
        return any(item is value or item == int(value) for item in choices)
    return value in choices or str(value) in {str(item) for item in choices}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
