"""Engine and server arguments, by the names that vLLM gives them."""

from collections.abc import Mapping
from pathlib import Path

from ascend_recipes.paths import cache_root
from ascend_recipes.planning.cache import cache_alignment, state_mode
from ascend_recipes.planning.ledger import Ledger, Section
from ascend_recipes.resolve import ResolvedRecipe, state_dtype
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.plan import DrafterPlan, GraphPlan
from ascend_recipes.schema.site import SourceSpec


def plan_engine(
    resolved: ResolvedRecipe, ledger: Ledger, graph: GraphPlan, drafter: DrafterPlan | None
) -> dict[str, Json]:
    """Fields of vLLM's `EngineArgs`; nothing that matters is left to a default."""
    section = Section(ledger, "engine")
    _add_weights(resolved, section)
    _add_scheduler(resolved, section)
    _add_cache(resolved, section)
    _add_parallel(resolved, section)
    _add_graph(section, graph)
    _add_drafter(resolved, section, drafter)
    for key, value in resolved.recipe.extra_args.items():
        _add_extra(section, key, value)
    return section.values


def _add_extra(section: Section, key: str, value: Json) -> None:
    """An argument in the plan's place; of a nested one only the fields that are named."""
    made, path = section.values.get(key), f"extra_args.{key}"
    if not (isinstance(made, dict) and isinstance(value, dict)):
        section.recipe(key, value, path)
        return
    for name, item in value.items():
        made[name] = item
        section.ledger.from_recipe(f"{section.name}.{key}.{name}", f"{path}.{name}")


def plan_server(resolved: ResolvedRecipe, ledger: Ledger) -> dict[str, Json]:
    """Arguments of the API server that are not engine arguments."""
    section = Section(ledger, "server")
    serving = resolved.recipe.serving
    section.recipe("host", serving.host, "serving.host")
    section.recipe("port", serving.port, "serving.port")
    if parser := serving.tool_call_parser:
        section.recipe("tool_call_parser", parser, "serving.tool_call_parser")
    elif parser := resolved.model.tool_call_parser:
        section.row("tool_call_parser", parser, "models", resolved.recipe.model)
    if parser:
        automatic = serving.auto_tool_choice
        section.recipe("enable_auto_tool_choice", automatic, "serving.auto_tool_choice")
    if serving.api_servers > 1:
        section.recipe("api_server_count", serving.api_servers, "serving.api_servers")
    return section.values


def checkpoint_source(resolved: ResolvedRecipe) -> SourceSpec | None:
    """What the site says about this checkpoint; a path or tiny weights of the recipe come first."""
    recipe = resolved.recipe
    if recipe.checkpoint.path or recipe.scale.kind == "tiny":
        return None
    return recipe.site.sources.get(recipe.model, {}).get(recipe.checkpoint.variant)


def model_argument(resolved: ResolvedRecipe) -> str:
    """What vLLM is told to load: a folder, or an identifier on a hub."""
    source = checkpoint_source(resolved)
    identifier = source.identifier if source else None
    return identifier or str(checkpoint_folder(resolved))


def checkpoint_origin(resolved: ResolvedRecipe) -> str:
    """Recipe path that decides where weights are."""
    recipe = resolved.recipe
    if recipe.checkpoint.path:
        return "checkpoint.path"
    if checkpoint_source(resolved):
        return f"site.sources.{recipe.model}.{recipe.checkpoint.variant}"
    return "site.weight_roots"


def checkpoint_folder(resolved: ResolvedRecipe) -> Path:
    """Folder of the weights: named, tiny, or below the first weight root that has it."""
    recipe = resolved.recipe
    if recipe.checkpoint.path:
        return Path(recipe.checkpoint.path)
    if recipe.scale.kind == "tiny":
        from ascend_recipes.tiny import tiny_checkpoint_path

        return tiny_checkpoint_path(
            tiny_folder(recipe.site.cache_folder),
            family=resolved.model.family,
            model=resolved.published_config,
            seed=recipe.scale.seed,
            dtype=recipe.checkpoint.dtype,
            quantization=resolved.checkpoint.format,
        )
    source = checkpoint_source(resolved)
    if source and source.path:
        return Path(source.path)
    facts = resolved.checkpoint
    folder = (facts.hub or facts.modelscope or recipe.model).rpartition("/")[2]
    roots = [Path(root) for root in recipe.site.weight_roots]
    existing = [root / folder for root in roots if (root / folder).is_dir()]
    return existing[0] if existing else roots[0] / folder


def recipe_root(resolved: ResolvedRecipe) -> str:
    """First folder below which the site keeps checkpoints."""
    return resolved.recipe.site.weight_roots[0]


def tiny_folder(cache_folder: str | None) -> Path:
    """Where tiny checkpoints are kept."""
    return (Path(cache_folder) if cache_folder else cache_root()) / "tiny"


