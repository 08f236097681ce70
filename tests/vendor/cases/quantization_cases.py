"""Quantization and format casts: int8, int4 and microscaled layers, few experts and few columns."""

from typing import Any

import torch

from tests.vendor.cases.drawing import Case, CaseTable, Sizes

EXPERTS = {"E": 3}
COUNTS = torch.tensor([1, 0, 2])
ROWS = 3
BYTES = 127
"""E8M0 byte of the scale one."""


def layer(sizes: Sizes, inner: str = "hidden_size") -> dict[str, int]:
    """Dimensions of an expert layer with its real inner size."""
    return {**EXPERTS, "R": ROWS, "K": int(sizes[inner]), "N": 64, "I": 32}


def quant_matmul(sizes: Sizes) -> list[Case]:
    tokens, columns = int(sizes["tokens"]), 96
    token, scale = torch.ones(tokens), torch.ones(columns)
    bias = torch.zeros(columns, dtype=torch.int32)
    forms: list[dict[str, Any]] = [
        {"token_scale_T": token, "output_dtype": torch.bfloat16},
        {"token_scale_T": token, "output_dtype": torch.float16},
        {"token_scale_T": token, "bias_N": torch.zeros(columns), "output_dtype": torch.bfloat16},
        {"bias_N": bias, "output_dtype": torch.bfloat16},
        {"bias_N": bias, "output_dtype": torch.float16, "weight_scale_N": scale.long()},
        {"output_dtype": torch.int32},
    ]
    return [Case({"weight_scale_N": scale, **form}, {"N": columns}) for form in forms]


def grouped(sizes: Sizes, *, dtype: torch.dtype | None = None, **values: Any) -> list[Case]:
    """Both forms of the group list."""
    typed = {} if dtype is None else {"output_dtype": dtype}
    return [
        Case(
            {
                "group_list_E": COUNTS.cumsum(0) if cumulative else COUNTS,
                "cumulative": cumulative,
                **typed,
                **values,
            },
            layer(sizes),
            {"weight_scale_EN": "float32"} if dtype == torch.float16 else {},
        )
        for cumulative in (True, False)
    ]


def grouped_quant_matmul(sizes: Sizes) -> list[Case]:
    sums = {"weight_scale_EN": None, "token_scale_R": None}
    return [
        *grouped(sizes, dtype=torch.bfloat16),
        *grouped(sizes, dtype=torch.float16),
        *grouped(sizes, dtype=torch.int32, **sums),
    ]


def swiglu_quant(sizes: Sizes, *limits: float) -> list[Case]:
    return [case for limit in limits for case in grouped(sizes, limit=limit)]


def dequant_swiglu_quant(sizes: Sizes) -> list[Case]:
    tokens = int(sizes["tokens"])
    counts = torch.tensor([1, 0, tokens - 1])
    dims = {"I": 64}
    return [
        Case({"group_counts_E": counts, "limit": 10.0}, {**dims, "E": 3}),
        Case({"group_counts_E": None, "limit": 0.0}, {**dims, "E": 1}),
    ]


def packed(sizes: Sizes, *, fp4: bool) -> dict[str, Any]:
    """Microscaled operands of one layer; the weight is the transposed view of [N, K]."""
    tokens, inner, columns = int(sizes["tokens"]), 256, 64
    width = inner // 2 if fp4 else inner
    dtype = torch.uint8 if fp4 else torch.float8_e4m3fn
    return {
        "x_TK": torch.zeros(tokens, width, dtype=torch.uint8).view(dtype),
        "weight_KN": torch.zeros(columns, width, dtype=torch.uint8).view(dtype).t(),
        "token_scale": torch.full((tokens, inner // 64, 2), BYTES, dtype=torch.uint8),
        "weight_scale": torch.full((inner // 64, columns, 2), BYTES, dtype=torch.uint8),
        "kind": "float4_e2m1" if fp4 else "float8_e4m3fn",
        "output_dtype": torch.bfloat16,
    }


def mx_matmul(sizes: Sizes) -> list[Case]:
    eight = packed(sizes, fp4=False)
    return [
        Case(form)
        for form in (eight, {**eight, "bias_N": torch.zeros(64)}, packed(sizes, fp4=True))
    ]


def grouped_mx_matmul(sizes: Sizes) -> list[Case]:
    one = packed({**sizes, "tokens": ROWS}, fp4=False)
    stacked = {
        "x_RK": one["x_TK"],
        "weight_EKN": torch.stack([one["weight_KN"].t()] * 3).transpose(1, 2),
        "token_scale": one["token_scale"],
        "weight_scale": torch.stack([one["weight_scale"]] * 3),
        "kind": one["kind"],
    }
    return grouped(sizes, dtype=torch.bfloat16, **stacked)


def grouped_w4a8(sizes: Sizes) -> list[Case]:
    eight, four = (packed({**sizes, "tokens": ROWS}, fp4=fp4) for fp4 in (False, True))
    stacked = {
        "x_RK": eight["x_TK"],
        "weight_EKN": torch.stack([four["weight_KN"].t()] * 3).transpose(1, 2),
        "token_scale": eight["token_scale"],
        "weight_scale": torch.stack([four["weight_scale"]] * 3),
    }
    return grouped(sizes, dtype=torch.bfloat16, **stacked)


CASES: CaseTable = {
    "dynamic_quant": lambda sizes: [
        Case(),
        Case({"smooth_H": torch.ones(int(sizes["hidden_size"])).bfloat16()}),
    ],
    "static_quant": lambda _: [Case()],
    "quant_matmul": quant_matmul,
    "pack_quant_scale": lambda _: [Case(dims={"N": 128})],
    "pack_int4": lambda _: [Case(dims={"K": 64, "N": 128})],
    "format_cast": lambda _: [
        Case({"x": torch.zeros(64, 128, dtype=dtype), "layout": layout})
        for layout in ("nz", "nd")
        for dtype in (torch.bfloat16, torch.int8)
    ],
    "grouped_matmul": grouped,
    "grouped_quant_matmul": grouped_quant_matmul,
    "grouped_int4_matmul": lambda sizes: grouped(sizes, dtype=torch.bfloat16),
    "grouped_matmul_swiglu_quant": lambda sizes: swiglu_quant(sizes, 0.0, 10.0),
    "grouped_matmul_swiglu_quant@torch_npu.npu_grouped_matmul_swiglu_quant": (
        lambda sizes: swiglu_quant(sizes, 0.0)
    ),
    "grouped_int4_matmul_swiglu_quant": lambda sizes: swiglu_quant(sizes, 0.0, 10.0),
    "dequant_swiglu_quant": dequant_swiglu_quant,
    "mx_quant": lambda _: [Case({"kind": kind}) for kind in ("float8_e4m3fn", "float4_e2m1")],
    "mx_matmul": mx_matmul,
    "grouped_mx_matmul": grouped_mx_matmul,
    "grouped_mx_w4a8_matmul": grouped_w4a8,
    "swiglu_mx_quant": lambda _: [Case(), Case({"limit": 10.0})],
    "rms_norm_dynamic_quant": lambda _: [Case({"epsilon": 1e-6})],
    "add_rms_norm_dynamic_quant": lambda _: [Case({"epsilon": 1e-6})],
    "swiglu_clamped": lambda _: [Case({"limit": 10.0})],
}
