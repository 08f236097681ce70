"""Sizes of the tensors of a checkpoint, read from the headers of its safetensors files.

A safetensors file begins with the length of its header (8 bytes, little endian), the header as
JSON, then nothing but tensor data: the sum of the data is known without reading any of it.
"""

import json
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ascend_recipes.errors import RecipeError
from ascend_recipes.findings import phrase, recipe_error

PARSED_HEADER_BYTES = 2**20
"""Headers of all files together are parsed up to this size: larger ones would cost the planner its
time, and the sum is known without."""


class CheckpointSizes(NamedTuple):
    """Bytes of tensor data."""

    total: int
    tensors: Mapping[str, int]
    """Bytes by tensor name; empty where the headers are too large to be parsed in passing."""


class StoredTensor(NamedTuple):
    """One tensor as a header describes it."""

    dtype: str
    """As safetensors spells it: `BF16`, `I8`, `F8_E4M3`."""
    shape: tuple[int, ...]
    size: int
    """Bytes."""


def read_checkpoint(folder: Path, *, limit: int = PARSED_HEADER_BYTES) -> CheckpointSizes | None:
    """Sizes of all `*.safetensors` below a folder; none if there are none.

    Args:
        folder: the checkpoint.
        limit: parse headers up to this many bytes.

    Raises:
        RecipeError: a file that is no safetensors file, or is cut short.
    """
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        return None
    headers = {path: _header_bytes(path) for path in files}
    total = sum(path.stat().st_size - 8 - length for path, length in headers.items())
    tensors: Counter[str] = Counter()
    if sum(headers.values()) <= limit:
        for path, length in headers.items():
            tensors.update(_tensor_bytes(path, length))
    return CheckpointSizes(total, dict(tensors))


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Everything that the header of one file says, however large it is.

    Raises:
        RecipeError: no safetensors file, or one that is cut short.
    """
    return _stored(path, _header_bytes(path))


def component_of(tensor: str) -> str:
    """Coarse component of a tensor by the words of its name."""
    for component, words in _WORDS.items():
        if any(word in tensor for word in words):
            return component
    return "layers"


_WORDS = {
    "vision": ("visual.", "vision_tower.", "mm_projector."),
    "drafter": ("mtp.",),
    "experts": (".experts.",),
}


def _header_bytes(path: Path) -> int:
    with path.open("rb") as file:
        start = file.read(8)
    length = int(struct.unpack("<Q", start)[0]) if len(start) == 8 else -1
    if not 0 < length <= path.stat().st_size - 8:
        raise _broken(path, "checkpoint.header_too_long")
    return length


def _tensor_bytes(path: Path, length: int) -> Mapping[str, int]:
    return {name: stored.size for name, stored in _stored(path, length).items()}


def _stored(path: Path, length: int) -> dict[str, StoredTensor]:
    with path.open("rb") as file:
        file.seek(8)
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        stored = {
            name: StoredTensor(
                str(entry["dtype"]),
                tuple(entry["shape"]),
                int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
            )
            for name, entry in header.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise _broken(path, "checkpoint.header_unreadable") from error
    if sum(item.size for item in stored.values()) != path.stat().st_size - 8 - length:
        raise _broken(path, "checkpoint.cut_short")
    return stored


def _broken(path: Path, why: str) -> RecipeError:
    reason = phrase(why)
    return recipe_error("checkpoint.broken", at="checkpoint.path", file=path.name, reason=reason)
