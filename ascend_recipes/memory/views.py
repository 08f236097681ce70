"""What memory planning needs to know of one role of a deployment."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ascend_recipes.resolve import ResolvedRecipe, state_dtype
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.roles import role_recipe
from ascend_recipes.schema.rows import DrafterFacts, HardwareRow
from ascend_recipes.schema.serving import RoleName


@dataclass(frozen=True, kw_only=True)
class RoleView:
    """One role: its recipe, merged, and the facts that its caches and weights follow from."""

    role: RoleName
    recipe: Recipe
    config: Mapping[str, Json]
    layers: Mapping[str, int]
    """Kind of decoder layer -> how many the model has."""
    traits: frozenset[str]
    hardware: HardwareRow
    buffer_mib: int
    """Buffer of a communicator in MiB that the collective library takes by itself."""
    split_sizes: tuple[int, ...]
    """Numbers of heads that tensor parallelism divides."""
    drafter: DrafterFacts | None
    published_bytes: int | None
    """Size of the checkpoint on disk, where published."""
    format: str
    """Row in `registry/quantization`."""
    drafter_inside: bool
    """The checkpoint carries the drafter's weights."""

    @property
    def draft_layers(self) -> int:
        """Decoder layers of the drafter; 0 without one, or where nobody has published them."""
        return (self.drafter.layers or 0) if self.drafter else 0

    @property
    def draft_tokens(self) -> int:
        """Tokens that the drafter proposes per step."""
        spec = self.recipe.drafter
        return 0 if spec.kind == "none" else spec.num_draft_tokens

    @property
    def cache_layers(self) -> dict[str, int]:
        """Kind of layer -> how many one pipeline stage has, with the drafter's."""
        stages = self.recipe.parallel.pp
        counts = {kind: -(-count // stages) for kind, count in self.layers.items()}
        if self.drafter and self.drafter.layer_kind:
            kind = self.drafter.layer_kind
            counts[kind] = counts.get(kind, 0) + self.draft_layers
        return counts

    @property
    def kv_dtype(self) -> str:
        """Element type of keys and values."""
        cache = self.recipe.cache
        chosen = "model" if cache.kind == "heterogeneous" else cache.kv_dtype
        return self.recipe.checkpoint.dtype if chosen == "model" else chosen

    @property
    def state_dtype(self) -> str:
        """Element type of recurrent states."""
        return state_dtype(self.recipe, self.config)

    @property
    def keeps_snapshots(self) -> bool:
        """Whether recurrent states are kept at block boundaries too."""
        cache = self.recipe.cache
        return cache.kind == "hybrid" and cache.prefix_caching and cache.state_mode == "align"

    @property
    def step_tokens(self) -> int:
        """Tokens in flight: of a step a stage, or two where the next is prepared meanwhile.

        vllm/config/vllm.py, max_concurrent_batches.
        """
        scheduler, stages = self.recipe.scheduler, self.recipe.parallel.pp
        steps = 2 if scheduler.async_scheduling and stages == 1 else stages
        return scheduler.max_num_batched_tokens * steps


def role_views(resolved: ResolvedRecipe) -> tuple[RoleView, ...]:
    """Every role of a deployment."""
    whole = role_view(resolved)
    views = []
    for role in sorted(resolved.recipe.roles):
        recipe = resolved.recipe if role == "serve" else role_recipe(resolved.recipe, role)
        kind = recipe.drafter.kind
        view = replace(
            whole,
            role=role,
            recipe=recipe,
            drafter=resolved.model.drafters.get(kind),
            drafter_inside=kind in resolved.checkpoint.drafters,
        )
        views.append(view)
    return tuple(views)


def role_view(resolved: ResolvedRecipe) -> RoleView:
    """The recipe as it is, for a deployment of one role or a recipe whose role is merged."""
    config = _whole_config(resolved)
    size, kind = resolved.checkpoint.size_gb, resolved.recipe.drafter.kind
    return RoleView(
        role="serve",
        recipe=resolved.recipe,
        config=config,
        layers=_layer_counts(resolved, config),
        traits=frozenset(resolved.model.traits),
        hardware=resolved.hardware,
        buffer_mib=resolved.registry.collectives["hccl"].buffer_mib,
        split_sizes=tuple(_whole(config, name) for name in resolved.model.heads_split),
        drafter=resolved.model.drafters.get(kind),
        published_bytes=int(size * 1e9) if size and resolved.recipe.scale.kind == "real" else None,
        format=resolved.checkpoint.format,
        drafter_inside=kind in resolved.checkpoint.drafters,
    )


def _whole(config: Mapping[str, Json], field: str) -> int:
    value = config[field]
    assert isinstance(value, int), f"{field} is {value!r}"
    return value


def _whole_config(resolved: ResolvedRecipe) -> Mapping[str, Json]:
    """The configuration that runs; of a tiny model with everything that follows from its sizes."""
    if resolved.recipe.scale.kind == "real":
        return resolved.config
    from ascend_recipes.tiny import tiny_family

    family = tiny_family(resolved.model.family)
    config = family.tiny_config(resolved.published_config, dtype=resolved.recipe.checkpoint.dtype)
    text = config.get(resolved.model.text_config_key or "")
    return {**resolved.config, **(text if isinstance(text, dict) else config)}


def _layer_counts(resolved: ResolvedRecipe, config: Mapping[str, Json]) -> dict[str, int]:
    """Layers by kind: the row's, or counted in a tiny model, which keeps the pattern."""
    counts = {layer.kind: layer.count for layer in resolved.model.layers}
    total = config["num_hidden_layers"]
    assert isinstance(total, int)
    ratios = config.get("compress_ratios")
    if isinstance(ratios, list):
        kinds = {"sliding_attention": (0, 1), "compressed_4": (4,), "compressed_128": (128,)}
        found = {kind: sum(r in which for r in ratios[:total]) for kind, which in kinds.items()}
        return {kind: count for kind, count in found.items() if count}
    full = sum(counts.values())
    return {kind: max(1, count * total // full) for kind, count in counts.items()}
