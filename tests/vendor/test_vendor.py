"""Our bindings, schemas and emulated kernels against the vendor's own packages."""

import pytest

from ascend_recipes.emulation import operator_names
from ascend_recipes.emulation.register import load_schemas
from tests.vendor.agreement import (
    normal,
    output_differences,
    schema_differences,
    unbound_calls,
)

pytestmark = pytest.mark.vendor

ATTENTION = "npu::npu_fused_infer_attention_score"
VENDOR_DEFECTS = {
    # Documentation: "softmax_lse_flag False: a tensor of shape [1] that holds 0"; the emulation
    # follows it. The Meta kernel makes it [0]. No binding of ours reads that output.
    f"{ATTENTION}: the vendor returns bfloat16[6, 6, 256], float32[0], our": (
        "documentation and Meta kernel disagree about the log-sum-exp that was not asked for"
    ),
    # The schema has k=None; the dispatcher leaves a default out and the Meta kernel demands it.
    "npu::npu_top_k_top_p: TypeError: npu_top_k_top_p_meta() missing 1 required": (
        "the Meta kernel has no default for k"
    ),
}
"""Beginnings of the sentences in which the vendor contradicts itself."""

# The pinned wheel registers so many npu:: schemas; fewer means that it did not load whole.
REGISTERED = 425


def test_torch_npu_loads_whole(answer):
    assert answer.torch_npu.startswith("2.13.0")
    assert len(answer.registered) == REGISTERED


def test_every_binding_runs(bindings):
    failed = [f"{bound.name}: {bound.error}" for bound in bindings if bound.error]
    assert not failed, "\n".join([*failed, "see tests/vendor/cases"])


def test_every_binding_calls_its_symbol(bindings):
    silent = [
        bound.name
        for bound in bindings
        if bound.binding.symbol not in {item.call.operator for item in bound.recorded}
    ]
    assert silent == []


def test_snapshot_equals_registered_schemas(answer):
    ours = {name: text for name, text in load_schemas().items() if name.startswith("npu::")}
    assert ours
    assert schema_differences(ours, answer.schemas) == []


def test_snapshot_equals_source_package(definitions):
    ours = {name: text for name, text in load_schemas().items() if name.startswith("_C_ascend::")}
    assert ours
    vendor = {name: [text] for name, text in definitions.items()}
    assert schema_differences(ours, vendor) == []


def test_snapshot_covers_what_is_called_and_emulated(bindings):
    called = {item.call.operator for bound in bindings for item in bound.recorded}
    assert called <= set(load_schemas())
    assert set(operator_names()) <= set(load_schemas())


def test_every_call_binds(bindings, answer):
    recorded = [item for bound in bindings for item in bound.recorded]
    assert unbound_calls(recorded, answer) == []


def test_results_agree_with_meta_kernels(bindings, answer):
    recorded = [item for bound in bindings for item in bound.recorded]
    differences = [
        line
        for item, verdict in zip(recorded, answer.verdicts, strict=True)
        for line in output_differences(item, verdict)
    ]
    wrong = [line for line in differences if not any(map(line.startswith, VENDOR_DEFECTS))]
    assert not wrong, "\n".join(wrong)
    used = {key for key in VENDOR_DEFECTS if any(line.startswith(key) for line in differences)}
    assert used == set(VENDOR_DEFECTS), "the vendor has repaired one: remove it"


def test_no_operator_is_unheld(bindings, answer, definitions, capsys):
    """The vendor table: who holds each operator that a binding calls."""
    called = sorted({item.call.operator for bound in bindings for item in bound.recorded})
    held = {
        name: "torch_npu" if name in answer.registered else "source" if name in definitions else ""
        for name in called
    }
    with capsys.disabled():
        print()
        for name, holder in held.items():
            meta = "Meta kernel" if answer.meta.get(name) else "no Meta kernel"
            print(f"  {name:48} {holder or 'UNHELD':10} {meta if holder == 'torch_npu' else ''}")
        counts = {kind: list(held.values()).count(kind) for kind in ("torch_npu", "source", "")}
        print(
            f"  held by torch_npu {counts['torch_npu']}, by the source package "
            f"{counts['source']}, unheld {counts['']}"
        )
    assert counts[""] == 0
    assert counts["torch_npu"] and counts["source"]


def test_source_definitions_are_all_read(definitions):
    from tests.vendor.environment import SOURCE

    text = SOURCE.read_text(encoding="utf-8")
    # Three are defined in two builds, with one schema.
    assert text.count("ops.def(") - len(definitions) == 3
    assert all(normal(schema) for schema in definitions.values())
