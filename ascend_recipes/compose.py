"""Compose: merge recipe files and overrides in Hydra's way, and remember who set each leaf."""

import difflib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ascend_recipes.errors import COMMAND_LINE, ExitCode, Finding, RecipeError, Source
from ascend_recipes.findings import finding
from ascend_recipes.merging import IntricateError, LayerFile, Merged, merge_plainly
from ascend_recipes.paths import data_root, display_path, site_locations
from ascend_recipes.schema.base import Json
from ascend_recipes.yaml_files import leaf_lines, load_yaml

PRIMARY = "serve"
EXAMPLE_SITE = "example"
"""The site of documentation and golden plans, which nobody edits."""
ENTRY_POINT_GROUP = "ascend_recipes.recipes"
"""Other packages add recipes and presets by an entry point whose value is a package."""
_NEAR = 5
"""Names that are shown to somebody who mistyped a recipe's."""


@dataclass(frozen=True)
class Composition:
    """The merged tree, and for every leaf the layers that set it, the winner last."""

    name: str
    """Recipe that the user asked for."""
    tree: dict[str, Json]
    provenance: dict[str, tuple[Source, ...]]

    def source(self, path: str) -> Source | None:
        """Where the value at a dotted path was set, or else something in it or around it."""
        if layers := self.provenance.get(path):
            return layers[-1]
        inside = [
            layers[-1] for key, layers in self.provenance.items() if key.startswith(f"{path}.")
        ]
        if inside:
            return next((item for item in inside if item.origin == COMMAND_LINE), inside[0])
        around = path.rpartition(".")[0]
        return self.source(around) if around else None

    def locate(self, error: RecipeError) -> RecipeError:
        """Copy of the error whose findings also say where the value was set."""
        located = tuple(
            item if item.source or not item.at else replace(item, source=self.source(item.at))
            for item in error.findings
        )
        return RecipeError(located, error.exit_code, error.complete)


@dataclass(frozen=True)
class RecipeEntry:
    """A recipe that can be named on the command line."""

    name: str
    path: Path
    about: str
    model: str
    hardware: str


