"""Dispatch and combine over gloo between real processes, against the sum on a single one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ops import exchange_worker
from tests.ops.exchange_worker import CASES

pytestmark = pytest.mark.ops

NAMES = [case.name for case in CASES]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, tmp_path_factory):
    """What every rank of a world saw."""
    world, folder = request.param, tmp_path_factory.mktemp("exchange")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, exchange_worker.__file__, str(folder)]
    children = [
        subprocess.Popen([*command, str(rank), str(world)], env=environment, stderr=subprocess.PIPE)
        for rank in range(world)
    ]
    try:
        errors = [child.communicate(timeout=120)[1].decode() for child in children]
    finally:
        for child in children:
            child.kill()
    assert not any(child.returncode for child in children), "\n".join(errors)[-4000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(world)]


def expected_sum(item):
    """Σ_k w · (expert + 1) · x, as if every expert were here."""
    x, ids, weights = item["x"].float(), item["ids"], item["weights"]
    return (weights * (ids + 1)).sum(dim=1, keepdim=True) * x


def active_rows(item):
    return slice(None) if item["active"] is None else slice(0, int(item["active"].sum()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["binding", "reference"])
def test_dispatch_then_combine_equals_one_process(ranks, name, side):
    for results in ranks:
        item = results[name]
        y, rows = item[side]["y"], active_rows(item)
        assert y.dtype == item["x"].dtype
        expected = expected_sum(item)[rows]
        error = (y[rows].float() - expected).abs().max() if expected.numel() else 0.0
        allowed = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-6}[item["case"]["dtype"]]
        allowed = 2e-2 if item["case"]["quantize"] else allowed
        assert float(error) <= allowed * float(expected_sum(item).abs().max())
        if item["active"] is not None:
            assert bool(y[rows.stop :].isnan().all()), "rows of inactive tokens are poison"


@pytest.mark.parametrize("name", NAMES)
def test_binding_dispatches_what_the_reference_dispatches(ranks, name):
    for results in ranks:
        found, wanted = (results[name][side]["dispatched"] for side in ("binding", "reference"))
        for actual, expected in zip(found, wanted, strict=True):
            assert actual.shape == expected.shape
            assert actual.dtype == expected.dtype
            torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_the_cases_are_uneven_and_leave_experts_empty(ranks):
    counts = {
        name: [results[name]["binding"]["dispatched"][3].tolist() for results in ranks]
        for name in ("uneven", "one rank serves all", "idle")
    }
    ends = counts["uneven"]
    uneven = [[b - a for a, b in zip([0, *row], row, strict=False)] for row in ends]
    assert len({count for row in uneven for count in row}) > 2
    assert all(sum(row) == 0 for row in counts["one rank serves all"][1:])
    assert counts["one rank serves all"][0][3] == 0
    assert sum(map(sum, counts["idle"])) < sum(results["idle"]["ids"].numel() for results in ranks)


def test_counts_and_cumulative_lists_are_different_conventions(ranks):
    """Read as counts, the cumulative list of an uneven world names more rows than arrived."""
    wrong = [results["uneven"]["binding"]["dispatched"][3] for results in ranks]
    rows = [int(results["uneven"]["binding"]["dispatched"][4][-1]) for results in ranks]
    assert [int(item[-1]) for item in wrong] == rows
    assert any(int(item.sum()) > row for item, row in zip(wrong, rows, strict=True))


def test_rows_behind_the_last_are_poison(ranks):
    for results in ranks:
        rows, scale, assist, _, counts = results["even"]["binding"]["dispatched"]
        used = int(counts[-1])
        assert bool(rows[used:].isnan().all())
        assert bool(scale.isnan().all())
        assert set(assist[3 * used :].tolist()) == {-1}
        quantized = results["int8"]["binding"]["dispatched"]
        used = int(quantized[4][-1])
        assert bool(quantized[1][:used].isfinite().all())
        assert bool(quantized[1][used:].isnan().all())
