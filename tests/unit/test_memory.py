"""The memory planner: numbers of the sheets, files, bounds, and what helps."""

import json
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_recipes.cli.main import main
from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import RecipeError
from ascend_recipes.memory.caches import cache_pool, group_length, latent_bytes
from ascend_recipes.memory.forecast import forecast, smallest_nodes
from ascend_recipes.memory.headers import component_of, read_checkpoint
from ascend_recipes.memory.parameters import drafter_parts, model_parts
from ascend_recipes.memory.planner import plan_memory
from ascend_recipes.memory.pool import CachePool, PoolGroup
from ascend_recipes.memory.views import role_views
from ascend_recipes.memory.weights import plan_weights
from ascend_recipes.registry.load import load_registry

ROOT = Path(__file__).parents[2]


@pytest.fixture
def view(plan):
    def first(*overrides):
        return role_views(plan(*overrides).resolved)[0]

    return first


def pool(view, runtime="vllm_ascend"):
    return cache_pool(view, runtime)


# DeepSeek-V4: deepseek_v4.md 3.3 to 3.5 (vllm_ascend), dsv4_vllm_0_32.md 2.3 (native; Flash on A5
# with 384 bytes a block more, so that blocks are whole packed rows apart).
COMPRESSED = [
    ("deepseek_v4_a3", "a3", 3_397_376, 6_842.859375, 6_247.828125),
    ("deepseek_v4_a3_dspark", "a3", 3_692_800, 7_437.890625, 6_247.828125),
    ("deepseek_v4_pro_a3_2n", "a3", 4_726_784, 9_520.5, 8_925.46875),
    ("deepseek_v4_a3", "a5", 2_272_768, 4_577.71875, 4_180.4296875),
    ("deepseek_v4_pro_a3_2n", "a5", 3_162_112, 6_369.0, 5_970.9375),
]

KEEP_ALL = "cache.retention_interval_tokens=0"
"""The interval of the recipe goes with its own block size."""


@pytest.mark.parametrize(("recipe", "hardware", "block", "sheet", "native"), COMPRESSED)
def test_compressed_context_costs_what_the_sheets_say(view, recipe, hardware, block, sheet, native):
    base = view(f"recipe={recipe}", "cache.block_size=128", KEEP_ALL)
    base = replace(base, recipe=base.recipe.model_copy(update={"hardware": hardware}))
    ours, theirs = pool(base, "native"), pool(base)
    assert theirs.block_bytes == block
    assert theirs.token_bytes == sheet
    assert ours.token_bytes == native
    assert len(theirs.groups) == len(ours.groups) == 6


def test_compressed_payload_and_transient_cost_of_the_sheet(view):
    flash = pool(view("recipe=deepseek_v4_a3", "cache.block_size=128", KEEP_ALL))
    assert flash.payload_bytes == 21 * 288.5 + 20 * 8
    chunk = sum(g.blocks_of(10**6, 8192) for g in flash.groups if g.window)
    assert 1350 < chunk < 1450


def test_prefixes_of_compressed_context_align_to_128_blocks(view):
    assert forecast(view("recipe=deepseek_v4_a3")).cache.alignment == 128 * 32


SPARSE = [
    ("glm_5_w8a8_a3", "model", "model", 111_232),
    ("glm_5_w8a8_a3", "model", "int8", 101_278),
    ("glm_5_w8a8_a3", "int8", "model", 72_048),
    ("glm_5_w8a8_a3", "int8", "int8", 62_094),
    ("glm_5_2_w8a8_a3_2n", "model", "model", 96_640),
    ("glm_5_2_w8a8_a3_2n", "model", "int8", 93_868),
    ("glm_5_2_w8a8_a3_2n", "int8", "model", 57_456),
    ("glm_5_2_w8a8_a3_2n", "int8", "int8", 54_684),
    ("glm_5_1_w4a4_mxfp4_a5", "fp8", "fp8", 62_252),
]


