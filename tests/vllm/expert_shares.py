"""Inside a worker: which experts its rank has, and how much of each."""

from typing import Any


def expert_shares(worker: Any) -> list[list[int]]:
    """First expert, number of experts and intermediate size, once for all layers that agree."""
    from ascend_recipes.moe.experts import RoutedExperts

    modules = worker.model_runner.get_model().modules()
    layers = [module for module in modules if isinstance(module, RoutedExperts)]
    shares = {
        (item.first_expert, item.last_expert - item.first_expert, item.inner) for item in layers
    }
    return [list(share) for share in sorted(shares)]
