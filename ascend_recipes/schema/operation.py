"""Contracts of operations: `ops/<group>/<operation>.yaml`."""

from typing import Literal

from pydantic import Field

from ascend_recipes.schema.base import ImplementationPath, Name, Spec

Provider = Literal["torch_npu", "cann_custom", "triton", "torch"]
"""Who supplies a binding, in the order of preference."""


class TensorContract(Spec):
    """Named dimensions and legal dtypes of one tensor."""

    shape: tuple[str | int, ...]
    """Dimension names of the contract, or literal sizes."""
    dtypes: tuple[str, ...]
    optional: bool = False
    meaning: str = ""


class Binding(Spec):
    """One way to perform the operation."""

    provider: Provider
    symbol: str
    """Dispatcher name that is called, for example `npu::npu_rms_norm`; of `torch`, the
    reference."""
    implementation: ImplementationPath
    """Function with the operation's signature that maps arguments to the symbol."""
    hardware: tuple[Name, ...]
    needs: tuple[Name, ...] = ()
    """Traits that the plan must have, for example `state_float32`; empty serves every plan."""
    constraints: tuple[str, ...] = ()
    """What the binding demands of its own; what its vendor's operator demands, on which generation
    and by which source, is the operator's row in `registry/operators`."""


class CostSpec(Spec):
    """Least work of one call, as expressions of the contract's dimensions."""

    flops: str
    """Floating-point operations; a multiplication and its addition are two."""
    bytes: str
    """Bytes read and written when every tensor is touched once; `e` is the size of an element of
    the activations."""


class OperationContract(Spec):
    """What an operation computes, on what, how exactly, and who can do it."""

    summary: str
    signature: str
    """Python signature of the call, the same for the reference and every binding."""
    inputs: dict[str, TensorContract]
    outputs: dict[str, TensorContract]
    in_place: tuple[str, ...] = ()
    """Inputs that are written."""
    reference: ImplementationPath
    bindings: tuple[Binding, ...] = Field(min_length=1)
    sizes: dict[str, str] = Field(default_factory=dict)
    """Dimension -> its size on one die in a deployment, over the fields of the model's
    configuration and `tokens`, `requests`, `context` (keys of a request), `block`, `tp`."""
    cost: CostSpec | None = None
    tolerance: dict[str, float]
    """Largest relative error against the reference, per dtype."""
    heavy: bool = False
    """Attention, MoE or matrix multiplication: a fall-back on hardware is an error."""
    sources: tuple[str, ...] = Field(min_length=1)
