"""From readings to findings: names, values, repetitions, and the rules of recipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ascend_recipes.errors import Finding, Severity, Source
from ascend_recipes.lint.arguments import Arguments, split_arguments
from ascend_recipes.lint.command import Reading, ServeCommand
from ascend_recipes.lint.files import collect_files, read_files
from ascend_recipes.lint.names import judge_arguments, judge_variables
from ascend_recipes.lint.pairs import judge_folders, judge_pairs
from ascend_recipes.lint.places import place_of, typed_fix
from ascend_recipes.lint.recipe_rules import judge_rules
from ascend_recipes.surface.load import Surface, load_surface

_WEIGHT = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True)
class JudgedCommand:
    """A command and what became of it."""

    command: ServeCommand
    arguments: Arguments
    unjudged: str = ""
    """Why the rules were not asked; empty where they were."""


@dataclass
class Report:
    """What lint found."""

    version: str
    files: int = 0
    commands: list[JudgedCommand] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """By file and line, each once."""

    @property
    def worst(self) -> Severity | None:
        """The heaviest severity of all findings."""
        return min((item.severity for item in self.findings), key=_WEIGHT.__getitem__, default=None)


def lint_paths(paths: Sequence[Path], version: str) -> Report:
    """Read and judge files, and the scripts, pages and manifests below folders.

    Args:
        paths: files and folders.
        version: a version of `registry/runtimes/vllm_ascend.yaml`, or a release of vLLM.

    Raises:
        RecipeError: a path that does not exist, or a version of which nothing is recorded.
    """
    surface = load_surface(version)
    report = Report(version)
    found: dict[str, list[Finding]] = {}
    for path, reading in read_files(collect_files(paths)):
        found[str(path)] = judge_reading(str(path), reading, surface, report.commands)
    if surface.vllm_ascend is not None:
        for item in judge_folders(report.commands, surface.version):
            assert item.source is not None, f"{item.id} stands nowhere"
            found[item.source.origin].append(item)
    report.files = len(found)
    report.findings = [item for items in found.values() for item in _ordered(items)]
    return report


def judge_reading(
    file: str, reading: Reading, surface: Surface, judged: list[JudgedCommand]
) -> list[Finding]:
    """Findings about one file, by line; its commands are appended to `judged`."""
    found, before = list(reading.findings), len(judged)
    variables = [(item.name, item.value) for item in reading.exports]
    for command in reading.commands:
        variables += command.env.items()
        found += _judge_command(command, surface, judged)
    if surface.vllm_ascend is not None:
        found += judge_pairs(judged[before:], surface.version)
    found += judge_variables(variables, surface, file)
    return _ordered(found)


def _judge_command(
    command: ServeCommand, surface: Surface, judged: list[JudgedCommand]
) -> Iterator[Finding]:
    yield from command.findings
    arguments = split_arguments(command)
    yield from judge_arguments(arguments, surface, command.file)
    if surface.vllm_ascend is None:
        judged.append(JudgedCommand(command, arguments, "the rules are those of vllm-ascend"))
        return
    verdict = judge_rules(command, arguments, surface.version)
    judged.append(JudgedCommand(command, arguments, verdict.unjudged))
    for item in verdict.findings:
        place = place_of(item.at, command, arguments, surface.version)
        yield replace(
            item,
            source=Source(origin=command.file, line=place.line),
            fix=typed_fix(item.fix, surface.version),
        )


def _ordered(findings: Iterable[Finding]) -> list[Finding]:
    """By line, each once: an anchor of YAML stands in many commands but in one place."""
    unique = {(item.id, item.at, item.message, str(item.source)): item for item in findings}
    return sorted(unique.values(), key=lambda item: (item.source.line or 0) if item.source else 0)
