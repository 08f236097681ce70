"""Published tensor names to parameters, and what is missing or too much.

Modules carry the published names, so that little has to be mapped: `layers.3.attn.wq_a.weight`
is `model.layers.3.attn.wq_a.weight`. Experts are stacked, gate and up of the shared one merged.
"""

import re
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import nn
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from ascend_recipes.findings import recipe_error
from ascend_recipes.moe.experts import RoutedExperts

_TOP_NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "head.weight": "lm_head.weight",
    "norm.weight": "model.head.norm.weight",
    "hc_head_fn": "model.head.hc_head_fn",
    "hc_head_base": "model.head.hc_head_base",
    "hc_head_scale": "model.head.hc_head_scale",
}

_EXPERT = re.compile(r"(.+\.ffn\.experts)\.(\d+)\.(w[123])\.(\w+)$")
_SHARED = re.compile(r"(.+\.shared_experts)\.(w[13])\.(\w+)$")
_PARTS = {"w1": "gate", "w2": "down", "w3": "up"}
_SHOWN = 5
"""Names that a message lists."""

DRAFTER_PREFIX = "mtp."


def load_model_weights(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Fill the model; tensors of the drafter are left to it.

    Raises:
        RecipeError: a tensor that no parameter takes, or a parameter that none fills.
    """
    own = ((name, tensor) for name, tensor in weights if not name.startswith(DRAFTER_PREFIX))
    return fill_parameters(model, _model_names(own))


def _model_names(
    weights: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in weights:
        yield _TOP_NAMES.get(name, f"model.{name}"), tensor


def fill_parameters(
    model: nn.Module,
    weights: Iterable[tuple[str, torch.Tensor]],
    *,
    optional: Collection[str] = (),
) -> set[str]:
    """Give every tensor to its parameter.

    Args:
        model: the model with its parameters.
        weights: tensors under the names of modules, experts and the shared one still apart.
        optional: parameters that may stay as they are.

    Returns:
        Names of the parameters that were filled.

    Raises:
        RecipeError: a tensor that no parameter takes, or a parameter that none fills.
    """
    parameters = dict(model.named_parameters())
    modules = dict(model.named_modules())
    filled: set[str] = set()
    unknown: list[str] = []
    for name, tensor in weights:
        if match := _EXPERT.match(name):
            experts = modules[match[1]]
            assert isinstance(experts, RoutedExperts)
            experts.load(int(match[2]), _PARTS[match[3]], match[4], tensor)
            continue
        shard: tuple[int, ...] = ()
        if match := _SHARED.match(name):
            name = f"{match[1]}.gate_up_proj.{match[3]}"
            shard = (0 if match[2] == "w1" else 1,)
        if name not in parameters:
            unknown.append(name)
            continue
        parameter = parameters[name]
        loader = getattr(parameter, "weight_loader", default_weight_loader)
        loader(parameter, tensor, *shard)
        filled.add(name)
    missing = parameters.keys() - filled - set(optional)
    for name, module in modules.items():
        if isinstance(module, RoutedExperts):
            own = {f"{name}.{leaf}" for leaf, _ in module.named_parameters()}
            missing = (missing - own) | {f"{name}.{rest}" for rest in module.missing()}
            filled |= own
            module.finish_loading()
    _check_complete(unknown, sorted(missing))
    return filled


def _check_complete(unknown: list[str], missing: list[str]) -> None:
    if unknown:
        raise recipe_error(
            "checkpoint.unknown_tensors",
            at="checkpoint.path",
            count=len(unknown),
            names=unknown[:_SHOWN],
        )
    if missing:
        raise recipe_error(
            "checkpoint.missing_tensors",
            at="checkpoint.path",
            count=len(missing),
            names=missing[:_SHOWN],
        )
