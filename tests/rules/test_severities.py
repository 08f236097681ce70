"""Where the same finding weighs more or less: by version, by who chose a value, by consequence."""

import pytest

from tests.rules.configurations import Configuration, judge

ASCEND = ("runtime=vllm_ascend",)
SPLIT = (*ASCEND, "runtime.version=0.26.0rc1", "parallel.sequence=true", "parallel.tp=4")
SMALL = ("recipe=qwen3_5_27b_a2", *SPLIT, "scheduler.max_num_seqs=2")
SPREAD = ("recipe=glm_5_1_w8a8_a3_2n", *ASCEND, "parallel.tp=4", "parallel.dp=8")
CASES = [
    # vLLM rounds sizes since 0.12 of vllm-ascend; before, it stopped.
    ("graph.spec_multiple", "warn", ("drafter=mtp", "graph.capture_sizes=[1,2,64]"), None),
    (
        "graph.spec_multiple",
        "error",
        ("drafter=mtp", "graph.capture_sizes=[1,2,64]"),
        {"vllm_ascend": "0.11.0"},
    ),
    ("graph.spec_void", "error", ("drafter=mtp3", "graph.capture_sizes=[1,2]"), None),
    # The ladder that nobody lists is the same ladder; a document calls one of them validated.
    ("graph.sp_multiple", "error", (*SMALL, "graph.capture_sizes=[1,2]"), None),
    ("graph.sp_multiple", "warn", (*SMALL, "graph.capture_sizes=[]"), None),
    # Later versions split tokens unasked.
    (
        "graph.sp_drafts",
        "error",
        ("recipe=qwen3_6_27b_w8a8_a3", *SPLIT, "drafter.num_draft_tokens=2"),
        None,
    ),
    ("graph.sp_drafts", "warn", (*SPREAD, "drafter.num_draft_tokens=2"), None),
    ("scheduler.context_too_long", "error", ("scheduler.max_model_len=300000",), None),
    (
        "scheduler.context_too_long",
        "warn",
        ("scheduler.max_model_len=300000", "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"),
        None,
    ),
]


@pytest.mark.parametrize(("id", "severity", "words", "installed"), CASES)
def test_a_finding_weighs_what_its_source_says(id, severity, words, installed):
    found = judge(Configuration(words=words, installed=installed))
    severities = {item.severity.value for item in found if item.id == id}
    assert severity in severities
    assert installed is not None or severities == {severity}