@pytest.mark.parametrize(("recipe", "cache", "index", "total"), SPARSE)
def test_sparse_latent_bytes_of_the_sheet(view, recipe, cache, index, total):
    role = view(
        f"recipe={recipe}",
        f"cache.kv_dtype={cache}",
        f"attention.indexer_cache={index}",
        *([] if "a5" in recipe else ["drafter=mtp"]),
    )
    if role.draft_layers == 0:
        total -= 656 + 132
    assert pool(role).token_bytes == pool(role, "native").token_bytes == total


@pytest.mark.parametrize(("dcp", "total"), [(8, 14_236), (16, 8_548)])
def test_context_parallel_index_keys_are_copies(view, dcp, total):
    recipe = {8: "glm_5_2_w4a8_a3_2n_1m", 16: "glm_5_2_w4a8_a3_1m"}[dcp]
    assert pool(view(f"recipe={recipe}")).token_bytes == total


def test_packed_latent_is_656_bytes(view):
    config = load_registry().models["glm_5_2"].config
    assert latent_bytes(config, "int8", "bfloat16") == 656
    assert latent_bytes(config, "bfloat16", "bfloat16") == 1152


# qwen3_x.md 3.3: tokens of a block under vllm_ascend, by tensor-parallel size.
BLOCKS = {
    "qwen3_5_27b": {1: 1536, 2: 1536, 4: 1536, 8: 768},
    "qwen3_5_35b_a3b": {1: 2048, 2: 2048, 4: 1024, 8: 512, 16: 256},
    "qwen3_5_397b_a17b": {1: 4096, 2: 4096, 4: 2048, 8: 1024, 16: 512},
    "qwen3_8_2_4t_a95b": {1: 4096, 2: 4096, 4: 4096, 8: 2048, 16: 1024},
}
# kimi_moe.md 3.
BLOCKS["kimi_k3"] = {1: 6144, 2: 3072, 4: 1536, 8: 768, 16: 384, 24: 256, 48: 128}

HYBRID_RECIPES = {
    "qwen3_5_27b": "qwen3_5_27b_a2",
    "qwen3_5_35b_a3b": "qwen3_6_35b_a3b_w8a8_a3",
    "qwen3_5_397b_a17b": "qwen3_5_397b_a17b_w8a8_a3",
    "qwen3_8_2_4t_a95b": "qwen3_8_2_4t_a95b_w8a8_a3_4n",
    "kimi_k3": "kimi_k3_w4a8_a3_4n",
}


def split(view, tp):
    parallel = view.recipe.parallel.model_copy(update={"tp": tp})
    return replace(view, recipe=view.recipe.model_copy(update={"parallel": parallel}))


@pytest.mark.parametrize(
    ("model", "tp", "block"),
    [(model, tp, block) for model, sizes in BLOCKS.items() for tp, block in sizes.items()],
)
def test_unified_blocks_of_the_sheets(view, model, tp, block):
    found = pool(split(view(f"recipe={HYBRID_RECIPES[model]}"), tp))
    assert {group.block_tokens for group in found.groups} == {block}
    assert found.notes == ()


def test_the_plan_names_the_block_of_its_runtime(plan):
    assert plan().plan.cache.block_size == 896
    assert plan("runtime=vllm_ascend").plan.cache.block_size == 1536


def test_sizes_that_do_not_unify_are_said(view):
    notes = pool(split(view("recipe=kimi_k3_w4a8_a3_4n"), 32)).notes
    assert any("stops here" in note for note in notes)


# qwen3_x.md 3.4: bytes of a token and of a sequence, whole model.
STATES = [
    ("qwen3_5_27b_a2", 65_536, 48 * 3_145_728, 48 * 3 * 20_480),
    ("qwen3_5_397b_a17b_w8a8_a3", 30_720, 45 * 4_194_304, 45 * 3 * 24_576),
    ("qwen3_8_2_4t_a95b_w8a8_a3_4n", 94_208, 69 * 8_388_608, 69 * 3 * 40_960),
    ("kimi_k3_w4a8_a3_4n", 24 * 1152, 69 * 6_291_456, 69 * 221_184),
]


