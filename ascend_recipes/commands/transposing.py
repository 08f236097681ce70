"""Changes that carry a deployment to another generation of machines.

What a shipped recipe of the same model says for that generation comes first, then sizes that keep
the deployment's dies, then the nearest weights; after that whatever the rules propose.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ascend_recipes.commands.changes import Change, changes_for, spelled, value_at
from ascend_recipes.commands.donors import (
    Donor,
    find_donors,
    is_smaller,
    roles_of,
    world_size,
)
from ascend_recipes.commands.search import Trial
from ascend_recipes.errors import Finding
from ascend_recipes.memory.planner import RolePlan, plan_memory
from ascend_recipes.memory.views import RoleView, role_views
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json
from ascend_recipes.words import split_override

_DOCUMENTED = 0.5
"""Weight of what a shipped recipe says for the generation: the closest thing to experience."""
_SAME_DIES = 1.0
_ROOM = 1.2
"""Added per doubling of machines where memory asks for them."""
_SHORTER = 1.5
"""Added per halving of what requests or steps may be: another machine is rather asked for."""
_OTHER_WEIGHTS = 1.5
_OTHER_DEPLOYMENT = 6.0
_GUESSED = 3.0
_HELD = frozenset({"recipe", "hardware", "model", "runtime", "device", "scale", "site", "because"})
"""What is asked for, or would only hide a finding."""
_SECTIONS_WITH = {
    "attention": ("attention", "cache"),
    "cache": ("attention", "cache"),
    "parallel": ("nodes", "parallel"),
    "nodes": ("nodes", "parallel"),
}
"""Sections that only make sense together."""


@dataclass(frozen=True)
class Options:
    """What to try against a finding, on the way to a generation."""

    source: ResolvedRecipe
    target: str
    donors: tuple[Donor, ...]
    words: tuple[str, ...]
    config_dirs: tuple[Path, ...]

    def __call__(self, trial: Trial) -> Iterator[Change]:
        """Changes against the first finding of a trial, each once."""
        seen: set[tuple[tuple[str, ...], str]] = set()
        for change in self._all(trial.findings[0], trial):
            told = {split_override(word)[0].partition(".")[0] for word in change.words}
            swapped = change.dropped.startswith("recipe=")
            if (change.words, change.dropped) in seen or (told & _HELD and not swapped):
                continue
            if change.dropped and not swapped:
                continue
            seen.add((change.words, change.dropped))
            yield change

    def _all(self, item: Finding, trial: Trial) -> Iterator[Change]:
        yield from self._documented(item, trial.tree)
        yield from self._same_dies(item, trial)
        if item.id == "quant.hardware":
            yield from self._weights()
        if item.at == "roles":
            yield from self._without_roles()
        if item.id.startswith("memory."):
            yield from _room(item, trial)
        for change in changes_for(item, trial.tree, self.words):
            yield replace(change, weight=change.weight + _GUESSED)

    def _documented(self, item: Finding, tree: dict[str, Json]) -> Iterator[Change]:
        """What donors say where the finding points, section by section."""
        section = item.at.removeprefix("roles.").partition(".")[0]
        if item.at.startswith("roles.") and section in roles_of(tree):
            section = item.at.split(".")[2]
        named = _SECTIONS_WITH.get(section, (section,))
        for rank, donor in enumerate(self.donors):
            if section in ("checkpoint", "quant"):
                words = tuple(self._weight_words(str(value_at(donor.tree, "checkpoint.variant"))))
            elif section in ("scheduler", "env"):
                words = tuple(_differing(item.at, tree, donor.tree))
            else:
                words = tuple(_section_words(named, tree, donor.tree))
            grows = item.id == "parallel.world_exceeds_nodes" and not is_smaller(donor.tree, tree)
            # How many dies a deployment needs depends on the weights.
            alike = donor.roles == roles_of(tree) and self._format(donor.tree) == self._format(tree)
            if words and not (section in ("parallel", "nodes") and (grows or not alike)):
                weight = _DOCUMENTED + rank / 10 + _taken_away(words, tree)
                yield Change(words, weight=weight)

    def _format(self, tree: dict[str, Json]) -> str | None:
        facts = self.source.model.checkpoints.get(str(value_at(tree, "checkpoint.variant")))
        return facts.format if facts is not None else None

    def _same_dies(self, item: Finding, trial: Trial) -> Iterator[Change]:
        """Sizes that occupy as many dies as before."""
        if item.id == "parallel.world_exceeds_nodes":
            words = tuple(self._machines(item, trial.tree))
            yield Change(words, weight=_SAME_DIES)
            yield from self._inside_nodes(item, trial.tree, words)
        if item.id in ("transpose.idle_nodes", "transpose.idle_dies"):
            yield Change(tuple(item.fix.split()), weight=_SAME_DIES)

    def _machines(self, item: Finding, tree: dict[str, Json]) -> Iterator[str]:
        """As many machines as the dies of each role fill, where it has fewer."""
        per_node = self.source.registry.hardware[self.target].dies_per_node
        meant = item.at.split(".")[1] if item.at.startswith("roles.") else ""
        for role in sorted(roles_of(tree)):
            path = "nodes" if role == "serve" else f"roles.{role}.nodes"
            needed, stated = -(-world_size(tree, role) // per_node), value_at(tree, path)
            if meant in ("", role) and needed > (stated if isinstance(stated, int) else 1):
                yield f"{path}={needed}"

    def _inside_nodes(
        self, item: Finding, tree: dict[str, Json], nodes: tuple[str, ...]
    ) -> Iterator[Change]:
        """Replicas of groups that stay inside a machine, instead of groups across machines."""
        per_node = self.source.registry.hardware[self.target].dies_per_node
        place = item.at.rpartition(".")[0]
        tp, dp = value_at(tree, item.at), value_at(tree, f"{place}.dp")
        dp = dp if isinstance(dp, int) else value_at(tree, "parallel.dp")
        if isinstance(tp, int) and isinstance(dp, int) and tp > per_node and not tp % per_node:
            inside = (f"{item.at}={per_node}", f"{place}.dp={dp * tp // per_node}")
            yield Change((*nodes, *inside), weight=_SAME_DIES - 0.1)

    def _weights(self) -> Iterator[Change]:
        """Published weights that the generation reads, those of the nearest format first."""
        formats, old = self.source.registry.quantization, self.source.quantization
        able = [
            (
                abs(formats[facts.format].weight_bits - old.weight_bits),
                abs(formats[facts.format].activation_bits - old.activation_bits),
                variant,
            )
            for variant, facts in self.source.model.checkpoints.items()
            if self.target in formats[facts.format].hardware
        ]
        for rank, (_, _, variant) in enumerate(sorted(able)):
            words = tuple(self._weight_words(variant))
            yield Change(words, weight=_OTHER_WEIGHTS + rank / 10)

    def _weight_words(self, variant: str) -> Iterator[str]:
        format_ = self.source.model.checkpoints[variant].format
        if variant != self.source.recipe.checkpoint.variant:
            yield f"checkpoint.variant={variant}"
        if format_ != self.source.checkpoint.format:
            yield f"quant={'none' if format_ == 'bf16' else format_}"

    def _without_roles(self) -> Iterator[Change]:
        """The model's recipes of one role stand in for roles that cannot be apart."""
        typed = next(word for word in self.words if word.startswith("recipe="))
        recipe = self.source.recipe
        others = [*self.donors, *find_donors(self.source, recipe.hardware, self.config_dirs)]
        single = [donor for donor in others if donor.roles == frozenset({"serve"})]
        for rank, donor in enumerate(single[:3]):
            word = f"recipe={donor.name}"
            yield Change((word,), dropped=typed, weight=_OTHER_DEPLOYMENT + rank)


