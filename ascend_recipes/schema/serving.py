"""The `scheduler`, `serving`, `roles` and `requires` sections."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from ascend_recipes.schema.base import Count, EnvValue, Json, Name, Spec


class SchedulerSpec(Spec):
    """Batch sizes and queueing."""

    max_model_len: Count
    """Longest prompt plus answer, in tokens."""
    max_num_seqs: Count
    """Requests that run at the same time, per data-parallel replica."""
    max_num_batched_tokens: Count
    """Tokens of one step, per data-parallel replica; longer prompts are split."""
    async_scheduling: bool = True
    """Prepare the next step while the device works on this one."""
    recompute: bool = False
    """On a decode role: send requests that run out of cache back to prefill."""
    balance: bool = False
    """Level the load between data-parallel replicas."""


class ServingSpec(Spec):
    """The API server."""

    host: str = "127.0.0.1"
    """Address to bind; loopback unless told otherwise."""
    port: int = Field(default=8000, ge=1, le=65535)
    """TCP port."""
    served_model_name: str | None = None
    """Name that clients use; none takes the model row's name."""
    tool_call_parser: Name | None = None
    """Parser of tool calls; none takes the model row's."""
    reasoning_parser: Name | None = None
    """Parser of reasoning sections; none takes the model row's."""
    auto_tool_choice: bool = True
    """Let the model decide when to call a tool, where a parser exists."""
    api_servers: Count = 1
    """API server processes."""
    ready_timeout_s: Count = 1800
    """Seconds that a start may take until the server is healthy."""
    seed: NonNegativeInt = 0
    """Seed of sampling where a request names none."""


class MultimodalSpec(Spec):
    """Images and other inputs besides text. Ignored by models that read text only."""

    text_only: bool = False
    """Leave out the vision tower."""
    encoder: Literal["tp", "data"] = "tp"
    """Split the vision tower over tensor parallelism, or give each die whole images."""
    limits: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """Most items a prompt may hold, by kind."""
    processor_cache_gib: NonNegativeFloat | None = None
    """Memory for preprocessed inputs in GiB; none takes vLLM's own default."""
    skip_profiling: bool = False
    """Leave multimodal inputs out of the memory measurement at the start."""


class TransferSpec(Spec):
    """Moving caches between prefill and decode roles."""

    connector: str
    """Name of the KV connector."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """First port of the role's connector; none where the connector needs no port."""
    engine_id: NonNegativeInt = 0
    """Number of the role's engine among all that share a connector."""
    load_failure: Literal["fail", "recompute"] | None = None
    """What becomes of a request whose caches did not arrive whole; none leaves it to the runtime,
    which lets it fail."""
    options: dict[str, Json] = Field(default_factory=dict)
    """Connector-specific settings."""


class RoleSpec(Spec):
    """What one role of a disaggregated deployment changes; sections hold overrides only."""

    nodes: Count = 1
    """Machines of one instance; a `serve` role takes the recipe's own `nodes`."""
    instances: Count = 1
    """Copies of the role, each on nodes of its own."""
    transfer: TransferSpec | None = None
    """How caches move between the roles."""
    parallel: dict[str, Json] = Field(default_factory=dict)
    """What the role changes in the `parallel` section."""
    scheduler: dict[str, Json] = Field(default_factory=dict)
    """What the role changes in the `scheduler` section."""
    cache: dict[str, Json] = Field(default_factory=dict)
    """What the role changes in the `cache` section."""
    graph: dict[str, Json] = Field(default_factory=dict)
    """What the role changes in the `graph` section."""
    drafter: dict[str, Json] = Field(default_factory=dict)
    """What the role changes in the `drafter` section."""
    moe: dict[str, Json] = Field(default_factory=dict)
    """What the role changes in the `moe` section."""
    attention: dict[str, Json] = Field(default_factory=dict)
    """What the role changes in the `attention` section."""
    env: dict[str, EnvValue] = Field(default_factory=dict)
    """Variables that the role adds or changes."""

    @property
    def sections(self) -> dict[str, dict[str, Json]]:
        """Overrides by section."""
        return {
            "parallel": self.parallel,
            "scheduler": self.scheduler,
            "cache": self.cache,
            "graph": self.graph,
            "drafter": self.drafter,
            "moe": self.moe,
            "attention": self.attention,
        }


RoleName = Literal["serve", "prefill", "decode"]


class RequiresSpec(Spec):
    """What the machine must have; ranges in the syntax of Python version specifiers."""

    cann: str | None = None
    """Version of CANN."""
    driver: str | None = None
    """Version of the NPU driver."""
    torch_npu: str | None = None
    """Version of torch_npu."""
    free_disk_gb: Count | None = None
    """Free disk space for weights, in 10^9 bytes."""
