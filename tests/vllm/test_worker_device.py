"""Which device a worker takes when replicas share a node."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("assigned", "rank", "device"), [(None, 1, 1), ([4, 5, 6, 7], 0, 4), ([4, 5, 6, 7], 3, 7)]
)
def test_local_ranks_count_within_the_share_of_the_replica(monkeypatch, assigned, rank, device):
    from ascend_recipes.torchvision_schemas import define_missing_schemas

    define_missing_schemas()
    from vllm.platforms import interface

    from ascend_recipes.worker import worker

    monkeypatch.setattr(interface, "_assigned_physical_gpu_ids", None)
    monkeypatch.setattr(worker, "current_platform", interface.Platform)
    config = SimpleNamespace(assigned_physical_gpu_ids=assigned)
    assert worker._visible_device(config, rank) == device