def _section_words(
    sections: Sequence[str], tree: dict[str, Json], donor: dict[str, Json]
) -> Iterator[str]:
    """Overrides that give sections the donor's values, those of its roles too."""
    for section in sections:
        yield from _differing(section, tree, donor)
    roles = donor.get("roles")
    for role in roles if isinstance(roles, dict) and roles_of(tree) == roles_of(donor) else ():
        for section in sections:
            yield from _differing(f"roles.{role}.{section}", tree, donor)


def _differing(path: str, tree: dict[str, Json], donor: dict[str, Json]) -> Iterator[str]:
    theirs, ours = value_at(donor, path), value_at(tree, path)
    if isinstance(theirs, dict):
        for key in theirs:
            yield from _differing(f"{path}.{key}", tree, donor)
    elif theirs is not None and theirs != ours:
        yield f"{path}={spelled(theirs)}"


def _room(item: Finding, trial: Trial) -> Iterator[Change]:
    """More dies, machines or memory, and shorter requests: by the rule and the memory planner."""
    told = [words for words in (item.fix.split(),) if words and all("=" in word for word in words)]
    if trial.planned is not None:
        for role in plan_memory(trial.planned.resolved).roles:
            told += [
                remedy.override.split()
                for remedy in role.remedies
                if remedy.verdict != "does not fit"
            ]
            told += _enough_nodes(role, trial.planned.resolved)
    for words in told:
        yield Change(tuple(words), weight=_SAME_DIES + _taken_away(words, trial.tree))


def _enough_nodes(role: RolePlan, resolved: ResolvedRecipe) -> list[list[str]]:
    """The fewest machines on which the planner finds room, with a replica more for each group."""
    view = next(view for view in role_views(resolved) if view.role == role.memory.role)
    parallel, at = view.recipe.parallel, _place(view)
    stage, found = parallel.tp * parallel.pp, []
    for nodes in {role.smallest.at_best, role.smallest.for_sure} - {None, view.recipe.nodes}:
        assert nodes is not None
        dp = nodes * view.hardware.dies_per_node // stage
        found.append([f"{at}nodes={nodes}", f"{at}parallel.dp={dp}"])
    return found


def _place(view: RoleView) -> str:
    """Path in front of what a role changes."""
    return "" if view.role == "serve" else f"roles.{view.role}."


def _taken_away(words: Iterable[str], tree: dict[str, Json]) -> float:
    """Doublings of machines and halvings of what requests may be: what sizes cost."""
    cost = 0.0
    for word in words:
        path, value = split_override(word)
        around, _, name = path.rpartition(".")
        after = int(value) if value is not None and value.isdigit() else 0
        before = value_at(tree, path) or value_at(tree, path.split(".", 2)[-1]) or 1
        if after and isinstance(before, int) and not isinstance(before, bool):
            doublings = math.log2(after / before)
            if name == "nodes":
                cost += _ROOM * max(0.0, doublings)
            elif around.endswith("scheduler"):
                cost += _SHORTER * max(0.0, -doublings)
    return cost
