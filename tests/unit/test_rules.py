"""Every rule fires where it should, at the right field, and the remedy it names works."""

import inspect

import pytest

from ascend_recipes.errors import Severity
from ascend_recipes.rules import RULES

FIRING = [
    (["runtime.version=9.9.9"], "runtime.unknown_version", "runtime.version"),
    (["runtime=vllm_ascend", "device=emulated"], "runtime.no_emulation", "device.kind"),
    (["device=emulated"], "scale.real_on_cpu", "scale.kind"),
    (["attention=dsa"], "attention.kind_not_offered", "attention.kind"),
    (["recipe=deepseek_v4_a3", "hardware=310p"], "attention.no_backend", "attention.kind"),
    (
        ["moe.fused_communication=true"],
        "hardware.lacks_capability",
        "moe.fused_communication",
    ),
    (["checkpoint.dtype=float32"], "hardware.dtype", "checkpoint.dtype"),
    (
        ["checkpoint.dtype=float32", "device=emulated", "scale=tiny"],
        "hardware.dtype",
        "checkpoint.dtype",
    ),
    (["checkpoint.variant=w8a8"], "quant.format_mismatch", "quant.kind"),
    (["quant=w8a8"], "quant.format_mismatch", "quant.kind"),
    (["recipe=deepseek_v4_pro_a3_2n", "hardware=a5"], "quant.hardware", "checkpoint.variant"),
    (
        ["recipe=deepseek_v4_pro_a3_2n", "parallel.tp=32", "parallel.dp=1"],
        "quant.tp",
        "parallel.tp",
    ),
    (["recipe=deepseek_v4_a3", "drafter=dspark"], "drafter.weights_missing", "drafter.kind"),
    (["parallel.tp=3"], "parallel.heads_not_divisible", "parallel.tp"),
    (["parallel.tp=16"], "parallel.heads_not_divisible", "parallel.tp"),
    (["parallel.dp=4"], "parallel.world_exceeds_nodes", "parallel.tp"),
    (["parallel.ep=true"], "parallel.no_experts", "parallel.ep"),
    (["cache=paged"], "cache.kind_mismatch", "cache.kind"),
    (["cache.state_mode=none"], "cache.state_mode", "cache.state_mode"),
    (["cache.block_size=64"], "cache.block_size", "cache.block_size"),
    (
        ["scheduler.max_num_batched_tokens=512"],
        "cache.aligned_block_exceeds_batch",
        "scheduler.max_num_batched_tokens",
    ),
    (
        ["scheduler.max_model_len=262145"],
        "scheduler.context_too_long",
        "scheduler.max_model_len",
    ),
    (
        ["drafter=mtp3", "scheduler.max_num_seqs=200", "scheduler.max_num_batched_tokens=798"],
        "scheduler.decode_batch_exceeds_step",
        "scheduler.max_num_batched_tokens",
    ),
    (
        ["recipe=deepseek_v4_a3", "drafter.num_draft_tokens=4"],
        "drafter.too_long",
        "drafter.num_draft_tokens",
    ),
    (
        ["drafter=mtp", "graph.capture_sizes=[1,2,64]"],
        "graph.spec_multiple",
        "graph.capture_sizes",
    ),
    (
        ["graph.capture_sizes=[1,2,4]"],
        "graph.largest_batch_uncaptured",
        "graph.capture_sizes",
    ),
    (
        ["scheduler.max_num_seqs=513"],
        "graph.largest_batch_uncaptured",
        "graph.capture_sizes",
    ),
]

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


@pytest.mark.parametrize(("overrides", "id", "at"), FIRING, ids=lambda item: str(item))
def test_rule_fires_at_the_field(findings, overrides, id, at):
    matching = [item for item in findings(*overrides) if item.id == id]
    assert [item.at for item in matching][:1] == [at]
    assert all(item.message and item.fix and item.source for item in matching)


@pytest.mark.parametrize("overrides", SILENT, ids=lambda item: " ".join(item) or "recipe as it is")
def test_sound_configuration_has_no_findings(findings, overrides):
    assert findings(*overrides) == ()


@pytest.mark.parametrize(
    ("overrides", "id"),
    [(overrides, id) for overrides, id, _ in FIRING],
    ids=lambda item: str(item),
)
def test_single_override_fix_removes_the_finding(findings, overrides, id):
    """A remedy that is one KEY=VALUE is applied as typed, and must help."""
    fixes = [item.fix for item in findings(*overrides) if item.id == id]
    typable = [fix for fix in fixes if "=" in fix and " " not in fix]
    for fix in typable[:1]:
        assert id not in {item.id for item in findings(*overrides, fix)}


def test_warnings_do_not_stop_a_plan(plan):
    planned = plan("graph.capture_sizes=[1,2,4]")
    assert [item.severity for item in planned.findings] == [Severity.WARNING]


def test_every_rule_of_the_table_is_covered_by_a_firing_case():
    fired = {id for _, id, _ in FIRING} | {"operation.no_binding", "operation.reference"}
    for rule in RULES:
        module = inspect.getsource(inspect.getmodule(rule))
        assert any(f'"{id}"' in module for id in fired), rule


def test_blockers_say_what_is_missing_and_what_would_run_instead(plan):
    by_id = {item.id: item for item in plan("recipe=kimi_k3_w4a8_a3_4n").blockers}
    assert set(by_id) == {"runtime.family_not_implemented", "runtime.unverified"}
    fix = by_id["runtime.unverified"].fix
    assert "ascend-run recipe=kimi_k3_w4a8_a3_4n runtime=native accept_unverified=true" in fix
    assert "ascend-run recipe=kimi_k3_w4a8_a3_4n runtime=vllm_ascend" in fix


def test_emulation_needs_no_verified_run(plan):
    assert plan("scale=tiny", "device=emulated").blockers == ()


def test_vllm_ascend_is_planned_but_not_launched(plan):
    assert [item.id for item in plan("runtime=vllm_ascend").blockers] == ["runtime.not_rendered"]


def test_accepting_the_risk_unblocks(plan):
    assert plan("accept_unverified=true").blockers == ()
