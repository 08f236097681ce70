"""Lists that say which rows belong to which expert."""

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import check, check_shape

CUMULATIVE, COUNTS = 0, 1
GROUP_LIMIT = 1024


def group_ends(
    name: str,
    group_list: Tensor,
    group_list_type: int | None,
    *,
    groups: int,
    rows: int,
) -> list[int]:
    """Row after the last one of each group.

    Args:
        name: Operator, for refusals.
        group_list: int64, one number a group.
        group_list_type: 0 for row ends, 1 for row counts.
        groups: Number of weights.
        rows: Rows of the input, which the groups may leave over but not exceed.

    Raises:
        OperatorRefusedError: the list contradicts its form or the rows.
    """
    kinds = (CUMULATIVE, COUNTS)
    check(
        group_list_type in kinds,
        name,
        "group_list_type",
        f"is {group_list_type}",
        "0 (cumulative), 1 (counts)",
    )
    check_shape(name, "group_list", group_list, (groups,), "[groups]")
    check(
        groups <= GROUP_LIMIT, name, "group_list", f"has {groups} groups", f"at most {GROUP_LIMIT}"
    )
    numbers = group_list.tolist()
    check(min(numbers, default=0) >= 0, name, "group_list", f"is {numbers}", "no negative numbers")
    if group_list_type == CUMULATIVE:
        check(
            numbers == sorted(numbers),
            name,
            "group_list",
            f"is {numbers}",
            "rising row ends, as group_list_type 0 says (counts are type 1)",
        )
        ends = numbers
    else:
        ends = torch.cumsum(group_list, 0).tolist()
    last = ends[-1] if ends else 0
    check(
        last <= rows,
        name,
        "group_list",
        f"covers {last} rows",
        f"at most {rows}, the rows of x",
    )
    return [int(end) for end in ends]


def row_slices(ends: list[int]) -> list[slice]:
    """Rows of each group."""
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
