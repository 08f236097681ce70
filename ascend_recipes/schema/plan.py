"""The launch plan: plain data that every vLLM process of one deployment reads.

The plan is the boundary between deciding and doing. Everything that can be decided is decided
before it is written; run-time code reads it and never chooses.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, ValidationError

from ascend_recipes.errors import RecipeError
from ascend_recipes.findings import Phrase, phrase, recipe_error
from ascend_recipes.paths import display_path
from ascend_recipes.schema.base import Count, Json, Name, Spec
from ascend_recipes.schema.complaints import complaint

Device: TypeAlias = Literal["npu", "emulated"]
Scale: TypeAlias = Literal["real", "tiny"]


class RuntimePlan(Spec):
    """Who serves: our platform plugin, or an installed vllm-ascend."""

    name: Name
    vllm: str
    """vLLM version that the plan was made for."""


class ModelPlan(Spec):
    """What is served."""

    key: Name
    """Row in `registry/models`."""
    architecture: str
    """Architecture name as `config.json` states it."""
    checkpoint: str
    """Folder of weights, configuration and tokenizer; a tiny one is written there on demand."""
    tiny_seed: int | None = None
    """Seed of the random tiny checkpoint; none for real weights."""


class LayerPlan(Spec):
    """A run of equal layers: which backend serves them and what they cache."""

    pattern: str
    """Human-readable position, for example `linear_attention x3, full_attention x1, repeated`."""
    kind: Name
    count: Count
    backend: Name
    """Row in `registry/backends`."""
    cache: str
    """Cache layout, for example `kv bfloat16 [block, 2*kv_heads, 128, head_dim]`."""


class CachePlan(Spec):
    """Geometry and element types of the caches, as they will be after vLLM's own unification."""

    kind: Name
    kernel_block_size: Count
    """Tokens per block that attention kernels address."""
    block_size: Count
    """Tokens per block of the cache manager; larger where states share the pages."""
    prefix_caching: bool
    kv_dtype: str
    state_dtype: str | None = None
    state_mode: str = "none"


class GroupPlan(Spec):
    """A family of parallel groups as a rule instead of a list of ranks."""

    axis: Name
    size: Count
    count: Count
    ranks: str
    """Rule, for example `consecutive` or `stride 4`; with size and count it gives every rank."""


class GraphPlan(Spec):
    """Static graphs: mode as vLLM names it and the token counts that are captured."""

    mode: Literal["NONE", "FULL", "FULL_DECODE_ONLY", "PIECEWISE", "FULL_AND_PIECEWISE"]
    capture_sizes: tuple[Count, ...] = ()


class DrafterPlan(Spec):
    """Speculative decoding."""

    kind: Name
    architecture: str
    num_draft_tokens: Count


class RolePlan(Spec):
    """One role of the deployment with what it changes against the common part."""

    name: Name
    nodes: Count = 1
    dies_per_node: Count
    instances: Count = 1
    """Copies of the role, each on nodes of its own."""
    changes: dict[str, Json] = Field(default_factory=dict)
    """Recipe sections that the role overrides, and with what."""
    env: dict[str, str] = Field(default_factory=dict)
    groups: tuple[GroupPlan, ...] = ()
    """Process groups of a role that changes the parallel axes."""
    transfer: dict[str, Json] | None = None
    """How caches move between the roles."""


class LaunchPlan(Spec):
    """Everything a process needs to know, with a digest over all of it."""

    schema_version: Literal[1] = 1
    digest: str = ""
    """sha256 of the canonical JSON of every other field."""
    recipe: str
    runtime: RuntimePlan
    device: Device
    scale: Scale
    hardware: Name
    model: ModelPlan
    platform: Name
    """Hook row of the platform class."""
    engine: dict[str, Json]
    """vLLM engine arguments by the field names of `EngineArgs`."""
    server: dict[str, Json] = Field(default_factory=dict)
    """Arguments of the API server only (host, port, parsers)."""
    env: dict[str, str]
    """Environment of every process, without secrets."""
    hooks: tuple[Name, ...]
    """Rows of `registry/hooks` to register: model classes, layers, kernels, backends."""
    layers: tuple[LayerPlan, ...]
    cache: CachePlan
    quantization: Name | None = None
    groups: tuple[GroupPlan, ...]
    graph: GraphPlan
    drafter: DrafterPlan | None = None
    operations: dict[Name, str]
    """Operation -> binding, for example `rms_norm: torch_npu.npu_rms_norm`."""
    features: dict[str, Json] = Field(default_factory=dict)
    """Further choices of the recipe, by their path there; what the schema sets is left out."""
    patches: tuple[Name, ...] = ()
    roles: tuple[RolePlan, ...]
    relaxed: tuple[str, ...] = ()
    """Hardware limits that emulation does not enforce for this plan."""

    def to_json(self) -> str:
        """Canonical text: sorted keys, two-space indent, final newline."""
        return canonical_json(self.model_dump(mode="json"))

    def with_digest(self) -> "LaunchPlan":
        """Copy of the plan that carries the digest of its content."""
        return self.model_copy(update={"digest": plan_digest(self)})


