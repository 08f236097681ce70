"""One rendered process: what is started where, with which words and variables."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ascend_recipes.schema.base import Json
from ascend_recipes.schema.serving import RoleName


@dataclass(frozen=True, kw_only=True)
class RenderedCommand:
    """A process of a deployment, as the launcher starts it and exports write it down."""

    role: RoleName
    node: int
    """Number of the machine in the whole deployment: index into `site.node_addresses`."""
    rank: int | None = None
    """Data-parallel rank where every rank is a process of its own, else none."""
    instance: int = 0
    """Which copy of the role; processes of one instance form one engine."""
    argv: tuple[str, ...]
    """`vllm serve MODEL --flag …`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What the process gets beyond the launching shell's environment; never a secret's value."""
    port: int | None = None
    """Port of its OpenAI API; none for a process without one (`--headless`)."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Recipe path (or registry row) behind each flag and variable."""

    def to_json(self) -> dict[str, Json]:
        """The object of `plan --json`."""
        return {
            "role": self.role,
            "node": self.node,
            "instance": self.instance,
            "rank": self.rank,
            "port": self.port,
            "argv": list(self.argv),
            "env": dict(self.env),
            "reasons": dict(self.reasons),
        }
