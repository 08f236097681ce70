"""Fixes that hold: what a rule proposes is tried before anybody is told to type it.

A rule looks at one thing, so what it proposes may break another. Its words are offered as they
are where their finding goes and no error comes; with the words against the new errors appended,
where that helps; and otherwise not at all.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.rules import check_installed
from ascend_recipes.trial import Bench, Trial, override_words
from ascend_recipes.words import split_override

if TYPE_CHECKING:
    from ascend_recipes.machine import InstalledVersions

_ROUNDS = 4
"""How often the words against errors that a fix brings are appended to it."""
_NOT_OURS = frozenset({"recipe", "model", "hardware", "nodes", "because", "allow_reference"})
"""What a repair never appends by itself: another deployment, or a finding that is only hidden."""

_Key = tuple[str, str]
"""Id and field of a finding, whichever role has it."""


class Judge(Protocol):
    """Says what is wrong with a configuration: the stages do, or somebody who knows more."""

    def __call__(self, words: Sequence[str], added: Sequence[str] = ()) -> Trial:
        """Judge the words with others appended."""


@dataclass(frozen=True)
class Offer:
    """Judges the fixes of one configuration."""

    bench: Judge
    words: tuple[str, ...]
    found: tuple[Finding, ...]
    """Everything that is said of the configuration, hidden errors too."""

    def hold(self, item: Finding) -> Finding:
        """One of the findings, with a fix that removes it and adds no error."""
        plain = override_words(item.fix)
        added = plain
        for _ in range(_ROUNDS if plain else 0):
            new = self._brought(item, added)
            if new == ():
                return (
                    item if added == plain else replace(item, fix=_typed(self._fewest(item, added)))
                )
            grown = _last_of_each((*added, *_repairs(new or ())))
            if grown == added:
                break
            added = grown
        return replace(item, fix="") if plain else item

    def _brought(self, item: Finding, added: Sequence[str]) -> tuple[Finding, ...] | None:
        """Errors that come with the words; none at all where the finding stays."""
        after = _with_hidden(self.bench, self.words, added)
        here = Counter(map(_key, self.found))[_key(item)]
        stays = (item.id, item.at) in {(found.id, found.at) for found in after}
        if stays or Counter(map(_key, after))[_key(item)] >= here:
            return None
        known = {_key(found) for found in _only_errors(self.found)}
        return tuple(found for found in _only_errors(after) if _key(found) not in known)

    def _fewest(self, item: Finding, added: tuple[str, ...]) -> tuple[str, ...]:
        """Without words that later ones made needless."""
        for word in added:
            fewer = tuple(other for other in added if other != word)
            if fewer and self._brought(item, fewer) == ():
                return self._fewest(item, fewer)
        return added


def hold_fixes(bench: Judge, words: Sequence[str], found: Trial) -> tuple[Finding, ...]:
    """The findings of a configuration, hidden errors too, with fixes that hold.

    Args:
        bench: tries configurations.
        words: the configuration as typed.
        found: what the stages say about it.
    """
    findings = (*found.findings, *_hidden(bench, words, (), found))
    offer = Offer(bench, tuple(words), findings)
    return tuple(offer.hold(item) for item in findings)


def hold_misfits(
    planned: PlannedLaunch,
    installed: InstalledVersions,
    words: Sequence[str],
    config_dirs: Iterable[Path],
) -> tuple[Finding, ...]:
    """What of a machine does not fit, with fixes that hold there and add no error anywhere.

    Args:
        planned: the recipe.
        installed: what the machine has.
        words: the recipe as typed.
        config_dirs: further folders with recipes and presets.
    """
    bench = Bench(tuple(config_dirs))

    def judge(words: Sequence[str], added: Sequence[str] = ()) -> Trial:
        trial = bench(words, added)
        if trial.planned is None:
            return trial
        misfits = check_installed(trial.planned.resolved, installed)
        return replace(trial, findings=(*trial.findings, *misfits))

    misfits = tuple(check_installed(planned.resolved, installed))
    offer = Offer(judge, tuple(words), (*planned.findings, *misfits))
    return tuple(offer.hold(item) for item in misfits)


def _with_hidden(bench: Judge, words: Sequence[str], added: Sequence[str]) -> tuple[Finding, ...]:
    trial = bench(words, added)
    return (*trial.findings, *_hidden(bench, words, added, trial))


def _hidden(
    bench: Judge, words: Sequence[str], added: Sequence[str], trial: Trial
) -> tuple[Finding, ...]:
    """Errors that show once those of an earlier stage are fixed, so that all are said at once."""
    hidden: tuple[Finding, ...] = ()
    for _ in range(_ROUNDS):
        fixes = [override_words(item.fix) for item in _only_errors(trial.findings)]
        if trial.complete or not all(fixes):
            break
        added = _last_of_each((*added, *(word for fix in fixes for word in fix)))
        trial = bench(words, added)
        hidden += tuple(_only_errors(trial.findings))
    return hidden


def _repairs(errors: Iterable[Finding]) -> tuple[str, ...]:
    words = (word for item in errors for word in override_words(item.fix))
    return tuple(word for word in words if _section(word) not in _NOT_OURS)


def _section(word: str) -> str:
    return split_override(word)[0].partition(".")[0]


def _last_of_each(words: Sequence[str]) -> tuple[str, ...]:
    """The last word for each key: it wins anyway."""
    last = {split_override(word)[0]: word for word in words}
    return tuple(last.values())


def _only_errors(findings: Iterable[Finding]) -> list[Finding]:
    return [item for item in findings if item.severity is Severity.ERROR]


def _key(item: Finding) -> _Key:
    section, _, rest = item.at.partition(".")
    return item.id, rest.partition(".")[2] if section == "roles" and "." in rest else item.at


def _typed(words: Sequence[str]) -> str:
    """Words as a shell takes them; brackets of lists stay readable."""
    return " ".join(
        word if not set(word) & set(" \"'{}()*;&|<>$`\\") else shlex.quote(word) for word in words
    )
