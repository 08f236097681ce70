"""Rules about what excludes a graph mode, or is excluded by one."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import argument, key, removed, switched_on, variable

_XLITE = "xlite_graph_config"


def launches_do_not_block(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Blocking launches and graphs exclude each other on a device."""
    blocking = switched_on(variable(resolved, "ASCEND_LAUNCH_BLOCKING"))
    graphs = resolved.recipe.graph.kind != "none"
    if blocking and graphs and resolved.recipe.device.kind == "npu":
        yield finding("graph.launch_blocking", at=blocking.at, fix=f"{blocking.at}=0")


def eager_is_said_once(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """An engine argument that switches graphs off makes the graph section idle."""
    eager = switched_on(argument(resolved, "enforce_eager"))
    if eager and resolved.recipe.graph.kind != "none":
        yield finding(
            "graph.eager_contradiction",
            at=eager.at,
            fix=f"{removed(eager.at)} graph=none",
            kind=resolved.recipe.graph.kind,
        )


@holds("vllm_ascend")
def compilation_serves_the_mode(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Piecewise graphs are cut by vLLM's compiler; other compilers switch graphs off."""
    stated, kind = argument(resolved, "compilation_config.mode"), resolved.recipe.graph.kind
    if stated is None or kind == "none":
        return
    fix = removed(stated.at)
    if kind in ("piecewise", "full_and_piecewise") and stated.value not in _COMPILING:
        yield finding("graph.compile_piecewise", at=stated.at, fix=fix, mode=stated.value)
    elif stated.value not in (*_COMPILING, *_NOT_COMPILING):
        yield finding("graph.compile_mode", at=stated.at, fix=fix, mode=stated.value)


_COMPILING = (3, "3", "VLLM_COMPILE")
_NOT_COMPILING = (0, "0", "NONE")


def drafts_keep_their_number(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Full graphs pad to a fixed number of draft tokens."""
    dynamic = argument(resolved, "speculative_config.num_speculative_tokens_per_batch_size")
    if dynamic is None or not dynamic.value:
        return
    if resolved.recipe.graph.kind in ("full", "full_decode", "full_and_piecewise"):
        yield finding("graph.dynamic_spec", at=dynamic.at, fix=removed(dynamic.at))
    if resolved.recipe.parallel.dcp > 1 and resolved.recipe.runtime.kind == "vllm_ascend":
        yield finding("drafter.dynamic_dcp", at=dynamic.at, fix=removed(dynamic.at))


@holds("vllm_ascend")
def drafter_batches_are_padded(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A captured drafter replays padded batches only."""
    recipe = resolved.recipe
    unpadded = switched_on(argument(resolved, "speculative_config.disable_padded_drafter_batch"))
    if unpadded and recipe.graph.kind in ("full", "full_decode", "full_and_piecewise"):
        yield finding("graph.unpadded_drafter", at=unpadded.at, fix=removed(unpadded.at))


@holds("vllm_ascend")
def context_parallel_is_decode_only(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Full graphs of mixed batches are not well supported with context parallelism."""
    ways = resolved.recipe.parallel.dcp
    if resolved.recipe.graph.kind == "full" and ways > 1:
        yield finding("graph.cp_full", at="graph.kind", fix="graph.kind=full_decode", ways=ways)


def model_has_the_mode(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Attention over compressed context is captured whole or not at all."""
    graph = resolved.recipe.graph
    if "compressed_context" not in resolved.model.traits:
        return
    if graph.kind in ("piecewise", "full_and_piecewise") and resolved.recipe.hardware != "a5":
        yield finding(
            "graph.model_mode",
            at="graph.kind",
            fix="graph.kind=full_decode",
            model=resolved.recipe.model,
            kind=graph.kind,
        )


@holds("vllm_ascend")
def encoder_decoder_is_piecewise(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Models with an encoder beside the decoder are captured piecewise or not at all."""
    kind = resolved.recipe.graph.kind
    if "encoder_decoder" in resolved.model.traits and kind not in ("none", "piecewise"):
        yield finding(
            "graph.encoder_decoder", at="graph.kind", fix="graph.kind=piecewise", kind=kind
        )


@holds("vllm_ascend")
def fusion_has_full_graphs(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The graph compiler works on full graphs only, and static kernels need it."""
    graph = resolved.recipe.graph
    if graph.kind == "none" or not graph.static_kernels:
        return
    if resolved.recipe.hardware == "310p" or graph.kind in ("piecewise", "full_and_piecewise"):
        yield finding(
            "graph.static_kernel_idle",
            at="graph.static_kernels",
            fix="graph.static_kernels=false",
            kind=graph.kind,
            hardware=resolved.recipe.hardware,
        )
    elif not graph.compiler_fusion:
        yield finding(
            "graph.static_kernel", at="graph.static_kernels", fix="graph.static_kernels=false"
        )


@holds("vllm_ascend")
def xlite_is_alone(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The xlite graph takes one draft token, no stages, blocks of 128."""
    enabled = switched_on(key(resolved, f"{_XLITE}.enabled"))
    whole = switched_on(key(resolved, f"{_XLITE}.full_mode"))
    if enabled is None:
        if whole is not None:
            yield finding("graph.xlite_idle", at=whole.at, fix=removed(whole.at))
        return
    recipe, off = resolved.recipe, f"{enabled.at}=false"
    drafts = 0 if recipe.drafter.kind == "none" else recipe.drafter.num_draft_tokens
    if drafts > 1:
        fix = "drafter.num_draft_tokens=1"
        yield finding("graph.xlite_drafts", at=enabled.at, fix=fix, drafts=drafts)
    if recipe.parallel.pp > 1:
        yield finding("graph.xlite_stages", at=enabled.at, fix=off, pp=recipe.parallel.pp)
    if recipe.cache.block_size != 128:
        fix, size = "cache.block_size=128", recipe.cache.block_size
        yield finding("graph.xlite_block", at="cache.block_size", fix=fix, size=size)
    if recipe.hardware == "310p":
        yield finding("graph.xlite_hardware", at=enabled.at, fix=off)
    if whole is not None and drafts:
        fix = removed(whole.at)
        yield finding("graph.xlite_mode", at=whole.at, fix=fix)
    elif whole is None and recipe.graph.kind != "full_decode":
        kind = recipe.graph.kind
        yield finding("graph.xlite_graph", at="graph.kind", fix="graph.kind=full_decode", kind=kind)


@holds("vllm_ascend")
def flash_backend_fits(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The backend for training consistency: grouped queries, its own package, no decode graphs."""
    consistent = switched_on(key(resolved, "rl_config.enable_training_consistency"))
    if consistent is None or switched_on(key(resolved, "rl_config.enabled")) is None:
        return
    fix = removed(consistent.at)
    kind = resolved.recipe.attention.kind
    if kind in ("mla", "sfa", "dsa"):
        yield finding("attention.flash_kind", at=consistent.at, fix=fix, kind=kind)
        return
    yield finding("attention.flash_package", at=consistent.at)
    if resolved.recipe.graph.kind == "full_decode":
        yield finding("attention.flash_graph", at="graph.kind", fix="graph=none")


def sleep_has_an_allocator(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Sleep mode needs an allocator that can give memory back."""
    asleep = switched_on(argument(resolved, "enable_sleep_mode"))
    if asleep is None:
        return
    fix = removed(asleep.at)
    if resolved.recipe.runtime.kind == "native":
        yield finding("memory.sleep_native", at=asleep.at, fix=fix)
        return
    allocator = variable(resolved, "PYTORCH_NPU_ALLOC_CONF")
    if allocator is not None and "expandable_segments:True" in str(allocator.value):
        yield finding(
            "memory.sleep_segments", at=allocator.at, fix=f"{allocator.at}=max_split_size_mb:256"
        )