@pytest.mark.parametrize(("recipe", "token", "recurrent", "window"), STATES)
def test_bytes_per_token_and_sequence_of_the_sheets(view, recipe, token, recurrent, window):
    for runtime in ("vllm_ascend", "native"):
        found = pool(split(view(f"recipe={recipe}", "drafter=none"), 1), runtime)
        assert found.payload_bytes == token
        assert found.states == {"recurrent states": recurrent, "convolution windows": window}


def test_pages_and_cost_of_a_sequence_of_the_sheet(view):
    drafted = view("drafter=mtp3", "cache=hybrid")
    found = pool(split(drafted, 1))
    assert found.block_bytes == 17 * 6_414_336
    assert found.payload_bytes == 65_536 + 4_096
    assert found.state_bytes == 3 * 4 * 17 * 6_414_336
    assert [group.name for group in found.groups] == ["attention", "states", "states", "states"]


def test_delta_attention_pages_of_the_sheet(view):
    found = pool(view("recipe=kimi_k3_w4a8_a3_4n", "drafter=none"))
    assert found.block_bytes == 24 * 456_192
    assert round(found.token_bytes) == 28_512


@given(st.integers(1, 100), st.integers(1, 100))
def test_groups_hold_the_smaller_kind_or_fill_up_to_the_larger(first, second):
    length = group_length(first, second)
    small, large = sorted((first, second))
    assert length in (small, large)
    assert (length == large) == (large < 1.5 * small or large == small)


POOLS = st.builds(
    CachePool,
    runtime=st.just("native"),
    block_bytes=st.integers(1, 10**6),
    groups=st.lists(
        st.one_of(
            st.builds(
                PoolGroup, name=st.just("a"), layers=st.just(1), block_tokens=st.integers(1, 64)
            ),
            st.builds(
                PoolGroup,
                name=st.just("w"),
                layers=st.just(1),
                block_tokens=st.integers(1, 64),
                window=st.integers(1, 256),
            ),
            st.builds(
                PoolGroup,
                name=st.just("s"),
                layers=st.just(1),
                block_tokens=st.just(64),
                state_blocks=st.integers(1, 8),
            ),
        ),
        min_size=1,
        max_size=4,
    ).map(lambda groups: (PoolGroup(name="all", layers=1, block_tokens=16), *groups)),
)


@given(POOLS, st.integers(0, 10**9), st.integers(1, 4096), st.integers(1, 64))
def test_longest_context_fits_and_one_more_does_not(pool, available, step, sequences):
    length = pool.longest(available, step, sequences)
    blocks = pool.num_blocks(available)

    def held(tokens):
        return sum(g.blocks_of_batch(tokens, step, sequences) for g in pool.groups)

    assert length == 0 or held(length) <= blocks
    assert held(length + 1) > blocks


@given(POOLS, st.integers(1, 10**5), st.integers(1, 4096))
def test_a_longer_sequence_never_holds_fewer_blocks(pool, length, step):
    assert pool.sequence_blocks(length, step) <= pool.sequence_blocks(length + 1, step)


def test_parameters_of_published_models():
    models = load_registry().models

    def total(key, drafter=0):
        row = models[key]
        parts = model_parts(row.config, {layer.kind: layer.count for layer in row.layers})
        if drafter:
            parts += drafter_parts(row.config, row.drafters["mtp"].layer_kind, drafter)
        return sum(part.parameters for part in parts)

    biases = 76 * 256
    assert total("glm_5_2", 1) == 753_329_921_024 + biases
    assert total("kimi_k3") == pytest.approx(2.779e12, rel=0.001)
    assert total("deepseek_v4_flash") == pytest.approx(284e9, rel=0.002)
    assert total("deepseek_v4_pro") == pytest.approx(1.6e12, rel=0.02)
    assert total("qwen3_5_397b_a17b") == pytest.approx(397e9, rel=0.002)


TOWER_BYTES = 0.93e9
"""The vision tower of 27B in bfloat16, which stays unquantized: 27 layers of width 1152."""


