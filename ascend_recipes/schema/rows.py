"""Row types of `registry/`: facts, each with its source. One type a folder."""

from typing import Literal

from pydantic import Field, PositiveFloat

from ascend_recipes.schema.base import Count, ImplementationPath, Json, Name, Spec
from ascend_recipes.schema.exchange import ExchangeLimits


class FactRow(Spec):
    """A row of facts; every row says where they come from."""

    about: str
    """One line for people."""
    sources: tuple[str, ...] = Field(min_length=1)
    """Public documents, files or configurations that state the facts."""


class VerifiedRun(Spec):
    """Evidence that a deployment ran on hardware."""

    recipe: Name
    runtime: Name
    vllm: str
    torch_npu: str
    date: str
    evidence: str


class LayerFacts(Spec):
    """A kind of decoder layer and how many of them a model has."""

    kind: Name
    """`full_attention`, `linear_attention`, `sliding_attention`, `compressed_4`, …"""
    count: Count


class RotaryFacts(Spec):
    """How layers of a kind rotate positions, by the fields of the configuration that say it."""

    theta: str
    """Field of the base."""
    scaling: str | None = None
    """Field of the stretching to longer contexts; none where it is not for these layers."""


class DrafterFacts(Spec):
    """A drafter that the checkpoint carries."""

    architecture: str
    """Architecture name that vLLM gives the draft model."""
    layers: Count | None = None
    """Decoder layers of the drafter; none where nobody has published them."""
    layer_kind: Name | None = None
    hub: str | None = None
    """Repository of its own weights; none where the target's checkpoint carries them."""
    max_draft_tokens: Count
    """Largest number of tokens that may be proposed per step."""


class CheckpointFacts(Spec):
    """One published set of weights."""

    format: Name
    """Row in `registry/quantization`."""
    hub: str | None = None
    """Repository id on the Hugging Face hub."""
    modelscope: str | None = None
    size_gb: PositiveFloat | None = None
    """Size on disk in 10^9 bytes, where published."""
    drafters: tuple[Name, ...] = ()
    """Drafters whose weights these files hold."""
    config: dict[str, Json] = Field(default_factory=dict)
    """Fields of their config.json that the model's row does not have, or has otherwise."""


class ModelRow(FactRow):
    """A model: architecture facts that rules, planner and run time use."""

    family: Name
    """Folder under `ascend_recipes/models` that implements it, where `native` is true."""
    architecture: str
    model_type: str
    text_config_key: str | None = None
    """Key of config.json under which the language model's fields stand; none if flat."""
    native: bool
    """Whether the native runtime implements the family."""
    native_drafters: tuple[Name, ...] = ()
    """Drafters of the family that the native runtime implements."""
    native_formats: tuple[Name, ...] = ("bf16",)
    """Rows of `registry/quantization` that the native runtime reads for the family."""
    config: dict[str, Json]
    """Fields of the language model's configuration, under their published names."""
    layers: tuple[LayerFacts, ...]
    layer_pattern: str
    """Order of the layer kinds, for people."""
    rotary: dict[Name, RotaryFacts] = Field(default_factory=dict)
    """By layer kind, those of drafters too; empty where all layers rotate alike."""
    traits: tuple[Name, ...] = ()
    """Properties that hooks and rules ask for by name, for example `gated_delta_net`."""
    attention_kinds: tuple[Name, ...]
    """Kinds of the recipe's `attention` section that can serve the model."""
    heads_split: tuple[str, ...]
    """Config fields that tensor parallelism must divide."""
    drafters: dict[Name, DrafterFacts] = Field(default_factory=dict)
    checkpoints: dict[Name, CheckpointFacts]
    max_model_len: Count
    """Longest context in tokens."""
    tool_call_parser: Name | None = None
    reasoning_parser: Name | None = None
    tokenizer_mode: Name | None = None
    model_hooks: tuple[Name, ...] = ()
    """Rows of `registry/hooks` that only this family needs."""
    verified: tuple[VerifiedRun, ...] = ()


class GraphLimits(Spec):
    """Limits of static graphs on one generation."""

    max_piecewise_sizes: Count | None = None
    """Most capture sizes in a piecewise mode."""
    max_sizes_with_tp: Count | None = None
    """Most capture sizes when tensor parallelism is on (event ids)."""


class ContainerFacts(Spec):
    """What a container needs of a machine, besides the dies themselves (`davinci0` and so on)."""

    devices: tuple[str, ...] = ()
    """Further device files of the driver."""
    mounts: tuple[str, ...] = ()
    """Files and folders of the driver, read-only at the same place inside."""
    network_mounts: tuple[str, ...] = ()
    """Those that deployments of several machines need too."""
    pod_mounts: tuple[str, ...] = ()
    """Folders that a Kubernetes pod needs although the device plugin brings the driver."""
    resource: str
    """Name under which the device plugin of Kubernetes counts dies."""


class HardwareRow(FactRow):
    """One generation of machines."""

    products: tuple[str, ...]
    soc_names: tuple[str, ...]
    """SoC names that the driver may report, lower case."""
    soc_codes: tuple[int, int]
    """Range of `torch_npu.npu.get_soc_version()`."""
    dies_per_card: Count
    cards_per_node: Count
    memory_gib: Count
    """High-bandwidth memory of one die in GiB."""
    dtypes: tuple[Name, ...]
    capabilities: tuple[Name, ...]
    """Abilities that backends, quantization formats and rules ask for by name."""
    graph: GraphLimits = GraphLimits()
    container: ContainerFacts | None = None

    @property
    def dies_per_node(self) -> int:
        """Devices that software sees on one node."""
        return self.dies_per_card * self.cards_per_node


