"""Receipts are whole files, and say when they are not receipts. Light: no torch, no vLLM."""

import json

import pytest

from ascend_recipes.errors import RecipeError
from ascend_recipes.receipts import RECEIPT_FOLDER, Receipt, load_receipts, write_receipt


def receipt(**changes) -> Receipt:
    values = {
        "pid": 7,
        "phase": "worker",
        "digest": "0123456789abcdef",
        "platform": "module:Name",
        "hooks": ("layer_silu_and_mul",),
    }
    return Receipt(**values | changes)


def test_what_is_written_is_read(tmp_path):
    first, second = receipt(calls={"swiglu": 3}), receipt(phase="core", pid=9, rank=0)
    write_receipt(tmp_path, first)
    write_receipt(tmp_path, second)
    assert load_receipts(tmp_path) == (second, first)


def test_a_newer_receipt_replaces_the_older(tmp_path):
    write_receipt(tmp_path, receipt())
    write_receipt(tmp_path, receipt(calls={"swiglu": 1}))
    (only,) = load_receipts(tmp_path)
    assert only.calls == {"swiglu": 1}


def test_unfinished_files_are_not_read(tmp_path):
    write_receipt(tmp_path, receipt())
    (tmp_path / RECEIPT_FOLDER / ".worker-8.json.8").write_text("{")
    assert len(load_receipts(tmp_path)) == 1


def test_no_folder_means_no_receipts(tmp_path):
    assert load_receipts(tmp_path) == ()


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"pid": "7"})])
def test_what_is_no_receipt_is_named(tmp_path, text):
    folder = tmp_path / RECEIPT_FOLDER
    folder.mkdir()
    (folder / "core-1.json").write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_receipts(tmp_path)
    (finding,) = caught.value.findings
    assert finding.id == "receipt.invalid"
    assert "core-1.json" in finding.message