@pytest.mark.parametrize(
    ("recipe", "published", "tolerance"),
    [
        ("qwen3_5_27b_a2", 55.56e9, 0.001),
        ("qwen3_5_27b_w8a8_a2", 32.13e9, 0.05),
        ("qwen3_8_27b_fp8_a5", 30.87e9, 0.01),
    ],
)
def test_weights_against_sizes_on_disk(view, recipe, published, tolerance):
    drafted = [] if recipe != "qwen3_5_27b_a2" else ["drafter=mtp"]
    weights = plan_weights(view(f"recipe={recipe}", *drafted))
    counted = weights.checkpoint_bytes + TOWER_BYTES
    assert published * (1 - tolerance) <= counted <= published * (1 + 0.001)


def test_weights_of_huge_checkpoints_against_sizes_on_disk(view):
    glm = plan_weights(view("recipe=glm_5_2_w8a8_a3_2n"))
    assert glm.checkpoint_bytes == pytest.approx(773.8e9, rel=0.025)
    huge = plan_weights(view("recipe=qwen3_8_2_4t_a95b_w8a8_a3_4n"))
    assert huge.checkpoint_bytes == pytest.approx(2561.8e9, rel=0.05)


def test_weights_divide_over_the_devices(view):
    one, four = (plan_weights(split(view("drafter=mtp"), tp)) for tp in (1, 4))
    assert one.device_bytes == one.checkpoint_bytes
    assert four.checkpoint_bytes == one.checkpoint_bytes
    assert one.device_bytes / 4 < four.device_bytes < one.device_bytes / 4 * 1.05


def write_safetensors(path, tensors, *, cut=0):
    header, offset = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset - cut))


TENSORS = {
    "model.embed_tokens.weight": 100,
    "model.layers.0.mlp.experts.0.w1.weight": 200,
    "mtp.fc.weight": 50,
    "model.visual.blocks.0.weight": 25,
}


def test_sizes_come_from_headers(tmp_path):
    first = dict(list(TENSORS.items())[:2])
    write_safetensors(tmp_path / "model-1.safetensors", first)
    write_safetensors(
        tmp_path / "model-2.safetensors", {k: v for k, v in TENSORS.items() if k not in first}
    )
    sizes = read_checkpoint(tmp_path)
    assert (sizes.total, dict(sizes.tensors)) == (375, TENSORS)
    assert [component_of(name) for name in TENSORS] == ["layers", "experts", "drafter", "vision"]
    assert read_checkpoint(tmp_path, limit=10).tensors == {}
    assert read_checkpoint(tmp_path, limit=10).total == 375
    assert read_checkpoint(tmp_path / "nowhere") is None


def test_broken_files_are_named(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, TENSORS, cut=10)
    for content in (path.read_bytes(), b"", b"\xff" * 100, struct.pack("<Q", 4) + b"[1]!"):
        path.write_bytes(content)
        with pytest.raises(RecipeError) as caught:
            read_checkpoint(tmp_path)
        assert "model.safetensors" in caught.value.findings[0].message


def test_files_replace_the_architecture(view, tmp_path):
    write_safetensors(tmp_path / "model.safetensors", TENSORS)
    weights = plan_weights(view(), read_checkpoint(tmp_path))
    assert weights.source == "safetensors headers"
    assert weights.checkpoint_bytes == 375
    assert "vision tower" not in weights.components


def test_native_leaves_out_the_vision_tower(view):
    served = view("runtime=vllm_ascend", "drafter=mtp")
    assert plan_weights(served).components["vision tower"] == pytest.approx(
        TOWER_BYTES / 4, rel=0.02
    )
    assert plan_weights(served).checkpoint_bytes == 55_560_000_000
    assert "vision tower" not in plan_weights(view()).components


def test_what_is_not_measured_says_so(plan):
    (role,) = plan_memory(plan().resolved).roles
    assert {item.label for item in role.memory.ranges} == {"not measured"}
    assert all(item.low <= item.high and item.source for item in role.memory.ranges)
    low, high = role.memory.cache.available
    assert low < high


