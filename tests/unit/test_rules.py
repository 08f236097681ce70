"""Sound configurations have no findings; what stops a launch although the plan is sound."""

import pytest

from ascend_recipes.errors import Severity

SILENT = [
    [],
    ["parallel.tp=2"],
    ["parallel.tp=8"],
    ["drafter=mtp3"],
    ["graph=none"],
    ["cache=hybrid", "scheduler.max_num_batched_tokens=512"],
    ["hardware=a3", "parallel.tp=2", "parallel.dp=8"],
    ["scale=tiny", "device=emulated"],
    [
        "scale=tiny",
        "device=emulated",
        "checkpoint.dtype=float32",
        "device.relaxed=[dtype.float32]",
    ],
    ["drafter=mtp", "graph.capture_sizes=[2,4,64]"],
    ["scheduler.max_num_seqs=512"],
    ["runtime=vllm_ascend"],
]


@pytest.mark.parametrize("overrides", SILENT, ids=lambda item: " ".join(item) or "recipe as it is")
def test_sound_configuration_has_no_findings(findings, overrides):
    assert findings(*overrides) == ()


def test_warnings_do_not_stop_a_plan(plan):
    planned = plan("graph.capture_sizes=[1,2,4]")
    assert [item.severity for item in planned.findings] == [Severity.WARNING]


def test_blockers_say_what_is_missing_and_what_would_run_instead(plan):
    by_id = {item.id: item for item in plan("recipe=kimi_k3_w4a8_a3_4n").blockers}
    assert {"runtime.family_not_implemented", "runtime.unverified"} <= set(by_id)
    fix = by_id["runtime.unverified"].fix
    assert "ascend-run recipe=kimi_k3_w4a8_a3_4n runtime=native accept_unverified=true" in fix
    assert "ascend-run recipe=kimi_k3_w4a8_a3_4n runtime=vllm_ascend" in fix


def test_emulation_needs_no_verified_run(plan):
    assert plan("scale=tiny", "device=emulated").blockers == ()


def test_vllm_ascend_needs_no_verified_run(plan):
    assert plan("runtime=vllm_ascend").blockers == ()


def test_accepting_the_risk_unblocks(plan):
    assert plan("accept_unverified=true").blockers == ()