class BackendRow(FactRow):
    """An attention or state backend."""

    implementation: ImplementationPath | None
    """Class of ours; none while only other runtimes serve it."""
    layer_kinds: tuple[Name, ...]
    """Kinds of layers that it serves."""
    attention_kinds: tuple[Name, ...]
    """Kinds of the recipe's `attention` section that choose it."""
    selector: dict[str, bool] = Field(default_factory=dict)
    """Fields of vLLM's selector configuration that pick it; empty for state backends, which vLLM
    looks up by layer type."""
    operations: tuple[Name, ...]
    hardware: tuple[Name, ...]
    requires: tuple[Name, ...] = ()
    """Hardware capabilities."""
    block_sizes: tuple[Count, ...] = ()
    """Tokens per block that its kernels accept; empty where the notion does not apply."""
    heads_per_die: dict[Name, tuple[Count, ...]] = Field(default_factory=dict)
    """Query heads that its kernels take, by generation; any number where none is listed."""
    cache: str
    """Layout of what it caches per layer, with named dimensions."""
    graph_support: Literal["always", "uniform_batch", "single_token_decode", "never"]


class QuantizationRow(FactRow):
    """A weight format."""

    method: str | None
    """Name in vLLM's quantization registry; none for unquantized weights."""
    weight_bits: Count
    activation_bits: Count
    hardware: tuple[Name, ...]
    requires: tuple[Name, ...] = ()
    """Hardware capabilities."""
    native: bool
    """Whether the native runtime implements the format."""
    operations: tuple[Name, ...] = ()
    """What linear layers of the format call."""
    expert_operations: tuple[Name, ...] = ()
    """What routed experts of the format call."""
    replaces: dict[Name, Name] = Field(default_factory=dict)
    """Operation of a model -> the one that is called in its place where weights have the format."""
    max_tp: Count | None = None


class RuntimeRow(FactRow):
    """Something that can serve a plan."""

    versions: tuple[str, ...]
    """Versions that a recipe may name, newest last."""
    vllm: dict[str, str]
    """Version -> vLLM version it belongs to."""
    hardware: tuple[Name, ...]
    refused: dict[Name, tuple[str, ...]] = Field(default_factory=dict)
    """Option -> beginnings of architecture names for which the runtime refuses it."""
    connectors: tuple[str, ...] = ()
    """Names of the connectors that move or keep caches; none where we do not know them."""
    exchange: ExchangeLimits | None = None
    """Numbers by which it chooses how experts get their tokens; none where the plan decides."""


class ProviderRow(FactRow):
    """A supplier of operator kernels and the binary interface it was built for."""

    distribution: str | None
    """Python distribution that holds it; none for part of our package."""
    abi: dict[str, str]
    """Package -> version that it is built for or tested with."""
    hardware: tuple[Name, ...]


class LanguageText(Spec):
    """A text in both languages; braces name values that code gives."""

    en: str
    zh: str


class FindingText(Spec):
    """What people read about one kind of finding."""

    severity: Literal["error", "warn", "info"]
    """Unless the rule knows better."""
    title: LanguageText
    """What is wrong in general: heading of the error reference."""
    message: LanguageText
    """What is wrong here."""
    why: LanguageText | None = None
    """What would happen otherwise, and what else helps."""
    fix: LanguageText | None = None
    """What to do, where it is not something to type that code can compute."""
    evidence: str = ""
    """Source line, issue or measurement."""


class FindingsRow(Spec):
    """The findings of one family; their ids are `family.name`."""

    about: str
    """What the family is about, in one line."""
    findings: dict[Name, FindingText]
    phrases: dict[Name, LanguageText] = Field(default_factory=dict)
    """Parts of sentences that texts of the family take as a value."""


class DocumentedRole(Spec):
    """Values that a document states for one role, by column; a column left out is not stated."""

    dp: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    dcp: Count | None = None
    ep: bool | None = None
    nodes: Count | None = None
    instances: Count | None = None
    seqs: Count | None = None
    """max_num_seqs"""
    len: Count | None = None
    """max_model_len"""
    tokens: Count | None = None
    """max_num_batched_tokens"""
    memory: float | None = None
    """gpu_memory_utilization"""
    block: Count | None = None
    prefix: bool | None = None
    draft: str | None = None
    """Drafter and its tokens: `none`, `mtp3`, `dspark7`."""
    graph: str | None = None
    """Kind of the recipe's graph section."""
    sizes: tuple[Count, ...] | None = None
    """Capture sizes."""
    cp: bool | None = None
    """Tokens split over the tensor-parallel group inside attention."""
    index: Literal["model", "int8", "fp8"] | None = None
    """Element type of the indexer's keys."""
    kv: Literal["model", "int8", "fp8"] | None = None
    """Element type of keys and values."""
    fused: bool | None = None
    """Fused dispatch, feed-forward and combine."""
    overlap: bool | None = None
    """Shared expert on a side stream."""
    shared: Literal["tp", "dp"] | None = None
    recompute: bool | None = None
    balance: bool | None = None
    buffer: Count | None = None
    """HCCL_BUFFSIZE in MB."""


class Deployment(Spec):
    """A deployment that a document describes, and what we make of it."""

    id: Name
    where: str
    """Lines, section or file inside the document."""
    weights: str | None = None
    """Checkpoint variant of the recipe that holds the documented weights."""
    recipe: Name | None = None
    overrides: tuple[str, ...] = ()
    """Words after `recipe=NAME` that reproduce a variant of the recipe's deployment."""
    reason: str = ""
    """Why there is no recipe."""
    roles: dict[str, DocumentedRole] = Field(default_factory=dict)
    differs: dict[str, str] = Field(default_factory=dict)
    """`role.column` -> why the recipe's value is not the documented one."""


class DeploymentsRow(FactRow):
    """The deployments of one document."""

    deployments: tuple[Deployment, ...]
