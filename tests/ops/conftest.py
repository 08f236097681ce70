"""Fixtures of the operator tests: emulated operators, contracts, tolerances."""

from collections.abc import Callable, Iterator

import pytest
import torch

from ascend_recipes.emulation import install
from ascend_recipes.ops import load_function
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.operation import OperationContract
from ascend_recipes.torchvision_schemas import define_missing_schemas


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from more; waiting for a busy core costs a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def strict_emulation() -> None:
    """Every test starts with the vendor's limits in force and the same random numbers."""
    install()
    torch.manual_seed(7)


@pytest.fixture
def relaxed() -> Callable[[torch.dtype], None]:
    """Lift the dtype limit where a test runs in float32."""

    def relax(dtype: torch.dtype) -> None:
        if dtype == torch.float32:
            install({"dtype.float32"})

    return relax


@pytest.fixture(scope="session")
def contract() -> Callable[[str], OperationContract]:
    return lambda name: load_registry().operations[name]


@pytest.fixture(scope="session")
def reference() -> Callable[[str], Callable]:
    """Reference of an operation, found through its contract."""
    return lambda name: load_function(load_registry().operations[name].reference)


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """Assert that a result is within the contract's tolerance of the largest expected value."""

    def check(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        key = str(actual.dtype).removeprefix("torch.")
        allowed = load_registry().operations[name].tolerance[key]
        scale = max(float(expected.float().abs().max()), 1e-6) if expected.numel() else 1.0
        torch.testing.assert_close(actual.float(), expected.float(), rtol=0.0, atol=allowed * scale)

    return check


@pytest.fixture(scope="session")
def transformers_qwen3_5():
    """transformers' Qwen3.5 module: an implementation that is not ours."""
    define_missing_schemas()
    from transformers.models.qwen3_5 import modeling_qwen3_5

    return modeling_qwen3_5


@pytest.fixture(scope="session")
def transformers_deepseek_v4():
    """transformers' DeepSeek-V4 module: an implementation that is not ours."""
    define_missing_schemas()
    from transformers.models.deepseek_v4 import modeling_deepseek_v4

    return modeling_deepseek_v4
