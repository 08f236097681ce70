"""`init`: a starter recipe from a model row and a hardware row."""

from pathlib import Path

from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error
from ascend_recipes.memory.parameters import Sizes, expert_count, model_parts
from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.rows import CheckpointFacts, HardwareRow, ModelRow

_CACHES = {
    "full": "paged",
    "hybrid": "hybrid_prefix",
    "mla": "paged",
    "sfa": "paged",
    "dsa": "heterogeneous_prefix",
}
_LONGEST = 32768
_MOST_NODES = 64
_EXPERT_SHARE = 0.6
"""Share of the memory that spread weights may take: what is not an expert stands on every replica.
"""

_GB = 10**9
_GIB = 2**30


def starter_recipe(registry: Registry, *, model: str, hardware: str, name: str = "") -> str:
    """Text of a recipe that plans without findings, to be edited.

    Tensor parallelism is the smallest legal size whose dies hold the weights in four fifths of
    their memory, where the size on disk is published; otherwise all dies of a node that are legal.
    Experts spread over as many nodes as their weights need.

    Raises:
        RecipeError: unknown rows (exit code 2), or no checkpoint runs on the hardware.
    """
    row, machine = registry.models[model], registry.hardware[hardware]
    variant, facts = _checkpoint(registry, model, hardware)
    attention, heads = _attention(registry, row, model, hardware)
    tp = _tensor_parallel(row, machine, facts, heads)
    bits = registry.quantization[facts.format].weight_bits
    nodes, dp = _spread(row, machine, facts, tp, bits) if "moe" in row.traits else (1, 1)
    lines = [
        "# @package _global_",
        f"# {name or f'{model}_{hardware}'}: say here what the deployment is for.",
        "defaults:",
        f"  - override /attention: {attention}",
        f"  - override /cache: {_cache(attention, machine)}",
    ]
    if facts.format != "bf16":
        lines.append(f"  - override /quant: {facts.format}")
    lines += [
        f"about: {row.about}",
        "source:",
        "  - where the choices come from",
        f"model: {model}",
        f"hardware: {hardware}",
        "checkpoint:",
        f"  variant: {variant}",
    ]
    if "bfloat16" not in machine.dtypes:
        lines.append("  dtype: float16")
    lines += ["parallel:", f"  tp: {tp}"]
    if dp > 1:
        lines.append(f"  dp: {dp}")
    if "moe" in row.traits and tp * dp > 1:
        lines.append("  ep: true")
    lines += ["scheduler:", f"  max_model_len: {min(_LONGEST, row.max_model_len)}"]
    lines += ["  max_num_seqs: 16", "  max_num_batched_tokens: 8192"]
    if nodes > 1:
        lines.append(f"nodes: {nodes}")
    return "\n".join(lines) + "\n"


def write_starter(text: str, path: Path) -> None:
    """Write a new recipe file; never over an existing one.

    Raises:
        RecipeError: the file exists (exit code 2).
    """
    if path.exists():
        raise recipe_error("init.exists", exit_code=ExitCode.USAGE, path=path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _checkpoint(registry: Registry, model: str, hardware: str) -> tuple[str, CheckpointFacts]:
    """The first published weights whose format the hardware reads."""
    for variant, facts in registry.models[model].checkpoints.items():
        if hardware in registry.quantization[facts.format].hardware:
            return variant, facts
    formats = {facts.format for facts in registry.models[model].checkpoints.values()}
    able = sorted({name for key in formats for name in registry.quantization[key].hardware})
    raise recipe_error(
        "init.no_checkpoint",
        at="hardware",
        fix=f"hardware={able[0]}",
        model=model,
        hardware=hardware,
        able=able,
    )


def _attention(
    registry: Registry, row: ModelRow, model: str, hardware: str
) -> tuple[str, tuple[int, ...]]:
    """The first kind that a backend serves, and the heads a die it takes; none for any number."""
    for kind in row.attention_kinds:
        for key in registry.backends:
            backend = registry.backends[key]
            if kind in backend.attention_kinds and hardware in backend.hardware:
                return kind, backend.heads_per_die.get(hardware, ())
    raise recipe_error("init.no_backend", at="hardware", model=model, hardware=hardware)


def _cache(attention: str, machine: HardwareRow) -> str:
    if attention == "hybrid" and "bfloat16" not in machine.dtypes:
        return "hybrid_float16"
    return _CACHES[attention]


def _tensor_parallel(
    row: ModelRow, machine: HardwareRow, facts: CheckpointFacts, heads: tuple[int, ...]
) -> int:
    legal = [
        size
        for size in range(1, machine.dies_per_node + 1)
        if all(_heads(row, field) % size == 0 for field in row.heads_split)
        and (not heads or _heads(row, "num_attention_heads") // size in heads)
    ]
    if facts.size_gb is None:
        return legal[-1]
    room = machine.memory_gib * _GIB * 0.8
    return next((size for size in legal if facts.size_gb * _GB / size <= room), legal[-1])


def _spread(
    row: ModelRow, machine: HardwareRow, facts: CheckpointFacts, tp: int, bits: int
) -> tuple[int, int]:
    """Fewest nodes, and replicas on them, over which experts spread evenly and weights fit."""
    layers = {layer.kind: layer.count for layer in row.layers}
    counted = sum(part.parameters for part in model_parts(row.config, layers)) * bits / 8
    size = max(counted, (facts.size_gb or 0) * _GB)
    experts = expert_count(Sizes(row.config))
    for nodes in range(1, _MOST_NODES + 1):
        dp = nodes * machine.dies_per_node // tp if nodes > 1 else 1
        room = machine.memory_gib * _GIB * _EXPERT_SHARE * tp * dp
        if size <= room and experts % (tp * dp) == 0:
            return nodes, dp
    return 1, machine.dies_per_node // tp


def _heads(row: ModelRow, field: str) -> int:
    value = row.config[field]
    assert isinstance(value, int), f"{field} is {value!r}"
    return value
