"""What A5 rounds, put into transformers' DeepSeek-V4: caches, indexer, and published weights.

`cache`: keys of the window and compressed keys as they are read back from packed rows, and the
indexer's scorer in float8. `native`: besides, weights of the published format, multiplied by rows
that are microscaled. Written from the vendor's documents and the OCP specification, without our
operations; published weights are opened by transformers' own code.

Both follow a tape where one plays (`tests.vllm.following`).
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ascend_recipes.torchvision_schemas import define_missing_schemas
from tests.vllm.conftest import Engine
from tests.vllm.following import followed
from tests.vllm.following import following as following
from tests.vllm.oracle import dense, read_tensors
from tests.vllm.oracle_deepseek_v4 import logits_of, rotated
from tests.vllm.quantized_order import NATIVE, ROUTED, quantized_modules

Rounding = Literal["cache", "native"]

ROTATED = 64
CACHE_GROUP, SHARED = 64, 32
LARGEST = 448.0
LARGEST_EXPONENT = 8

ATTENTION = "packed_keys"


@cache
def a5_model(
    checkpoint: Path, rounding: Rounding, scratch: Path, swapped: tuple[str, ...] = ()
) -> Any:
    """The model; `swapped` names two layers of the checkpoint whose scales change places."""
    define_missing_schemas()
    from transformers import DeepseekV4ForCausalLM

    folder = opened(checkpoint, scratch, swapped) if rounding == "native" else checkpoint
    model = DeepseekV4ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    model.config._attn_implementation = packed_attention()
    for number, layer in enumerate(model.model.layers):
        for module in list(layer.modules()):
            if type(module).__name__ == "DeepseekV4IndexerScorer":
                module.forward = Float8Scorer(module, number).forward
        if rounding == "native":
            round_inputs(layer, number)
    return model.eval()


def round_inputs(layer: nn.Module, number: int, before: int = 0) -> None:
    """Microscale what goes into every quantized layer, after some calls that are not of these."""
    for name, (module, call) in quantized_modules(layer, NATIVE).items():
        key = f"{number}.mx_quant.{before + call}"
        if name == ROUTED:
            module.forward = microscaled_experts(module, number, key)
        else:
            module.register_forward_pre_hook(rounding_hook(key))


def rounding_hook(key: str) -> Any:
    return lambda _, inputs: (microscaled(followed(key, inputs[0])),)


def a5_logits(
    engine: Engine,
    prompt: list[int],
    tokens: list[int],
    rounding: Rounding,
    scratch: Path,
    swapped: tuple[str, ...] = (),
) -> Tensor:
    """Logits before each generated token, float32 `[tokens, vocabulary]`, in one pass."""
    checkpoint = Path(engine.planned.plan.model.checkpoint)
    return logits_of(a5_model(checkpoint, rounding, scratch, swapped), prompt, tokens)


def difference(answer: dict[str, Any], expected: Tensor) -> Tensor:
    """Largest difference of a logit, by token."""
    return (dense(answer["logits"], expected.shape[-1]) - expected).abs().amax(-1)


def packed_attention() -> str:
    """Register eager attention over keys as they come out of packed rows; returns its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask
    from transformers.models.deepseek_v4 import modeling_deepseek_v4

    def attend(module: nn.Module, query: Tensor, key: Tensor, _: Tensor, *rest: Any, **more: Any):
        tokens, layer = query.shape[2], module.layer_idx
        compressed = module.compressor is not None and key.shape[2] > tokens
        parts = [key[:, :, :tokens], key[:, :, tokens:]] if compressed else [key]
        keys = torch.cat(
            [
                packed(followed(f"{layer}.write_latent_rows.{call}", part))
                for call, part in enumerate(parts)
            ],
            dim=2,
        )
        return modeling_deepseek_v4.eager_attention_forward(
            module, query, keys, keys, *rest, **more
        )

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, eager_mask)
    return ATTENTION


