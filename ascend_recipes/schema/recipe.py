"""The recipe: everything that a deployment chooses."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from ascend_recipes.findings import phrase
from ascend_recipes.schema.attention import AttentionSpec
from ascend_recipes.schema.base import Count, EnvValue, Json, Name, Spec
from ascend_recipes.schema.cache import CacheSpec
from ascend_recipes.schema.complaints import PhrasedError
from ascend_recipes.schema.drafter import DrafterSpec
from ascend_recipes.schema.graph import GraphSpec
from ascend_recipes.schema.parallel import MoeSpec, ParallelSpec
from ascend_recipes.schema.quant import AnyQuantSpec, CheckpointSpec
from ascend_recipes.schema.serving import (
    MultimodalSpec,
    RequiresSpec,
    RoleName,
    RoleSpec,
    SchedulerSpec,
    ServingSpec,
)
from ascend_recipes.schema.site import SiteSpec

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY)", re.IGNORECASE)


_ONE_ROLE: dict[RoleName, RoleSpec] = {"serve": RoleSpec()}


class RuntimeSpec(Spec):
    """Who serves the plan."""

    kind: Literal["native", "vllm_ascend"]
    version: str | None = None
    """Version of the runtime's registry row; none takes the newest."""
    additional_config: dict[str, Json] = Field(default_factory=dict)
    """Keys of vllm-ascend's `--additional-config` that have no field here."""


class NpuDeviceSpec(Spec):
    """Run on the hardware that the recipe is for."""

    kind: Literal["npu"]


class EmulatedDeviceSpec(Spec):
    """Run the same code on the CPU, through an emulation of the NPU operators."""

    kind: Literal["emulated"]
    relaxed: tuple[Literal["dtype.float32"], ...] = ()
    """Hardware limits that are not enforced; recorded in the plan."""


class RealScaleSpec(Spec):
    """The published model."""

    kind: Literal["real"]


class TinyScaleSpec(Spec):
    """A shrunken model with every structural feature and seeded random weights."""

    kind: Literal["tiny"]
    seed: int = 0
    """Seed of the random weights."""


class Because(Spec):
    """A reasoned exception: silences one warning of our rules."""

    finding: Annotated[str, Field(pattern=r"^[a-z_]+\.[a-z0-9_]+$")]
    """Id of the warning, for example `graph.off_stride`."""
    reason: str
    """Why the value shall stay although a rule warns."""
    source: str
    """Public document or measurement behind the reason."""
    runtime: Name | None = None
    """Row in `registry/runtimes` whose rules warn; none for every runtime."""


class Recipe(Spec):
    """A complete, validated recipe."""

    schema_version: Literal[1]
    """Version of this schema; the primary configuration states it."""
    name: Name
    """What the user typed after `recipe=`; set by composition."""
    changed: bool = False
    """Whether the command line changes what the recipe says; set by composition."""
    about: str
    """What the deployment is, in one line."""
    source: tuple[str, ...] = Field(min_length=1)
    """Public documents that the choices come from."""
    model: Name
    """Row in `registry/models`."""
    hardware: Name
    """Row in `registry/hardware`: what the recipe is for."""
    runtime: RuntimeSpec
    device: Annotated[NpuDeviceSpec | EmulatedDeviceSpec, Field(discriminator="kind")]
    scale: Annotated[RealScaleSpec | TinyScaleSpec, Field(discriminator="kind")]
    checkpoint: CheckpointSpec
    attention: AttentionSpec
    cache: CacheSpec
    quant: AnyQuantSpec
    drafter: DrafterSpec
    parallel: ParallelSpec
    moe: MoeSpec = MoeSpec()
    graph: GraphSpec
    scheduler: SchedulerSpec
    serving: ServingSpec = ServingSpec()
    multimodal: MultimodalSpec = MultimodalSpec()
    env: dict[str, EnvValue] = Field(default_factory=dict)
    """Environment of every process. Secrets come from the site or the shell, never from here."""
    roles: dict[RoleName, RoleSpec] = Field(default_factory=lambda: dict(_ONE_ROLE))
    """Roles of the deployment; one `serve` unless prefill and decode are apart."""
    nodes: Count = 1
    """Machines of the `serve` role."""
    site: SiteSpec = SiteSpec()
    requires: RequiresSpec = RequiresSpec()
    because: tuple[Because, ...] = ()
    """Warnings that are accepted, each with a reason; refused where there is nothing to accept."""
    accept_unverified: bool = False
    """Start on an NPU although nobody has recorded a run there."""
    allow_reference: tuple[Name, ...] = ()
    """Operations that the plain PyTorch reference performs, also on an NPU, where it is slow."""
    extra_args: dict[str, Json] = Field(default_factory=dict)
    """Engine arguments of vLLM that have no field here, by their `EngineArgs` names."""

    @field_validator("env")
    @classmethod
    def _check_env(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if not _ENV_NAME.fullmatch(name):
                raise PhrasedError(phrase("schema.no_variable", name=name))
            if _SECRET.search(name):
                raise PhrasedError(phrase("schema.secret_variable", name=name))
        return env

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        names = set(self.roles)
        if names not in ({"serve"}, {"prefill", "decode"}):
            raise PhrasedError(phrase("schema.roles"))
        return self
