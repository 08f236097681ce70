"""Findings by their id: the texts, in two languages, stand in `registry/findings/`.

Code says what happened: `finding("graph.off_stride", at=…, fix=…, batch=12, sizes=[1, 2, 4])`. What
people read comes from the table. A family's file is read when its first finding is made, so that
a configuration without findings pays nothing.
"""

import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal

from ascend_recipes.errors import Finding, Severity, Source

Language = Literal["en", "zh"]

LANGUAGES: tuple[Language, ...] = ("en", "zh")
LANGUAGE_VARIABLE = "ASCEND_RECIPES_LANG"
"""Environment variable that chooses the language of what people read."""

Text = Mapping[str, str]
"""Language -> template."""


def finding(
    id: str,
    *,
    at: str = "",
    fix: str = "",
    severity: Severity | None = None,
    evidence: str = "",
    source: Source | None = None,
    **values: object,
) -> Finding:
    """Make a finding with the texts of the table.

    Args:
        id: `family.name`; the family is the file, the name the entry.
        at: dotted recipe path.
        fix: overrides that remove the finding when they are appended to the command.
        severity: another severity than the entry's.
        evidence: another source than the entry's.
        source: file and line that set the value, where the caller knows it.
        values: what the templates name in braces.
    """
    entry = _entries(id.partition(".")[0])[id.partition(".")[2]]
    message, why = entry["message"], entry.get("why", {})
    return Finding(
        id=id,
        severity=severity or Severity(entry["severity"]),
        message=_fill(message, "en", values),
        message_zh=_fill(message, "zh", values),
        why=_fill(why, "en", values),
        why_zh=_fill(why, "zh", values),
        at=at,
        fix=fix,
        evidence=evidence or entry.get("evidence", ""),
        source=source,
    )


def chosen_language(environment: Mapping[str, str] = os.environ) -> Language:
    """The language that the environment asks for; English unless told otherwise."""
    return "zh" if environment.get(LANGUAGE_VARIABLE, "").lower().startswith("zh") else "en"


@cache
def _entries(family: str) -> dict[str, dict[str, Any]]:
    # Deferred: usage errors that never make a finding from the table read no YAML.
    from ascend_recipes.paths import data_root
    from ascend_recipes.yaml_files import load_yaml

    tree: Any = load_yaml(data_root() / "registry" / "findings" / f"{family}.yaml")
    entries: dict[str, dict[str, Any]] = tree["findings"]
    return entries


def _fill(text: Text, language: Language, values: Mapping[str, object]) -> str:
    comma = "、" if language == "zh" else ", "
    shown = {key: _shown(value, comma) for key, value in values.items()}
    return text.get(language, "").format_map(shown)


def _shown(value: object, comma: str) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return comma.join(_shown(item, comma) for item in value)
    return str(value)
