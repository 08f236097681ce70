"""The one table between recipes and commands of vllm-ascend; rendering and import both read it.

A target is written as vLLM writes it: `--max-num-seqs` is a flag, `--additional-config.refresh` a
key of a flag that takes JSON, `$HCCL_BUFFSIZE` an environment variable. Versions are those of
`registry/runtimes/vllm_ascend.yaml`. Where the same field moved between versions it has one row a
position. What follows from more than one field stands in `derived.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ascend_recipes.rendering.codecs import (
    COUNT,
    COUNTS,
    DRAFTER,
    MAPPING,
    NEGATED,
    NUMBER,
    ON,
    POSITIVE,
    SWITCH,
    TEXT,
    VARIABLE_COUNT,
    VARIABLE_COUNTS,
    Codec,
    choice,
    implied,
)

ADDITIONAL = "--additional-config"
COMPILATION = "--compilation-config"
SPECULATIVE = "--speculative-config"
TRANSFER = "--kv-transfer-config"
LOADER = "--model-loader-extra-config"

_SCHEDULER = f"{ADDITIONAL}.scheduler_config"
_EPLB = f"{ADDITIONAL}.eplb_config"
_FINE = f"{ADDITIONAL}.finegrained_tp_config"
_ASCEND = f"{ADDITIONAL}.ascend_compilation_config"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A recipe field and the argument that carries it."""

    path: str
    """Dotted recipe path, as the role sees it."""
    target: str
    """Where the argument stands."""
    codec: Codec = TEXT
    emit: Literal["always", "changed"] = "changed"
    """`changed` leaves a value out that is the schema's default: the runtime's default is equal."""
    trait: str = ""
    """Only for models with this trait."""
    since: str | None = None
    """First version that reads the target; none for all."""
    last: str | None = None
    """Last version that reads it; none where the newest does."""
    aliases: tuple[str, ...] = ()
    """Other positions that are read on import, never written: deprecated or moved."""

    def serves(self, version: str, versions: Sequence[str]) -> bool:
        """Whether the version reads the target."""
        here = versions.index(version)
        after = self.since is None or here >= versions.index(self.since)
        return after and (self.last is None or here <= versions.index(self.last))


