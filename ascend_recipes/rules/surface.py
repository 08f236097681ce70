"""Rules about names: flags, keys and variables that the runtime version reads, models it serves.

The tables are read inside: a recipe without such names needs none of them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.options import KEYS, removed
from ascend_recipes.schema.base import Json
from ascend_recipes.suggest import closest
from ascend_recipes.words import fit_for_hydra

if TYPE_CHECKING:
    from ascend_recipes.machine import InstalledVersions
    from ascend_recipes.surface.load import Surface
    from ascend_recipes.surface.verdict import Verdict

_ARGUMENTS = "extra_args"
_ADDITIONAL = "additional_config"
_FAMILIAR = frozenset(
    {
        *("HCCL_BUFFSIZE", "HCCL_OP_EXPANSION_MODE", "HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"),
        *("OMP_NUM_THREADS", "OMP_PROC_BIND", "TASK_QUEUE_ENABLE", "PYTORCH_NPU_ALLOC_CONF"),
    }
)
"""Variables of other software that nearly every recipe sets."""
_TRUTH = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
_TAG = re.compile(r":v?(\d+\.\d+[\w.]*)")
"""Version in the tag of an image, for example `vllm-ascend:v0.22.1rc1-a3`."""


def known_arguments(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Arguments without a field are flags of the vLLM that runs, with values that it takes."""
    arguments = resolved.recipe.extra_args
    surface = _surface(resolved) if arguments else None
    if surface is not None:
        yield from _judge_arguments(surface, arguments)