def _add_weights(resolved: ResolvedRecipe, section: Section) -> None:
    recipe = resolved.recipe
    checkpoint = recipe.checkpoint
    path = checkpoint_origin(resolved)
    section.recipe("model", model_argument(resolved), path, "where weights are")
    if (source := checkpoint_source(resolved)) and source.revision:
        section.recipe("revision", source.revision, f"{path}.revision")
    served = recipe.serving.served_model_name or recipe.model
    section.recipe("served_model_name", served, "serving.served_model_name")
    section.recipe("dtype", checkpoint.dtype, "checkpoint.dtype")
    section.recipe(
        "trust_remote_code", checkpoint.trust_remote_code, "checkpoint.trust_remote_code"
    )
    section.recipe("seed", recipe.serving.seed, "serving.seed")
    if mode := resolved.model.tokenizer_mode:
        section.row("tokenizer_mode", mode, "models", recipe.model)
    if parser := recipe.serving.reasoning_parser:
        section.recipe("reasoning_parser", parser, "serving.reasoning_parser")
    elif parser := resolved.model.reasoning_parser:
        section.row("reasoning_parser", parser, "models", recipe.model)
    if method := resolved.quantization.method:
        section.row("quantization", method, "quantization", resolved.checkpoint.format)
    if checkpoint.load_strategy != "default":
        key, path = "safetensors_load_strategy", "checkpoint.load_strategy"
        section.recipe(key, checkpoint.load_strategy, path)
    if checkpoint.load_threads:
        options: dict[str, Json] = {
            "enable_multithread_load": True,
            "num_threads": checkpoint.load_threads,
        }
        section.recipe("model_loader_extra_config", options, "checkpoint.load_threads")
    if checkpoint.rope_factor > 1:
        overrides = stretched_rope(resolved.config, checkpoint.rope_factor)
        section.recipe("hf_overrides", overrides, "checkpoint.rope_factor")
    if "vision" in resolved.model.traits:
        _add_vision(resolved, section)


def _add_vision(resolved: ResolvedRecipe, section: Section) -> None:
    spec = resolved.recipe.multimodal
    if resolved.recipe.runtime.kind == "native":
        because = "the native runtime serves text only so far"
        section.decided("language_model_only", True, because, _add_vision)
        return
    section.recipe("language_model_only", spec.text_only, "multimodal.text_only")
    if spec.text_only:
        return
    if spec.encoder == "data":
        section.recipe("mm_encoder_tp_mode", "data", "multimodal.encoder")
    if spec.limits:
        limits: dict[str, Json] = dict(spec.limits)
        section.recipe("limit_mm_per_prompt", limits, "multimodal.limits")
    if spec.processor_cache_gib is not None:
        path = "multimodal.processor_cache_gib"
        section.recipe("mm_processor_cache_gb", spec.processor_cache_gib, path)
    if spec.skip_profiling:
        section.recipe("skip_mm_profiling", True, "multimodal.skip_profiling")


def stretched_rope(config: Mapping[str, Json], factor: float) -> dict[str, Json]:
    """YaRN over the model's own rotary fields, all of them: an override drops what it omits."""
    own = config.get("rope_parameters")
    length = config["max_position_embeddings"]
    rope: dict[str, Json] = {
        **(own if isinstance(own, dict) else {}),
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": length,
    }
    nested = "model_type" in config
    return {"text_config": {"rope_parameters": rope}} if nested else {"rope_parameters": rope}


def _add_scheduler(resolved: ResolvedRecipe, section: Section) -> None:
    scheduler = resolved.recipe.scheduler
    for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        section.recipe(key, getattr(scheduler, key), f"scheduler.{key}")
    because = "long prompts share steps with decodes"
    section.decided("enable_chunked_prefill", True, because, _add_scheduler)
    racing = {"prefix_align", "drafter"} <= resolved.traits
    if scheduler.async_scheduling and racing:
        section.decided(
            "async_scheduling",
            False,
            "aligned states with a drafter: vLLM 0.32 permutes accepted-token counts twice "
            "(vllm/v1/worker/gpu_model_runner.py:2074)",
            _add_scheduler,
        )
    else:
        key = "async_scheduling"
        section.recipe(key, scheduler.async_scheduling, f"scheduler.{key}")


def _add_cache(resolved: ResolvedRecipe, section: Section) -> None:
    cache = resolved.recipe.cache
    section.recipe("block_size", cache.block_size, "cache.block_size")
    section.recipe("enable_prefix_caching", cache.prefix_caching, "cache.prefix_caching")
    section.recipe("gpu_memory_utilization", cache.memory_fraction, "cache.memory_fraction")
    native = resolved.recipe.runtime.kind == "native"
    if cache.kind == "heterogeneous" and cache.prefix_caching and native:
        _add_retention(resolved, cache.retention_interval_tokens, section)
    if asks_for_hybrid_manager(resolved):
        because = "caches of several kinds: with a KV connector vLLM would fall back to one kind"
        section.decided("disable_hybrid_kv_cache_manager", False, because, _add_cache)
    if cache.memory_bytes is not None:
        section.recipe("kv_cache_memory_bytes", cache.memory_bytes, "cache.memory_bytes")
    if "state_cache" in resolved.traits:
        section.recipe("mamba_cache_mode", state_mode(resolved), "cache.state_mode")
        dtype = state_dtype(resolved.recipe, resolved.config)
        section.recipe("mamba_ssm_cache_dtype", dtype, "cache.state_dtype")


