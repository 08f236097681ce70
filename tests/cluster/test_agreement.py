"""What nodes must have in common, and what may differ between machines."""

import pytest

from ascend_recipes.launch.agreement import agreement
from tests.conftest import plan_of

BASE = ("recipe=deepseek_v4_pro_a3_2n", "runtime=vllm_ascend")


def agreed(tmp_path, *words):
    return agreement(plan_of(*BASE, *words).resolved, tmp_path)


@pytest.mark.parametrize(
    "word",
    [
        "site.network_interface=eth9",
        "site.weight_roots=[/elsewhere]",
        "site.device_ids=[3,1]",
        "site.cache_folder=/tmp/x",
        "site.secrets={HF_TOKEN: env}",
    ],
)
def test_machines_may_differ_in(tmp_path, word):
    assert agreed(tmp_path, word).digest == agreed(tmp_path).digest


@pytest.mark.parametrize(
    "word",
    [
        "scheduler.max_num_seqs=16",
        "env.HCCL_BUFFSIZE=4096",
        "site.port_base=14000",
        "site.node_addresses=[10.0.0.1,10.0.0.2]",
        "runtime.version=0.26.0rc1",
        "serving.port=8001",
    ],
)
def test_machines_must_agree_on(tmp_path, word):
    ours, theirs = agreed(tmp_path), agreed(tmp_path, word)
    assert ours.digest != theirs.digest
    assert word.partition("=")[0] in ours.difference(theirs.values)


def test_another_checkpoint_is_another_deployment(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = agreed(tmp_path)
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 3}')
    difference = before.difference(agreed(tmp_path).values)
    assert difference.startswith("config.json of the checkpoint is ")
    assert "nothing" in before.difference(agreed(tmp_path / "none").values)


def test_long_differences_are_counted(tmp_path):
    words = [f"env.V{number}=1" for number in range(5)]
    assert agreed(tmp_path).difference(agreed(tmp_path, *words).values).endswith("and 2 more")
