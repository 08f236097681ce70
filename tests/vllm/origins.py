"""Whose classes compute in an engine of DeepSeek-V4."""

from tests.vllm.conftest import Engine

OURS = "ascend_recipes.models.deepseek_v4."
DRAFTERS = (f"{OURS}drafter:", f"{OURS}block_drafter:")

CONTAINERS = {
    *(f"vllm.model_executor.layers.linear:{kind}ParallelLinear" for kind in ("Column", "Row")),
    "vllm.model_executor.layers.linear:MergedColumnParallelLinear",
    "vllm.model_executor.layers.linear:ReplicatedLinear",
    "vllm.model_executor.layers.logits_processor:LogitsProcessor",
    "vllm.model_executor.layers.vocab_parallel_embedding:ParallelLMHead",
    "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding",
}
"""Of vLLM: they hold weights, and what multiplies is the method of the quantization."""

VENDORS = (
    *(f"vllm.models.deepseek_v4.{name}." for name in ("nvidia", "amd", "xpu", "cpu")),
    "vllm.models.deepseek_v4.attention:",
)
"""Beside them, `common` holds descriptions of Triton kernels, made wherever it is imported."""


def assert_classes_are_ours(engine: Engine) -> None:
    """Attention, caches, norms, experts and layers are ours; no vendor's model of vLLM is alive."""
    computing = engine.live_modules()
    assert {"attention backend", "metadata builder", "norm"} <= set(computing)
    assert len(computing["attention layer"]) == 3
    names = {name for names in computing.values() for name in names}
    (receipt,) = [item for item in engine.receipts() if item.effective is not None]
    layers = set(receipt.effective.layer_classes)
    assert {name for name in names if not name.startswith("ascend_recipes.")} == set()
    assert {name for name in layers if not name.startswith("ascend_recipes.")} <= CONTAINERS
    assert receipt.effective.model_class == f"{OURS}model:AscendDeepseekV4ForCausalLM"
    assert engine.live_classes(*VENDORS) == []
    # The scan finds what is there.
    alive = engine.live_classes(OURS)
    assert f"{OURS}layer:DecoderLayer" in alive
    drafters = [name for name in alive if name.startswith(DRAFTERS)]
    assert bool(drafters) == (engine.planned.plan.drafter is not None)
