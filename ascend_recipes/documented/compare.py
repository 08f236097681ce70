"""Where what we render for a documented deployment differs from its document, and why."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ascend_recipes.documented.arguments import flat_arguments, one_spelling, same_value
from ascend_recipes.documented.facts import documented_commands, documented_notes
from ascend_recipes.documented.reasons import Difference, Explanation, explanation, is_site
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.registry.load import Registry
from ascend_recipes.rendering.render import views_of
from ascend_recipes.schema.documented import DocumentedCommand
from ascend_recipes.schema.rows import Deployment

PlanOf = Callable[..., PlannedLaunch]
"""What a list of override words plans."""


@dataclass(frozen=True)
class Comparison:
    """One documented command beside the command that we render."""

    row: str
    """In `registry/deployments`."""
    command: DocumentedCommand
    equal: tuple[str, ...]
    """Arguments with the documented value, also where they are spelled otherwise."""
    differences: tuple[tuple[Difference, Explanation | None], ...]

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Differences without a reason."""
        return tuple(item for item, why in self.differences if why is None)


def comparisons(registry: Registry, plan_of: PlanOf) -> Iterator[Comparison]:
    """Every documented command, compared."""
    for key in registry.deployments:
        rows = {item.id: item for item in registry.deployments[key].deployments}
        for command in documented_commands(key):
            yield compare(key, command, rows[command.deployment], plan_of)


def compare(
    row: str, command: DocumentedCommand, deployment: Deployment, plan_of: PlanOf
) -> Comparison:
    """Render the deployment's recipe for the document's version and compare the role's command.

    Raises:
        RecipeError: the recipe is refused.
    """
    planned = plan_of(*rendering_words(deployment, command.version))
    view = views_of(planned.resolved)[command.role]
    rendered = next(item for item in planned.commands if item.role == command.role)
    theirs = one_spelling(command.arguments, view)
    ours = one_spelling(flat_arguments(rendered.argv, rendered.env), view)
    names = sorted(name for name in {*theirs, *ours} if not is_site(name))
    equal = [name for name in names if same_value(theirs.get(name), ours.get(name))]
    found = (
        Difference(
            deployment=command.deployment,
            role=command.role,
            version=command.version,
            name=name,
            documented=theirs.get(name),
            ours=ours.get(name),
        )
        for name in names
        if name not in equal
    )
    differences = tuple((item, explanation(item, deployment)) for item in found)
    return Comparison(row, command, tuple(equal), differences)


def rendering_words(deployment: Deployment, version: str) -> tuple[str, ...]:
    """Words that plan a documented deployment for a version of vllm-ascend."""
    runtime = ("runtime=vllm_ascend", f"runtime.version={version}")
    return (f"recipe={deployment.recipe}", *deployment.overrides, *runtime)


def stale_notes(compared: Iterable[Comparison]) -> Iterator[str]:
    """Defaults, reasons, their patterns and deployments that explain nothing any more."""
    differences = [pair for item in compared for pair in item.differences]
    notes = documented_notes()
    used = {(why.id, why.pattern) for _, why in differences if why}
    places = {(why.id, item.deployment) for item, why in differences if why}
    defaults = {item.name for item, why in differences if why and why.id == "default"}
    yield from (f"defaults.{name}" for name in notes.defaults if name not in defaults)
    for reason in notes.reasons:
        for number, pattern in enumerate(reason.arguments):
            if (reason.id, number) not in used:
                yield f"reasons.{reason.id}: {pattern.name}"
        for name in reason.deployments:
            if (reason.id, name) not in places:
                yield f"reasons.{reason.id}: {name}"
