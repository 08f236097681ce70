"""The `site` section: what differs from machine room to machine room. Never part of a recipe."""

from pydantic import Field

from ascend_recipes.schema.base import Name, Spec


class SiteSpec(Spec):
    """Paths, addresses and devices of the place where a recipe runs."""

    name: Name = "example"
    """What people call the place."""
    weight_roots: tuple[str, ...] = ("/models",)
    """Folders below which checkpoints are looked for, in order."""
    cache_folder: str | None = None
    """Folder for tiny checkpoints and run folders; none takes the user's cache folder."""
    network_interface: str | None = None
    """Interface for collectives between nodes."""
    node_addresses: tuple[str, ...] = ()
    """Address of each node, the first one leads."""
    device_ids: tuple[int, ...] = ()
    """Dies to use on this node; empty takes them in order."""
    port_base: int = Field(default=20000, ge=1024, le=60000)
    """First of the ports that processes use among themselves."""
    proxy: str | None = None
    """Proxy for downloads from hubs."""
    image: str | None = None
    """Container image that the site runs."""
