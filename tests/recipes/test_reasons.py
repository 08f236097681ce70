"""`because`: a reason silences one warning; an idle one, or one for an error, is refused."""

import pytest

from ascend_recipes.errors import RecipeError

BASE = "# @package _global_\ndefaults: [qwen3_5_27b_a2]\nabout: x\nsource: [x]\n"
REASON = "because: [{{finding: {}, reason: measured, source: us}}]\n"
SMALL = "graph: {capture_sizes: [1, 2, 4]}\n"


@pytest.fixture
def recipe(tmp_path, plan):
    """Plans a recipe of the given text."""
    (tmp_path / "recipe").mkdir()

    def call(text: str, *words: str):
        (tmp_path / "recipe" / "mine.yaml").write_text(BASE + text)
        return plan("recipe=mine", *words, config_dirs=(tmp_path,))

    return call


def refused(call, text: str, *words: str) -> set[str]:
    with pytest.raises(RecipeError) as caught:
        call(text, *words)
    return {item.id for item in caught.value.findings}


def test_without_a_reason_the_rule_warns(recipe):
    assert [item.id for item in recipe(SMALL).findings] == ["graph.off_stride"]


def test_a_reason_silences_its_warning(recipe):
    assert recipe(SMALL + REASON.format("graph.off_stride")).findings == ()


def test_a_reason_leaves_other_warnings_alone(recipe):
    text = SMALL + "cache: {memory_fraction: 0.99}\n"
    found = recipe(text + REASON.format("graph.off_stride")).findings
    assert [item.id for item in found] == ["memory.util_range"]


def test_an_idle_reason_is_refused(recipe):
    assert refused(recipe, REASON.format("graph.off_stride")) == {"because.unused"}


def limited(runtime: str) -> str:
    return REASON.format("graph.off_stride").replace("}]", f", runtime: {runtime}}}]")


def test_a_reason_for_one_runtime_says_nothing_of_the_others(recipe):
    text = SMALL + limited("vllm_ascend")
    assert [item.id for item in recipe(text).findings] == ["graph.off_stride"]
    assert recipe(text, "runtime=vllm_ascend").findings == ()


def test_a_reason_for_another_runtime_is_not_idle(recipe):
    assert recipe(limited("vllm_ascend")).findings == ()


def test_a_reason_for_this_runtime_may_be_idle(recipe):
    assert refused(recipe, limited("native")) == {"because.unused"}


def test_no_reason_makes_an_error_right(recipe):
    text = "parallel: {tp: 3}\n" + REASON.format("parallel.heads_not_divisible")
    assert refused(recipe, text) >= {"parallel.heads_not_divisible", "because.error"}


def test_a_reason_may_become_idle_by_an_override(recipe):
    text = SMALL + REASON.format("graph.off_stride")
    assert recipe(text, "graph=none").findings == ()


def test_rules_look_at_each_role(plan):
    words = ("recipe=deepseek_v4_a3_pd", "roles.decode.scheduler.max_num_batched_tokens=100")
    (finding,) = plan(*words).findings
    assert finding.id == "scheduler.decode_batch_exceeds_step"
    assert finding.at == "roles.decode.scheduler.max_num_batched_tokens"
    assert finding.fix == "roles.decode.scheduler.max_num_batched_tokens=120"
    assert plan(*words, finding.fix).findings == ()


@pytest.mark.parametrize(
    ("word", "id", "at"),
    [
        ("roles.decode.parallel.tq=2", "schema.unknown_key", "roles.decode.parallel.tq"),
        ("roles.prefill.cache.block_size=x", "schema.value", "roles.prefill.cache.block_size"),
        (
            "roles.decode.parallel.tp=3",
            "parallel.heads_not_divisible",
            "roles.decode.parallel.tp",
        ),
    ],
)
def test_a_mistake_in_a_role_names_the_role(findings, word, id, at):
    found = findings("recipe=deepseek_v4_a3_pd", word)
    assert (id, at) in {(item.id, item.at) for item in found}
    assert all(item.source for item in found)
