"""The device runtime of this process, and the names it lends to torch."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error
from ascend_recipes.schema.plan import Device
from ascend_recipes.worker.device.emulated import EmulatedRuntime
from ascend_recipes.worker.device.interface import DeviceRuntime


@cache
def runtime_for(device: Device) -> DeviceRuntime:
    """Build the runtime of a device once.

    Raises:
        RecipeError: `npu` without torch_npu.
    """
    if device == "emulated":
        return EmulatedRuntime()
    # Deferred: torch_npu loads the vendor's libraries, which only NPU hosts have.
    from ascend_recipes.worker.device.npu import NpuRuntime

    try:
        importlib.import_module("torch_npu")
        npu = importlib.import_module("torch.npu")
    except ImportError as error:
        raise recipe_error(
            "device.no_torch_npu",
            at="device",
            exit_code=ExitCode.ENVIRONMENT,
            error=error,
        ) from error
    return NpuRuntime(npu)


@contextmanager
def device_shims(runtime: DeviceRuntime) -> Iterator[tuple[str, ...]]:
    """Serve torch's CUDA and accelerator names from the runtime while the context is open.

    vLLM's V1 runner is written against `torch.cuda` and `torch.accelerator`; its own XPU runner
    enters such substitutes in the same way. They are counted apart from patches.

    Yields:
        The substituted names, sorted.
    """
    substitutes = runtime.substitutes()
    originals: list[tuple[object, str, object]] = []
    try:
        for name in sorted(substitutes):
            owner, attribute = _owner_of(name)
            originals.append((owner, attribute, vars(owner)[attribute]))
            setattr(owner, attribute, substitutes[name])
        yield tuple(sorted(substitutes))
    finally:
        for owner, attribute, original in reversed(originals):
            setattr(owner, attribute, original)


def _owner_of(name: str) -> tuple[object, str]:
    path, attribute = name.rsplit(".", 1)
    return (torch if path == "torch" else importlib.import_module(path)), attribute
