"""Records the vendor calls that a binding makes, and what the emulation returns for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.vendor.environment import Call

NAMESPACES = ("npu", "_C_ascend")


@dataclass(frozen=True)
class Recorded:
    """A call, and shape and dtype of what the emulated CPU and Meta kernels return."""

    call: Call
    outputs: list[dict[str, Any]]
    meta_outputs: list[dict[str, Any]]


def record(binding: Callable[..., Any], arguments: dict[str, Any]) -> list[Recorded]:
    """Run a binding on CPU tensors through the emulation and return its vendor calls in order.

    The recorder stands in front of the dispatcher, so that argument names are seen as the binding
    writes them, before any schema of ours was applied.
    """
    found: list[Recorded] = []
    with _recorders(found):
        binding(**arguments)
    return found


@contextmanager
def _recorders(found: list[Recorded]) -> Iterator[None]:
    real = {name: getattr(torch.ops, name) for name in NAMESPACES}
    for name, namespace in real.items():
        setattr(torch.ops, name, _Namespace(name, namespace, found))
    try:
        yield
    finally:
        for name, namespace in real.items():
            setattr(torch.ops, name, namespace)


class _Namespace:
    def __init__(self, name: str, real: Any, found: list[Recorded]) -> None:
        self._name, self._real, self._found = name, real, found

    def __getattr__(self, operator: str) -> "_Operator":
        function = getattr(self._real, operator)
        return _Operator(f"{self._name}::{operator}", function, "", self._found)


class _Operator:
    def __init__(self, name: str, real: Any, overload: str, found: list[Recorded]) -> None:
        self._name, self._real, self._overload, self._found = name, real, overload, found

    def __getattr__(self, overload: str) -> "_Operator":
        return _Operator(self._name, getattr(self._real, overload), overload, self._found)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = Call(
            self._name,
            tuple(json_of(item) for item in args),
            {key: json_of(item) for key, item in kwargs.items()},
            self._overload,
        )
        # Before the call, which may write in place.
        meta = self._real(*map(_on_meta, args), **{k: _on_meta(v) for k, v in kwargs.items()})
        result = self._real(*args, **kwargs)
        self._found.append(Recorded(call, description_of(result), description_of(meta)))
        return result


def json_of(value: Any) -> Any:
    """JSON form of an argument; tensors by shape, stride and dtype."""
    if isinstance(value, Tensor):
        return {
            "shape": list(value.shape),
            "stride": list(value.stride()),
            "dtype": _dtype(value.dtype),
        }
    if isinstance(value, torch.dtype):
        return {"dtype": _dtype(value)}
    if isinstance(value, list | tuple):
        return [json_of(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def description_of(value: Any) -> list[dict[str, Any]]:
    """Shape and dtype of every tensor in a result."""
    if value is None:
        return []
    if isinstance(value, Tensor):
        return [{"shape": list(value.shape), "dtype": _dtype(value.dtype)}]
    return [part for item in value for part in description_of(item)]


def _on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return type(value)(_on_meta(item) for item in value)
    return value


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
