"""Findings by their id: the texts, in two languages, stand in `registry/findings/`.

Code says what happened: `finding("graph.off_stride", at=…, fix=…, batch=12, sizes=[1, 2, 4])`. What
people read comes from the table. A family's file is read when its first finding is made, so that
a configuration without findings pays nothing. Where the table itself cannot be read, a finding
still says its id and values.
"""

import os
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ascend_recipes.errors import ExitCode, Finding, RecipeError, Severity, Source

Language = Literal["en", "zh"]

LANGUAGES: tuple[Language, ...] = ("en", "zh")
LANGUAGE_VARIABLE = "ASCEND_RECIPES_LANG"
"""Environment variable that chooses the language of what people read."""

Text = Mapping[str, str]
"""Language -> template."""


@dataclass(frozen=True, order=True)
class Phrase:
    """A part of a sentence, in both languages; a value of a finding's texts."""

    en: str
    zh: str

    def __str__(self) -> str:
        return self.en


def finding(
    id: str,
    *,
    at: str = "",
    fix: str | None = None,
    severity: Severity | None = None,
    evidence: str = "",
    source: Source | None = None,
    **values: object,
) -> Finding:
    """Make a finding with the texts of the table.

    Args:
        id: `family.name`; the family is the file, the name the entry.
        at: dotted recipe path.
        fix: overrides that remove the finding when they are appended to the command, or another
            text that needs no translation; the entry's own text unless given.
        severity: another severity than the entry's.
        evidence: another source than the entry's.
        source: file and line that set the value, where the caller knows it.
        values: what the templates name in braces.
    """
    entry = _entry(id, values)
    message, why = _told(entry["message"], values), _told(entry.get("why", {}), values)
    remedy = _told(entry.get("fix", {}), values) if fix is None else Phrase(fix, "")
    return Finding(
        id=id,
        severity=severity or Severity(entry["severity"]),
        message=message.en,
        message_zh=message.zh,
        why=why.en,
        why_zh=why.zh,
        at=at,
        fix=remedy.en,
        fix_zh=remedy.zh,
        evidence=evidence or entry.get("evidence", ""),
        source=source,
    )


def recipe_error(id: str, *, exit_code: ExitCode = ExitCode.FINDINGS, **told: Any) -> RecipeError:
    """An error of a single finding.

    Args:
        id: `family.name`.
        exit_code: with which the command line ends.
        told: what `finding` takes.
    """
    return RecipeError((finding(id, **told),), exit_code)


def phrase(id: str, **values: object) -> Phrase:
    """A part of a sentence by its id, `family.name` of the table's phrases."""
    family, _, name = id.partition(".")
    text = _family(family).get("phrases", {}).get(name)
    return _told(text, values) if text else Phrase(bare := _bare(id, values), bare)


def message_of(item: Finding) -> Phrase:
    """What a finding says, as a part of another text."""
    return Phrase(item.message, item.message_zh or item.message)


def read_back(id: str, message: str) -> Finding:
    """A finding of another process, from its id and English message in a log.

    The values are read off the message, so that it can be told in Chinese too. A message that is
    not the table's is kept as it is.
    """
    family, _, name = id.partition(".")
    entry = _family(family).get("findings", {}).get(name)
    matched = re.fullmatch(_pattern(entry["message"]["en"]), message, re.DOTALL) if entry else None
    if entry is None or matched is None:
        return Finding(id=id, message=message)
    chinese = _plain(entry["message"]["zh"]).format_map(matched.groupdict())
    return Finding(id=id, severity=Severity(entry["severity"]), message=message, message_zh=chinese)


def chosen_language(environment: Mapping[str, str] = os.environ) -> Language:
    """The language that the environment asks for; English unless told otherwise."""
    return "zh" if environment.get(LANGUAGE_VARIABLE, "").lower().startswith("zh") else "en"


def _entry(id: str, values: Mapping[str, object]) -> dict[str, Any]:
    family, _, name = id.partition(".")
    entries: dict[str, dict[str, Any]] = _family(family).get("findings", {})
    if name in entries:
        return entries[name]
    bare = _bare(id, values).replace("{", "{{").replace("}", "}}")
    return {"severity": "error", "message": {"en": bare, "zh": bare}}


def _bare(id: str, values: Mapping[str, object]) -> str:
    """What can be said without the table."""
    told = "; ".join(f"{key}={_shown(value, 'en')}" for key, value in values.items())
    return f"{id} ({told}); registry/findings/{id.partition('.')[0]}.yaml has no text for it"


@cache
def _family(family: str) -> dict[str, dict[str, Any]]:
    """The texts of a family; nothing where its file is missing or damaged."""
    # Deferred: most commands make no finding, and read no YAML for texts.
    import yaml

    from ascend_recipes.paths import data_root
    from ascend_recipes.yaml_files import parse_yaml

    try:
        tree: Any = parse_yaml(data_root() / "registry" / "findings" / f"{family}.yaml")
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _told(text: Text, values: Mapping[str, object]) -> Phrase:
    return Phrase(_fill(text, "en", values), _fill(text, "zh", values))


def _fill(text: Text, language: Language, values: Mapping[str, object]) -> str:
    shown = {key: _shown(value, language) for key, value in values.items()}
    return text.get(language, "").format_map(shown)


def _shown(value: object, language: Language) -> str:
    if isinstance(value, Phrase):
        return value.zh if language == "zh" else value.en
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Iterable) and not isinstance(value, str):
        comma = "、" if language == "zh" else ", "
        return comma.join(_shown(item, language) for item in value)
    return str(value)


def _pattern(template: str) -> str:
    """Regular expression of the messages that a template makes."""
    parts, seen = [], set[str]()
    for text, name, _, _ in string.Formatter().parse(template):
        parts.append(re.escape(text))
        if name is not None:
            parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>.*)")
            seen.add(name)
    return "".join(parts)


def _plain(template: str) -> str:
    """The template without conversions: the values of a message are converted already."""
    return template.replace("!r}", "}")