def canonical_json(tree: Json) -> str:
    """Serialise so that equal data gives equal bytes: sorted keys, short parts on one line."""
    return _render(tree, indent=0, room=_LINE) + "\n"


_LINE = 120
_MANY = 4
"""Entries from which a flat dictionary fills lines instead of taking one for each."""


def _render(tree: Json, *, indent: int, room: int) -> str:
    flat = json.dumps(tree, sort_keys=True, ensure_ascii=False)
    if len(flat) <= room or not isinstance(tree, dict | list) or not tree:
        return flat
    inner = indent + 2
    flat_values = not any(isinstance(item, dict | list) for item in _values(tree))
    if flat_values and (isinstance(tree, list) or len(tree) > _MANY):
        return _render_scalars(tree, indent=inner)
    if isinstance(tree, dict):
        heads = [(f"{json.dumps(key, ensure_ascii=False)}: ", tree[key]) for key in sorted(tree)]
    else:
        heads = [("", item) for item in tree]
    lines = [
        f"{' ' * inner}{head}{_render(value, indent=inner, room=_LINE - inner - len(head))}"
        for head, value in heads
    ]
    opening, closing = "{}" if isinstance(tree, dict) else "[]"
    return f"{opening}\n" + ",\n".join(lines) + f"\n{' ' * indent}{closing}"


def _values(tree: dict[str, Json] | list[Json]) -> Iterable[Json]:
    return tree.values() if isinstance(tree, dict) else tree


def _render_scalars(tree: dict[str, Json] | list[Json], *, indent: int) -> str:
    """Fill lines with the entries of a flat list or dictionary, as prose is filled with words."""
    opening, closing = "{}" if isinstance(tree, dict) else "[]"
    # Without its brackets, one entry serialised alone is what it is among others.
    alone = [{key: tree[key]} for key in sorted(tree)] if isinstance(tree, dict) else tree
    texts = [json.dumps(item, ensure_ascii=False) for item in alone]
    if isinstance(tree, dict):
        texts = [text[1:-1] for text in texts]
    lines = [" " * indent]
    for position, entry in enumerate(texts):
        text = entry + ("," if position + 1 < len(texts) else "")
        gap = " " if lines[-1].strip() else ""
        if gap and len(lines[-1]) + len(gap) + len(text) > _LINE:
            lines.append(" " * indent + text)
        else:
            lines[-1] += gap + text
    return f"{opening}\n" + "\n".join(lines) + f"\n{' ' * (indent - 2)}{closing}"


def plan_digest(plan: LaunchPlan) -> str:
    """First 16 hex digits of the sha256 over every field except the digest itself."""
    body = plan.model_dump(mode="json", exclude={"digest"})
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()[:16]


def load_plan(path: Path) -> LaunchPlan:
    """Read a plan file and refuse one that was edited by hand.

    Raises:
        RecipeError: the file is missing, is no plan, or its digest does not match its content.
    """
    try:
        plan = LaunchPlan.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise recipe_error("plan.unreadable", path=path, reason=error.strerror) from None
    except (ValidationError, UnicodeDecodeError) as error:
        raise _not_a_plan(path, error) from None
    if plan.digest != (actual := plan_digest(plan)):
        raise recipe_error(
            "plan.digest",
            path=display_path(path),
            written=plan.digest,
            actual=actual,
        )
    return plan


def _not_a_plan(path: Path, error: ValidationError | UnicodeDecodeError) -> RecipeError:
    detail: str | Phrase = str(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "-"
        detail = phrase("plan.field", where=where, said=complaint(first))
    return recipe_error("plan.invalid", path=display_path(path), said=detail)
