"""`scale=tiny`: a small seeded checkpoint of a model, with a tokenizer, in the published format.

A family says what shrinks and which tensors its checkpoint holds in
`ascend_recipes/models/<family>/tiny.py`; this module writes the folder so that it is complete or
absent, whoever is interrupted and however many processes start at once.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.modelslim import DESCRIPTION_FILE, INT4_DYNAMIC, INT8_DYNAMIC
from ascend_recipes.tiny_tokenizer import write_tokenizer

if TYPE_CHECKING:
    import torch

FORMAT = 2
"""Part of the content key: raise it when the bytes of a checkpoint change for the same facts."""

UNQUANTIZED = "bf16"
"""Row of `registry/quantization` of weights in the checkpoint's own dtype."""

_MODELSLIM = {"w8a8": INT8_DYNAMIC, "w4a8": INT4_DYNAMIC}
"""Rows that ModelSlim writes -> its name for them."""

_NATIVE = "fp8_fp4"
"""Row of what the publisher itself stores: 8-bit and 4-bit floats."""

DTYPES = ("float32", "bfloat16", "float16")
MANIFEST = "tiny.json"
SHARD_BYTES = 16 * 1024 * 1024
"""Size at which a shard is closed; small, so that a tiny checkpoint has several shards."""


class TinyFamily(Protocol):
    """What a family's `tiny` module offers."""

    TINY_VALUES: dict[str, Json]
    """Every field of the language model's configuration that tiny changes, with its value."""
    REQUIRED_FACTS: tuple[str, ...]
    """Published fields that the registry row must state."""
    RELAXED: tuple[str, ...]
    """Limits of the hardware that the tiny sizes break; emulation lifts them."""
    is_quantized: Callable[[str], bool] | None
    """Which weights an int8 checkpoint stores in int8; none if the family has no such form."""

    def tiny_values(self, model: Mapping[str, Json]) -> dict[str, Json]:
        """`TINY_VALUES` with what follows from the published configuration."""

    def tiny_config(self, model: Mapping[str, Json], *, dtype: str) -> dict[str, Json]:
        """Whole `config.json`."""

    def tiny_tensors(
        self, config: Mapping[str, Json], *, seed: int, dtype: str
    ) -> "Iterator[tuple[str, torch.Tensor]]":
        """Published tensor names with their weights."""

    def processor_files(self, config: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
        """Further JSON files (image and video processors), by file name."""


class NativeFormat(Protocol):
    """What a family's `native_format` module offers."""

    QUANTIZATION: Mapping[str, Json]
    """`quantization_config` of config.json."""
    storage: Callable[[str], str | None]
    """How a tensor is stored, by its name."""


def tiny_family(family: str) -> TinyFamily:
    """Load the `tiny` module of a family.

    Raises:
        RecipeError: `scale.tiny_unsupported` when the family has none.
    """
    name = f"ascend_recipes.models.{family}.tiny"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise recipe_error(
            "scale.tiny_unsupported", at="scale", fix="scale=real device=npu", family=family
        ) from error
    return cast(TinyFamily, module)


def tiny_fields(family: str) -> tuple[str, ...]:
    """Names of the configuration fields in which the tiny model may differ from the full one."""
    return tuple(tiny_family(family).TINY_VALUES)


def ensure_tiny_checkpoint(
    folder: Path,
    *,
    family: str,
    model: dict[str, Json],
    seed: int,
    dtype: str,
    quantization: str = UNQUANTIZED,
) -> Path:
    """Return a complete tiny checkpoint below `folder`, writing it if there is none.

    Args:
        folder: Cache folder that holds tiny checkpoints; made if missing.
        family: Folder under `ascend_recipes/models`.
        model: Full-size configuration of the language model, under its published names.
        seed: Seed of the weights; the same seed gives the same bytes.
        dtype: Type of the stored weights. The numbers are the same in every type.
        quantization: Row of `registry/quantization` in whose form weights are stored.

    Raises:
        RecipeError: unknown family, dtype or form, or a fact that is missing.
    """
    module = tiny_family(family)
    _check_request(module, family=family, model=model, dtype=dtype)
    config = module.tiny_config(model, dtype=dtype)
    identity = _Identity(family, seed, dtype, quantization)
    key = _content_key(config, identity)
    target = tiny_checkpoint_path(
        folder, family=family, model=model, seed=seed, dtype=dtype, quantization=quantization
    )
    if _is_complete(target, key):
        return target
    with _exclusive(folder):
        # Another starter may have finished while this one waited for the lock.
        if not _is_complete(target, key):
            _write(target, module, config, identity, key=key)
    return target


def tiny_checkpoint_path(
    folder: Path,
    *,
    family: str,
    model: dict[str, Json],
    seed: int,
    dtype: str,
    quantization: str = UNQUANTIZED,
) -> Path:
    """Where `ensure_tiny_checkpoint` puts the files; nothing is written."""
    config = tiny_family(family).tiny_config(model, dtype=dtype)
    key = _content_key(config, _Identity(family, seed, dtype, quantization))
    form = dtype if quantization == UNQUANTIZED else f"{quantization}-{dtype}"
    return folder / f"{family}-{form}-seed{seed}-{key[:12]}"


def _check_request(
    module: TinyFamily, *, family: str, model: Mapping[str, Json], dtype: str
) -> None:
    if dtype not in DTYPES:
        raise recipe_error(
            "scale.tiny_dtype",
            at="model.dtype",
            fix="model.dtype=bfloat16",
            dtype=dtype,
            options=DTYPES,
        )
    if missing := [name for name in module.REQUIRED_FACTS if name not in model]:
        raise recipe_error("scale.tiny_facts_missing", at="model", family=family, missing=missing)


@dataclass(frozen=True)
class _Identity:
    """What, besides the configuration, the bytes of a checkpoint depend on."""

    family: str
    seed: int
    dtype: str
    quantization: str


def _content_key(config: Mapping[str, Json], identity: _Identity) -> str:
    content = {"format": FORMAT, "config": config, **asdict(identity)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_complete(target: Path, key: str) -> bool:
    """Whether the folder holds every file, at its size, of a checkpoint with this key."""
    try:
        manifest = json.loads((target / MANIFEST).read_text())
        sizes: dict[str, int] = manifest["bytes"]
        return manifest["key"] == key and all(
            (target / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError):
        return False


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel releases it when a process dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise recipe_error(
            "scale.cache_not_writable",
            exit_code=ExitCode.ENVIRONMENT,
            folder=folder,
            reason=error.strerror,
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(
    target: Path,
    module: TinyFamily,
    config: dict[str, Json],
    identity: _Identity,
    *,
    key: str,
) -> None:
    """Write beside the target and rename; called with the lock held."""
    partial = target.with_name(f".partial-{target.name}")
    # What a killed writer left: with the lock held, nobody else is writing it.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        native = _native_format(identity)
        _write_json(partial / "config.json", config | (_section(native) if native else {}))
        write_tokenizer(partial, _generation_stops(config))
        for name, content in module.processor_files(config).items():
            _write_json(partial / name, content)
        tensors = module.tiny_tensors(config, seed=identity.seed, dtype=identity.dtype)
        if native:
            from ascend_recipes.tiny_native import native_tensors

            stored = native_tensors(tensors, native.storage)
        else:
            stored = _stored(partial, module, tensors, identity.quantization)
        _write_shards(partial, stored)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        _write_json(partial / MANIFEST, {"key": key, "bytes": cast(Json, sizes)})
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _native_format(identity: _Identity) -> NativeFormat | None:
    """How the family's own publisher stores weights; none for other formats and families."""
    if identity.quantization != _NATIVE:
        return None
    name = f"ascend_recipes.models.{identity.family}.native_format"
    try:
        return cast(NativeFormat, import_module(name))
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        return None


def _section(native: NativeFormat) -> dict[str, Json]:
    return {"quantization_config": dict(native.QUANTIZATION)}


def _stored(
    folder: Path,
    module: TinyFamily,
    tensors: "Iterator[tuple[str, torch.Tensor]]",
    quantization: str,
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Tensors in the form of a weight format, with what it puts beside them.

    Raises:
        RecipeError: a format that tiny checkpoints are not written in.
    """
    if quantization == UNQUANTIZED:
        return tensors
    kind = _MODELSLIM.get(quantization)
    if kind is None or module.is_quantized is None:
        raise recipe_error(
            "scale.tiny_format",
            at="checkpoint.variant",
            fix="scale=real device=npu",
            format=quantization,
        )
    from ascend_recipes.tiny_modelslim import modelslim_description, modelslim_tensors, schemes

    kept = list(tensors)
    names = [name for name, _ in kept]
    scheme_of = schemes(kind, module.is_quantized)
    description = modelslim_description(names, scheme_of, kind=kind)
    _write_json(folder / DESCRIPTION_FILE, dict(description))
    return modelslim_tensors(iter(kept), scheme_of)


def _generation_stops(config: Mapping[str, Json]) -> tuple[int, ...]:
    text = cast(Mapping[str, Json], config.get("text_config", config))
    stops = text["eos_token_id"]
    return tuple(cast(list[int], stops)) if isinstance(stops, list) else (cast(int, stops),)


def _write_json(path: Path, content: Mapping[str, Json]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_shards(folder: Path, tensors: "Iterator[tuple[str, torch.Tensor]]") -> None:
    """Write `model-00001-of-0000N.safetensors` files and their index."""
    from safetensors.torch import save_file

    shards: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    total = 0
    for name, tensor in tensors:
        if filled and filled + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
        total += tensor.nbytes
    weight_map: dict[str, Json] = {}
    for number, shard in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file_name)
    index: dict[str, Json] = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)
