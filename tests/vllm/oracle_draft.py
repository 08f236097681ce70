"""DeepSeek-V4's drafter by itself, which transformers drops: the sheet's maths on its layers.

One decoder layer of transformers, set to a window and to routing by score, fed as the official
model feeds it. Drafts after a position come from a fresh pass over everything before it, where
no cache can be wrong, or step by step from keys that are all kept.

Legend: S positions, M streams, H hidden, K drafts, V vocabulary.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

NAMES = {
    "attn.attn_sink": "self_attn.sinks",
    "attn.wq_a.weight": "self_attn.q_a_proj.weight",
    "attn.q_norm.weight": "self_attn.q_a_norm.weight",
    "attn.wq_b.weight": "self_attn.q_b_proj.weight",
    "attn.wkv.weight": "self_attn.kv_proj.weight",
    "attn.kv_norm.weight": "self_attn.kv_norm.weight",
    "attn.wo_a.weight": "self_attn.o_a_proj.weight",
    "attn.wo_b.weight": "self_attn.o_b_proj.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.gate.weight": "mlp.gate.weight",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    "ffn.shared_experts.w1.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn.shared_experts.w2.weight": "mlp.shared_experts.down_proj.weight",
    "ffn.shared_experts.w3.weight": "mlp.shared_experts.up_proj.weight",
    **{
        f"hc_{ours}_{leaf}": f"{theirs}.{leaf}"
        for ours, theirs in (("attn", "attn_hc"), ("ffn", "ffn_hc"))
        for leaf in ("fn", "base", "scale")
    },
}


class DraftOracle(nn.Module):
    """Streams of the next position from the streams of this one and the next token."""

    def __init__(self, target: Any, tensors: dict[str, Tensor]) -> None:
        """A drafter behind a model of transformers.

        Args:
            target: the model.
            tensors: the drafter's, in float32, by their names below `mtp.0.`; all are used.
        """
        super().__init__()
        self.target = target
        config = copy.deepcopy(target.config)
        self.number = config.num_hidden_layers
        config.num_hidden_layers += 1
        config.layer_types = [*config.layer_types, "sliding_attention"]
        config.mlp_layer_types = [*config.mlp_layer_types, "moe"]
        self.layer = type(target.model.layers[0])(config, self.number).float()
        self.epsilon = config.rms_norm_eps
        self.projections = {name: tensors.pop(f"{name}.weight") for name in ("e_proj", "h_proj")}
        self.norms = {name: tensors.pop(f"{name}.weight") for name in ("enorm", "hnorm", "norm")}
        self.merge = copy.deepcopy(self.target.model.hc_head)
        merge = {leaf: tensors.pop(f"hc_head_{leaf}") for leaf in ("fn", "base", "scale")}
        self.merge.load_state_dict({f"hc_{leaf}": tensor for leaf, tensor in merge.items()})
        self.layer.load_state_dict(layer_state(tensors, config.n_routed_experts))

    @torch.no_grad()
    def drafts_after(
        self, tokens: list[int], streams_SMH: Tensor, position: int, count: int
    ) -> Tensor:
        """Logits `[K, V]` of the drafts behind the token at `position + 1`.

        Args:
            tokens: prompt and what was generated; only those up to `position + 1` are read.
            streams_SMH: `target_streams` of the tokens.
            position: of the last token that the target ran over.
            count: K.
        """
        previous_SMH = streams_SMH[: position + 1]
        inputs, rows = tokens[1 : position + 2], []
        for _ in range(count):
            streams_SMH = self.step(inputs, previous_SMH)
            logits_V = self.logits(streams_SMH[-1])
            rows.append(logits_V)
            inputs = [*inputs, int(logits_V.argmax())]
            previous_SMH = torch.cat((previous_SMH, streams_SMH[-1:]))
        return torch.stack(rows)

    @torch.no_grad()
    def target_streams(self, tokens: list[int]) -> Tensor:
        """Streams `[S, M, H]` of the target before they are merged."""
        seen: list[Tensor] = []
        hook = self.target.model.hc_head.register_forward_pre_hook(
            lambda _, inputs: seen.append(inputs[0])
        )
        self.target(input_ids=torch.tensor([tokens]), use_cache=False)
        hook.remove()
        return seen[0][0]

    def step(self, inputs: list[int], previous_SMH: Tensor, keys: "Keys | None" = None) -> Tensor:
        """Streams `[S, M, H]`.

        Args:
            inputs: the tokens that follow each position.
            previous_SMH: streams of each position.
            keys: those of positions before, if these are not the first.
        """
        start = keys.count if keys is not None else 0
        places = torch.arange(start, start + len(inputs))[None]
        embeddings_SH = self.target.model.embed_tokens(torch.tensor(inputs)).clone()
        embeddings_SH[places[0] == 0] = 0
        token_SH = self.project(self.normed(embeddings_SH, "enorm"), "e_proj")
        streams_SMH = self.project(self.normed(previous_SMH, "hnorm"), "h_proj")
        joined_SMH = streams_SMH + token_SH[:, None]
        distance = places.T - torch.arange(start + len(inputs))
        window = self.layer.self_attn.sliding_window
        hidden = (distance < 0) | (distance >= window)
        mask = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))
        cosine, sine = self.target.model.rotary_emb(joined_SMH, places, layer_type="main")
        output: Tensor = self.layer(
            joined_SMH[None],
            position_embeddings={"main": (cosine, sine)},
            position_ids=places,
            attention_mask=mask[None, None],
            input_ids=torch.tensor([inputs]),
            past_key_values=keys,
        )
        return output[0]

    def project(self, x: Tensor, name: str) -> Tensor:
        return x @ self.projections[name].T

    def logits(self, streams_MH: Tensor) -> Tensor:
        merged_H = self.merge(streams_MH[None, None])[0, 0]
        return self.target.lm_head(self.normed(merged_H, "norm"))

    def normed(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.norms[name]


class Keys:
    """What transformers' window attention asks of a cache, for one layer; all keys are kept."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    @property
    def count(self) -> int:
        """Positions so far."""
        return sum(part.shape[2] for part in self.kept)

    def update(self, keys: Tensor, _: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keys of all positions, also as values."""
        self.kept.append(keys)
        every = torch.cat(self.kept, dim=2)
        return every, every


def layer_state(tensors: dict[str, Tensor], num_experts: int) -> dict[str, Any]:
    """Official names to those of transformers' layer, experts stacked; every tensor is used."""
    state = {new: tensors.pop(old) for old, new in NAMES.items()}
    experts = [
        {part: tensors.pop(f"ffn.experts.{index}.{part}.weight") for part in ("w1", "w2", "w3")}
        for index in range(num_experts)
    ]
    state["mlp.experts.gate_up_proj"] = torch.stack(
        [torch.cat((expert["w1"], expert["w3"])) for expert in experts]
    )
    state["mlp.experts.down_proj"] = torch.stack([expert["w2"] for expert in experts])
    assert not tensors, f"left over: {sorted(tensors)}"
    return state
