"""Calls of operators as `registry/operators/` writes them, and what a generation takes there.

Read from the YAML on their own, not through the code that the emulation uses.
"""

import ast
import re
from typing import Any

import torch

from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.operator import Constraint, OperatorRow
from tests.vendor.cases.moe_cases import GROUP, two_ranks

TENSOR = re.compile(
    r"(?P<dtype>[a-z]\w*)"
    r"(?:\[(?P<shape>[\d, ]*)\](?: = (?P<fill>-?[\d.]+(?:/-?[\d.]+)*))?|(?P<values>\(.+\)))"
    r"(?P<view>\.t|\.upper|\.same|\.gaps)?"
)
LARGE = 1 << 22
"""Elements from which a tensor's memory is left untouched: only its shape matters."""
TWO_RANKS = "two ranks"
"""Text that stands for the name of a process group."""


def value_of(written: Any) -> Any:
    """The argument behind its text; lists and numbers stay what they are."""
    if isinstance(written, list):
        return [value_of(item) for item in written]
    if isinstance(written, dict):
        arguments = {key: value_of(item) for key, item in written.items() if key != "made_by"}
        return operator(written["made_by"])(**arguments)
    if not isinstance(written, str):
        return written
    if written == TWO_RANKS:
        two_ranks()
        return GROUP
    if written.startswith("torch."):
        return getattr(torch, written.removeprefix("torch."))
    if several := re.fullmatch(r"(\d+) of (.+)", written):
        return [value_of(several[2]) for _ in range(int(several[1]))]
    match = TENSOR.fullmatch(written)
    return tensor_of(match) if match and hasattr(torch, match["dtype"]) else written


def tensor_of(match: re.Match[str]) -> torch.Tensor:
    dtype = getattr(torch, match["dtype"])
    if match["values"]:
        tensor = torch.tensor(ast.literal_eval(f"{match['values'][:-1]},)")).to(dtype)
    else:
        shape = [int(size) for size in match["shape"].split(",") if size.strip()]
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.numel() < LARGE or match["view"]:
            turns = [float(number) for number in (match["fill"] or "0").split("/")]
            wanted = tensor.numel()
            rounds = -(-wanted // len(turns))
            tensor.copy_(torch.tensor(turns).repeat(rounds)[:wanted].view(shape))
    if match["view"] == ".upper":
        return torch.ones(shape).triu(1).to(dtype)
    if match["view"] == ".gaps":
        return tensor.repeat_interleave(2, dim=1)[:, ::2]
    if match["view"] == ".same":
        return tensor[:1].expand(shape)
    return tensor.transpose(-1, -2) if match["view"] else tensor


def operator(symbol: str) -> Any:
    namespace, name = symbol.split("::")
    return getattr(getattr(torch.ops, namespace), name)


def written_arguments(row: OperatorRow, call: str | None) -> dict[str, Any]:
    """Arguments of a legal call, as text, with those of the call that it is like."""
    chosen = row.calls[call or next(iter(row.calls))]
    start = written_arguments(row, chosen.like) if chosen.like else {}
    return start | chosen.arguments


def make(row: OperatorRow, written: dict[str, Any]) -> Any:
    """Make a call; arguments of null are left out where the schema has a default."""
    schema = torch._C._jit_get_schemas_for_operator(row.symbol)[0]
    optional = {item.name for item in schema.arguments if item.has_default_value()}
    values = {key: value_of(item) for key, item in written.items()}
    return operator(row.symbol)(
        **{key: item for key, item in values.items() if item is not None or key not in optional}
    )


def generation_of(row: OperatorRow, call: str | None, constraint: Constraint | None = None) -> str:
    """Generation on which a call is made: the constraint's, the call's, or the row's first."""
    chosen = row.calls[call or next(iter(row.calls))]
    if constraint and constraint.hardware:
        return constraint.hardware[0]
    return chosen.hardware or row.hardware[0]


def operator_rows() -> dict[str, OperatorRow]:
    return dict(load_registry().operators)
