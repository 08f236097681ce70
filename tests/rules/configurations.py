"""Configurations that tests judge: words, a recipe or model of somebody's, a command, versions."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.errors import Finding, RecipeError, Severity
from ascend_recipes.registry.foreign import foreign_model
from ascend_recipes.registry.load import load_registry
from ascend_recipes.rules import check_installed
from ascend_recipes.trial import override_words

BASE = "recipe=qwen3_5_27b_a2"
SEVERITIES = [Severity.INFO, Severity.WARNING, Severity.ERROR]

_FOREIGN = """\
# @package _global_
defaults:
  - override /attention: {attention}
  - override /cache: {cache}
about: a foreign model
source: [a case]
model: foreign
hardware: a2
runtime: {{kind: vllm_ascend}}
scheduler: {{max_model_len: 4096, max_num_seqs: 16, max_num_batched_tokens: 8192}}
"""
_CACHE_OF = {"hybrid": "hybrid", "dsa": "heterogeneous"}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is judged, by what it is."""

    words: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    """Content of the `config.json` of a model without a row of ours."""
    command: str = ""
    """A `vllm serve` command line."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of the command line."""
    installed: Mapping[str, str] | None = None
    """What the machine has."""
    recipe: str = ""
    """What a recipe file says that builds on `BASE`; unlike words, it is the author's own."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Rows of another package: path below its folder -> text."""
    weights: Mapping[str, Any] | None = None
    """Quantization description beside weights that are present; empty: present without one."""

    @classmethod
    def of(cls, given: Mapping[str, Any] | Sequence[str]) -> "Configuration":
        """From a mapping of a YAML file, or from words alone."""
        if not isinstance(given, Mapping):
            return cls(words=tuple(given))
        return cls(**{**given, "words": tuple(given.get("words", ()))})


def judge(given: Configuration, *, fix: str = "") -> tuple[Finding, ...]:
    """Errors if the configuration is refused, else warnings, remarks and what stops a launch."""
    words = list(given.words)
    dirs = (_foreign_folder(json.dumps(given.config)),) if given.config else ()
    if given.files:
        dirs = (*dirs, _folder_of(json.dumps(given.files)))
    if given.recipe:
        text = f"# @package _global_\ndefaults: [{BASE.partition('=')[2]}]\nsource: [a case]\n"
        dirs = (*dirs, _folder_of(json.dumps({"recipe/mine.yaml": text + given.recipe})))
        words.insert(0, "recipe=mine")
    found: tuple[Finding, ...] = ()
    if given.command:
        imported = _import(given.command, given.env, dirs)
        words = [*imported[0], *words]
        found = imported[1]
    if given.weights is not None:
        words.append(f"checkpoint.path={_weights_folder(json.dumps(given.weights))}")
    named = any(word.startswith("recipe=") for word in words)
    base = () if named else ("recipe=foreign",) if given.config else (BASE,)
    return found + _resolve((*base, *words, *override_words(fix)), dirs, given.installed)


def errors_of(findings: Sequence[Finding]) -> set[str]:
    """Ids of the errors of a plan; what only stops its launch here is not among them."""
    errors = {item.id for item in findings if item.severity is Severity.ERROR}
    return {id for id in errors if not id.startswith(("runtime.", "site."))}


def _resolve(
    words: tuple[str, ...], dirs: tuple[Path, ...], installed: Mapping[str, str] | None
) -> tuple[Finding, ...]:
    try:
        planned = planned_launch(words, dirs)
    except RecipeError as error:
        return error.findings
    found = (*planned.findings, *planned.blockers)
    if installed is None:
        return found
    from ascend_recipes.machine import InstalledVersions

    return (*found, *check_installed(planned.resolved, InstalledVersions(**installed)))


def _import(
    command: str, env: Mapping[str, str], dirs: tuple[Path, ...]
) -> tuple[list[str], tuple[Finding, ...]]:
    from ascend_recipes.rendering.importing import import_command

    imported = import_command(shlex.split(command), env)
    known = dict(imported.overrides)
    if dirs:
        known.pop("model", None)
    words = [f"{path}={json.dumps(value)}" for path, value in known.items()]
    return words, tuple(imported.findings)


@cache
def _weights_folder(description: str) -> Path:
    """A checkpoint folder without tensors."""
    folder = Path(mkdtemp(prefix="weights-"))
    (folder / "config.json").write_text("{}", encoding="utf-8")
    if json.loads(description):
        (folder / "quant_model_description.json").write_text(description, encoding="utf-8")
    return folder


@cache
def _folder_of(files: str) -> Path:
    """A folder for `--config-dir` with these files."""
    folder = Path(mkdtemp(prefix="files-"))
    for name, text in json.loads(files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@cache
def _foreign_folder(config: str) -> Path:
    """A folder for `--config-dir` with the model and a plain recipe for it."""
    folder = Path(mkdtemp(prefix="foreign-"))
    configs = folder / "registry" / "configs"
    configs.mkdir(parents=True)
    (configs / "foreign.json").write_text(config, encoding="utf-8")
    kinds = [k for row in load_registry().backends.values() for k in row.layer_kinds]
    kind = foreign_model(json.loads(config), kinds, where="a case").attention_kinds[0]
    recipes = folder / "recipe"
    recipes.mkdir()
    text = _FOREIGN.format(attention=kind, cache=_CACHE_OF.get(kind, "paged"))
    (recipes / "foreign.yaml").write_text(text, encoding="utf-8")
    return folder
