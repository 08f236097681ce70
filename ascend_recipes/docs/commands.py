"""The tables of documented commands: what of them we render, and why the rest differs."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ascend_recipes.documented.compare import Comparison
from ascend_recipes.documented.facts import documented_notes

_HEAD = """\

## Commands, argument by argument

Where a document has a whole command, its values are recorded in `registry/documented/` (by
`scripts/record_documented.py`, from the commit that each row names), the recipe is rendered for
the document's version of vllm-ascend, and every flag, key and variable is compared:
{equal} of {all} are equal, {different} differ for one of the reasons below, and a test fails on a
difference without a reason as on a reason without a difference. Addresses, interfaces, ports,
folders and the scripts' own variables (`site` in `registry/documented/notes.yaml`) are not
compared, and an argument that has moved is the same argument in its new place.
"""

_TABLES: dict[str, tuple[str, str]] = {
    "default": (
        "one side says what the runtime does by itself, the other nothing",
        "registry/surface/config_keys.json, or `defaults` in registry/documented/notes.yaml",
    ),
    "unread": ("the version does not read it", "registry/surface"),
    "open": ("the document leaves the value to its reader or to a script's caller", "the document"),
    "differs": ("given in the tables above", "registry/deployments"),
}
"""Reasons that follow from tables: sentence and source."""


def commands_section(compared: Sequence[Comparison]) -> str:
    """Text of the section."""
    counts = Counter(why.id for item in compared for _, why in item.differences if why)
    equal, different = sum(len(item.equal) for item in compared), sum(counts.values())
    parts = [_HEAD.format(equal=equal, all=equal + different, different=different)]
    parts += ["| reason | differences | why | source |", "|---|---|---|---|"]
    parts.extend(_reason_lines(counts))
    parts += [
        _unread(compared),
        "| command | role | version | equal | differences |",
        "|---|---|---|---|---|",
    ]
    parts.extend(map(_command_line, compared))
    parts.append("\nWithout a command of their own:\n")
    missing = documented_notes().without_command
    parts.extend(f"- `{name}`: {why}" for name, why in missing.items())
    return "\n".join(parts) + "\n"


def _reason_lines(counts: Counter[str]) -> Iterator[str]:
    texts = _TABLES | {item.id: (item.because, item.source) for item in documented_notes().reasons}
    for name, number in counts.most_common():
        because, source = texts[name]
        yield f"| `{name}` | {number} | {because} | {source} |"


def _unread(compared: Sequence[Comparison]) -> str:
    """Which arguments no version of the documents reads."""
    differences = [pair for item in compared for pair in item.differences]
    counts = Counter(item.name for item, why in differences if why and why.id == "unread")
    named = ", ".join(f"`{name}` {number}" for name, number in sorted(counts.items()))
    return f"\nNot read by the version: {named}.\n"


def _command_line(item: Comparison) -> str:
    command = item.command
    counts = Counter(why.id for _, why in item.differences if why)
    reasons = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
    where = f"`{command.deployment}` ({command.file.rpartition('/')[2]}:{command.line})"
    return f"| {where} | {command.role} | {command.version} | {len(item.equal)} | {reasons} |"
