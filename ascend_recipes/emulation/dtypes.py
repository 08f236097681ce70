"""Dtypes that the vendor's operators take as numbers."""

import torch

from ascend_recipes.emulation.refusal import OperatorRefusedError

FLOAT8_E8M0, FLOAT4_E2M1 = 293, 296
"""Numbers of formats that PyTorch does not know, or torch_npu numbers otherwise."""

_DTYPES = {
    1: torch.int8,
    3: torch.int32,
    5: torch.float16,
    6: torch.float32,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    291: torch.float8_e5m2,
    292: torch.float8_e4m3fn,
}


def dtype_of(operator: str, argument: str, number: int) -> torch.dtype:
    """The dtype behind a number.

    Raises:
        OperatorRefusedError: no dtype of ours has it.
    """
    if number not in _DTYPES:
        raise OperatorRefusedError(
            operator, argument, f"is {number}", ", ".join(map(str, sorted(_DTYPES)))
        )
    return _DTYPES[number]
