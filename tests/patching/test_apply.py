"""Applying a plan applies its patch rows first, in the right phase, and says so in the receipt."""

from dataclasses import replace

import pytest

from ascend_recipes import apply
from ascend_recipes.errors import RecipeError
from ascend_recipes.receipts import Receipt
from ascend_recipes.registry.load import Table, load_registry
from ascend_recipes.schema.patch import PatchRow


@pytest.fixture
def with_row(toy, tmp_path, monkeypatch, plan):
    """A plan that lists one toy row, in a registry that has it."""
    path = tmp_path / "toy.yaml"
    path.write_text(toy.row().model_dump_json())
    registry = replace(load_registry(), patches=Table("patches", PatchRow, {"toy": path}))
    monkeypatch.setattr(apply, "load_registry", lambda: registry)
    return plan("recipe=qwen3_5_27b_a2").plan.model_copy(update={"patches": ("toy",)})


@pytest.fixture
def split(with_row):
    """The same plan over two dies, whose workers are processes of their own."""
    engine = {**with_row.engine, "distributed_executor_backend": "mp"}
    return with_row.model_copy(update={"engine": engine})


@pytest.mark.parametrize(
    ("phase", "in_one_process", "hosted"),
    [
        ("core", "1", ("worker",)),
        ("worker", "1", ()),
        ("frontend", "1", ()),
        ("frontend", "0", ("core", "worker")),
        ("inspect", "0", ()),
    ],
)
def test_single_worker_lives_in_the_core(with_row, monkeypatch, phase, in_one_process, hosted):
    engine = {**with_row.engine, "distributed_executor_backend": "uni"}
    one = with_row.model_copy(update={"engine": engine})
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", in_one_process)
    assert apply._hosted_phases(one, phase) == hosted


def test_rows_of_the_plan_are_applied_in_their_phase(split, toy):
    with_row = split
    assert apply._apply_patches(with_row, "core") == ()
    core = toy.load("core")
    assert core.scale(1) == 2
    (receipt,) = apply._apply_patches(with_row, "worker")
    assert core.scale(1) == 20
    assert (receipt.key, receipt.phase) == ("toy", "worker")
    assert receipt.before == "toy_engine.core:scale"
    from ascend_recipes.patching import patcher

    patcher._active.clear()


def test_row_that_the_registry_lacks_is_refused(with_row):
    unknown = with_row.model_copy(update={"patches": ("other",)})
    with pytest.raises(RecipeError, match=r"registry\.unknown_key"):
        apply._apply_patches(unknown, "worker")


def test_receipt_carries_patches():
    assert Receipt.model_fields["patches"].default == ()
