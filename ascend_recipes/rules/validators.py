"""Rules about engine arguments without a field that vLLM's own validators refuse.

Read at vLLM 0.23.0, 0.26.0, 0.27.1 and 0.32.0; they hold for every runtime unless marked.
"""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import (
    Setting,
    argument,
    removed,
    switched_on,
    transfer,
    variable,
    whole,
)

_EARLY = ("0.23.0", "0.26.0rc1")
"""Versions of vllm-ascend whose vLLM lacks the latest validators."""

_WHITESPACE_BACKENDS = ("xgrammar", "guidance")


def replicas_have_a_place(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A process holds no more replicas than there are, and has one of their numbers."""
    dp = resolved.recipe.parallel.dp
    local, rank = argument(resolved, "data_parallel_size_local"), _rank(resolved)
    if local is not None and (whole(local) or 0) > dp:
        yield finding(
            "parallel.local_replicas",
            at=local.at,
            fix=f"{local.at}={dp}",
            local=local.value,
            dp=dp,
        )
    if rank is not None and not 0 <= (whole(rank) or 0) < dp:
        yield finding(
            "parallel.replica_rank", at=rank.at, fix=removed(rank.at), rank=rank.value, dp=dp
        )
    hybrid = switched_on(argument(resolved, "data_parallel_hybrid_lb"))
    external = switched_on(argument(resolved, "data_parallel_external_lb"))
    if hybrid is not None and external is not None and _is_late(resolved):
        yield finding("parallel.two_balancers", at=hybrid.at, fix=removed(hybrid.at))


def _rank(resolved: ResolvedRecipe) -> Setting | None:
    return argument(resolved, "data_parallel_rank")


@holds("vllm_ascend")
def context_exchange_has_ways(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """How context-parallel dies exchange is said where there are some (gone in vLLM 0.32)."""
    stated = argument(resolved, "dcp_comm_backend")
    if stated is not None and stated.value == "a2a" and resolved.recipe.parallel.dcp == 1:
        yield finding("parallel.context_exchange", at=stated.at, fix=removed(stated.at))


def replicas_of_experts_are_opened(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """vLLM's own balancer is switched on before anything is asked of it."""
    if switched_on(argument(resolved, "enable_eplb")) is not None:
        return
    replicas = argument(resolved, "eplb_config.num_redundant_experts")
    if replicas is not None and replicas.on:
        fix = removed(replicas.at)
        yield finding("moe.replicas_closed", at=replicas.at, fix=fix, count=replicas.value)
    elastic = switched_on(argument(resolved, "enable_elastic_ep"))
    if elastic is not None:
        yield finding("moe.elastic", at=elastic.at, fix=removed(elastic.at))


def routed_experts_stay_home(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Which experts were chosen is told by one stage that keeps its caches."""
    told = switched_on(argument(resolved, "enable_return_routed_experts"))
    recipe = resolved.recipe
    moves = any(transfer(resolved, role) for role in recipe.roles)
    if told is not None and (recipe.parallel.pp > 1 or moves):
        yield finding("moe.routed_experts", at=told.at, fix=removed(told.at))


def long_prompts_are_within_context(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What counts as a long prompt is no longer than the longest."""
    stated, most = argument(resolved, "long_prefill_token_threshold"), _context(resolved)
    if stated is not None and (whole(stated) or 0) > most:
        yield finding(
            "scheduler.long_threshold",
            at=stated.at,
            fix=f"{stated.at}={most}",
            stated=stated.value,
            most=most,
        )


def outputs_are_logged_with_requests(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What the server logs and counts, where the rest that it needs is on."""
    outputs = switched_on(argument(resolved, "enable_log_outputs"))
    if outputs is not None and switched_on(argument(resolved, "enable_log_requests")) is None:
        fix = "extra_args.enable_log_requests=true"
        yield finding("serving.log_outputs", at=outputs.at, fix=fix)
    metrics = switched_on(argument(resolved, "enable_per_request_metrics"))
    silent = switched_on(argument(resolved, "disable_log_stats"))
    if metrics is not None and silent is not None and _is_late(resolved):
        yield finding("serving.request_metrics", at=silent.at, fix=removed(silent.at))


def structure_has_its_backend(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Options of structured output that some backends have."""
    chosen = argument(resolved, "structured_outputs_config.backend")
    backend = str(chosen.value) if chosen is not None else "auto"
    options = {
        "disable_any_whitespace": _WHITESPACE_BACKENDS,
        "disable_additional_properties": ("guidance",),
    }
    for name, able in options.items():
        stated = switched_on(argument(resolved, f"structured_outputs_config.{name}"))
        if stated is not None and backend not in able:
            yield finding(
                "serving.structure",
                at=stated.at,
                fix=f"extra_args.structured_outputs_config.backend={able[-1]}",
                option=name,
                backend=backend,
                able=able,
            )


def inputs_share_memory_rightly(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Shared memory for images and other inputs: of the cache, and between processes."""
    size = argument(resolved, "mm_shm_cache_max_object_size_mb")
    kind = argument(resolved, "mm_processor_cache_type")
    if size is not None and (kind is None or kind.value != "shm"):
        fix = "extra_args.mm_processor_cache_type=shm"
        yield finding("multimodal.shm_size", at=size.at, fix=fix)
    shared, parallel = argument(resolved, "mm_tensor_ipc"), resolved.recipe.parallel
    if shared is None or shared.value != "torch_shm":
        return
    spawned = variable(resolved, "VLLM_WORKER_MULTIPROC_METHOD")
    if max(parallel.tp, parallel.dp, parallel.pp) > 1:
        yield finding("multimodal.tensor_ipc", at=shared.at, fix=removed(shared.at))
    elif spawned is None or spawned.value != "spawn":
        fix = "env.VLLM_WORKER_MULTIPROC_METHOD=spawn"
        yield finding("multimodal.shm_spawn", at=shared.at, fix=fix)


def transfers_have_a_role(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A connector of a single engine says which end it is; recipes with roles say it themselves."""
    stated = argument(resolved, "kv_transfer_config")
    if stated is None or not isinstance(stated.value, dict) or "serve" not in resolved.recipe.roles:
        return
    if stated.value.get("kv_connector") and not stated.value.get("kv_role"):
        at = f"{stated.at}.kv_role"
        yield finding("pd.role_missing", at=at, fix=f"{at}=kv_both")


def operations_are_told_once(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """`custom_ops` has one base, and switches each operation one way."""
    stated = argument(resolved, "compilation_config.custom_ops")
    if stated is None or not isinstance(stated.value, list) or not _is_late(resolved):
        return
    words = [str(word) for word in stated.value]
    bases = [word for word in words if word in ("all", "none")]
    both = sorted({w[1:] for w in words if w[0] == "+"} & {w[1:] for w in words if w[0] == "-"})
    if len(bases) > 1 or both:
        yield finding("graph.custom_ops", at=stated.at, fix=removed(stated.at), words=words)


def _context(resolved: ResolvedRecipe) -> int:
    return resolved.recipe.scheduler.max_model_len


def _is_late(resolved: ResolvedRecipe) -> bool:
    return resolved.runtime_version not in _EARLY
