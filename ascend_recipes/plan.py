"""Plan: flatten a resolved recipe to plain data, with a reason for every value."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ascend_recipes.errors import Finding
from ascend_recipes.planning.cache import plan_cache
from ascend_recipes.planning.capture import default_capture_sizes
from ascend_recipes.planning.engine import (
    checkpoint_origin,
    model_argument,
    plan_engine,
    plan_server,
)
from ascend_recipes.planning.environment import plan_environment
from ascend_recipes.planning.features import plan_features
from ascend_recipes.planning.ledger import Ledger, Reason
from ascend_recipes.planning.topology import plan_groups, plan_layers, plan_roles
from ascend_recipes.resolve import ResolvedRecipe, binding_name
from ascend_recipes.rules.graph import query_length
from ascend_recipes.rules.runtime import launch_blockers
from ascend_recipes.rules.site import missing_site_values
from ascend_recipes.schema.plan import (
    DrafterPlan,
    GraphPlan,
    LaunchPlan,
    ModelPlan,
    RuntimePlan,
    plan_digest,
)

if TYPE_CHECKING:
    from ascend_recipes.rendering.command import RenderedCommand

_GRAPH_MODES = {
    "none": "NONE",
    "full_decode": "FULL_DECODE_ONLY",
    "full": "FULL",
    "piecewise": "PIECEWISE",
    "full_and_piecewise": "FULL_AND_PIECEWISE",
}


@dataclass(frozen=True)
class PlannedLaunch:
    """A plan, why it is as it is, and what stands in the way of running it."""

    plan: LaunchPlan
    reasons: dict[str, Reason]
    findings: tuple[Finding, ...]
    """Warnings and remarks."""
    blockers: tuple[Finding, ...]
    """Errors that stop a launch, not a plan: what is not implemented, not verified."""
    resolved: ResolvedRecipe

    @property
    def commands(self) -> "tuple[RenderedCommand, ...]":
        """Processes of an installed vllm-ascend; none for the native runtime, which needs none."""
        if self.resolved.recipe.runtime.kind != "vllm_ascend":
            return ()
        from ascend_recipes.rendering.render import render_commands

        return render_commands(self.resolved)

    def reasons_json(self) -> dict[str, dict[str, str]]:
        """Content of the reasons file."""
        return {key: reason.to_json() for key, reason in sorted(self.reasons.items())}


def plan_launch(resolved: ResolvedRecipe) -> PlannedLaunch:
    """Decide everything that a process of this deployment needs to know."""
    ledger = Ledger(resolved)
    recipe = resolved.recipe
    graph = _plan_graph(resolved, ledger)
    drafter = _plan_drafter(resolved, ledger)
    native = recipe.runtime.kind == "native"
    plan = LaunchPlan(
        recipe=recipe.name,
        runtime=_plan_runtime(resolved, ledger),
        device=recipe.device.kind,
        scale=recipe.scale.kind,
        hardware=recipe.hardware,
        model=_plan_model(resolved, ledger),
        platform=resolved.platform if native else "vllm_ascend",
        engine=plan_engine(resolved, ledger, graph, drafter),
        server=plan_server(resolved, ledger),
        env=plan_environment(resolved, ledger),
        hooks=resolved.hooks if native else (),
        layers=plan_layers(resolved, ledger),
        cache=plan_cache(resolved, ledger),
        quantization=resolved.checkpoint.format,
        groups=plan_groups(resolved, ledger),
        graph=graph,
        drafter=drafter,
        operations=_plan_operations(resolved, ledger) if native else {},
        patches=_plan_patches(resolved, ledger) if native else (),
        features=plan_features(resolved, ledger),
        roles=plan_roles(resolved, ledger),
        relaxed=_relaxed(resolved),
    ).with_digest()
    _explain_rest(resolved, ledger)
    blockers = tuple(
        replace(item, source=resolved.source_of(item.at))
        for item in (*launch_blockers(resolved), *missing_site_values(resolved))
    )
    return PlannedLaunch(plan, ledger.reasons, resolved.findings, blockers, resolved)


def _relaxed(resolved: ResolvedRecipe) -> tuple[str, ...]:
    """Limits that the recipe lifts by name, and those that its tiny sizes or caches need lifted."""
    recipe = resolved.recipe
    if recipe.device.kind != "emulated":
        return ()
    relaxed: set[str] = set(recipe.device.relaxed)
    if recipe.scale.kind == "tiny":
        from ascend_recipes.tiny import tiny_family

        relaxed.update(tiny_family(resolved.model.family).RELAXED)
    if recipe.cache.kind == "heterogeneous" and recipe.cache.precision == "float":
        relaxed.add("cache.float32")
    return tuple(sorted(relaxed))


def _plan_runtime(resolved: ResolvedRecipe, ledger: Ledger) -> RuntimePlan:
    kind = resolved.recipe.runtime.kind
    ledger.from_row("runtime", "runtimes", kind)
    ledger.from_row("runtime.vllm", "runtimes", kind, at="vllm")
    ledger.from_recipe("runtime.name", "runtime.kind")
    return RuntimePlan(name=kind, vllm=resolved.runtime.vllm[resolved.runtime_version])


def _plan_model(resolved: ResolvedRecipe, ledger: Ledger) -> ModelPlan:
    recipe = resolved.recipe
    ledger.from_row("model.architecture", "models", recipe.model, at="architecture")
    ledger.from_recipe("model.key", "model")
    ledger.from_recipe("model.checkpoint", checkpoint_origin(resolved), "where weights are")
    # Weights that somebody names are theirs, at any scale: nobody draws others in their place.
    tiny = recipe.scale if recipe.scale.kind == "tiny" and not recipe.checkpoint.path else None
    ledger.from_recipe("model.tiny_seed", "scale.seed" if tiny else "scale")
    return ModelPlan(
        key=recipe.model,
        architecture=resolved.model.architecture,
        checkpoint=model_argument(resolved),
        tiny_seed=tiny.seed if tiny else None,
    )


def _plan_graph(resolved: ResolvedRecipe, ledger: Ledger) -> GraphPlan:
    spec = resolved.recipe.graph
    ledger.from_recipe("graph", "graph.kind")
    if spec.kind == "none":
        return GraphPlan(mode="NONE")
    sizes = spec.capture_sizes
    if sizes:
        ledger.from_recipe("graph.capture_sizes", "graph.capture_sizes")
    else:
        batch = resolved.recipe.scheduler.max_num_seqs
        sizes = default_capture_sizes(batch, query_length(resolved))
        because = f"ladder up to {batch} requests of {query_length(resolved)} token(s)"
        ledger.decided("graph.capture_sizes", default_capture_sizes, because)
    return GraphPlan.model_validate({"mode": _GRAPH_MODES[spec.kind], "capture_sizes": sizes})


def _plan_drafter(resolved: ResolvedRecipe, ledger: Ledger) -> DrafterPlan | None:
    spec, facts = resolved.recipe.drafter, resolved.drafter
    ledger.from_recipe("drafter", "drafter.kind")
    if facts is not None:
        at = f"drafters.{spec.kind}"
        ledger.from_row("drafter.architecture", "models", resolved.recipe.model, at=at)
        ledger.from_recipe("drafter.num_draft_tokens", "drafter.num_draft_tokens")
    if spec.kind == "none" or facts is None:
        return None
    return DrafterPlan(
        kind=spec.kind,
        architecture=facts.architecture,
        num_draft_tokens=spec.num_draft_tokens,
    )


def _plan_operations(resolved: ResolvedRecipe, ledger: Ledger) -> dict[str, str]:
    for name, binding in resolved.bindings.items():
        because = f"first provider in order that serves {resolved.recipe.hardware}"
        if binding.needs:
            because += f" with {', '.join(binding.needs)}"
        ledger.from_row(f"operations.{name}", "operations", name, because)
    return {name: binding_name(binding) for name, binding in resolved.bindings.items()}


def _plan_patches(resolved: ResolvedRecipe, ledger: Ledger) -> tuple[str, ...]:
    for key, because in resolved.patches.items():
        ledger.from_row(f"patches.{key}", "patches", key, because)
    return tuple(resolved.patches)


def _explain_rest(resolved: ResolvedRecipe, ledger: Ledger) -> None:
    for key in (*resolved.hooks, resolved.platform):
        if key in resolved.registry.hooks:
            because = resolved.registry.hooks[key].because
            ledger.from_row(f"hooks.{key}", "hooks", key, because)
    ledger.from_recipe("recipe", "about", "named on the command line")
    ledger.from_recipe("device", "device.kind")
    ledger.from_recipe("scale", "scale.kind")
    ledger.from_recipe("hardware", "hardware")
    ledger.from_recipe("relaxed", "device.kind")
    ledger.from_row("quantization", "quantization", resolved.checkpoint.format)
    ledger.from_recipe("platform", "runtime.kind", "the runtime's platform class")
    for key in ("digest", "schema_version"):
        ledger.decided(key, plan_digest, "over everything else in the plan")
    for section in ("env", "hooks", "operations", "patches", "features", "server"):
        if section not in ledger.reasons:
            ledger.decided(section, plan_launch, "nothing calls for one")