def test_roles_are_planned_apart(plan):
    plan = plan_memory(plan("recipe=deepseek_v4_a3_pd").resolved)
    assert [role.memory.role for role in plan.roles] == ["decode", "prefill"]
    assert plan.roles[0].memory.dies == 16


def test_remedies_help(plan):
    words = ("recipe=glm_5_2_w8a8_a3_2n", "nodes=1", "parallel.dp=1")
    (role,) = plan_memory(plan(*words).resolved).roles
    assert role.memory.verdict != "fits"
    assert role.smallest == (1, 2)
    assert "fits" in [item.verdict for item in role.remedies]
    for item in role.remedies:
        (better,) = plan_memory(plan(*words, *item.override.split()).resolved).roles
        assert better.memory.verdict == item.verdict
        assert better.memory.cache.tokens[0] == item.tokens


def test_cache_that_the_recipe_fixes_is_taken_as_it_is(view):
    found = forecast(view("cache.memory_bytes=1073741824")).cache
    assert found.available == (2**30, 2**30)


def test_smallest_machine_is_no_larger_than_the_recipe(view):
    assert smallest_nodes(view("recipe=deepseek_v4_a3")) == (1, 1)
    assert smallest_nodes(view("recipe=deepseek_v4_pro_a3_2n")) == (2, 2)
    assert smallest_nodes(view()) == (1, 1)


def test_a_row_without_facts_is_no_obstacle(plan):
    resolved = plan().resolved
    bare = {key: value for key, value in resolved.config.items() if key != "vocab_size"}
    memory = plan_memory(replace(resolved, config=bare))
    assert memory.missing == "vocab_size"
    assert memory.to_json()["missing"] == "vocab_size"


def test_planning_memory_is_quick(plan):
    for name in ("deepseek_v4_pro_a2_8n_pd", "kimi_k3_w4a8_a3_4n", "qwen3_5_27b_a2"):
        resolved = plan(f"recipe={name}").resolved
        spent = []
        for _ in range(5):
            start = time.process_time()
            plan_memory(resolved)
            spent.append(time.process_time() - start)
        assert min(spent) < 0.02, name


def test_plan_prints_memory(capsys):
    assert main(["plan", "recipe=deepseek_v4_a3"]) == 0
    text = capsys.readouterr().out
    assert "memory of a die" in text
    assert "6,843" in text
    assert "not measured" in text


@pytest.mark.parametrize(
    ("recipe", "sheet", "native"),
    [
        ("deepseek_v4_a3", 6842.859, 6247.828),
        # Native blocks on A5 are whole packed rows apart: of 32 tokens each costs a little more.
        ("deepseek_v4_a5", 4577.719, 4181.719),
        ("deepseek_v4_pro_a3_2n", 9520.5, 8925.469),
        ("deepseek_v4_pro_a5_2n", 6369.0, 5970.938),
    ],
)
def test_plan_tells_compressed_context_by_both_runtimes(capsys, recipe, sheet, native):
    assert main(["plan", "--json", f"recipe={recipe}"]) == 0
    (role,) = json.loads(capsys.readouterr().out)["memory"]["roles"]
    told = {name: cache["bytes_per_token"] for name, cache in role["caches"].items()}
    assert told == {"vllm_ascend": sheet, "native": native}


def test_the_page_about_memory_shows_what_is_printed(capsys):
    assert main(["plan", "recipe=deepseek_v4_a3"]) == 0
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    page = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8").split("```")[1]
    shown = [" ".join(line.split()) for line in page.strip().splitlines()[1:]]
    assert [line for line in shown if line not in printed] == []


@pytest.mark.parametrize("recipe", [entry.name for entry in recipe_names()])
def test_no_documented_deployment_is_said_not_to_fit(plan, recipe):
    for role in plan_memory(plan(f"recipe={recipe}").resolved).roles:
        assert role.memory.verdict != "does not fit"
        assert role.smallest.at_best <= role.memory.nodes
