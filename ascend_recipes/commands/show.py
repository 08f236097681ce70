"""`show`: a recipe as people look at it: what it is, on what, in which layout, from where."""

from dataclasses import dataclass

from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.rendering.command import RenderedCommand
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.plan import RolePlan
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.roles import role_recipe


@dataclass(frozen=True, kw_only=True)
class Portrait:
    """Lines about a recipe, by heading."""

    name: str
    about: str
    facts: tuple[tuple[str, str], ...]
    """Heading and text, in reading order."""
    sources: tuple[str, ...]
    """Public documents that the choices come from."""
    exceptions: tuple[str, ...]
    """Warnings that the recipe gives a reason for."""
    commands: tuple[RenderedCommand, ...] = ()
    """Processes that an installed vllm-ascend would run."""

    def to_json(self) -> dict[str, Json]:
        """The object of the document."""
        document: dict[str, Json] = {
            "name": self.name,
            "about": self.about,
            "facts": dict(self.facts),
            "sources": list(self.sources),
            "exceptions": list(self.exceptions),
        }
        if self.commands:
            document["commands"] = [item.to_json() for item in self.commands]
        return document


def portray(planned: PlannedLaunch) -> Portrait:
    """Describe a planned recipe."""
    resolved, recipe = planned.resolved, planned.resolved.recipe
    facts = [
        ("model", f"{recipe.model}: {resolved.model.about}"),
        ("hardware", f"{recipe.hardware}: {resolved.hardware.about}"),
        ("weights", _weights(resolved)),
        ("attention", _choices(recipe, "attention")),
        ("cache", _cache(recipe)),
        ("drafter", _drafter(recipe)),
        ("graph", _graph(recipe)),
    ]
    facts.extend((f"role {role.name}", _role(resolved, role)) for role in planned.plan.roles)
    facts.append(("runs on", _status(planned)))
    exceptions = tuple(
        f"{item.finding}{f' under {item.runtime}' if item.runtime else ''}: "
        f"{item.reason} ({item.source})"
        for item in recipe.because
    )
    return Portrait(
        name=recipe.name,
        about=recipe.about,
        facts=tuple(facts),
        sources=recipe.source,
        exceptions=exceptions,
        commands=planned.commands,
    )


def _weights(resolved: ResolvedRecipe) -> str:
    facts, variant = resolved.checkpoint, resolved.recipe.checkpoint.variant
    where = facts.hub or facts.modelscope or "id not published"
    size = f", {facts.size_gb:g} GB" if facts.size_gb else ""
    return f"{variant} ({facts.format}): {where}{size}"


def _choices(recipe: Recipe, section: str) -> str:
    spec = {"attention": recipe.attention, "moe": recipe.moe, "parallel": recipe.parallel}[section]
    tree: dict[str, Json] = spec.model_dump(mode="json", exclude_defaults=True)
    kind = tree.pop("kind", None)
    return ", ".join(
        ([str(kind)] if kind else []) + [f"{key} {_text(value)}" for key, value in tree.items()]
    )


def _text(value: Json) -> str:
    return (
        {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    )


def _cache(recipe: Recipe) -> str:
    prefix = "with" if recipe.cache.prefix_caching else "without"
    share = f"{recipe.cache.memory_fraction:.0%} of memory"
    return f"{recipe.cache.kind}, blocks of {recipe.cache.block_size}, {prefix} prefixes, {share}"


def _drafter(recipe: Recipe) -> str:
    spec = recipe.drafter
    return "none" if spec.kind == "none" else f"{spec.kind}, {spec.num_draft_tokens} token(s)"


def _graph(recipe: Recipe) -> str:
    spec = recipe.graph
    if spec.kind == "none" or not spec.capture_sizes:
        return spec.kind
    return f"{spec.kind}, sizes {', '.join(map(str, spec.capture_sizes))}"


def _role(resolved: ResolvedRecipe, role: RolePlan) -> str:
    view = resolved.recipe if role.name == "serve" else _view(resolved.recipe, role)
    axes = view.parallel
    layout = " x ".join(
        f"{name} {size}"
        for name, size in (("dp", axes.dp), ("tp", axes.tp), ("pp", axes.pp))
        if size > 1 or name == "tp"
    )
    experts = ", experts spread" if axes.ep else ""
    context = f", dcp {axes.dcp}" if axes.dcp > 1 else ""
    copies = f"{role.instances} x " if role.instances > 1 else ""
    dies = role.nodes * role.dies_per_node
    # An A3 card is two dies: software counts dies, people count cards.
    cards = -(-dies // resolved.hardware.dies_per_card)
    scheduler = view.scheduler
    return (
        f"{copies}{role.nodes} node(s), {dies} dies ({cards} cards), {layout}{experts}{context}; "
        f"{scheduler.max_num_seqs} requests, {scheduler.max_num_batched_tokens} tokens a step, "
        f"context {scheduler.max_model_len}"
    )


def _view(recipe: Recipe, role: RolePlan) -> Recipe:
    return role_recipe(recipe, "prefill" if role.name == "prefill" else "decode")


def _status(planned: PlannedLaunch) -> str:
    verified = [run for run in planned.resolved.model.verified if run.recipe == planned.plan.recipe]
    if verified:
        return "; ".join(f"{run.runtime} {run.vllm} on {run.date}" for run in verified)
    blockers = {item.id: item.message for item in planned.blockers}
    blockers.pop("runtime.unverified", None)
    if not blockers:
        return "native runtime, emulated; no run on an NPU has been recorded"
    missing = "; ".join(sorted(blockers.values()))
    # A tiny model has one replica.
    emulated = blockers.keys() == {"runtime.replicated_experts"}
    return (
        f"{'native runtime, emulated with one replica' if emulated else 'planned only'}: {missing}"
    )
