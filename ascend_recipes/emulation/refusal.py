"""Checks that refuse a call as the vendor's documentation does, naming operator and argument."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

FLOAT32 = "dtype.float32"
"""Relaxation: float32 is admitted wherever the vendor takes bfloat16 or float16 only."""

SMALL = "shape.small"
"""Relaxation: sizes of the model's dimensions that the vendor fixes may be others."""
FLOAT_CACHE = "cache.float32"
"""Relaxation: caches and indexer operands that the vendor takes in 8 bits may be float32."""

RELAXATIONS = (FLOAT32, SMALL, FLOAT_CACHE)

_relaxed: set[str] = set()


class OperatorRefusedError(ValueError):
    """A call that the vendor's operator does not take."""

    def __init__(self, operator: str, argument: str, problem: str, allowed: str) -> None:
        super().__init__(f"{operator}: argument '{argument}' {problem}; allowed: {allowed}")
        self.operator = operator
        self.argument = argument
        self.problem = problem
        self.allowed = allowed

    def of(self, operator: str, argument: str) -> "OperatorRefusedError":
        """The same refusal by another operator, whose kernel shares the checks."""
        return OperatorRefusedError(operator, argument, self.problem, self.allowed)


def relax(relaxed: Collection[str]) -> None:
    """Replace the set of limits that are lifted.

    Raises:
        ValueError: a name that is no relaxation.
    """
    if unknown := sorted(set(relaxed) - set(RELAXATIONS)):
        raise ValueError(f"unknown relaxations {unknown}; known: {', '.join(RELAXATIONS)}")
    _relaxed.clear()
    _relaxed.update(relaxed)


def relaxes(relaxation: str) -> bool:
    """Whether the limit is lifted."""
    return relaxation in _relaxed


def check(condition: bool, operator: str, argument: str, problem: str, allowed: str) -> None:
    """Refuse the call unless the condition holds."""
    if not condition:
        raise OperatorRefusedError(operator, argument, problem, allowed)


def check_dtype(
    operator: str, argument: str, tensor: Tensor, allowed: Sequence[torch.dtype]
) -> None:
    """Refuse a dtype that the documentation does not list."""
    if tensor.dtype in allowed:
        return
    low = torch.bfloat16 in allowed or torch.float16 in allowed
    if tensor.dtype == torch.float32 and low and FLOAT32 in _relaxed:
        return
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
    raise OperatorRefusedError(
        operator, argument, f"is {str(tensor.dtype).removeprefix('torch.')}", names
    )


def check_same_dtype(operator: str, expected: Tensor, **others: Tensor | None) -> None:
    """Refuse arguments whose dtype differs from that of the first."""
    for argument, tensor in others.items():
        if tensor is not None and tensor.dtype != expected.dtype:
            raise OperatorRefusedError(
                operator, argument, f"is {tensor.dtype}", f"{expected.dtype}, as the first input"
            )


def check_shape(
    operator: str, argument: str, tensor: Tensor, shape: Sequence[int | None], names: str
) -> None:
    """Refuse a shape; None stands for any size, `names` spells the dimensions for people."""
    fits = tensor.dim() == len(shape) and all(
        want is None or want == size for want, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
        raise OperatorRefusedError(
            operator, argument, f"has shape {list(tensor.shape)}", f"{names} = {wanted}"
        )


def check_contiguous(operator: str, **tensors: Tensor | None) -> None:
    """Refuse strided views where the documentation says so."""
    for argument, tensor in tensors.items():
        if tensor is not None and not tensor.is_contiguous():
            raise OperatorRefusedError(
                operator, argument, "is not contiguous", "contiguous tensors"
            )


def check_unset(operator: str, **values: object) -> None:
    """Refuse arguments that this emulation (or the documentation) does not support."""
    for argument, value in values.items():
        if value is not None:
            raise OperatorRefusedError(operator, argument, "is set", "None (not emulated)")


def check_range(
    operator: str, argument: str, values: Tensor, low: int, high: int, meaning: str
) -> None:
    """Refuse integer values outside [low, high)."""
    if values.numel() == 0:
        return
    smallest, largest = int(values.min()), int(values.max())
    if smallest < low or largest >= high:
        raise OperatorRefusedError(
            operator,
            argument,
            f"holds values from {smallest} to {largest}",
            f"{low} to {high - 1} ({meaning})",
        )
