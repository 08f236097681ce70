"""Lint a folder of scripts, pages and manifests and print a table: found, read, findings, time.

    python benchmarks/lint_corpus.py --source FOLDER [--runtime-version V]
    python benchmarks/lint_corpus.py --source FOLDER --cold SECONDS

The folder is anybody's checkout, for example of vllm-ascend; nothing of it is kept. With `--cold`
the command itself is started and timed, from a cold start to its exit; more seconds of the clock
than SECONDS are a failure.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from ascend_recipes.lint.files import collect_files, read_files
from ascend_recipes.lint.judge import Report, judge_reading
from ascend_recipes.lint.round_trip import differences
from ascend_recipes.surface.load import load_surface

KINDS = {"Markdown": (".md",), "YAML": (".yaml", ".yml"), "shell": (".sh", ".bash")}
LINE = re.compile(
    r"^\s*(?:[-$>]\s+)?(?:\S+:\s*)?(?:\S+=\S+\s+)*vllm\s+serve\b(?!`)|-m vllm\.entrypoints"
)
"""Lines that begin a command as a person would count them, whether or not lint finds it."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--runtime-version", default="main-2026-08")
    parser.add_argument("--cold", type=float, metavar="SECONDS")
    given = parser.parse_args()
    if given.cold is not None:
        sys.exit(time_cold(given.source, given.runtime_version, given.cold))
    files = collect_files([given.source])
    print("| files | number | commands | without a broken text | rules asked | CPU seconds |")
    print("|---|---|---|---|---|---|")
    reports = []
    for kind, suffixes in KINDS.items():
        chosen = [path for path in files if path.suffix.lower() in suffixes]
        report, seconds = lint(chosen, given.runtime_version)
        reports.append(report)
        print(row(kind, report, seconds))
    print_findings(reports)
    print_missed(files, reports)
    print_round_trip(reports, given.runtime_version)


def time_cold(source: Path, version: str, most: float) -> int:
    """Time the command in a process of its own; the exit status says whether it was fast enough."""
    code = "import sys; from ascend_recipes.cli.main import main; sys.exit(main())"
    words = ["lint", str(source), "--runtime-version", version, "--format", "json"]
    begin, before = time.perf_counter(), os.times()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=False)
    wall, after = time.perf_counter() - begin, os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    document = json.loads(done.stdout)
    print("| files | commands | findings | wall s | CPU s | allowed |\n|---|---|---|---|---|---|")
    counts = (document["files"], len(document["commands"]), len(document["findings"]))
    print("|", " | ".join(map(str, counts)), f"| {wall:.1f} | {cpu:.1f} | {most:g} |")
    return int(wall > most)


def lint(files: list[Path], version: str) -> tuple[Report, float]:
    """Read and judge some files."""
    begin = time.process_time()
    surface, report = load_surface(version), Report(version)
    for path, reading in read_files(files):
        report.files += 1
        report.findings += judge_reading(str(path), reading, surface, report.commands)
    return report, time.process_time() - begin


def row(kind: str, report: Report, seconds: float) -> str:
    """One line of the first table."""
    commands = report.commands
    whole = sum(not item.command.findings for item in commands)
    asked = sum(not item.unjudged for item in commands)
    return f"| {kind} | {report.files} | {len(commands)} | {whole} | {asked} | {seconds:.1f} |"


def print_findings(reports: list[Report]) -> None:
    """Findings by rule."""
    counts = Counter((str(item.severity), item.id) for r in reports for item in r.findings)
    print("\n| finding | severity | number |\n|---|---|---|")
    for (severity, name), number in sorted(counts.items(), key=lambda pair: -pair[1]):
        print(f"| `{name}` | {severity} | {number} |")


def print_missed(files: list[Path], reports: list[Report]) -> None:
    """Lines that look like the beginning of a command and are none of the found ones."""
    found = {
        (word_file, word.line)
        for report in reports
        for item in report.commands
        for word_file in [item.command.file]
        for word in item.command.argv[:3]
    }
    lines = missed = 0
    for path in files:
        for number, line in enumerate(path.read_text("utf-8", "replace").split("\n"), 1):
            if LINE.search(line):
                lines += 1
                if (str(path), number) not in found:
                    missed += 1
                    print(f"not found: {path.name}:{number}: {line.strip()[:80]}")
    print(f"\n{lines} lines begin a command, {missed} of them were not found")


def print_round_trip(reports: list[Report], version: str) -> None:
    """What import and rendering make of every command."""
    counts: Counter[str] = Counter()
    for item in (item for report in reports for item in report.commands):
        found = differences(item.command, item.arguments, version)
        if found is None:
            counts["no complete recipe"] += 1
        elif not found:
            counts["identical"] += 1
        else:
            explained = all(difference.reason for difference in found)
            counts["explained" if explained else "unexplained"] += 1
    print("round trip:", ", ".join(f"{number} {name}" for name, number in counts.most_common()))


if __name__ == "__main__":
    main()
