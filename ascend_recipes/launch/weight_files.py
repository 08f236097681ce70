"""What is wrong with a checkpoint, told from headers and JSON files before weights are read.

vLLM finds a missing file, a wrong shape or a description of another quantization run after it has
read gigabytes, and names a parameter of its own. Here the files say it themselves.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import cast

from ascend_recipes.errors import Finding, RecipeError
from ascend_recipes.findings import Phrase, finding, message_of, phrase
from ascend_recipes.launch.block_scales import BLOCK_FORMAT, stored_shapes
from ascend_recipes.launch.weight_types import Storage, type_problems
from ascend_recipes.memory.headers import StoredTensor, read_tensors
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.modelslim import (
    DESCRIPTION_FILE,
    FLOAT_TYPES,
    INT4_DYNAMIC,
    INT8_DYNAMIC,
    NATIVE_SCHEMES,
    STORED_TYPES,
    UNPACKED,
)

_AT = "checkpoint.path"
_INDEX_FILE = "model.safetensors.index.json"
_SHOWN = 3
"""Names or places that a message lists."""

_MODELSLIM = "ascend"
_WEIGHT, _SCALE, _OFFSET = ".weight", "_scale", "_offset"
_SCALE_BIAS = ".scale_bias"
_INT4_IN_BYTE = 2
"""Outputs of a layer that share a byte."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class WeightsWanted:
    """What the plan expects of a checkpoint."""

    format: str
    """Row of `registry/quantization`."""
    method: str | None
    """vLLM's quantization method for it; none for float weights."""
    runtime: str = "native"
    shapes: Shapes = field(default_factory=dict)
    """Of unquantized tensors, where the family tells them; then they must all be there."""
    storage: Storage | None = None
    """How the family's publisher stores a tensor, where it has a format of its own."""


def family_shapes(family: str, config: Mapping[str, Json], *, drafter: str | None = None) -> Shapes:
    """Shapes that a family's `shapes` module gives; none where it has no such module.

    Args:
        family: folder under `ascend_recipes/models`.
        config: fields of the language model in config.json.
        drafter: kind of the drafter whose tensors the files must hold.
    """
    name = f"ascend_recipes.models.{family}.shapes"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        return {}
    try:
        return cast(Shapes, module.tensor_shapes(config, drafter=drafter))
    except (KeyError, TypeError, IndexError):
        # Another rule compares config.json with the model; without its fields nothing is known.
        return {}


def weight_findings(
    folder: Path, config: Mapping[str, Json], wanted: WeightsWanted
) -> Iterator[Finding]:
    """Everything that keeps these files from being loaded.

    Args:
        folder: the checkpoint.
        config: content of its config.json.
        wanted: what the plan expects.
    """
    yield from _method(config, wanted)
    index = _read_json(folder / _INDEX_FILE).get("weight_map")
    where = cast(dict[str, str], index) if isinstance(index, dict) else {}
    present = {path.name: path for path in sorted(folder.glob("*.safetensors"))}
    if not present:
        others = sorted({path.suffix for path in folder.iterdir() if path.is_file()})
        yield finding("checkpoint.no_weights", at=_AT, folder=str(folder), found=others)
        return
    files = set(where.values()) or set(present)
    missing = sorted(files - present.keys())
    if missing:
        yield finding(
            "checkpoint.missing_shards",
            at=_AT,
            missing=len(missing),
            total=len(files),
            names=_first(missing),
        )
    stored, problems = _read_headers([present[name] for name in sorted(files & present.keys())])
    if problems:
        yield finding("checkpoint.broken_files", at=_AT, count=len(problems), problems=problems)
    if missing or problems:
        return
    tensors = {name: item for headers in stored.values() for name, item in headers.items()}
    absent = [name for name, file in where.items() if name not in stored[file]]
    if absent:
        names = _first(absent)
        yield finding("checkpoint.index_differs", at=_AT, count=len(absent), names=names)
    schemes: Mapping[str, str] = {}
    if wanted.method == _MODELSLIM:
        description = _read_json(folder / DESCRIPTION_FILE)
        if not description:
            yield finding("quant.no_description", at=_AT, name=DESCRIPTION_FILE)
            return
        schemes = _schemes(description)
        yield from _description(schemes, tensors, wanted)
    yield from _types(tensors, wanted)
    yield from _shapes(schemes, tensors, wanted)


def _method(config: Mapping[str, Json], wanted: WeightsWanted) -> Iterator[Finding]:
    section = config.get("quantization_config")
    found = section.get("quant_method") if isinstance(section, dict) else None
    # ModelSlim's description is a file of its own, whatever config.json says.
    expected = None if wanted.method == _MODELSLIM else wanted.method
    # vLLM renames a method for one family: `<family>_fp8` is told as `fp8`.
    if found == expected or (found and expected and expected.endswith(f"_{found}")):
        return
    yield finding(
        "checkpoint.unknown_format",
        at="checkpoint.variant",
        found=str(found or "none"),
        format=wanted.format,
        method=wanted.method or phrase("checkpoint.no_method"),
    )


def _read_headers(paths: list[Path]) -> tuple[dict[str, dict[str, StoredTensor]], list[Phrase]]:
    stored, problems = {}, []
    for path in paths:
        try:
            stored[path.name] = read_tensors(path)
        except RecipeError as error:
            problems.append(message_of(error.findings[0]))
    return stored, problems


def _schemes(description: Mapping[str, Json]) -> dict[str, str]:
    """Scheme of every weight; other keys speak of biases, scales or the whole file."""
    return {
        name: scheme
        for name, scheme in description.items()
        if name.endswith(_WEIGHT) and isinstance(scheme, str)
    }


