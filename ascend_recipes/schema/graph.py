"""The `graph` section: static graphs."""

from typing import Annotated, Literal

from pydantic import Field

from ascend_recipes.schema.base import Count, Spec


class NoGraphSpec(Spec):
    """Eager execution."""

    kind: Literal["none"]


class StaticGraphSpec(Spec):
    """Captured graphs, replayed for batches of the captured sizes."""

    kind: Literal["full_decode", "full", "piecewise", "full_and_piecewise"]
    capture_sizes: tuple[Count, ...] = ()
    """Token counts to capture; empty takes the ladder up to the largest decode batch."""
    compiler_fusion: bool = True
    """Let the graph compiler fuse operators (npugraph_ex of vllm-ascend)."""
    static_kernels: bool = False
    """Compile kernels for the captured shapes ahead of time."""


GraphSpec = Annotated[NoGraphSpec | StaticGraphSpec, Field(discriminator="kind")]
