"""Planning: digest, ladder, ranks, reasons, and what a tiny plan may change."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_recipes.cli.main import main
from ascend_recipes.errors import RecipeError
from ascend_recipes.planning.capture import CAPTURE_CAP, default_capture_sizes
from ascend_recipes.planning.topology import group_ranks
from ascend_recipes.schema.plan import GroupPlan, canonical_json, load_plan

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_canonical_json_reads_back_and_ignores_order(tree):
    text = canonical_json(tree)
    assert json.loads(text) == tree
    shuffled = dict(reversed(tree.items())) if isinstance(tree, dict) else tree
    assert canonical_json(shuffled) == text


@given(st.integers(1, 2000), st.integers(1, 16))
def test_capture_ladder_covers_the_largest_batch_up_to_the_cap(max_num_seqs, query_length):
    sizes = default_capture_sizes(max_num_seqs, query_length)
    assert list(sizes) == sorted(set(sizes))
    assert all(size % query_length == 0 and size <= CAPTURE_CAP for size in sizes)
    covered = min(max_num_seqs, CAPTURE_CAP // query_length) * query_length
    assert sizes[-1] == covered
    assert sizes[0] == query_length


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_groups_partition_the_world_and_follow_the_order_of_ranks(tp, pp, dp):
    world = set(range(tp * pp * dp))
    for axis, size in (("tp", tp), ("pp", pp), ("dp", dp), ("ep", tp * dp)):
        group = GroupPlan(axis=axis, size=size, count=len(world) // size, ranks="rule")
        ranks = group_ranks(group, tp=tp, pp=pp, dp=dp)
        assert sorted(rank for members in ranks for rank in members) == sorted(world)
        assert {len(members) for members in ranks} == {size}
    tensor = group_ranks(GroupPlan(axis="tp", size=tp, count=1, ranks=""), tp=tp, pp=pp, dp=dp)
    assert tensor[0] == tuple(range(tp))


def test_digest_follows_the_content(plan):
    first, again, other = plan().plan, plan().plan, plan("parallel.tp=2").plan
    assert first.digest == again.digest != other.digest


def test_plan_file_edited_by_hand_is_refused(plan, tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text(plan().plan.to_json().replace('"max_num_seqs": 32', '"max_num_seqs": 33'))
    with pytest.raises(RecipeError) as caught:
        load_plan(path)
    assert caught.value.findings[0].id == "plan.digest"


def test_plan_file_reads_back(plan, tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text(plan().plan.to_json(), encoding="utf-8")
    assert load_plan(path) == plan().plan


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema_version": 2}', "\x00"])
def test_no_plan_is_refused_in_words(tmp_path: Path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_plan(path)
    assert caught.value.findings[0].id == "plan.invalid"


def test_every_engine_server_and_environment_value_has_a_reason(plan):
    planned = plan("drafter=mtp", "serving.port=9001")
    for section in ("engine", "server", "env", "operations"):
        for key in getattr(planned.plan, section):
            reason = planned.reasons[f"{section}.{key}"]
            assert reason.source and reason.because
    assert planned.reasons["server.port"].source == "command line"
    for key in planned.plan.hooks:
        assert planned.reasons[f"hooks.{key}"].source.startswith("registry/hooks/")


def test_async_scheduling_is_off_where_upstream_races(plan):
    assert plan().plan.engine["async_scheduling"] is True
    racing = plan("drafter=mtp")
    assert racing.plan.engine["async_scheduling"] is False
    assert "permutes" in racing.reasons["engine.async_scheduling"].because


def test_drafter_adds_its_hooks_and_arguments(plan):
    planned = plan("drafter=mtp3").plan
    assert planned.engine["speculative_config"] == {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "enforce_eager": True,
    }
    assert set(plan().plan.hooks) <= set(planned.hooks)
    assert all(size % 4 == 0 for size in planned.graph.capture_sizes)


def test_block_drafter_is_shown_under_a_name_that_vllm_takes_and_the_plan_says_so(plan):
    planned = plan("recipe=deepseek_v4_a3_dspark")
    assert planned.plan.drafter.kind == "dspark"
    assert planned.plan.engine["speculative_config"]["method"] == "mtp"
    reason = planned.reasons["engine.speculative_config"]
    assert "dspark, shown to vLLM as mtp" in reason.because
    hooks = planned.plan.hooks
    assert "model_deepseek_v4_block_drafter" in hooks
    assert "model_deepseek_v4_drafter" not in hooks
    elsewhere = plan("recipe=deepseek_v4_a3_dspark", "runtime=vllm_ascend").plan
    assert elsewhere.engine["speculative_config"]["method"] == "dspark"


def test_choices_that_the_native_runtime_does_not_perform_are_called_idle(plan, capsys):
    idle = {
        path: planned.reasons[f"features.{path}"].because.startswith("idle")
        for planned in [plan("recipe=deepseek_v4_a3_dspark")]
        for path in planned.plan.features
    }
    assert idle == {
        "attention.context_parallel": True,
        "cache.retention_interval_tokens": False,
        "moe.overlap_shared_expert": True,
    }
    elsewhere = plan("recipe=deepseek_v4_a3_dspark", "runtime=vllm_ascend")
    assert not [item for item in elsewhere.reasons.values() if item.because.startswith("idle")]
    assert main(["plan", "recipe=deepseek_v4_a3_dspark"]) == 0
    assert "idle: the native runtime does not perform" in " ".join(capsys.readouterr().out.split())


def test_server_binds_to_loopback(plan):
    assert plan().plan.server["host"] == "127.0.0.1"


def test_an_extra_argument_stands_beside_the_fields_of_the_plan(plan):
    words = (
        "recipe=deepseek_v4_a3",
        "+extra_args.speculative_config.disable_eagle_block_drop=true",
    )
    planned = plan(*words)
    assert planned.plan.engine["speculative_config"] == {
        "method": "mtp",
        "num_speculative_tokens": 1,
        "enforce_eager": True,
        "disable_eagle_block_drop": True,
    }
    assert "engine.speculative_config.disable_eagle_block_drop" in planned.reasons


@pytest.mark.parametrize(
    ("words", "interval"),
    [
        (("recipe=deepseek_v4_a3",), 4096),
        # All prefixes: where blocks of every cache end, of which the longest has 128 * 128 tokens.
        (("recipe=deepseek_v4_pro_a3_2n",), 128 * 128),
        (("recipe=deepseek_v4_pro_a3_2n", "cache.block_size=64"), 64 * 128),
        (("recipe=deepseek_v4_a3", "cache.prefix_caching=false"), None),
    ],
)
def test_where_cached_prefixes_may_end_is_not_left_to_a_default(plan, words, interval):
    assert plan(*words).plan.engine.get("prefix_cache_retention_interval") == interval
