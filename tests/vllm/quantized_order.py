"""Quantized layers of transformers' DeepSeek-V4, in the order in which the engine asks them."""

from collections.abc import Sequence

from torch import nn

INDEXER = "self_attn.compressor.indexer.q_b_proj"
ROUTED, GATE, UP = "mlp.experts", "mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"
LATENT = ("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_proj", INDEXER)
SHARED = (GATE, "mlp.shared_experts.down_proj")

NATIVE = (*LATENT, "self_attn.o_a_proj", "self_attn.o_b_proj", ROUTED, *SHARED)
"""Of the published float8 and float4 form."""

MODELSLIM = (*LATENT, "self_attn.o_b_proj", *SHARED)
"""Of W8A8 and W4A8, beside the routed experts, whose rows another operation rounds."""


def quantized_modules(layer: nn.Module, order: Sequence[str]) -> dict[str, tuple[nn.Module, int]]:
    """Quantized modules of a decoder layer by name, and which call of the engine is theirs."""
    modules = dict(layer.named_modules())
    present = [name for name in order if name in modules]
    found = {name: (modules[name], call) for call, name in enumerate(present)}
    # Two layers over one input, which the engine multiplies in one.
    found[UP] = modules[UP], found[GATE][1]
    return found
