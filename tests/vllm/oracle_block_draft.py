"""DeepSeek-V4's block drafter by itself, which transformers drops: the sheet's maths on its layers.

Each stage is a decoder layer of transformers, run over context and block at once. What the layer
computes for the context is thrown away: its keys there come from the target's last layers, which a
hook puts in. There is no cache to be wrong.

Legend: S positions of the context, K drafts, M streams, H hidden, X target layers times hidden,
V vocabulary.
"""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.vllm.oracle import read_tensors
from tests.vllm.oracle_draft import layer_state


class BlockDraftOracle(nn.Module):
    """Drafts behind a known token, from a fresh pass over everything before it."""

    def __init__(self, target: Any, checkpoint: Path) -> None:
        """A drafter behind a model of transformers, from the same checkpoint in float."""
        super().__init__()
        self.target = target
        published = json.loads((checkpoint / "config.json").read_text())
        self.sources = published["dspark_target_layer_ids"]
        self.noise = published["dspark_noise_token_id"]
        config = copy.deepcopy(target.config)
        self.number, count = config.num_hidden_layers, published["n_mtp_layers"]
        config.num_hidden_layers += count
        config.layer_types = [*config.layer_types, *["sliding_attention"] * count]
        config.mlp_layer_types = [*config.mlp_layer_types, *["moe"] * count]
        self.epsilon, self.window = config.rms_norm_eps, config.sliding_window
        stages = [read_tensors(checkpoint, f"mtp.{number}.") for number in range(count)]
        first, last = stages[0], stages[-1]
        self.main_proj = first.pop("main_proj.weight")
        self.main_norm = first.pop("main_norm.weight")
        self.norm = last.pop("norm.weight")
        self.before = last.pop("markov_head.markov_w1.weight")
        self.after = last.pop("markov_head.markov_w2.weight")
        last.pop("confidence_head.proj.weight")
        self.merge = copy.deepcopy(self.target.model.hc_head)
        merge = {leaf: last.pop(f"hc_head_{leaf}") for leaf in ("fn", "base", "scale")}
        self.merge.load_state_dict({f"hc_{leaf}": tensor for leaf, tensor in merge.items()})
        self.layers = nn.ModuleList()
        for number, tensors in enumerate(stages, self.number):
            layer = type(target.model.layers[0])(config, number).float()
            layer.load_state_dict(layer_state(tensors, config.n_routed_experts))
            self.layers.append(layer)

    @torch.no_grad()
    def context(self, tokens: list[int]) -> Tensor:
        """What the drafter makes of the target's layers, `[S, H]`."""
        seen: dict[int, Tensor] = {}

        def keep(index: int) -> Any:
            def hook(_: Any, __: Any, output: Any) -> None:
                streams = output[0] if isinstance(output, tuple) else output
                seen[index] = streams[0].mean(dim=1)

            return hook

        hooks = [
            self.target.model.layers[index].register_forward_hook(keep(index))
            for index in self.sources
        ]
        self.target(input_ids=torch.tensor([tokens]), use_cache=False)
        for hook in hooks:
            hook.remove()
        joined_SX = torch.cat([seen[index] for index in self.sources], dim=-1)
        return self.normed(joined_SX @ self.main_proj.T, self.main_norm)

    @torch.no_grad()
    def drafts_after(self, context_SH: Tensor, token: int, count: int) -> tuple[Tensor, list[int]]:
        """Logits `[K, V]` without the bias, and the drafts behind a token.

        Args:
            context_SH: `context` of everything before the token.
            token: the token that is known.
            count: K.
        """
        streams_KMH = self.block([token] + [self.noise] * (count - 1), context_SH)
        merged_KH = self.merge(streams_KMH[None])[0]
        logits_KV = self.target.lm_head(self.normed(merged_KH, self.norm))
        drafts: list[int] = []
        for logits_V in logits_KV:
            bias_V = self.after @ self.before[drafts[-1] if drafts else token]
            drafts.append(int((logits_V + bias_V).argmax()))
        return logits_KV, drafts

    def block(self, inputs: list[int], context_SH: Tensor) -> Tensor:
        """Streams `[K, M, H]` behind the stages."""
        start, count = context_SH.shape[0], len(inputs)
        kept = context_SH[max(0, start - self.window) :]
        known = kept.shape[0]
        places = torch.arange(start - known, start + count)[None]
        embeddings_KH = self.target.model.embed_tokens(torch.tensor(inputs))
        streams = embeddings_KH[:, None].repeat(1, self.target.config.hc_mult, 1)
        cosine, sine = self.target.model.rotary_emb(embeddings_KH, places, layer_type="main")
        for layer in self.layers:
            hook = layer.self_attn.kv_proj.register_forward_pre_hook(
                lambda _, args: (torch.cat((kept[None], args[0][:, known:]), dim=1),)
            )
            padded = torch.cat((torch.ones(known, *streams.shape[1:]), streams))
            output = layer(
                padded[None],
                position_embeddings={"main": (cosine, sine)},
                position_ids=places,
                # Nothing is hidden: the window before the block and the block itself.
                attention_mask=torch.zeros(1, 1, known + count, known + count),
                input_ids=torch.tensor([[0] * known + inputs]),
                past_key_values=None,
            )
            hook.remove()
            streams = (output[0] if isinstance(output, tuple) else output)[0, known:]
        return streams

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * weight