@holds("vllm_ascend")
def known_keys(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Keys of `--additional-config` are read by the version that runs."""
    tree = resolved.recipe.runtime.additional_config
    surface = _surface(resolved) if tree else None
    if surface is not None:
        yield from _judge_keys(surface, tree, KEYS)


def known_variables(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Variables are read by somebody."""
    names = list(resolved.recipe.env)
    if resolved.recipe.runtime.kind == "native":
        # The tables take longer to read than everything else that a native plan needs.
        names = [name for name in names if name not in _FAMILIAR]
    surface = _surface(resolved) if names else None
    if surface is None:
        return
    from ascend_recipes.surface.variables import variable_verdict

    for name in names:
        verdict = variable_verdict(surface, name)
        if verdict is not None:
            at = f"env.{name}"
            fix = _variable_fix(surface, resolved, name, verdict)
            yield verdict.finding(at=at, fix=fix)


def known_parsers(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Parsers that somebody names are vLLM's, unless a plugin brings more."""
    serving, arguments = resolved.recipe.serving, resolved.recipe.extra_args
    named = {"tool": "tool_call_parser", "reasoning": "reasoning_parser"}
    stated = {kind: name for kind, field in named.items() if (name := getattr(serving, field))}
    if not stated or resolved.runtime_version not in resolved.runtime.versions:
        return
    from ascend_recipes.surface.tables import parser_names

    vllm = resolved.runtime.vllm[resolved.runtime_version]
    for kind, name in stated.items():
        known, at = parser_names(kind, vllm), f"serving.{named[kind]}"
        if not known or name in known or arguments.get(f"{kind}_parser_plugin"):
            continue
        near = closest(name, known)
        fix = f"{at}={near}" if near else removed(at)
        yield finding("serving.unknown_parser", at=at, fix=fix, vllm=vllm, name=name)


@holds("vllm_ascend")
def version_serves_model(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The runtime version knows the architecture, and is not older than the model."""
    surface = _surface(resolved)
    if surface is None:
        return
    yield from _too_old(resolved, surface.version)
    architecture = resolved.model.architecture
    if architecture in surface.models or architecture in surface.own_models:
        return
    rows = [("vLLM", row) for row in surface.models.of(architecture)]
    rows += [("vllm-ascend", row) for row in surface.own_models.of(architecture)]
    others = [f"{product} {row.since}–{row.until or ''}".rstrip("–") for product, row in rows]
    yield finding(
        "version.architecture",
        at="runtime.version",
        version=surface.version,
        vllm=surface.vllm,
        architecture=architecture,
        releases=others or ["-"],
        evidence="vllm/model_executor/models/registry.py, vllm_ascend/models/__init__.py",
    )


def installed_serves_model(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """The vllm-ascend of the machine, or of its image, is not older than the model."""
    if resolved.recipe.runtime.kind != "vllm_ascend":
        return
    tag = _TAG.search(installed.image or "")
    version = installed.vllm_ascend or (tag[1] if tag else None)
    if version is not None:
        yield from _too_old(resolved, version)


def _too_old(resolved: ResolvedRecipe, version: str) -> Iterator[Finding]:
    from ascend_recipes.surface import tables

    note = tables.notes().models.get(resolved.recipe.model)
    if note is None or note.since is None:
        return
    try:
        if Version(version) >= Version(note.since):
            return
    except InvalidVersion:
        # A state of the main branch: newer than every release that a note names.
        return
    yield finding(
        "version.model",
        at="model",
        model=resolved.recipe.model,
        since=note.since,
        version=version,
        evidence=note.source,
    )


def _surface(resolved: ResolvedRecipe) -> Surface | None:
    """Tables of the version that runs; none where the version itself is refused."""
    if resolved.runtime_version not in resolved.runtime.versions:
        return None
    from ascend_recipes.surface.load import load_surface

    if resolved.recipe.runtime.kind == "native":
        return load_surface(resolved.runtime.vllm[resolved.runtime_version])
    return load_surface(resolved.runtime_version)


def _judge_arguments(
    surface: Surface, tree: Mapping[str, Json], above: str = ""
) -> Iterator[Finding]:
    from ascend_recipes.surface.flags import flag_verdict

    for name, value in tree.items():
        path = f"{above}.{name}" if above else name
        if path == _ADDITIONAL and isinstance(value, dict):
            yield from _judge_keys(surface, value, f"{_ARGUMENTS}.{path}")
            continue
        verdict = flag_verdict(surface, _flag(path), value)
        if verdict is not None:
            at = f"{_ARGUMENTS}.{path}"
            targets = [f"{_ARGUMENTS}.{_argument(item)}" for item in verdict.names]
            inverted = bool(verdict.names) and verdict.names[0].startswith("--no-")
            moved = not value if inverted and isinstance(value, bool) else value
            yield verdict.finding(at=at, fix=_moved(at, targets, moved))
        elif isinstance(value, dict):
            yield from _judge_arguments(surface, value, path)


def _judge_keys(
    surface: Surface, tree: Mapping[str, Json], base: str, above: str = ""
) -> Iterator[Finding]:
    """Keys of a block; what is inside a wrong key is not judged."""
    from ascend_recipes.surface.keys import key_verdict

    for name, value in tree.items():
        key = f"{above}.{name}" if above else name
        verdict = key_verdict(surface, key, value)
        if verdict is not None:
            yield verdict.finding(at=f"{base}.{key}", fix=_key_fix(verdict, base, key, value))
        if isinstance(value, dict) and (verdict is None or verdict.id == "config.moved_key"):
            yield from _judge_keys(surface, value, base, key)


def _key_fix(verdict: Verdict, base: str, key: str, value: Json) -> str:
    if verdict.id == "config.wrong_type":
        meant = _meant(str(verdict.values["kind"]), value)
        return removed(f"{base}.{key}") if meant is None else _set(f"{base}.{key}", meant)
    # A key that a flag of vLLM replaces is left out: the flag is a decision of its own.
    targets = [f"{base}.{item}" for item in verdict.names if not item.startswith("-")]
    return _moved(f"{base}.{key}", targets, value)


def _variable_fix(surface: Surface, resolved: ResolvedRecipe, name: str, verdict: Verdict) -> str:
    """Leave the variable out; what took its place, variable or key, gets its value."""
    at = f"env.{name}"
    value = resolved.recipe.env[name]
    if verdict.id != "env.deprecated":
        return _moved(at, [f"env.{item}" for item in verdict.names], value)
    key = verdict.names[0]
    meant = _meant(surface.config_keys[key].kind, value)
    return removed(at) if meant is None else _moved(at, [f"{KEYS}.{key}"], meant)


def _meant(kind: str, value: Json) -> Json:
    """A value in the type of its key, where it is clear what it means; none otherwise."""
    if kind == "int" and isinstance(value, bool | str):
        text = str(int(value)) if isinstance(value, bool) else value.strip()
        return int(text) if text.lstrip("-").isdigit() else None
    if kind == "bool" and isinstance(value, str):
        return _TRUTH.get(value.strip().lower())
    return None


def _moved(at: str, targets: list[str], value: Json) -> str:
    """Take the value from one path and give it to others; to none where nothing replaces it."""
    return " ".join([removed(at), *(_set(path, value) for path in targets)])


def _set(path: str, value: Json) -> str:
    return shlex.quote(fit_for_hydra(f"{path}={json.dumps(value, ensure_ascii=False)}"))


def _flag(path: str) -> str:
    head, dot, rest = path.partition(".")
    return f"--{head.replace('_', '-')}{dot}{rest}"


def _argument(flag: str) -> str:
    """Name of the engine argument behind a flag; of a negated flag, that of the flag itself."""
    head, dot, rest = flag.partition(".")
    return f"{head.removeprefix('--no-').removeprefix('--').replace('-', '_')}{dot}{rest}"