def _description(
    schemes: Mapping[str, str], tensors: Mapping[str, StoredTensor], wanted: WeightsWanted
) -> Iterator[Finding]:
    known = NATIVE_SCHEMES if wanted.runtime == "native" else tuple(STORED_TYPES)
    if unknown := sorted(set(schemes.values()) - set(known)):
        yield finding(
            "checkpoint.unknown_scheme",
            at="checkpoint.variant",
            file=DESCRIPTION_FILE,
            schemes=unknown,
            runtime=wanted.runtime,
            known=known,
        )
    places = list(_contradictions(schemes, tensors))
    if wanted.runtime == "native":
        places += _int4_problems(schemes, tensors)
    if places:
        yield finding(
            "checkpoint.description_contradicts",
            at=_AT,
            file=DESCRIPTION_FILE,
            count=len(places),
            examples=places[:_SHOWN],
        )


def _contradictions(
    schemes: Mapping[str, str], tensors: Mapping[str, StoredTensor]
) -> Iterator[Phrase]:
    for name, scheme in schemes.items():
        stored = tensors.get(name)
        if stored is None:
            yield phrase("checkpoint.not_stored", name=name)
            continue
        types = STORED_TYPES.get(scheme)
        if types is not None and stored.dtype not in types:
            yield phrase("checkpoint.stored_as", name=name, scheme=scheme, dtype=stored.dtype)
        elif scheme == INT8_DYNAMIC:
            yield from _scale_problems(name, stored.shape[0], tensors)
    for name, stored in tensors.items():
        if name.endswith(_WEIGHT) and stored.dtype not in FLOAT_TYPES and name not in schemes:
            yield phrase("checkpoint.not_described", name=name, dtype=stored.dtype)


def _int4_problems(
    schemes: Mapping[str, str], tensors: Mapping[str, StoredTensor]
) -> Iterator[Phrase]:
    """As the native runtime reads them; others read older forms too."""
    for name, scheme in schemes.items():
        if scheme == INT4_DYNAMIC and name in tensors:
            rows = tensors[name].shape[0] * _INT4_IN_BYTE
            bias = f"{name.removesuffix(_WEIGHT)}{_SCALE_BIAS}"
            yield from _scale_problems(name, rows, tensors, bias)


def _scale_problems(
    name: str, rows: int, tensors: Mapping[str, StoredTensor], *further: str
) -> Iterator[Phrase]:
    """Scales and what is named further must be there, zero points may be: one of each a row."""
    needed = (f"{name}{_SCALE}", *further)
    for other in needed:
        if other not in tensors:
            yield phrase("checkpoint.no_scale", name=name, scale=other)
    for other in (*needed, f"{name}{_OFFSET}"):
        found = tensors.get(other)
        if found is not None and found.shape[:1] != (rows,):
            shape = str(list(found.shape))
            yield phrase("checkpoint.scale_rows", name=name, rows=rows, other=other, shape=shape)


def _types(tensors: Mapping[str, StoredTensor], wanted: WeightsWanted) -> Iterator[Finding]:
    storage = wanted.storage if wanted.format == BLOCK_FORMAT else None
    if wanted.method is not None and storage is None:
        return
    if wrong := list(type_problems(tensors, storage)):
        yield finding(
            "checkpoint.types",
            at=_AT,
            count=len(wrong),
            format=wanted.format,
            examples=wrong[:_SHOWN],
        )


def _shapes(
    schemes: Mapping[str, str], tensors: Mapping[str, StoredTensor], wanted: WeightsWanted
) -> Iterator[Finding]:
    shapes = _stored_shapes(schemes, tensors, wanted)
    if lacking := [name for name in shapes if name not in tensors]:
        names = _first(lacking)
        yield finding("checkpoint.lacks_tensors", at=_AT, count=len(lacking), names=names)
    wrong = [
        phrase(
            "checkpoint.other_shape",
            name=name,
            found=str(list(tensors[name].shape)),
            wanted=str(list(shape)),
        )
        for name, shape in shapes.items()
        if shape is not None and name in tensors and tensors[name].shape != shape
    ]
    if wrong:
        yield finding("checkpoint.shapes", at=_AT, count=len(wrong), examples=wrong[:_SHOWN])


def _stored_shapes(
    schemes: Mapping[str, str], tensors: Mapping[str, StoredTensor], wanted: WeightsWanted
) -> dict[str, tuple[int, ...] | None]:
    """Shapes in the files; none of a tensor whose numbers are packed as this project does not."""
    if wanted.format == BLOCK_FORMAT:
        return {**stored_shapes(wanted.shapes, {n: item.dtype for n, item in tensors.items()})}
    stored: dict[str, tuple[int, ...] | None] = {**wanted.shapes}
    for name in wanted.shapes.keys() & tensors.keys():
        if wanted.runtime == "native" and schemes.get(name) == INT4_DYNAMIC:
            rows, *rest = wanted.shapes[name]
            stored[name] = (rows // _INT4_IN_BYTE, *rest)
        elif not _is_plain(name, schemes, tensors):
            stored[name] = None
    return stored


def _is_plain(name: str, schemes: Mapping[str, str], tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a tensor has its model's shape; several 4-bit numbers share a byte."""
    if name in schemes:
        return schemes[name] in UNPACKED
    return tensors[name].dtype in FLOAT_TYPES or not name.endswith(_WEIGHT)


def _read_json(path: Path) -> dict[str, Json]:
    """Content of a file; empty where it is absent or no JSON object."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _first(names: list[str]) -> str:
    more = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown
