"""Arguments of an operation, drawn from its contract at the sizes that a real plan has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ascend_recipes.schema.expression import evaluate
from ascend_recipes.schema.operation import OperationContract, TensorContract

Sizes = Mapping[str, float]
"""What `operations_table.deployment_sizes` gives for a real plan, with few tokens."""


@dataclass(frozen=True)
class Case:
    """What a call needs beyond the contract."""

    values: dict[str, Any] = field(default_factory=dict)
    """Arguments that are no tensors, and tensors whose values matter; none leaves one out."""
    dims: dict[str, int] = field(default_factory=dict)
    """Dimensions that the contract's `sizes` does not give, or others than those."""
    dtypes: dict[str, str] = field(default_factory=dict)
    """Inputs that are not bfloat16, or not of the first legal dtype where that is not legal."""


CaseTable = dict[str, Callable[[Sizes], list[Case]]]
"""`operation`, or `operation@provider.symbol` for one binding, to its calls."""


def load_cases() -> CaseTable:
    """The `CASES` of every module in this folder."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("*_cases.py"))
    tables = [import_module(f"tests.vendor.cases.{name}").CASES for name in modules]
    return {key: case for table in tables for key, case in table.items()}


def arguments(contract: OperationContract, case: Case, sizes: Sizes) -> dict[str, Any]:
    """Keyword arguments of one call: required tensors drawn, the rest as the case says."""
    known = dict(case.dims)
    for name, expression in contract.sizes.items():
        if name not in known:
            known[name] = int(evaluate(expression, sizes))
    drawn = {
        name: _draw(tensor, known, case.dtypes.get(name))
        for name, tensor in contract.inputs.items()
        if name not in case.values and not tensor.optional
    }
    return drawn | case.values


def _draw(tensor: TensorContract, dims: Mapping[str, int], dtype: str | None) -> torch.Tensor:
    shape = [int(evaluate(item, dims)) for item in tensor.shape]
    preferred = "bfloat16" if "bfloat16" in tensor.dtypes else tensor.dtypes[0]
    chosen = getattr(torch, dtype or preferred)
    if chosen.is_floating_point and chosen.itemsize > 1:
        return torch.randn(shape).to(chosen)
    return torch.zeros(shape, dtype=torch.float32).to(chosen)
