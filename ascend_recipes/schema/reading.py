"""Rows of `registry/readings/`: what became of each statement in the sources of an operator."""

from collections.abc import Iterable
from typing import Self

from pydantic import Field, model_validator

from ascend_recipes.schema.base import Spec

Lines = tuple[int, ...]


class ReadDocument(Spec):
    """A source file, with the line of each thing that it says about a call.

    A statement is a refusal of the host code, or a row or point of a README; it may stand under
    several demands.
    """

    path: str
    """Inside the package."""
    function: str | None = None
    """Function whose body was read; none for the whole file."""
    held: dict[str, Lines] = Field(default_factory=dict)
    """Text of a demand, or of what is not emulated, in the operator's row -> lines that ask it."""
    dtypes: Lines = ()
    """Lines about dtypes, which the row lists by argument and generation."""
    aside: dict[str, Lines] = Field(default_factory=dict)
    """Why no call can violate it -> lines."""

    def lines(self) -> set[int]:
        """Every line that is accounted for."""
        return _joined((*self.held.values(), self.dtypes, *self.aside.values()))

    @model_validator(mode="after")
    def _once_aside(self) -> Self:
        """A line that is held, or about dtypes, is not put aside too.

        Raises:
            ValueError: one is; pydantic reports it with the row.
        """
        kept = _joined((*self.held.values(), self.dtypes))
        if both := sorted(kept & _joined(self.aside.values())):
            raise ValueError(f"{self.path}: held and put aside: {both}")
        return self


class ReadingRow(Spec):
    """All sources of an operator of `registry/operators/`, under the same key."""

    package: str
    """Package whose files were read."""
    folders: tuple[str, ...] = ()
    """Folders of the operator; each of their files that states something is a document."""
    documents: tuple[ReadDocument, ...] = Field(min_length=1)

    def counts(self) -> tuple[int, int, int]:
        """Statements that demands hold, that are about dtypes, and that were put aside."""
        held = sum(len(_joined(item.held.values())) for item in self.documents)
        dtypes = sum(len(set(item.dtypes) - _joined(item.held.values())) for item in self.documents)
        return held, dtypes, sum(len(_joined(item.aside.values())) for item in self.documents)


def _joined(groups: Iterable[Lines]) -> set[int]:
    return {line for group in groups for line in group}
