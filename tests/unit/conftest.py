"""Fixtures of the launcher's tests."""

import pytest

from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.receipts import EffectiveValues, Receipt
from ascend_recipes.registry.load import load_registry


def faithful_receipt(planned: PlannedLaunch) -> Receipt:
    """The receipt that one process, core and worker in one, writes when it follows the plan."""
    plan, registry = planned.plan, load_registry()
    backends = {registry.backends[layer.backend].implementation for layer in plan.layers}
    return Receipt(
        pid=1,
        phase="core",
        rank=0,
        digest=plan.digest,
        platform=registry.hooks[plan.platform].implementation,
        hooks=tuple(sorted(plan.hooks)),
        bindings=plan.operations,
        effective=EffectiveValues(
            block_size=plan.cache.block_size,
            num_blocks=10,
            num_kv_tokens=1000,
            cache_layout="LBNHC",
            kv_dtype="bfloat16",
            state_cache_mode=plan.cache.state_mode,
            prefix_caching=plan.cache.prefix_caching,
            graph_mode=plan.graph.mode,
            capture_sizes=plan.graph.capture_sizes,
            attention_backends=tuple(sorted(str(backend) for backend in backends)),
            layer_classes={},
            model_class="m:M",
            runner_class="r:R",
            max_num_batched_tokens=512,
        ),
    )


@pytest.fixture
def receipt_of_core(plan) -> Receipt:
    return faithful_receipt(plan("device=emulated", "scale=tiny"))