def _add_retention(resolved: ResolvedRecipe, interval: int, section: Section) -> None:
    """Where cached prefixes may end, in words that leave nothing to vLLM's default.

    That keeps the end of the last prompt only, and with a drafter the boundary before it
    (vllm/v1/core/kv_cache_coordinator.py:65, replay_boundaries, at 0.32.0).
    """
    key, path = "prefix_cache_retention_interval", "cache.retention_interval_tokens"
    if interval:
        section.recipe(key, interval, path)
    else:
        because = "0 keeps every prefix: where blocks of all caches end"
        section.recipe(key, cache_alignment(resolved), path, because)


def asks_for_hybrid_manager(resolved: ResolvedRecipe) -> bool:
    """Whether caches of several kinds move: vLLM would make them one kind unless it is told."""
    recipe = resolved.recipe
    if "serve" in recipe.roles:
        moves = recipe.roles["serve"].transfer is not None
        return moves and recipe.cache.kind == "heterogeneous"
    return recipe.cache.kind != "paged"


def _add_parallel(resolved: ResolvedRecipe, section: Section) -> None:
    parallel = resolved.recipe.parallel
    section.recipe("tensor_parallel_size", parallel.tp, "parallel.tp")
    for key, value, field in (
        ("data_parallel_size", parallel.dp, "dp"),
        ("pipeline_parallel_size", parallel.pp, "pp"),
        ("decode_context_parallel_size", parallel.dcp, "dcp"),
    ):
        if value > 1:
            section.recipe(key, value, f"parallel.{field}")
    if parallel.dcp > 1 and parallel.dcp_interleave_tokens > 1:
        path = "parallel.dcp_interleave_tokens"
        section.recipe("cp_kv_cache_interleave_size", parallel.dcp_interleave_tokens, path)
    if parallel.ep:
        section.recipe("enable_expert_parallel", True, "parallel.ep")
    local = parallel.tp * parallel.pp > 1
    executor = "mp" if local else "uni"
    section.decided(
        "distributed_executor_backend",
        executor,
        "one process a die, spawned by the engine core",
        _add_parallel,
    )


def _add_graph(section: Section, graph: GraphPlan) -> None:
    config: dict[str, Json] = {"mode": 0, "cudagraph_mode": graph.mode}
    if graph.capture_sizes:
        config["cudagraph_capture_sizes"] = list(graph.capture_sizes)
    section.recipe("compilation_config", config, "graph.kind", "graph section")
    mode = "engine.compilation_config.mode"
    section.ledger.decided(mode, _add_graph, "no inductor: it has no NPU backend")
    reasons = section.ledger.reasons
    if "graph.capture_sizes" in reasons:
        sizes = "engine.compilation_config.cudagraph_capture_sizes"
        reasons[sizes] = reasons["graph.capture_sizes"]


_SHOWN_METHODS = {"dspark": "mtp"}
"""Drafter -> method under which vLLM's first model runner hands over what the target computed."""


def _add_drafter(resolved: ResolvedRecipe, section: Section, drafter: DrafterPlan | None) -> None:
    spec = resolved.recipe.drafter
    if drafter is None or spec.kind == "none":
        return
    native = resolved.recipe.runtime.kind == "native"
    shown = _SHOWN_METHODS.get(drafter.kind, drafter.kind) if native else drafter.kind
    config: dict[str, Json] = {
        "method": shown,
        "num_speculative_tokens": drafter.num_draft_tokens,
        "enforce_eager": not spec.graph,
    }
    because = ""
    if shown != drafter.kind:
        because = (
            f"{drafter.kind}, shown to vLLM as {shown}: its first model runner refuses the name, "
            "and ours proposes in its place"
        )
    section.recipe("speculative_config", config, "drafter.kind", because)
    prefix = "engine.speculative_config"
    section.ledger.from_recipe(f"{prefix}.num_speculative_tokens", "drafter.num_draft_tokens")
    section.ledger.from_recipe(f"{prefix}.enforce_eager", "drafter.graph")
    if hub := resolved.drafter.hub if resolved.drafter else None:
        config["model"] = str(Path(recipe_root(resolved), hub.rpartition("/")[2]))
        at = f"drafters.{drafter.kind}"
        section.ledger.from_row(f"{prefix}.model", "models", resolved.recipe.model, at=at)