def compose_recipe(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> Composition:
    """Merge the primary configuration, the recipe, its presets and the overrides.

    Raises:
        RecipeError: an override that cannot be parsed, an unknown recipe or preset, a missing
            recipe, or a file that is not YAML; all of one kind at once.
    """
    roots = search_roots(config_dirs)
    parsed = _parse_overrides(overrides)
    groups = _groups(roots)
    roots += _add_sites(parsed, groups)
    _check_choices(parsed, groups)
    name = _recipe_name(parsed, groups)
    choices = [item for item in parsed if _is_choice(item, groups)]
    values = [item for item in parsed if not _is_choice(item, groups)]
    try:
        merged = merge_plainly(PRIMARY, choices, values, roots)
    except IntricateError:
        lines = [_force(item, groups) for item in parsed] + _search_path(roots[1:])
        merged = _merged_by_hydra(lines, roots)
    provenance = _provenance(merged.files)
    for item in values:
        _record_override(item, provenance)
    tree = json.loads(json.dumps(merged.tree)) | {"name": name, "changed": _changes(parsed)}
    if isinstance(tree.get("site"), dict):
        tree["site"].setdefault("name", merged.choices["site"])
    return Composition(name, tree, provenance)


def _merged_by_hydra(lines: list[str], roots: Sequence[Path]) -> Merged:
    logging.getLogger("hydra").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(config_dir=str(roots[0]), version_base="1.3"):
            config = compose(PRIMARY, lines, return_hydra_config=True)
            chosen = dict(config.hydra.runtime.choices)
            with open_dict(config):
                del config["hydra"]
            files = tuple(_hydra_files(lines, roots))
        tree: Any = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise _composition_error(error, roots) from None
    return Merged(tree, files, chosen)


def search_roots(config_dirs: Sequence[Path]) -> list[Path]:
    """Folders that hold recipes and presets: ours, installed packages', the user's."""
    missing = [path for path in config_dirs if not path.is_dir()]
    if missing:
        findings = (finding("usage.config_dir", folder=path) for path in missing)
        raise RecipeError(tuple(findings), ExitCode.USAGE)
    return [data_root() / "recipes", *_extension_roots(), *(path.resolve() for path in config_dirs)]


@cache
def is_group(key: str, config_dirs: tuple[Path, ...] = ()) -> bool:
    """Whether a key chooses among presets."""
    return key in _groups(search_roots(config_dirs))


def recipe_names(config_dirs: Sequence[Path] = ()) -> list[RecipeEntry]:
    """Every recipe in the search path, sorted by name."""
    entries: dict[str, RecipeEntry] = {}
    for root in search_roots(config_dirs):
        for path in sorted((root / "recipe").glob("*.yaml")):
            try:
                tree = load_yaml(path)
            except RecipeError as error:
                # One broken file hides no other; whoever names this one is told all about it.
                tree = {"about": error.findings[0].message}
            facts = tree if isinstance(tree, dict) else {}
            about, model, hardware = (str(facts.get(key, "")) for key in _LISTED)
            entries[path.stem] = RecipeEntry(path.stem, path, about, model, hardware)
    return [entries[name] for name in sorted(entries)]


_LISTED = ("about", "model", "hardware")


@cache
def _extension_roots() -> tuple[Path, ...]:
    points = entry_points(group=ENTRY_POINT_GROUP)
    return tuple(Path(folder) for point in points for folder in point.load().__path__)


def _parse_overrides(overrides: Sequence[str]) -> list[Override]:
    parsed: list[Override] = []
    findings: list[Finding] = []
    for text in overrides:
        try:
            item = _parsed_override(text)
        except HydraException:
            findings.append(_unparsable(text))
            continue
        if item.key_or_group:
            parsed.append(item)
        else:
            findings.append(_unparsable(text))
    if findings:
        raise RecipeError(tuple(findings), ExitCode.USAGE)
    return parsed


@lru_cache(maxsize=4096)
def _parsed_override(text: str) -> Override:
    return _parser().parse_override(text)


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def _unparsable(text: str) -> Finding:
    key, equals, value = text.partition("=")
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return finding(
        "usage.override",
        text=text,
        fix=f"\"{key}='{quoted}'\"" if equals else "KEY=VALUE",
    )


def _groups(roots: Sequence[Path]) -> dict[str, set[str]]:
    """Preset groups and their options over all folders."""
    groups: dict[str, set[str]] = {}
    for root in roots:
        for path in root.glob("*/*.yaml"):
            groups.setdefault(path.parent.name, set()).add(path.stem)
    return groups


def _add_sites(parsed: Sequence[Override], groups: dict[str, set[str]]) -> list[Path]:
    """Make the user's sites known; the folder that holds the chosen one is searched too.

    Only the `site` folder of such a place counts: a working directory may hold any other folder.
    """
    locations = site_locations()
    wanted = [str(item.value()) for item in parsed if item.key_or_group == "site"]
    if not wanted or wanted[-1] in groups["site"]:
        return []
    for location in locations:
        groups["site"].update(path.stem for path in (location / "site").glob("*.yaml"))
    holders = (place for place in locations if (place / "site" / f"{wanted[-1]}.yaml").is_file())
    return list(holders)[:1]


def _search_path(roots: Sequence[Path]) -> list[str]:
    """Hydra's override for further folders, quoted: a path may hold any letter."""
    if not roots:
        return []
    quoted = ("'file://{}'".format(str(root).replace("'", "\\'")) for root in roots)
    return [f"hydra.searchpath=[{','.join(quoted)}]"]


def _is_choice(item: Override, groups: dict[str, set[str]]) -> bool:
    return item.key_or_group in groups and not isinstance(item.value(), dict)


def _check_choices(parsed: Sequence[Override], groups: dict[str, set[str]]) -> None:
    """Refuse unknown presets before Hydra does, all at once and with the closest name."""
    findings = []
    for item in parsed:
        if not _is_choice(item, groups) or item.type is OverrideType.DEL:
            continue
        options = groups[item.key_or_group]
        if (value := str(item.value())) not in options:
            findings.append(_unknown_choice(item.key_or_group, value, sorted(options)))
    if findings:
        raise RecipeError(tuple(findings), ExitCode.USAGE)


def _unknown_choice(group: str, value: str, options: list[str]) -> Finding:
    close = difflib.get_close_matches(value, options, n=1)
    if group == "site":
        return _unknown_site(value, options, close)
    fix = f"{group}={close[0]}" if close else ""
    source = Source(origin=COMMAND_LINE)
    if group == "recipe":
        return finding(
            "recipe.unknown",
            at=group,
            source=source,
            fix=fix or "ascend-run list",
            value=value,
            count=len(options),
            options=difflib.get_close_matches(value, options, n=_NEAR) or "-",
        )
    return finding(
        "compose.unknown_preset",
        at=group,
        source=source,
        fix=fix,
        group=group,
        value=value,
        options=options,
    )


def _unknown_site(value: str, options: list[str], close: list[str]) -> Finding:
    project, user = (str(place / "site" / f"{value}.yaml") for place in site_locations())
    return finding(
        "site.unknown",
        at="site",
        source=Source(origin=COMMAND_LINE),
        fix=f"site={close[0] if close else EXAMPLE_SITE}",
        name=value,
        project=project,
        user=user,
        options=", ".join(options),
    )


def _recipe_name(parsed: Sequence[Override], groups: dict[str, set[str]]) -> str:
    names = [str(item.value()) for item in parsed if item.key_or_group == "recipe"]
    if not names:
        missing = finding(
            "recipe.missing",
            at="recipe",
            fix="ascend-run recipe=NAME",
            count=len(groups.get("recipe", ())),
        )
        raise RecipeError((missing,), ExitCode.USAGE)
    return names[-1]


def _changes(parsed: Sequence[Override]) -> bool:
    """Whether any override reaches into the recipe, rather than choosing it."""
    return any(item.key_or_group.split(".")[0] not in ("recipe", "site") for item in parsed)


def _force(item: Override, groups: dict[str, set[str]]) -> str:
    """Let a plain `key=value` create the key: the schema, not Hydra, knows which keys exist."""
    line = str(item.input_line)
    plain = item.type in (OverrideType.CHANGE, OverrideType.ADD)
    if _is_choice(item, groups) or not plain:
        return line
    return f"++{line.lstrip('+')}"


def _provenance(files: Iterable[LayerFile]) -> dict[str, tuple[Source, ...]]:
    """For every leaf that files set, the lines that do, in the order of merging."""
    layers: dict[str, list[Source]] = {}
    for path, prefix in files:
        origin = display_path(path)
        for keys, line in _set_leaves(path, prefix):
            layers.setdefault(keys, []).append(Source(origin=origin, line=line))
    return {key: tuple(sources) for key, sources in layers.items()}


def _hydra_files(lines: list[str], roots: Sequence[Path]) -> Iterator[LayerFile]:
    # Hydra has no documented call for the ordered files; hence the pin of hydra-core.
    loader = GlobalHydra.instance().config_loader()
    defaults = loader.compute_defaults_list(PRIMARY, lines, RunMode.RUN).defaults
    for entry in defaults:
        if not entry.config_path or entry.config_path.startswith("hydra/"):
            continue
        path = _find_file(entry.config_path, roots)
        if path is not None:
            yield path, tuple(part for part in (entry.package or "").split(".") if part)


def _set_leaves(path: Path, prefix: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    for keys, line in leaf_lines(path).items():
        if keys[0] not in ("defaults", "hydra"):
            yield ".".join((*prefix, *keys)), line


def _find_file(config_path: str, roots: Sequence[Path]) -> Path | None:
    for root in roots:
        if (path := root / f"{config_path}.yaml").is_file():
            return path
    return None


def _record_override(item: Override, provenance: dict[str, tuple[Source, ...]]) -> None:
    key = item.key_or_group
    source = Source(origin=COMMAND_LINE)
    provenance[key] = (*provenance.get(key, ()), source)
    for below in [path for path in provenance if path.startswith(f"{key}.")]:
        if not isinstance(item.value(), dict):
            del provenance[below]
    if isinstance(item.value(), dict):
        for path, _ in _flatten(item.value(), key):
            provenance[path] = (*provenance.get(path, ()), source)


def _flatten(tree: object, prefix: str) -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _flatten(value, f"{prefix}.{key}")
    else:
        yield prefix, tree


def _composition_error(error: Exception, roots: Sequence[Path]) -> RecipeError:
    """Hydra's own words for what is left: bad interpolations, broken preset files."""
    for root in roots:
        for path in sorted(root.glob("**/*.yaml")):
            load_yaml(path)
    message = " ".join(str(error).split())
    return RecipeError((finding("compose.failed", said=message),), ExitCode.USAGE)
