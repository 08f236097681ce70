"""Bytes of caches for real configurations: what vLLM makes of the model itself, number by number.

`test_cache_groups` asks vLLM's functions about layers that we describe. Here nobody describes them:
the published configuration builds the model on the meta device, and its layers speak.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_recipes.compose import compose_recipe
from ascend_recipes.launch.environment import child_environment
from ascend_recipes.memory.caches import cache_pool
from ascend_recipes.memory.views import role_views
from ascend_recipes.plan import plan_launch
from ascend_recipes.registry.load import load_registry
from ascend_recipes.resolve import look_up
from ascend_recipes.tiny import tiny_family
from ascend_recipes.validate import validate_recipe

pytestmark = pytest.mark.vllm

CHILD = Path(__file__).with_name("real_caches.py")
MEMORY = 48 << 30
ONE_DIE = ("parallel.tp=1", "parallel.dp=1", "parallel.ep=false", "drafter=none", "graph=none")
ARGUMENTS = (
    "block_size",
    "dtype",
    "enable_prefix_caching",
    "mamba_cache_mode",
    "mamba_ssm_cache_dtype",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
)
RECIPES = ["qwen3_5_27b_a2", "deepseek_v4_a3", "deepseek_v4_pro_a3_2n"]


def at_real_size(recipe):
    """The deployment on one die, without the rules: nobody could run it."""
    composition = compose_recipe([f"recipe={recipe}", *ONE_DIE])
    return look_up(validate_recipe(composition), load_registry(), composition.source)


def published_config(row):
    """`config.json` with the published values: the form of the tiny one, no number of it."""
    config = tiny_family(row.family).tiny_config(dict(row.config), dtype="bfloat16")
    inner = config.get("text_config", config)
    for listed in ("layer_types", "mlp_layer_types"):
        inner.pop(listed, None)
    inner.update(row.config)
    return config


@pytest.mark.parametrize("recipe", RECIPES)
def test_pool_is_the_one_of_the_model_itself(recipe, plan, tmp_path):
    resolved = at_real_size(recipe)
    (tmp_path / "config.json").write_text(json.dumps(published_config(resolved.model)))
    own = plan(f"recipe={recipe}", "scale=tiny", "device=emulated").plan
    path = tmp_path / "plan.json"
    path.write_text(own.to_json(), encoding="utf-8")
    engine = plan_launch(resolved).plan.engine
    arguments = {name: engine[name] for name in ARGUMENTS if name in engine}
    case = {
        "args": {"model": str(tmp_path), "skip_tokenizer_init": True, **arguments},
        "meeting": f"file://{tmp_path / 'meeting'}",
        "memory": MEMORY,
    }
    done = subprocess.run(
        [sys.executable, str(CHILD)],
        input=json.dumps(case),
        env=child_environment(own, path, os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    view = role_views(resolved)[0]
    pool = cache_pool(view, "native")
    assert pool.block_bytes == answer["block_bytes"]
    assert pool.num_blocks(MEMORY) == answer["num_blocks"]
    assert sorted(g.block_tokens for g in pool.groups) == sorted(b for _, b in answer["groups"])
    length = view.recipe.scheduler.max_model_len
    found = pool.concurrency(MEMORY, length, view.step_tokens)
    assert found == pytest.approx(answer["concurrency"])
    assert int(found * length) == answer["tokens"]
