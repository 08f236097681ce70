"""What a schema says about a value that it refuses, in both languages.

pydantic speaks English only. The kinds of complaint that people meet have phrases in
`registry/findings/schema.yaml`, under pydantic's own names for them; others are passed on.
"""

import json

from pydantic_core import ErrorDetails

from ascend_recipes.findings import Phrase, phrase

_KINDS = {
    "bool_type": "schema.bool_type",
    "dict_type": "schema.mapping_type",
    "float_type": "schema.float_type",
    "greater_than": "schema.greater_than",
    "greater_than_equal": "schema.greater_than_equal",
    "int_type": "schema.int_type",
    "less_than": "schema.less_than",
    "less_than_equal": "schema.less_than_equal",
    "literal_error": "schema.literal_error",
    "model_type": "schema.mapping_type",
    "string_pattern_mismatch": "schema.pattern",
    "string_type": "schema.string_type",
    "too_long": "schema.too_long",
    "too_short": "schema.too_short",
    "tuple_type": "schema.tuple_type",
    "union_tag_invalid": "schema.union_tag_invalid",
}
_OURS = ("value_error", "assertion_error")


class PhrasedError(ValueError):
    """What a validator of ours refuses, in both languages."""

    def __init__(self, told: Phrase) -> None:
        super().__init__(told.en)
        self.told = told


def complaint(error: ErrorDetails) -> Phrase:
    """One error of a `ValidationError` as a part of a sentence, with the value that it is about."""
    context = error.get("ctx", {})
    if error["type"] in _OURS:
        raised = context.get("error")
        said = error["msg"].removeprefix("Value error, ")
        return raised.told if isinstance(raised, PhrasedError) else Phrase(said, said)
    name = _KINDS.get(error["type"])
    said_of = Phrase(error["msg"], error["msg"])
    if name is not None:
        values = {key: _listed(str(value)) for key, value in context.items()}
        said_of = phrase(name, **values)
    if isinstance(error["input"], dict):
        return said_of
    return phrase("schema.not", said=said_of, given=_given(error["input"]))


def _listed(expected: str) -> str:
    """pydantic writes a list of choices as a sentence."""
    return expected.replace(" or ", ", ")


def _given(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
