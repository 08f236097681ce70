"""Search for the nearest configuration that the rules accept: what `fix` and `transpose` stand on.

Changes are words as a user types them. Only the first finding of a configuration is branched on:
every acceptable set holds a change against it, so nothing is lost.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from ascend_recipes.commands.changes import Change
from ascend_recipes.errors import Finding, RecipeError, Severity
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.schema.base import Json
from ascend_recipes.trial import Bench
from ascend_recipes.words import split_override

_PLAIN_FIELDS = frozenset({"hardware", "model", "nodes"})
"""Fields of the recipe itself: no folder of presets has their name."""


@dataclass(frozen=True)
class Trial:
    """A configuration and what the stages say about it."""

    findings: tuple[Finding, ...]
    """What must go."""
    tree: dict[str, Json]
    """The merged configuration; empty if it does not compose."""
    planned: PlannedLaunch | None
    refusal: RecipeError | None = None
    """Why it does not plan."""

    @property
    def accepted(self) -> bool:
        """Whether it plans, and nothing is left that must go."""
        return self.planned is not None and not self.findings


def is_error(item: Finding) -> bool:
    """What stops a plan."""
    return item.severity is Severity.ERROR


def _nothing_more(_: PlannedLaunch) -> Iterable[Finding]:
    return ()


@dataclass
class Judge:
    """Tries words on a bench, and counts only the findings that must go."""

    config_dirs: tuple[Path, ...]
    counts: Callable[[Finding], bool] = is_error
    """Whether a finding must go."""
    demands: Callable[[PlannedLaunch], Iterable[Finding]] = _nothing_more
    """What else a plan must satisfy."""
    trials: int = 0
    _bench: Bench = field(init=False)

    def __post_init__(self) -> None:
        self._bench = Bench(self.config_dirs)

    def __call__(self, words: Sequence[str], added: Sequence[str]) -> Trial:
        """Judge the words of a command line with others appended."""
        self.trials += 1
        tried = self._bench(words, added)
        wrong = tuple(filter(self.counts, tried.findings))
        if tried.planned is not None:
            wrong = (*wrong, *self.demands(tried.planned))
        return Trial(wrong, tried.tree, tried.planned, tried.error)


Rank = Callable[[Sequence[Change]], tuple[float, ...]]


def fewest_first(changes: Sequence[Change]) -> tuple[float, ...]:
    """By the number of changes, then by what they take away."""
    return len(changes), sum(change.weight for change in changes)


def cheapest_first(changes: Sequence[Change]) -> tuple[float, ...]:
    """By what changes take away, however many they are."""
    return sum(change.weight for change in changes), len(changes)


@dataclass
class Search:
    """A best-first search over sets of changes."""

    judge: Judge
    words: Sequence[str]
    options: Callable[[Trial], Iterable[Change]]
    """What to try against the first finding of a trial."""
    rank: Rank = fewest_first
    most_trials: int = 400
    closest: Trial | None = None
    """The trial with the fewest findings so far."""

    def run(self, start: Trial) -> tuple[Change, ...] | None:
        """Changes without which a finding comes back; none where nothing tried is acceptable."""
        order = count()
        queue: list[tuple[tuple[float, ...], int, tuple[Change, ...]]] = [((), next(order), ())]
        seen: set[frozenset[Change]] = {frozenset()}
        while queue and self.judge.trials < self.most_trials:
            _, _, changes = heapq.heappop(queue)
            trial = self.judge(*applied(self.words, changes)) if changes else start
            if trial.accepted:
                return minimal(self.judge, self.words, changes)
            self._remember(trial)
            if not trial.findings:
                continue
            for change in self.options(trial):
                grown = (*changes, change)
                if frozenset(grown) not in seen:
                    seen.add(frozenset(grown))
                    heapq.heappush(queue, (self.rank(grown), next(order), grown))
        return None

    def _remember(self, trial: Trial) -> None:
        if self.closest is None or 0 < len(trial.findings) < len(self.closest.findings):
            self.closest = trial


def applied(
    words: Sequence[str], changes: Sequence[Change]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What stays of the words, and what is appended."""
    dropped = {change.dropped for change in changes}
    kept = tuple(word for word in words if word not in dropped)
    return kept, tuple(word for change in changes for word in change.words)


def minimal(judge: Judge, words: Sequence[str], changes: Sequence[Change]) -> tuple[Change, ...]:
    """Leave out every change that is not needed after all."""
    for change in changes:
        fewer = tuple(item for item in changes if item is not change)
        if judge(*applied(words, fewer)).accepted:
            return minimal(judge, words, fewer)
    return tuple(changes)


def without_repeats(words: Sequence[str]) -> tuple[str, ...]:
    """Keep the last word for a key: it wins anyway."""
    last = {split_override(word)[0]: word for word in words}
    return tuple(word for word in dict.fromkeys(words) if last[split_override(word)[0]] == word)


def is_choice(word: str) -> bool:
    """Whether a word chooses a preset of a section."""
    key, value = split_override(word)
    plain = "." in key or key in _PLAIN_FIELDS
    return not plain and value is not None and not value.startswith(("[", "{"))