ROWS: tuple[Row, ...] = (
    # The server.
    Row(path="serving.host", target="--host", emit="always"),
    Row(path="serving.port", target="--port", codec=COUNT, emit="always"),
    Row(path="serving.served_model_name", target="--served-model-name", emit="always"),
    Row(path="serving.seed", target="--seed", codec=COUNT),
    Row(path="serving.api_servers", target="--api-server-count", codec=COUNT),
    Row(
        path="serving.ready_timeout_s",
        target="$VLLM_ENGINE_READY_TIMEOUT_S",
        codec=VARIABLE_COUNT,
        emit="always",
    ),
    # Weights.
    Row(path="checkpoint.dtype", target="--dtype"),
    Row(path="checkpoint.trust_remote_code", target="--trust-remote-code", codec=ON),
    Row(path="checkpoint.load_strategy", target="--safetensors-load-strategy"),
    Row(
        path="checkpoint.load_threads",
        target=f"{LOADER}.enable_multithread_load",
        codec=implied(True),
    ),
    Row(path="checkpoint.load_threads", target=f"{LOADER}.num_threads", codec=COUNT),
    Row(
        path="quant.weight_layout",
        target=f"{ADDITIONAL}.weight_nz_mode",
        codec=choice(("nd", 0), ("nz", 1)),
        aliases=("$VLLM_ASCEND_ENABLE_NZ",),
    ),
    # Batches.
    Row(path="scheduler.max_model_len", target="--max-model-len", codec=COUNT, emit="always"),
    Row(path="scheduler.max_num_seqs", target="--max-num-seqs", codec=COUNT, emit="always"),
    Row(
        path="scheduler.max_num_batched_tokens",
        target="--max-num-batched-tokens",
        codec=COUNT,
        emit="always",
    ),
    Row(path="scheduler.async_scheduling", target="--async-scheduling", codec=SWITCH),
    Row(
        path="scheduler.recompute",
        target=f"{ADDITIONAL}.recompute_scheduler_enable",
        codec=SWITCH,
        last="0.23.0",
    ),
    Row(
        path="scheduler.recompute",
        target=f"{_SCHEDULER}.recompute_scheduler_enable",
        codec=SWITCH,
        since="0.26.0rc1",
        aliases=(f"{ADDITIONAL}.recompute_scheduler_enable",),
    ),
    Row(
        path="scheduler.balance",
        target=f"{ADDITIONAL}.enable_balance_scheduling",
        codec=SWITCH,
        last="0.23.0",
        aliases=("$VLLM_ASCEND_BALANCE_SCHEDULING",),
    ),
    Row(
        path="scheduler.balance",
        target=f"{_SCHEDULER}.enable_balance_scheduling",
        codec=SWITCH,
        since="0.26.0rc1",
        aliases=(f"{ADDITIONAL}.enable_balance_scheduling", "$VLLM_ASCEND_BALANCE_SCHEDULING"),
    ),
    # Cache.
    Row(path="cache.block_size", target="--block-size", codec=COUNT, emit="always"),
    Row(path="cache.prefix_caching", target="--enable-prefix-caching", codec=SWITCH, emit="always"),
    Row(
        path="cache.memory_fraction", target="--gpu-memory-utilization", codec=NUMBER, emit="always"
    ),
    Row(path="cache.memory_bytes", target="--kv-cache-memory-bytes", codec=COUNT),
    Row(
        path="cache.retention_interval_tokens",
        target="$VLLM_PREFIX_CACHE_RETENTION_INTERVAL",
        codec=VARIABLE_COUNT,
    ),
    Row(
        path="cache.state_dtype",
        target="--mamba-ssm-cache-dtype",
        codec=choice(
            ("model_config", "auto"), *((name, name) for name in ("float32", "float16", "bfloat16"))
        ),
    ),
    # Attention.
    Row(path="attention.context_parallel", target=f"{ADDITIONAL}.enable_dsa_cp", codec=SWITCH),
    Row(
        path="attention.context_parallel",
        target=f"{ADDITIONAL}.enable_flashcomm1",
        codec=implied(True),
        last="0.26.0rc1",
    ),
    Row(
        path="attention.indexer_cache",
        target=f"{ADDITIONAL}.enable_sparse_li_c8",
        codec=choice(("model", False), ("int8", True), ("fp8", True)),
    ),
    Row(
        path="attention.reshaped_writes",
        target=f"{ADDITIONAL}.c8_enable_reshape_optim",
        codec=SWITCH,
    ),
    Row(
        path="attention.fused_prolog",
        target=f"{ADDITIONAL}.enable_mlapo",
        codec=SWITCH,
        aliases=("$VLLM_ASCEND_ENABLE_MLAPO",),
    ),
    Row(
        path="attention.overlap_streams",
        target=f"{ADDITIONAL}.multistream_dsv4_dsa_overlap",
        codec=SWITCH,
    ),
    # Parallelism; what spans nodes stands in `topology.py`.
    Row(path="parallel.tp", target="--tensor-parallel-size", codec=COUNT, emit="always"),
    Row(path="parallel.pp", target="--pipeline-parallel-size", codec=COUNT),
    Row(path="parallel.dp", target="--data-parallel-size", codec=COUNT),
    Row(path="parallel.ep", target="--enable-expert-parallel", codec=ON),
    Row(path="parallel.dcp", target="--decode-context-parallel-size", codec=COUNT),
    Row(path="parallel.dcp_interleave_tokens", target="--cp-kv-cache-interleave-size", codec=COUNT),
    Row(
        path="parallel.sequence",
        target=f"{ADDITIONAL}.enable_flashcomm1",
        codec=SWITCH,
        last="0.26.0rc1",
        aliases=("$VLLM_ASCEND_ENABLE_FLASHCOMM1",),
    ),
    Row(path="parallel.o_proj_tp", target=f"{_FINE}.oproj_tensor_parallel_size", codec=POSITIVE),
    Row(path="parallel.lm_head_tp", target=f"{_FINE}.lmhead_tensor_parallel_size", codec=POSITIVE),
    Row(
        path="parallel.embedding_tp",
        target=f"{_FINE}.embedding_tensor_parallel_size",
        codec=POSITIVE,
    ),
    Row(path="parallel.mlp_tp", target=f"{_FINE}.mlp_tensor_parallel_size", codec=POSITIVE),
    Row(path="parallel.pp_layers", target="$VLLM_PP_LAYER_PARTITION", codec=VARIABLE_COUNTS),
    # Experts.
    Row(
        path="moe.fused_communication",
        target=f"{ADDITIONAL}.enable_fused_mc2",
        codec=choice((True, 1), (False, 0)),
        trait="moe",
        aliases=("$VLLM_ASCEND_ENABLE_FUSED_MC2",),
    ),
    Row(
        path="moe.hierarchical_communication",
        target=f"{ADDITIONAL}.enable_mc2_hierarchy_comm",
        codec=SWITCH,
        trait="moe",
    ),
    Row(
        path="moe.prefill_dispatch",
        target=f"{ADDITIONAL}.enable_prefill_mc2",
        codec=SWITCH,
        trait="moe",
    ),
    Row(
        path="moe.overlap_shared_expert",
        target=f"{ADDITIONAL}.multistream_overlap_shared_expert",
        codec=SWITCH,
        trait="moe",
    ),
    Row(
        path="moe.shared_expert",
        target=f"{ADDITIONAL}.enable_shared_expert_dp",
        codec=choice(("dp", True), ("tp", False)),
        trait="moe",
    ),
    Row(
        path="moe.load_balancing",
        target=f"{_EPLB}.dynamic_eplb",
        codec=choice(("dynamic", True), ("off", False)),
        trait="moe",
    ),
    Row(
        path="moe.load_balancing",
        target="$DYNAMIC_EPLB",
        codec=choice(("dynamic", "true"), ("off", "false")),
        trait="moe",
    ),
    Row(
        path="moe.redundant_experts",
        target=f"{_EPLB}.num_redundant_experts",
        codec=COUNT,
        trait="moe",
    ),
    Row(
        path="moe.load_interval_steps",
        target=f"{_EPLB}.expert_heat_collection_interval",
        codec=COUNT,
        trait="moe",
    ),
    Row(
        path="moe.placement_interval_steps",
        target=f"{_EPLB}.algorithm_execution_interval",
        codec=COUNT,
        trait="moe",
    ),
    Row(
        path="moe.placement_policy",
        target=f"{_EPLB}.eplb_policy_type",
        codec=choice(("random", 0), ("greedy", 1), ("swift", 2), ("flash", 3)),
        trait="moe",
    ),
    # Graphs.
    Row(path="graph.kind", target="--enforce-eager", codec=choice(("none", True))),
    Row(
        path="graph.kind",
        target=f"{COMPILATION}.cudagraph_mode",
        codec=choice(
            ("full_decode", "FULL_DECODE_ONLY"),
            ("full", "FULL"),
            ("piecewise", "PIECEWISE"),
            ("full_and_piecewise", "FULL_AND_PIECEWISE"),
            read=(("none", "NONE"),),
        ),
    ),
    Row(path="graph.capture_sizes", target=f"{COMPILATION}.cudagraph_capture_sizes", codec=COUNTS),
    Row(path="graph.compiler_fusion", target=f"{_ASCEND}.enable_npugraph_ex", codec=SWITCH),
    Row(path="graph.static_kernels", target=f"{_ASCEND}.enable_static_kernel", codec=SWITCH),
    # Drafter.
    Row(
        path="drafter.kind",
        target=f"{SPECULATIVE}.method",
        codec=DRAFTER,
    ),
    Row(
        path="drafter.num_draft_tokens",
        target=f"{SPECULATIVE}.num_speculative_tokens",
        codec=COUNT,
    ),
    Row(path="drafter.graph", target=f"{SPECULATIVE}.enforce_eager", codec=NEGATED, emit="always"),
    # Inputs besides text.
    Row(path="multimodal.text_only", target="--language-model-only", codec=ON, trait="vision"),
    Row(
        path="multimodal.encoder",
        target="--mm-encoder-tp-mode",
        codec=choice(("data", "data"), ("tp", "weights")),
        trait="vision",
    ),
    Row(path="multimodal.limits", target="--limit-mm-per-prompt", codec=MAPPING, trait="vision"),
    Row(
        path="multimodal.processor_cache_gib",
        target="--mm-processor-cache-gb",
        codec=NUMBER,
        trait="vision",
    ),
    Row(
        path="multimodal.skip_profiling",
        target="--skip-mm-profiling",
        codec=ON,
        trait="vision",
    ),
)


@cache
def rows_by_target() -> dict[str, tuple[Row, ...]]:
    """Rows that a target may mean on import, its own position first, then aliases."""
    found: dict[str, list[Row]] = {}
    for row in ROWS:
        found.setdefault(row.target, []).append(row)
    for row in ROWS:
        for alias in row.aliases:
            found.setdefault(alias, []).append(row)
    return {target: tuple(rows) for target, rows in found.items()}


_SECTIONS = {
    "--tool-call-parser": "serving.tool_call_parser",
    "--reasoning-parser": "serving.reasoning_parser",
    "--num-speculative-tokens": "drafter.num_draft_tokens",
}
"""Flags that `derived.py` makes, and the field that a user changes to change them."""


def field_of(name: str) -> str | None:
    """Recipe path of what vLLM calls `name`, in any spelling; none where no single field says it.

    Args:
        name: a flag or the argument behind it: `--max-num-seqs`, `max_num_seqs`.
    """
    flag = f"--{name.removeprefix('--').replace('_', '-')}"
    rows = rows_by_target().get(flag, ())
    return rows[0].path if rows else _SECTIONS.get(flag)
