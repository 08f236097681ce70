"""Installing the emulation beside a vendor package that has defined the operators already."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.ops

PROGRAM = """
import torch
from ascend_recipes.emulation import install
from ascend_recipes.emulation.register import load_schemas

schema = load_schemas()["npu::npu_rms_norm"].removeprefix("npu::")
vendor = torch.library.Library("npu", "FRAGMENT")
vendor.define(schema.replace("epsilon", "{name}"))
install()
print(torch.ops.npu.npu_rms_norm(torch.ones(1, 4), torch.ones(4))[0].tolist())
"""


def run(name):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_kernels_join_the_vendor_schema():
    done = run("epsilon")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[0.99")


def test_another_vendor_schema_is_refused():
    done = run("eps")
    assert done.returncode != 0
    assert "npu::npu_rms_norm: installed schema" in done.stderr
