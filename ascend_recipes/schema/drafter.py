"""The `drafter` section: speculative decoding."""

from typing import Annotated, Literal

from pydantic import Field

from ascend_recipes.schema.base import Count, Spec


class NoDrafterSpec(Spec):
    """One token per step."""

    kind: Literal["none"]


class MtpDrafterSpec(Spec):
    """The multi-token-prediction layers of the checkpoint propose tokens one after another."""

    kind: Literal["mtp"]
    num_draft_tokens: Count
    """Tokens proposed per step; the verifier sees one more. Rules know the most."""
    graph: bool = False
    """Capture the drafter in graphs too."""


class DsparkDrafterSpec(Spec):
    """A parallel block drafter that reads hidden states of several target layers."""

    kind: Literal["dspark"]
    num_draft_tokens: Count
    """Tokens proposed per step."""
    graph: bool = False
    """Capture the drafter in graphs too."""


DrafterSpec = Annotated[
    NoDrafterSpec | MtpDrafterSpec | DsparkDrafterSpec, Field(discriminator="kind")
]
