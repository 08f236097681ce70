"""Rules about adapters (LoRA), which recipes have no fields for."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.graph import query_length
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import argument, removed, switched_on, whole

_RANK = 16
"""vLLM's own `max_lora_rank` (config/lora.py:35)."""
_LEGAL_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def host_holds_running_adapters(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The host keeps at least the adapters that run (vllm/config/lora.py:121 at 0.27.1)."""
    host, device = argument(resolved, "max_cpu_loras"), argument(resolved, "max_loras")
    running = (whole(device) if device is not None else None) or 1
    kept = whole(host) if host is not None else None
    if host is not None and kept is not None and 0 < kept < running and _has_adapters(resolved):
        fix = f"{host.at}={running}"
        yield finding("lora.fewer_on_host", at=host.at, fix=fix, kept=kept, running=running)


def drafts_of_adapters_fit_step(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """With adapters and drafts a step takes the full batch (vllm/engine/arg_utils.py:2317)."""
    scheduler, query = resolved.recipe.scheduler, query_length(resolved)
    batch = scheduler.max_num_seqs * query
    if query > 1 and scheduler.max_num_batched_tokens < batch and _has_adapters(resolved):
        at = "scheduler.max_num_batched_tokens"
        step = scheduler.max_num_batched_tokens
        yield finding("lora.step", at=at, fix=f"{at}={batch}", batch=batch, step=step)


@holds("vllm_ascend")
def ranks_fit_projections(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The kernel that widens an adapter's rank wants every slice of a projection as wide.

    The narrowest are the gates of recurrent layers: one number a head.
    """
    heads = resolved.config.get("linear_num_value_heads")
    if "recurrent_state" not in resolved.model.traits or not isinstance(heads, int):
        return
    stated = argument(resolved, "max_lora_rank")
    rank = (whole(stated) if stated is not None else None) or _RANK
    width = heads // resolved.recipe.parallel.tp
    if rank > width and _has_adapters(resolved):
        at = "extra_args.max_lora_rank"
        legal = max((n for n in _LEGAL_RANKS if n <= width), default=0)
        fix = f"{at}={legal}" if legal else removed("extra_args.enable_lora")
        yield finding("lora.rank", at=at, fix=fix, rank=rank, width=width)


def _has_adapters(resolved: ResolvedRecipe) -> bool:
    return switched_on(argument(resolved, "enable_lora")) is not None
