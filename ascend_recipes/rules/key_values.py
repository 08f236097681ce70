"""Rules about values under `runtime.additional_config`: ranges, and keys that exclude each other.

Names and types are judged in `rules.surface`; here stands what vllm-ascend checks when it starts
(ascend_config.py at 182b75ea).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.roles import CONSUMER, Role


@dataclass(frozen=True)
class Range:
    """What a number may be."""

    least: float
    most: float | None = None
    open: bool = False
    """Whether the least value itself is excluded."""
    default: float = 0

    def holds(self, value: float) -> bool:
        """Whether the value is inside."""
        above = value > self.least if self.open else value >= self.least
        return above and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        low = f"> {self.least:g}" if self.open else f">= {self.least:g}"
        return low if self.most is None else f"{low}, <= {self.most:g}"


_SCHEDULER_RANGES = {
    "short_request_first_config.threshold": Range(0, default=256),
    "short_request_first_config.long_max_wait_ms": Range(0),
    "profiling_chunk_config.smooth_factor": Range(0, 1, open=True, default=1),
    "profiling_chunk_config.min_chunk": Range(0, open=True, default=4096),
    "profiling_chunk_config.max_fit_chunk": Range(5, open=True, default=30),
    "batch_job_sched_config.max_jobs": Range(0, default=20),
    "batch_job_sched_config.reserve_margin_blocks": Range(0, default=2),
    "batch_job_sched_config.reserve_max_blocks": Range(0, open=True, default=8),
    "batch_job_sched_config.low_available_tokens_threshold": Range(0, open=True, default=4096),
    "batch_job_sched_config.short_decode_token_threshold": Range(0, open=True, default=32),
    "dyntra_lb_config.start_step": Range(0, default=250),
    "dyntra_lb_config.end_step": Range(-1, default=-1),
    "dyntra_lb_config.bubble_threshold": Range(0, open=True, default=5),
    "dyntra_lb_config.long_req_block_threshold": Range(0, open=True, default=700),
    "dyntra_lb_config.dynamic_max_step": Range(0, open=True, default=256),
}
_RANGES = {
    "enable_fused_mc2": Range(0, 1),
    "weight_nz_mode": Range(0, 2, default=1),
    "mega_moe_max_tokens": Range(0, open=True, default=131072),
    "eplb_config.expert_heat_collection_interval": Range(0, default=600),
    "eplb_config.algorithm_execution_interval": Range(0, default=50),
    "eplb_config.num_redundant_experts": Range(0),
    "eplb_config.eplb_policy_type": Range(0, 3, default=2),
    "rejection_sampler_config.posterior_threshold": Range(0, 1, open=True, default=0.95),
    "rejection_sampler_config.posterior_alpha": Range(0, default=0.4),
    "sparse_kv_offload_config.topk_buffer_size": Range(0, open=True, default=4096),
}

_DYNTRA_START = 250
"""Step from which decode replicas are levelled unless told otherwise (ascend_config.py:1098)."""

_FILES = ("eplb_config.expert_map_path", "eplb_config.expert_map_record_path")


@holds("vllm_ascend")
def numbers_are_in_range(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Numbers are where vllm-ascend accepts them."""
    given = [(options.key(resolved, path), span) for path, span in _RANGES.items()]
    given += [(options.scheduler_key(resolved, path), s) for path, s in _SCHEDULER_RANGES.items()]
    for setting, span in given:
        value = setting.value if setting is not None else None
        if setting is None or not isinstance(value, int | float) or span.holds(value):
            continue
        yield finding(
            "config.out_of_range",
            at=setting.at,
            fix=f"{setting.at}={span.default:g}",
            value=value,
            range=str(span),
        )


