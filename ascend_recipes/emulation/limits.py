"""What operators admit on the generation that is emulated: the numbers of `registry/operators/`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

from ascend_recipes.emulation.refusal import FLOAT32, RELAXATIONS, OperatorRefusedError, relaxes
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.operator import OperatorRow, of_generation

Kernel = Callable[..., Any]
Dtypes = frozenset[torch.dtype]
Range = tuple[int, int]

ANY = "any"
"""Emulates no generation in particular: a call is legal if one generation takes all of it."""

_UNCOMMON = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
"""Dtypes that only some generations compute; every 8-bit float goes with the first of them."""
_LOW = (torch.float16, torch.bfloat16)

_GROUPS = {"group_list": "group_index"}
_SPELLED = {
    "_C_ascend::moe_gating_top_k": {"bias": "bias_opt"},
    "_C_ascend::npu_dequant_swiglu_quant": _GROUPS,
    "npu::npu_dequant_swiglu_quant": _GROUPS,
    "npu::npu_add_rms_norm": {"input": "x1"},
    "npu::npu_add_rms_norm_dynamic_quant": {"x": "x1"},
    "npu::npu_chunk_gated_delta_rule": {"state": "initial_state"},
}
"""Arguments of operators whose kernels share checks, where the operator spells them otherwise."""


@dataclass(frozen=True)
class _Admission:
    """What one operator admits on one generation."""

    generation: str
    dtypes: Mapping[str, Dtypes]
    limits: Mapping[str, Sequence[Range]]


_admissions: dict[str, tuple[_Admission, ...]] = {}
"""Dispatcher name -> the emulated generations that have the operator; empty if none has it."""
_chosen: list[str] = []


def emulate_generation(hardware: str) -> None:
    """Hold operators to a generation from now on.

    Args:
        hardware: Row of `registry/hardware`, or `any`.

    Raises:
        ValueError: no such generation.
    """
    registry = load_registry()
    if hardware not in (*registry.hardware, ANY):
        known = ", ".join((*registry.hardware, ANY))
        raise ValueError(f"unknown hardware '{hardware}'; known: {known}")
    _chosen[:] = list(registry.hardware) if hardware == ANY else [hardware]
    relaxed = frozenset(name for name in RELAXATIONS if relaxes(name))
    _admissions.clear()
    for row in registry.operators.values():
        names = [name for name in _chosen if name in row.hardware]
        _admissions[row.symbol] = tuple(_admission(row.symbol, name, relaxed) for name in names)


def emulated_generations() -> tuple[str, ...]:
    """Generations whose operators are emulated: one, or all of them."""
    return tuple(_chosen)


def guarded(symbol: str, kernel: Kernel) -> Kernel:
    """The kernel behind a check that the generation has the operator and takes its dtypes."""
    schema = torch._C._jit_get_schemas_for_operator(symbol)[0]
    names = [argument.name for argument in schema.arguments]

    @wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check_dtypes(symbol, names, args, kwargs)
        try:
            return kernel(*args, **kwargs)
        except OperatorRefusedError as error:
            spelled = _SPELLED.get(symbol, {}).get(error.argument, error.argument)
            raise error.of(_short(symbol), spelled) from None

    return call


def check_limit(symbol: str, limit: str, argument: str, number: int, problem: str = "is") -> None:
    """Refuse a number that no emulated generation admits.

    Args:
        symbol: Dispatcher name of the operator.
        limit: Key of the row's `limits`.
        argument: What the refusal names.
        number: What the call has.
        problem: Text in front of the number, for example `has head dim`.
    """
    admissions = _admissions[symbol]
    if any(_admits(item, limit, number) for item in admissions):
        return
    spelled = {item.generation: _spell(item.limits.get(limit, ())) for item in admissions}
    raise OperatorRefusedError(
        _short(symbol), argument, f"{problem} {number}", _by_generation(spelled)
    )


@cache
def _rows() -> Mapping[str, OperatorRow]:
    return {row.symbol: row for row in load_registry().operators.values()}


@cache
def _admission(symbol: str, generation: str, relaxed: frozenset[str]) -> _Admission:
    row = _rows()[symbol]
    computed = load_registry().hardware[generation].dtypes
    return _Admission(
        generation=generation,
        dtypes={
            argument: _legal(values, generation, computed, relaxed)
            for argument, values in row.dtypes.items()
        },
        limits={
            name: of_generation(values, generation) or () for name, values in row.limits.items()
        },
    )


def _legal(
    values: Mapping[str, tuple[str, ...]],
    generation: str,
    computed: Sequence[str],
    relaxed: frozenset[str],
) -> Dtypes:
    """Dtypes of an argument, with what the lifted limits add and without what is not computed."""
    eight_bit = any(name.startswith("float8") for name in computed)
    legal = {
        getattr(torch, name)
        for name in of_generation(values, generation) or ()
        if name not in _UNCOMMON or name in computed or (name.startswith("float8") and eight_bit)
    }
    if FLOAT32 in relaxed and legal & set(_LOW):
        legal.add(torch.float32)
    for relaxation in relaxed:
        legal.update(getattr(torch, name) for name in values.get(relaxation, ()))
    return frozenset(legal)


def _check_dtypes(
    symbol: str, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    admissions = _admissions[symbol]
    if not admissions:
        offered = ", ".join(_rows()[symbol].hardware)
        raise OperatorRefusedError(
            _short(symbol), "hardware", f"is {', '.join(_chosen)}", f"{offered} have the operator"
        )
    closest: list[tuple[str, torch.dtype]] | None = None
    for item in admissions:
        wrong = list(_wrong(item, names, args, kwargs))
        if not wrong:
            return
        if closest is None or len(wrong) < len(closest):
            closest = wrong
    assert closest is not None
    argument, dtype = closest[0]
    allowed = {item.generation: _spell_dtypes(item.dtypes[argument]) for item in admissions}
    raise OperatorRefusedError(
        _short(symbol), argument, f"is {_dtype_name(dtype)}", _by_generation(allowed)
    )


def _wrong(
    item: _Admission, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.dtype]]:
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        legal = item.dtypes.get(name)
        if legal is None or value is None:
            continue
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, Tensor) and tensor.dtype not in legal:
                yield name, tensor.dtype
                break


def _admits(item: _Admission, limit: str, number: int) -> bool:
    return any(low <= number <= high for low, high in item.limits[limit])


def _spell(ranges: Sequence[Range]) -> str:
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in ranges)


def _spell_dtypes(dtypes: Dtypes) -> str:
    return ", ".join(sorted(map(_dtype_name, dtypes))) or "none"


def _by_generation(spelled: Mapping[str, str]) -> str:
    """One text if all generations agree, else each one with its generations."""
    grouped: dict[str, list[str]] = {}
    for generation, text in spelled.items():
        grouped.setdefault(text, []).append(generation)
    if len(grouped) == 1:
        return next(iter(grouped))
    return "; ".join(f"{text} on {', '.join(names)}" for text, names in grouped.items())


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(symbol: str) -> str:
    return symbol.split("::", 1)[1]
