"""Element types of weights, where no description beside them tells which they are."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TypeAlias, cast

from ascend_recipes.findings import Phrase, phrase
from ascend_recipes.memory.headers import StoredTensor
from ascend_recipes.schema.modelslim import FLOAT_TYPES

Storage: TypeAlias = Callable[[str], str | None]
"""How a published checkpoint stores a tensor, by its name; none as it is computed with."""

_WEIGHT = ".weight"
_TYPES = {"float8": "F8_E4M3", "float4": "I8", "int64": "I64"}
"""Way of storing -> its name in safetensors headers; two 4-bit floats share a byte."""


def family_storage(family: str) -> Storage | None:
    """What a family's `native_format` module tells; none where it has no such module."""
    name = f"ascend_recipes.models.{family}.native_format"
    try:
        return cast(Storage, import_module(name).storage)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        return None


def type_problems(tensors: Mapping[str, StoredTensor], storage: Storage | None) -> Iterator[Phrase]:
    """Weights whose element type belongs to another format.

    Args:
        tensors: what the headers say.
        storage: how the published format stores them; none where all weights are float.
    """
    for name, stored in tensors.items():
        kind = storage(name) if storage else None
        if kind:
            wanted, right = _TYPES[kind], stored.dtype == _TYPES[kind]
        else:
            wanted, right = "BF16", stored.dtype in FLOAT_TYPES or not name.endswith(_WEIGHT)
        if not right:
            yield phrase("checkpoint.other_type", name=name, found=stored.dtype, wanted=wanted)
