"""The `site` section: what differs from machine room to machine room. Never part of a recipe."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, field_validator, model_validator

from ascend_recipes.findings import phrase
from ascend_recipes.schema.base import Name, Spec
from ascend_recipes.schema.complaints import PhrasedError

_CREDENTIALS = re.compile(r"://[^/@\s]*@")
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"

VariableName = Annotated[str, Field(pattern=_VARIABLE)]
"""Name of an environment variable."""


class SourceSpec(Spec):
    """Where one checkpoint comes from; exactly one of the three places."""

    path: str | None = None
    """Folder on every node."""
    hub: str | None = None
    """Identifier on Hugging Face, for example `org/name`."""
    modelscope: str | None = None
    """Identifier on ModelScope, for example `org/name`."""
    revision: str | None = None
    """Branch, tag or commit on the hub; none takes the newest, which may change."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        named = [name for name in ("path", "hub", "modelscope") if getattr(self, name)]
        if len(named) != 1:
            raise PhrasedError(phrase("schema.one_source"))
        if self.path and self.revision:
            raise PhrasedError(phrase("schema.folder_revision"))
        return self

    @property
    def identifier(self) -> str | None:
        """What vLLM downloads by; none for a folder."""
        return self.hub or self.modelscope


class SiteSpec(Spec):
    """Paths, addresses and devices of the place where a recipe runs."""

    name: Name = "example"
    """What people call the place; the file's own name unless it says otherwise."""
    weight_roots: tuple[str, ...] = Field(default=("/models",), min_length=1)
    """Folders below which checkpoints are looked for, in order."""
    sources: dict[Name, dict[Name, SourceSpec]] = Field(default_factory=dict)
    """Where checkpoints come from that are not below a weight root, by model row and variant."""
    cache_folder: str | None = None
    """Folder for tiny checkpoints and run folders; none takes the user's cache folder."""
    network_interface: str | None = None
    """Interface for collectives between nodes."""
    node_addresses: tuple[str, ...] = ()
    """Address of each node: prefill instances first, then decode; the first one leads."""
    device_memory_gib: PositiveFloat | None = None
    """Memory of a die where it is less than the generation's usual; none takes the hardware row."""
    device_ids: tuple[int, ...] = ()
    """Dies to use on this node; empty takes them in order."""
    device_folder: str = "/dev"
    """Folder in which the driver shows the dies of a node, as `davinci0` and so on."""
    port_base: int = Field(default=13000, ge=1024, le=60000)
    """First of the ports that processes use among themselves; launchers meet at it."""
    router: Literal["auto", "vllm_router", "minimal"] = "auto"
    """Who spreads requests over prefill and decode: `vllm-router` where it is installed."""
    proxy: str | None = None
    """Proxy for downloads from hubs, without user and password."""
    image: str | None = None
    """Container image that the site runs; none takes the published one of the runtime's version."""
    weights_claim: str | None = None
    """PersistentVolumeClaim with the weight root, for Kubernetes; none takes the node's folder."""
    npu_resource: str | None = None
    """Name under which Kubernetes counts dies; none takes that of MindCluster's device plugin."""
    secrets: dict[VariableName, Literal["env"]] = Field(default_factory=dict)
    """Variables with secrets that processes need; each comes from the launching shell."""

    @field_validator("proxy")
    @classmethod
    def _check_proxy(cls, proxy: str | None) -> str | None:
        if proxy and _CREDENTIALS.search(proxy):
            raise PhrasedError(phrase("schema.proxy_secret"))
        return proxy

    @field_validator("node_addresses")
    @classmethod
    def _check_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            if address in ("0.0.0.0", "::", "") or any(letter.isspace() for letter in address):
                raise PhrasedError(phrase("schema.no_address", address=address))
        return addresses
