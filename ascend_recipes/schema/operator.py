"""Rows of `registry/operators/`: what a vendor's operator takes on which generation."""

from collections.abc import Mapping
from typing import Self, TypeVar

from pydantic import Field, model_validator

from ascend_recipes.schema.base import Json, Name, Spec

ValueT = TypeVar("ValueT")

ALL = "all"
"""Key of values that hold for every generation of the row without values of its own."""


class OperatorCall(Spec):
    """A call that the operator takes; `tests/ops/written_operators.py` reads the arguments.

    A tensor is text: `bfloat16[3, 8]` of zeros, `int32[4] = 1`, `int32[4] = 1/0` with numbers in
    turn, `int64(1, 3)` with its values, `int32([0, 1], [3, 2])`; and at the end `.t` for the view
    with its last two dimensions swapped, `.upper` for ones above the diagonal, `.same` for the view
    that holds its first row again and again, `.gaps` for one with gaps along its second dimension.
    """

    hardware: Name | None = None
    """Generation that it is made on; none for the first one of the row."""
    like: str | None = None
    """Another call of the row that the arguments change; an argument of null is left out."""
    arguments: dict[str, Json]


class Constraint(Spec):
    """One thing that the operator demands, and calls that violate nothing else."""

    says: str
    argument: str
    """Argument that the refusal names; `hardware` where the generation is refused."""
    violated_by: tuple[dict[str, Json], ...] = Field(min_length=1)
    """Changes of a legal call, each of which must be refused."""
    call: str | None = None
    """Legal call that is changed; none for the first one of the row."""
    hardware: tuple[Name, ...] = ()
    """Generations that demand it; empty for all of the row."""
    source: str | None = None
    """Key of the row's sources; none for the first one."""


class NotEmulated(Constraint):
    """What the vendor offers and the emulation refuses."""

    because: str | None = None
    """Why nobody here needs it, where the vendor's own callers use it or its form is undefined;
    none where no call of ours makes it."""


class OperatorRow(Spec):
    """A vendor's operator: where it exists, its dtypes and limits there, and what it demands."""

    about: str
    symbol: str
    """Dispatcher name, for example `npu::npu_rms_norm`."""
    hardware: tuple[Name, ...] = Field(min_length=1)
    """Generations that a source names, or that vllm-ascend calls it on."""
    dtypes: dict[str, dict[str, tuple[str, ...]]]
    """Tensor argument -> generations (several separated by blanks), `all`, or a relaxation of the
    emulation -> legal dtypes. What a generation does not compute at all is left out there."""
    limits: dict[str, dict[str, tuple[tuple[int, int], ...]]] = Field(default_factory=dict)
    """Name -> generations or `all` -> ranges of legal numbers, both ends included."""
    calls: dict[str, OperatorCall] = Field(min_length=1)
    """Legal calls by name, one for each form of the operator."""
    constraints: tuple[Constraint, ...]
    """What the sources demand."""
    not_emulated: tuple[NotEmulated, ...] = ()
    """What the vendor offers and the emulation refuses; no call of ours needs it."""
    deviations: tuple[str, ...] = ()
    """Statements of the documentation that its own callers contradict, and what is done instead."""
    sources: dict[str, str] = Field(min_length=1)
    """Short name -> document, file or caller."""

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        """Calls, sources and generations that are referred to are in the row.

        Raises:
            ValueError: one is not; pydantic reports it with the row.
        """
        entries = (*self.constraints, *self.not_emulated)
        named = {
            "calls": ({item.call for item in entries} | self._likes(), set(self.calls)),
            "sources": ({item.source for item in entries}, set(self.sources)),
            "hardware": (self._generations(entries), set(self.hardware)),
        }
        for field, (used, known) in named.items():
            if unknown := sorted(used - known - {None}, key=str):
                raise ValueError(f"{field} lacks {', '.join(map(str, unknown))}")
        return self

    def _likes(self) -> set[str | None]:
        return {call.like for call in self.calls.values()}

    def _generations(self, entries: tuple[Constraint, ...]) -> set[str | None]:
        found: set[str | None] = {call.hardware for call in self.calls.values()}
        found.update(name for item in entries for name in item.hardware)
        for values in self.limits.values():
            found.update(name for key in values for name in key.split() if name != ALL)
        return found

    def source_of(self, constraint: Constraint) -> str:
        """Document that states a constraint."""
        return self.sources[constraint.source or next(iter(self.sources))]


def of_generation(values: Mapping[str, ValueT], generation: str) -> ValueT | None:
    """The value that a generation has of its own, else the one of `all`, else none."""
    for key, value in values.items():
        if generation in key.split():
            return value
    return values.get(ALL)