@holds("vllm_ascend")
def maps_are_json(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Maps of experts are read and written as JSON."""
    for path in _FILES:
        setting = options.key(resolved, path)
        if setting is not None and not str(setting.value).endswith(".json"):
            name = str(setting.value).rpartition(".")[0] or str(setting.value)
            yield finding(
                "config.not_json",
                at=setting.at,
                fix=f"{setting.at}={name}.json",
                file=setting.value,
            )


@holds("vllm_ascend")
def dumps_are_told_once(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What to dump stands in a file or in the keys, not in both."""
    inline, file = options.key(resolved, "dump_config"), options.key(resolved, "dump_config_path")
    if inline is not None and file is not None:
        yield finding("config.two_dumps", at=inline.at, fix=options.removed(inline.at))


@holds("vllm_ascend")
def windows_have_a_span(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Levelling ends after it begins (ascend_config.py:1157)."""
    end = options.scheduler_key(resolved, "dyntra_lb_config.end_step")
    begin = options.scheduler_key(resolved, "dyntra_lb_config.start_step")
    first = (options.whole(begin) if begin is not None else None) or _DYNTRA_START
    last = options.whole(end) if end is not None else None
    if end is not None and last is not None and -1 < last <= first:
        yield finding("config.window", at=end.at, fix=f"{end.at}=-1", first=first, last=last)


@holds("vllm_ascend")
def chunks_fit_step(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A measured chunk is no longer than a step, and is measured where chunks are on."""
    chunks = options.switched_on(options.scheduler_key(resolved, f"{_CHUNKS}.enabled"))
    timing = options.switched_on(options.scheduler_key(resolved, f"{_CHUNKS}.need_timing"))
    least = options.scheduler_key(resolved, f"{_CHUNKS}.min_chunk")
    step = resolved.recipe.scheduler.max_num_batched_tokens
    asked = (options.whole(least) if least is not None else None) or _LEAST_CHUNK
    if chunks is not None and asked > step:
        at = least.at if least is not None else chunks.at.replace("enabled", "min_chunk")
        yield finding(
            "scheduler.chunk_above_step", at=at, fix=f"{at}={step}", least=asked, step=step
        )
    if chunks is None and timing is not None:
        yield finding("scheduler.timing_idle", at=timing.at, fix=options.off(timing))


_CHUNKS = "profiling_chunk_config"
_LEAST_CHUNK = 4096
"""`min_chunk` unless told otherwise (ascend_config.py:832)."""


@holds("vllm_ascend")
def sparse_caches_have_an_index(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Keys for caches of sparse attention do nothing for a model that has none (…:262)."""
    if resolved.recipe.attention.kind == "sfa":
        return
    for name in ("enable_sparse_sfa_c8", "enable_sparse_li_c8"):
        stated = options.switched_on(options.key(resolved, name))
        if stated is not None:
            kind = resolved.recipe.attention.kind
            fix = options.removed(stated.at)
            yield finding("config.sparse_idle", at=stated.at, fix=fix, name=name, attention=kind)


@holds("vllm_ascend")
def weights_can_be_exchanged(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Weights that sleep, or that a trainer replaces, stay in the plain layout.

    Reinforcement learning switches the private layout off itself (ascend_config.py:578-587).
    """
    layout = options.key(resolved, "weight_nz_mode") or _layout_variable(resolved)
    learning = options.switched_on(options.key(resolved, "rl_config.enabled"))
    if learning is not None:
        if layout is not None and layout.on:
            yield finding("config.layout_overruled", at=layout.at, fix=options.off(layout))
        return
    asleep = options.switched_on(options.argument(resolved, "enable_sleep_mode"))
    replaced = options.argument(resolved, "weight_transfer_config")
    asked = asleep or replaced
    if asked is not None and (layout is None or layout.on):
        at = layout.at if layout is not None else asked.at
        fix = f"{options.KEYS}.weight_nz_mode=0" if layout is None else options.off(layout)
        yield finding("memory.layout", at=at, fix=fix, asked=asked.at)


def _layout_variable(resolved: ResolvedRecipe) -> options.Setting | None:
    return options.variable(resolved, "VLLM_ASCEND_ENABLE_NZ")


@holds("vllm_ascend")
def single_role_offloads(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Sparse caches in host memory, in a deployment of one role."""
    if "serve" in resolved.recipe.roles:
        yield from _offload(Role("serve", resolved))


@holds("vllm_ascend")
def both_roles_offload(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """The same where prefill and decode share the keys: prefill may not."""
    yield from _offload(Role("prefill", prefill)) or _offload(Role("decode", decode))


def _offload(role: Role) -> list[Finding]:
    """What the offload of sparse caches cannot do (ascend_config.py:1247-1294)."""
    enabled = options.switched_on(options.key(role.view, "sparse_kv_offload_config.enabled"))
    if enabled is None:
        return []
    fix = options.off(enabled)
    recipe, config = role.view.recipe, role.view.config
    kept = options.key(role.view, "sparse_kv_offload_config.keep_device_kv_cache")
    buffer = options.key(role.view, "sparse_kv_offload_config.topk_buffer_size")
    size, topk = buffer.value if buffer is not None else 4096, config.get("index_topk")
    found = []
    if "compress_ratios" in config or topk is None:
        kind = recipe.attention.kind
        found.append(finding("config.offload_attention", at=enabled.at, fix=fix, attention=kind))
    elif isinstance(size, int) and isinstance(topk, int) and 0 < size < topk:
        path = f"{options.KEYS}.sparse_kv_offload_config.topk_buffer_size"
        found.append(
            finding("config.offload_buffer", at=path, fix=f"{path}={topk}", size=size, topk=topk)
        )
    if recipe.parallel.dcp > 1 or recipe.parallel.pp > 1 or options.second_runner(role.view):
        found.append(finding("config.offload_split", at=enabled.at, fix=fix))
    if getattr(recipe.cache, "kv_dtype", "model") != "model" and recipe.attention.kind == "sfa":
        found.append(finding("config.offload_dtype", at=enabled.at, fix=fix))
    if role.kv_role != CONSUMER and not (kept is not None and kept.on):
        found.append(finding("config.offload_role", at=enabled.at, fix=fix, role=role.name))
    return found
