"""Which attention backend of the plan serves a layer that vLLM is building."""

from typing import TYPE_CHECKING

from ascend_recipes.findings import recipe_error
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.plan import LaunchPlan
from ascend_recipes.schema.rows import BackendRow

if TYPE_CHECKING:
    from vllm.v1.attention.selector import AttentionSelectorConfig


def attention_backend(plan: LaunchPlan, wanted: "AttentionSelectorConfig") -> str:
    """Find the backend whose selector fields all equal those of the layer.

    Args:
        plan: the plan; only backends of its layers are candidates.
        wanted: vLLM's description of the layer.

    Returns:
        Class path `module.Name`.

    Raises:
        RecipeError: no backend of the plan, or more than one, serves the combination.
    """
    candidates = _selectable_backends(plan)
    layer = wanted._asdict()
    matches = [
        row.implementation
        for row in candidates.values()
        if all(layer[name] == value for name, value in row.selector.items())
    ]
    if len(matches) != 1 or matches[0] is None:
        raise _no_backend(candidates, layer)
    return matches[0].replace(":", ".")


def _selectable_backends(plan: LaunchPlan) -> dict[str, BackendRow]:
    backends = load_registry().backends
    keys = sorted({layer.backend for layer in plan.layers})
    # A row without selector is a state backend, which vLLM looks up by layer type.
    return {key: backends[key] for key in keys if backends[key].selector}


def _no_backend(candidates: dict[str, BackendRow], layer: dict[str, object]) -> Exception:
    fields = sorted({name for row in candidates.values() for name in row.selector})
    asked = [f"{name}={layer[name]}" for name in fields]
    legal = "; ".join(
        f"{key}: " + ", ".join(f"{name}={value}" for name, value in row.selector.items())
        for key, row in candidates.items()
    )
    return recipe_error("engine.no_backend", at="attention", asked=asked or "-", legal=legal or "-")
