"""Rules about speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import argument, removed, switched_on, variable
from ascend_recipes.versions import in_range

if TYPE_CHECKING:
    from ascend_recipes.machine import InstalledVersions

QUERY_TOKENS = 16
"""Most tokens of a request in a decode step (fused infer attention; attention_v1.py:256)."""


def draft_length_is_offered(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A drafter proposes no more tokens than it was made for, nor than attention reads."""
    spec, facts = resolved.recipe.drafter, resolved.drafter
    if spec.kind == "none" or facts is None:
        return
    asked = spec.num_draft_tokens
    if 1 + asked > QUERY_TOKENS:
        yield finding(
            "drafter.query_tokens",
            at="drafter.num_draft_tokens",
            fix=f"drafter.num_draft_tokens={min(QUERY_TOKENS - 1, facts.max_draft_tokens)}",
            asked=asked,
            most=QUERY_TOKENS,
        )
    elif asked > facts.max_draft_tokens:
        yield finding(
            "drafter.too_long",
            at="drafter.num_draft_tokens",
            fix=f"drafter.num_draft_tokens={facts.max_draft_tokens}",
            kind=spec.kind,
            model=resolved.recipe.model,
            most=facts.max_draft_tokens,
            asked=asked,
        )


def stated_length_is_read(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The same limit where the drafter is one that recipes have no field for."""
    stated = argument(resolved, "speculative_config.num_speculative_tokens")
    if stated and isinstance(stated.value, int) and 1 + stated.value > QUERY_TOKENS:
        yield finding(
            "drafter.query_tokens",
            at=stated.at,
            fix=f"{stated.at}={QUERY_TOKENS - 1}",
            asked=stated.value,
            most=QUERY_TOKENS,
        )


def draft_tensor_parallel_is_legal(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A drafter is split like its target, or not at all."""
    stated = argument(resolved, "speculative_config.draft_tensor_parallel_size")
    tp = resolved.recipe.parallel.tp
    if stated is not None and stated.value not in (1, tp):
        fitting = tp if "serve" in resolved.recipe.roles else 1
        fix = f"{stated.at}={fitting}"
        yield finding("drafter.draft_tp", at=stated.at, fix=fix, stated=stated.value, tp=tp)


@holds("vllm_ascend")
def block_drafter_is_eager(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The first model runner never captures the block drafter, nor those of some models."""
    spec = resolved.recipe.drafter
    second = switched_on(variable(resolved, "VLLM_USE_V2_MODEL_RUNNER"))
    never = spec.kind == "dspark" or "eager_drafter" in resolved.model.traits
    if spec.kind != "none" and spec.graph and never and second is None:
        yield finding("drafter.graph_idle", at="drafter.graph", fix="drafter.graph=false")


def block_drafter_is_greedy(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The block drafter proposes its likeliest tokens; it has no stages."""
    recipe = resolved.recipe
    stated = argument(resolved, "speculative_config.draft_sample_method")
    if recipe.drafter.kind != "dspark":
        return
    if stated is not None and stated.value == "probabilistic":
        yield finding("drafter.probabilistic", at=stated.at, fix=removed(stated.at))
    if recipe.parallel.pp > 1:
        yield finding("drafter.dspark_stages", at="parallel.pp", pp=recipe.parallel.pp)
    if recipe.parallel.lm_head_tp and recipe.runtime.kind == "vllm_ascend":
        at = "parallel.lm_head_tp"
        yield finding("drafter.dspark_head", at=at, fix=f"{at}=0")


@holds("vllm_ascend")
def drafts_fit_hardware(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Drafts with cached prefixes give wrong text on 310P."""
    recipe = resolved.recipe
    if recipe.hardware == "310p" and recipe.drafter.kind != "none" and recipe.cache.prefix_caching:
        at = "cache.prefix_caching"
        yield finding("drafter.prefix_310p", at=at, fix=f"{at}=false")


@holds("vllm_ascend")
def drafts_have_no_known_fault(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """Releases in which drafts of models with recurrent states are reported to be lost."""
    spec = resolved.recipe.drafter
    states = "recurrent_state" in resolved.model.traits
    if spec.kind == "mtp" and states and in_range(installed.vllm_ascend, _FAULTY_DRAFTS):
        yield finding(
            "drafter.known",
            at="drafter.kind",
            fix="drafter=none",
            version=installed.vllm_ascend,
            drafts=spec.num_draft_tokens,
        )


_FAULTY_DRAFTS = ">=0.19.1rc1,<0.22"
"""Releases between the first report and the first documents with drafts of these models."""
