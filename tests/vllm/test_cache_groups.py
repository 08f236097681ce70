"""The memory planner's native numbers against vLLM's own grouping, for published configurations."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from ascend_recipes.launch.environment import child_environment
from ascend_recipes.memory.caches import cache_pool, keeps_state
from ascend_recipes.memory.compressed import compressed_caches
from ascend_recipes.memory.grouping import cache_layers
from ascend_recipes.memory.views import role_views

pytestmark = pytest.mark.vllm

CHILD = Path(__file__).with_name("cache_groups.py")
MEMORY = 30 * 2**30

HYBRID = [
    ("qwen3_5_27b_a2", 1, "drafter=mtp3"),
    ("qwen3_5_27b_a2", 2, "drafter=mtp3"),
    ("qwen3_5_27b_a2", 4, "drafter=none"),
    ("qwen3_5_27b_a2", 8, "cache=hybrid"),
    ("qwen3_6_35b_a3b_w8a8_a3", 2, "drafter=none"),
    ("qwen3_5_397b_a17b_w8a8_a3", 16, "drafter=mtp3"),
    ("qwen3_8_2_4t_a95b_w8a8_a3_4n", 16, "drafter=mtp"),
    ("kimi_k3_w4a8_a3_4n", 16, "drafter=none"),
]
LATENT = [("glm_5_2_w4a8_a3_2n", "drafter=mtp3"), ("glm_5_w8a8_a3", "drafter=none")]
COMPRESSED = list(
    product(("deepseek_v4_a3", "deepseek_v4_pro_a3_2n"), ("a2", "a3", "a5"), (32, 64, 128))
)


def described(view, **case):
    common = {
        "block": view.recipe.cache.block_size,
        "layout": "LBNHC",
        "mode": "align" if view.keeps_snapshots else "none",
        "length": view.recipe.scheduler.max_model_len,
        "step": view.step_tokens,
        "memory": MEMORY,
    }
    return common | case


def hybrid_case(view):
    """Sizes straight from the published configuration; shapes and blocks are vLLM's."""
    config, tp = view.config, view.recipe.parallel.tp
    states = sum(count for kind, count in view.cache_layers.items() if keeps_state(kind))
    nested = config.get("linear_attn_config")
    if nested:
        name, heads = "kda_state_shape", 1
        sizes = {
            "num_heads": nested["num_heads"],
            "head_dim": nested["head_dim"],
            "conv_kernel_size": nested["short_conv_kernel_size"],
        }
        attention = {"kind": "latent", "heads": 1, "size": 576}
    else:
        name, heads = "gated_delta_net_state_shape", max(1, config["num_key_value_heads"] // tp)
        sizes = {
            "num_k_heads": config["linear_num_key_heads"],
            "num_v_heads": config["linear_num_value_heads"],
            "head_k_dim": config["linear_key_head_dim"],
            "head_v_dim": config["linear_value_head_dim"],
            "conv_kernel_size": config["linear_conv_kernel_dim"],
        }
        attention = {"kind": "grouped", "heads": heads, "size": config["head_dim"]}
    return described(
        view,
        attention=attention,
        states=name,
        state_sizes=sizes | {"tp_world_size": tp, "num_spec": view.draft_tokens},
        attention_layers=sum(view.cache_layers.values()) - states,
        state_layers=states,
        drafts=view.draft_tokens,
    )


def latent_case(view):
    index = view.cache_layers["indexed_latent_attention"]
    chosen = view.recipe.attention.indexer_cache
    widths = [(576, "bfloat16")] * sum(view.cache_layers.values())
    widths += [(130, "uint8") if chosen == "int8" else (128, "bfloat16")] * index
    layers = [
        {"block": 128, "width": width, "dtype": dtype, "window": None, "ratio": 1}
        for width, dtype in widths
    ]
    return described(view, layers=layers)


def compressed_case(view):
    caches = compressed_caches(
        view.config,
        hardware=view.recipe.hardware,
        block=view.recipe.cache.block_size,
        dtype="bfloat16",
        float_index=False,
    )
    ratios = view.config["compress_ratios"][: view.config["num_hidden_layers"]]
    layers = [
        {
            "block": layer.shape.block_tokens,
            "width": layer.shape.width,
            "dtype": layer.shape.dtype,
            "window": layer.shape.window,
            "ratio": layer.shape.ratio,
            "alignment": layer.shape.block_alignment,
        }
        for layer in cache_layers(caches, ratios, view.draft_layers)
    ]
    return described(view, layers=layers, layout="BLHNC")


def with_recipe(view, **changes):
    return replace(view, recipe=view.recipe.model_copy(update=changes))


@pytest.fixture(scope="module")
def views(plan):
    def first(*words):
        return role_views(plan(*words).resolved)[0]

    found = {}
    for recipe, tp, words in HYBRID:
        base = first(f"recipe={recipe}", words)
        parallel = base.recipe.parallel.model_copy(update={"tp": tp})
        found[f"{recipe} tp{tp} {words}"] = (hybrid_case, with_recipe(base, parallel=parallel))
    for recipe, words in LATENT:
        found[f"{recipe} {words}"] = (latent_case, first(f"recipe={recipe}", words))
    for recipe, hardware, block in COMPRESSED:
        words = (f"cache.block_size={block}", "cache.retention_interval_tokens=0")
        base = first(f"recipe={recipe}", *words)
        view = with_recipe(base, hardware=hardware)
        found[f"{recipe} {hardware} {block}"] = (compressed_case, view)
    return found


@pytest.fixture(scope="module")
def answers(views, plan, tmp_path_factory):
    """vLLM's answers to all cases, from one child process."""
    own = plan("scale=tiny", "device=emulated").plan
    path = tmp_path_factory.mktemp("run") / "plan.json"
    path.write_text(own.to_json(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(CHILD)],
        input=json.dumps({name: case(view) for name, (case, view) in views.items()}),
        env=child_environment(own, path, os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


NAMES = [
    *(f"{recipe} tp{tp} {words}" for recipe, tp, words in HYBRID),
    *(f"{recipe} {words}" for recipe, words in LATENT),
    *(f"{recipe} {hardware} {block}" for recipe, hardware, block in COMPRESSED),
]


@pytest.mark.parametrize("name", NAMES)
def test_native_pool_is_the_one_that_vllm_makes(name, views, answers):
    view, answer = views[name][1], answers[name]
    pool = cache_pool(view, "native")
    assert pool.block_bytes == answer["block_bytes"]
    assert pool.num_blocks(MEMORY) == answer["num_blocks"]
    assert len(pool.groups) == len(answer["groups"])
    assert sorted(g.block_tokens for g in pool.groups) == sorted(b for _, b in answer["groups"])
    length = view.recipe.scheduler.max_model_len
    found = pool.concurrency(MEMORY, length, view.step_tokens)
    assert found == pytest.approx(answer["concurrency"])
    assert int(found * length) == answer["tokens"]


@pytest.mark.parametrize(
    ("name", "block_bytes"),
    [("deepseek_v4_a3 a5 128", 2_075_520), ("deepseek_v4_pro_a3_2n a5 128", 2_964_480)],
)
def test_blocks_of_packed_rows_are_whole_rows(name, block_bytes, answers):
    # The pages of the widest group are 2,075,136 and 2,964,480 bytes long.
    assert answers[name]["block_bytes"] == block_bytes == block_bytes // 640 * 640
