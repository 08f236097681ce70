"""Rules about keys of `--speculative-config` without a field, as vLLM's validator judges them.

Read at vLLM 0.23.0, 0.26.0, 0.27.1 and 0.32.0 (config/speculative.py); they hold for every runtime
unless marked.
"""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import Setting, argument, removed, switched_on, whole


def lookups_have_a_range(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Looking up earlier text compares at least as many tokens as at most."""
    least, most = _key(resolved, "prompt_lookup_min"), _key(resolved, "prompt_lookup_max")
    if least is None or most is None:
        return
    low, high = whole(least), whole(most)
    if low is not None and high is not None and low > high:
        yield finding(
            "drafter.lookup_range", at=least.at, fix=f"{least.at}={high}", least=low, most=high
        )


def layers_are_repeated_whole(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """More drafts than prediction layers repeat all layers, a whole number of times."""
    spec, facts = resolved.recipe.drafter, resolved.drafter
    layers = facts.layers if facts is not None else None
    if spec.kind != "mtp" or not layers or spec.num_draft_tokens <= layers:
        return
    if spec.num_draft_tokens % layers:
        at, drafts = "drafter.num_draft_tokens", spec.num_draft_tokens
        fix = f"{at}={drafts // layers * layers}"
        yield finding("drafter.repeats", at=at, fix=fix, drafts=drafts, layers=layers)


@holds("vllm_ascend", since="0.26.0rc1")
def blocks_are_filled(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The block drafter proposes at least a block; less gives wrong text, and is refused."""
    spec, block = resolved.recipe.drafter, resolved.config.get("dspark_block_size")
    if spec.kind == "dspark" and isinstance(block, int) and spec.num_draft_tokens < block:
        at, drafts = "drafter.num_draft_tokens", spec.num_draft_tokens
        yield finding("drafter.block_short", at=at, fix=f"{at}={block}", drafts=drafts, block=block)


def drafter_reads_no_further(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A drafter's context is no longer than its target's."""
    stated, most = _key(resolved, "max_model_len"), resolved.recipe.scheduler.max_model_len
    if stated is not None and (whole(stated) or 0) > most:
        yield finding(
            "drafter.context",
            at=stated.at,
            fix=f"{stated.at}={most}",
            stated=stated.value,
            most=most,
        )


def drafter_has_its_own_key(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The drafter's tensor-parallel size has a name of its own."""
    stated = _key(resolved, "tensor_parallel_size")
    if stated is not None:
        own = stated.at.replace("tensor_parallel_size", "draft_tensor_parallel_size")
        fix = f"{removed(stated.at)} {own}={stated.value}"
        yield finding("drafter.target_key", at=stated.at, fix=fix, own=own.rpartition(".")[2])


def acceptance_is_made_up_on_purpose(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Made-up acceptance has one description, and is asked for by name."""
    rates = _key(resolved, "synthetic_acceptance_rates")
    length = _key(resolved, "synthetic_acceptance_length")
    method = _key(resolved, "rejection_sample_method")
    given = [item for item in (rates, length) if item is not None]
    if method is not None and method.value == "synthetic":
        if len(given) != 1:
            yield finding("drafter.synthetic", at=method.at, fix=removed(method.at))
    elif given:
        fix = " ".join(removed(item.at) for item in given)
        yield finding("drafter.synthetic_unasked", at=given[0].at, fix=fix)


@holds("vllm_ascend", since="0.26.0rc1")
def vocabularies_differ_for_models(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Only a draft model of its own may have another vocabulary."""
    stated, method = switched_on(_key(resolved, "use_heterogeneous_vocab")), _method(resolved)
    if stated is not None and method != "draft_model":
        fix = removed(stated.at)
        yield finding("drafter.vocabulary", at=stated.at, fix=fix, method=method)


def prompts_are_filled_whole(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A drafter reads the logits of every prompt token, which fast prefill leaves out."""
    fast = switched_on(argument(resolved, "kv_sharing_fast_prefill"))
    if fast is not None and resolved.recipe.drafter.kind != "none":
        kind = resolved.recipe.drafter.kind
        yield finding("drafter.fast_prefill", at=fast.at, fix=removed(fast.at), kind=kind)


def _key(resolved: ResolvedRecipe, name: str) -> Setting | None:
    return argument(resolved, f"speculative_config.{name}")


def _method(resolved: ResolvedRecipe) -> str:
    stated = _key(resolved, "method")
    return str(stated.value) if stated is not None else resolved.recipe.drafter.kind
