"""Rows of `registry/stacks/`: which versions belong together."""

from pydantic import Field

from ascend_recipes.schema.base import Name, Spec
from ascend_recipes.schema.rows import FactRow


class ReleaseFacts(Spec):
    """One release and what it was built and tested with."""

    version: str
    vllm: str
    python: str
    """Range of Python versions, as package metadata writes it."""
    torch: str
    torch_npu: str
    cann: str | None = None
    triton_ascend: str | None = None
    """None where the release has no use for Triton."""
    transformers: str | None = None
    """Range, as package metadata writes it; none where the release states none."""
    mooncake: str | None = None


class StackRow(FactRow):
    """The releases of a runtime, the newest last."""

    distribution: str
    """Python distribution of the runtime."""
    installs: dict[str, str] = Field(default_factory=dict)
    """Version of `registry/runtimes` -> range of installed versions that it speaks for."""
    releases: tuple[ReleaseFacts, ...]
    image: str = ""
    """Name of the container image that ships it."""
    image_words: dict[Name, tuple[str, ...]] = Field(default_factory=dict)
    """Generation -> words in the tag of an image that is for it."""
    image_default: Name | None = None
    """Generation of an image whose tag names none."""
    image_repository: str = ""
    """Where the images are pulled from, without a tag."""
    image_tags: dict[str, str] = Field(default_factory=dict)
    """Version of `registry/runtimes` -> tag of the image for the default generation."""
    image_suffixes: dict[Name, str] = Field(default_factory=dict)
    """Generation -> what the tag ends with; generations without an entry have no image."""
    image_moving: tuple[str, ...] = ()
    """Tags that another image takes over sooner or later."""
    environment_files: tuple[str, ...] = ()
    """Scripts of the image that set up the toolkit; interactive shells alone have it already."""
    shared_memory_gib: int = Field(default=1, ge=1)
    """Upper limit for `/dev/shm` of a container in GiB."""

    def release(self, version: str) -> ReleaseFacts | None:
        """The row of a version, letter by letter: candidates and post-releases are others."""
        return next((item for item in self.releases if item.version == version), None)