def packed(x: Tensor) -> Tensor:
    """Rows of a cache: rotated part in bfloat16, 64 others in float8 under a power of two.

    The power is the next one above max / 448, also where that is a power itself.
    """
    plain = x[..., :-ROTATED].unflatten(-1, (-1, CACHE_GROUP))
    largest = plain.abs().amax(-1, keepdim=True).clamp(min=1e-4) / LARGEST
    scale = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent)
    rounded = float8(plain / scale) * scale
    turned = x[..., -ROTATED:]
    return torch.cat((rounded.flatten(-2), turned.bfloat16().float()), -1)


def microscaled(x: Tensor) -> Tensor:
    """Blocks of 32 in float8: 2^(floor(log2 max) - 8), what exceeds 448 saturates."""
    blocks = x.unflatten(-1, (-1, SHARED))
    largest = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 1 - LARGEST_EXPONENT
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    return (float8(blocks / scale) * scale).flatten(-2)


def float8(x: Tensor) -> Tensor:
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float()


class Float8Scorer:
    """Scores of compressed keys with float8 queries and keys, a float32 scale a row."""

    def __init__(self, scorer: nn.Module, layer: int) -> None:
        self.scorer = scorer
        self.layer = layer

    def forward(self, q: Tensor, compressed_kv: Tensor, hidden_states: Tensor) -> Tensor:
        q = followed(f"{self.layer}.quantize_indexer_query.0", rotated(q))
        compressed_kv = followed(f"{self.layer}.write_indexer_keys.0", rotated(compressed_kv))
        query, query_scale = float8_rows(q)
        keys, key_scale = float8_rows(compressed_kv)
        products = torch.einsum("bshd,btd->bsht", query, keys).clamp(min=0)
        scorer = self.scorer
        factor = scorer.softmax_scale * scorer.weights_scaling
        weights = scorer.weights_proj(hidden_states).float() * factor * query_scale
        return torch.einsum("bsht,bsh->bst", products, weights) * key_scale.unsqueeze(1)


def float8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1) / LARGEST
    return float8((x / scale.unsqueeze(-1)).nan_to_num(0.0)), scale


def microscaled_experts(module: Any, layer: int, key: str) -> Any:
    def forward(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        # Rows by expert, then by token: so the engine sorts them.
        order = top_k_index.flatten().argsort(stable=True)
        token = order // top_k_index.shape[1]
        expert = top_k_index.flatten()[order]
        rows = microscaled(followed(key, hidden_states[token]))
        hidden = products(rows, module.gate_up_proj, expert)
        hidden = followed(f"{layer}.swiglu_mx_quant.0", hidden)
        parts = products(microscaled(module._apply_gate(hidden)), module.down_proj, expert)
        weights = top_k_weights.flatten()[order, None]
        return torch.zeros_like(hidden_states).index_add_(0, token, parts * weights)

    return forward


def products(rows: Tensor, weights: Tensor, expert: Tensor) -> Tensor:
    """Each row times the weight of its expert."""
    out = rows.new_empty(rows.shape[0], weights.shape[1])
    for number in expert.unique().tolist():
        mine = expert == number
        out[mine] = nn.functional.linear(rows[mine], weights[number])
    return out


def opened(checkpoint: Path, scratch: Path, swapped: tuple[str, ...]) -> Path:
    """The published form multiplied out in float32, by transformers' reader of it."""
    target = scratch / "-".join(("opened", checkpoint.name, *swapped))
    target.mkdir(parents=True, exist_ok=True)
    floats = open_tensors(read_tensors(checkpoint, ""), swapped)
    save_file(floats, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    return target


def open_tensors(tensors: dict[str, Tensor], swapped: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Weights times their scales, two layers' scales in each other's place if they are named."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    if swapped:
        first, second = (f"{layer}.scale" for layer in swapped)
        tensors = {**tensors, first: tensors[second], second: tensors[first]}
    reader = Fp8Dequantize(None)
    floats = {}
    for name, tensor in tensors.items():
        if name.endswith(".scale"):
            continue
        scale = tensors.get(name.removesuffix(".weight") + ".scale")
        if scale is not None:
            tensor = reader._dequantize_one(tensor, scale, torch.float32)
        floats[name] = tensor
    return floats
