"""Rules about weight formats: what a checkpoint says of itself, and where schemes run."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.engine import checkpoint_folder
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import argument, removed

_DESCRIPTION = "quant_model_description.json"
_OTHER_METHODS = ("mxfp8", "modelopt_mxfp8")
"""Methods that vllm-ascend registers (vllm_ascend/quantization at 182b75ea), besides our rows'."""

_INTEGER = ("w8a8", "w4a8")
_GROUPS = (64, 128)
"""Group sizes that the weight-only kernels take (vllm-ascend issue 5603)."""


@holds("vllm_ascend")
def method_is_served(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The quantization method that is named, or that the configuration names, exists on Ascend."""
    named = argument(resolved, "quantization")
    own = resolved.config.get("quantization_config")
    inside = own.get("quant_method") if isinstance(own, dict) else None
    stated = named.value if named is not None else inside
    if stated is None:
        return
    at = named.at if named is not None else "model"
    fix = removed(named.at) if named is not None else ""
    rows = list(resolved.registry.quantization.values())
    served = sorted({row.method for row in rows if row.method} | {*_OTHER_METHODS})
    if stated not in served:
        yield finding("quant.method", at=at, fix=fix, method=stated, served=served)
    elif named is not None and stated != resolved.quantization.method:
        yield finding(
            "quant.method_mismatch",
            at=at,
            fix=fix,
            method=stated,
            format=resolved.checkpoint.format,
            right=resolved.quantization.method or "none",
        )
    elif named is None and "fp8" in str(stated):
        able = sorted({name for row in rows if row.method == stated for name in row.hardware})
        if able and resolved.recipe.hardware not in able:
            yield finding(
                "quant.float8", at=at, method=stated, able=able, hardware=resolved.recipe.hardware
            )


@holds("vllm_ascend")
def scales_have_their_dtype(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The 8-bit matmul over fractal weights takes bfloat16 scales."""
    recipe = resolved.recipe
    fractal = recipe.quant.kind != "none" and recipe.quant.weight_layout == "nz"
    half = recipe.checkpoint.dtype == "float16"
    if resolved.checkpoint.format in _INTEGER and half and fractal and recipe.hardware != "310p":
        yield finding("quant.dtype", at="checkpoint.dtype", fix="checkpoint.dtype=bfloat16")


@holds("vllm_ascend")
def four_bit_experts_are_spread(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The scales of 4-bit experts are laid out for expert parallelism."""
    recipe = resolved.recipe
    experts = "moe" in resolved.model.traits and recipe.parallel.tp > 1
    if resolved.checkpoint.format == "w4a8" and experts and not recipe.parallel.ep:
        yield finding("quant.w4a8_ep", at="parallel.ep", fix="parallel.ep=true")


def description_is_right(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What the description beside the weights says, where the checkpoint is on this machine."""
    if resolved.recipe.scale.kind != "real":
        return
    found = read_description(str(checkpoint_folder(resolved)))
    integer = resolved.quantization.method == "ascend"
    if found is None:
        return
    if not found:
        if integer:
            name = _DESCRIPTION
            yield finding("quant.no_description", at="checkpoint.path", name=name)
        return
    size, four = found.get("group_size"), resolved.checkpoint.format == "w4a8"
    if four and isinstance(size, int) and size > 0:
        if "moe" in resolved.model.traits:
            yield finding("quant.group_experts", at="checkpoint.path", size=size)
        elif size not in _GROUPS:
            yield finding("quant.group_size", at="checkpoint.path", size=size, legal=_GROUPS)
    seen = "vision" in resolved.model.traits and not resolved.recipe.multimodal.text_only
    towers = ("visual.", "vision", "embed_vision", "multi_modal")
    if seen and integer and not any(part in name for name in found for part in towers):
        yield finding("quant.coverage", at="checkpoint.path", fix="multimodal.text_only=true")


@cache
def read_description(folder: str) -> Mapping[str, Any] | None:
    """The description beside the weights; empty if there is none, none without the checkpoint."""
    path = Path(folder)
    if not (path / "config.json").is_file():
        return None
    try:
        tree = json.loads((path / _DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def loader_reads_one_way(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The loader with threads reads lazily; vLLM refuses another strategy beside it."""
    checkpoint = resolved.recipe.checkpoint
    if resolved.runtime.vllm.get(resolved.runtime_version) == "0.23.0":
        return
    if checkpoint.load_threads and checkpoint.load_strategy not in ("default", "lazy"):
        at = "checkpoint.load_strategy"
        yield finding(
            "checkpoint.load_strategy",
            at=at,
            fix=f"{at}=default",
            strategy=checkpoint.load_strategy,
            threads=checkpoint.load_threads,
        )
