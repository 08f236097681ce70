"""Rows of `registry/hooks`: what gets registered in vLLM, through which official hook.

A hook is not a patch: vLLM offers the extension point. It is still a row, because a renamed
target breaks us just as silently as a drifted patch would.
"""

from enum import StrEnum

from pydantic import Field

from ascend_recipes.schema.base import ImplementationPath, Name, Spec


class HookKind(StrEnum):
    """The extension point of vLLM that a hook uses."""

    PLATFORM = "platform"
    """`vllm.platform_plugins`: the platform class."""
    MODEL = "model"
    """`ModelRegistry.register_model`: target is the architecture name."""
    LAYER = "layer"
    """`register_oot`: target is the class `module:Name` that ours subclasses and replaces."""
    KERNEL = "kernel"
    """`register_kernels`: target is the dispatcher name of a Triton kernel."""
    STATE_BACKEND = "state_backend"
    """`register_backend(…, is_mamba=True)`: target is the enum member of a state backend."""
    QUANTIZATION = "quantization"
    """`register_quantization_config`: target is the method name."""


class HookRow(Spec):
    """One registration."""

    kind: HookKind
    target: str
    implementation: ImplementationPath
    operations: tuple[Name, ...] = ()
    """Operations that the implementation calls, so that the plan can bind them."""
    because: str
    """Why the registration is needed: symptom without it, then cause."""
    source: str
    """Where the extension point is defined, as file:line of the pinned vLLM."""
    needs: tuple[Name, ...] = Field(default=())
    """Traits of the model, drafter or cache that call for this row; empty means every plan."""
