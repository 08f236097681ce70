"""Judges a command by the rules of recipes, without saying what the file does not support.

A command leaves much open: the hardware, often the model, sometimes a size that a variable holds.
The rules are asked once for every possibility that differs, and only what they say every time is
reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from ascend_recipes.errors import Finding, RecipeError
from ascend_recipes.lint.agreement import agreed_findings, one_at_a_time
from ascend_recipes.lint.arguments import Argument, Arguments, BrokenJson, read_json
from ascend_recipes.lint.command import ServeCommand
from ascend_recipes.lint.offers import hold_in, with_words
from ascend_recipes.lint.stand_ins import STAND_INS, registry_with_stand_ins
from ascend_recipes.registry.load import Registry
from ascend_recipes.rendering.imported import ImportedCommand
from ascend_recipes.rendering.importing import import_command
from ascend_recipes.rendering.recipe_tree import recipe_tree
from ascend_recipes.resolve import look_up
from ascend_recipes.rules import RULES, Rule, rendered, surface
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.roles import role_recipe

_HARDWARE = ("a2", "a3", "a5", "310p")
_HARDWARE_NAMES: Mapping[str, re.Pattern[str]] = {
    "a3": re.compile(r"\bA3\b|Atlas 800I? ?A3|Atlas 800T A3|_A3\b|-A3\b", re.IGNORECASE),
    "a2": re.compile(r"\bA2\b|Atlas 800I? ?A2|_A2\b|-A2\b", re.IGNORECASE),
    "a5": re.compile(r"\bA5\b|\b950|_A5\b|-A5\b", re.IGNORECASE),
    "310p": re.compile(r"310P|300I", re.IGNORECASE),
}
POSSIBLE_VARIABLES: Sequence[Mapping[str, Json]] = (
    {},
    {"env.PYTHONHASHSEED": "0", "env.VLLM_USE_V2_MODEL_RUNNER": "1"},
    {"env.PYTHONHASHSEED": "0", "env.DYNAMIC_EPLB": "true"},
)
"""Variables that may be set outside the file, where the file does not set them."""
_POSSIBLE_GRAPHS: Sequence[Mapping[str, Json]] = (
    {},
    {"graph.kind": "piecewise"},
    {"graph.kind": "full_decode"},
)
"""Graph modes that a release may choose where the command names none."""
_SIZES = (1, 8, 64)
"""Values that are tried for a count that a variable holds."""
_COUNTS: Mapping[str, str] = {
    "--tensor-parallel-size": "parallel.tp",
    "--data-parallel-size": "parallel.dp",
    "--pipeline-parallel-size": "parallel.pp",
    "--max-num-seqs": "scheduler.max_num_seqs",
    "--max-num-batched-tokens": "scheduler.max_num_batched_tokens",
    "--max-model-len": "scheduler.max_model_len",
}
_HARMLESS = frozenset(
    {
        *("--host", "--port", "--served-model-name", "--seed", "--download-dir", "--api-key"),
        *("--data-parallel-address", "--data-parallel-rpc-port", "--data-parallel-rank"),
        *("--data-parallel-start-rank", "--master-addr", "--master-port", "--node-rank"),
        *("--data-parallel-size-local", "--chat-template", "--tokenizer", "--headless"),
        *("--tool-call-parser", "--reasoning-parser", "--allowed-local-media-path"),
    }
)
"""Flags whose values no rule of one process looks at."""
FOR_ANY_MODEL = frozenset({"config", "env", "graph", "moe", "net", "pd", "scheduler", "version"})
"""Families that can be judged where the model is unknown; others are about its layers."""
_ABOUT_NAMES = (
    surface.known_arguments,
    surface.known_keys,
    surface.known_variables,
    rendered.arguments_are_stated_once,
)
"""Rules about names, which `names.py` judges with their lines, and about recipes as recipes."""
OF_COMMANDS = tuple(rule for rule in RULES if rule not in _ABOUT_NAMES)
_TRANSFER = "--kv-transfer-config"
_LADDER = "graph.off_stride"
"""What is said of a ladder that ends too early, listed or not."""


@dataclass(frozen=True)
class RuleVerdict:
    """What the rules say about a command."""

    findings: tuple[Finding, ...] = ()
    """Without a place in the file."""
    unjudged: str = ""
    """Why they were not asked; empty where they were."""


@dataclass(frozen=True)
class _Reading:
    """A command without what only a run would know."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    counts: tuple[str, ...] = ()
    """Recipe paths of counts that variables hold."""
    unknown: tuple[str, ...] = ()
    """Other flags with unknown values that a rule may look at."""


@dataclass(frozen=True)
class Possibility:
    """One recipe that a command may mean."""

    imported: ImportedCommand
    hardware: str
    version: str
    registry: Registry

    def ask(
        self, rules: Iterable[Rule], added: Sequence[str] = ()
    ) -> list[tuple[Rule, Finding]] | None:
        """What rules say, each with its rule, with words set; none if it makes no recipe."""
        try:
            tree = recipe_tree(
                [self.imported],
                hardware=self.hardware,
                version=self.version,
                registry=self.registry,
            ).tree
            recipe = Recipe.model_validate_json(json.dumps(tree))
            role = self.imported.role
            own = recipe if role == "serve" else role_recipe(recipe, role)
            changed = with_words(own, added) if added else own
            view = look_up(changed, self.registry, lambda _: None)
            return [(rule, item) for rule in rules for item in rule(view)]
        except (ValidationError, RecipeError):
            return None

    def everything(self, added: Sequence[str] = ()) -> Sequence[Finding] | None:
        """What all rules that are asked of commands say."""
        answer = self.ask(OF_COMMANDS, added)
        return None if answer is None else [item for _, item in answer]


def judge_rules(command: ServeCommand, arguments: Arguments, version: str) -> RuleVerdict:
    """Ask the rules about one command, for a version of vllm-ascend."""
    reading = known_part(command, arguments)
    if arguments.is_open or reading.unknown:
        named = ", ".join(reading.unknown) or "further flags"
        return RuleVerdict(unjudged=f"only a run knows {named}")
    registry = registry_with_stand_ins()
    imported = import_command(reading.argv, reading.env, version=version, registry=registry)
    models = possible_models(imported)
    if not models:
        return RuleVerdict(unjudged="its kind of drafting has no field")
    axes = (
        # Sizes are tried with every model: what is idle in a dense one may need them in another.
        [
            replace(model, overrides={**model.overrides, **dict.fromkeys(reading.counts, size)})
            for model in models
            for size in (_SIZES if reading.counts else (0,))
        ],
        possible_hardware(command),
        POSSIBLE_VARIABLES,
        _POSSIBLE_GRAPHS if "graph.kind" in imported.assumed else ({},),
    )
    known = "model" in imported.overrides
    possibilities = [
        Possibility(
            replace(model, overrides={**env, **model.overrides, **graph}),
            hardware,
            version,
            registry,
        )
        for model, hardware, env, graph in one_at_a_time(axes)
    ]
    agreed = agreed_findings(
        possibilities,
        OF_COMMANDS,
        lambda item: _is_supported(item, imported, known_model=known),
    )
    if agreed is None:
        return RuleVerdict(unjudged="the recipe that it means is not complete")
    return RuleVerdict(tuple(hold_in(possibilities[0], agreed)))


def _is_supported(item: Finding, imported: ImportedCommand, *, known_model: bool) -> bool:
    """Whether the file supports a finding: it is about no default and no unknown model."""
    if item.at in imported.assumed and not _follows(item, imported):
        return False
    if _is_doubtful(item, imported):
        return False
    return known_model or item.id.partition(".")[0] in FOR_ANY_MODEL


def _is_doubtful(item: Finding, imported: ImportedCommand) -> bool:
    """Whether a finding rests on what the name of the weights only suggests, or leaves open."""
    stated = imported.overrides
    if item.at == "checkpoint.dtype":
        return item.at not in stated
    if item.id == "scheduler.context_too_long":
        return any(path.startswith("extra_args.hf_overrides") for path in stated)
    # A path that only begins like a published name: the format of what it holds is a guess.
    about_weights = item.id.startswith("quant.") or item.id == "drafter.weights_missing"
    return about_weights and "checkpoint.path" in stated


def _follows(item: Finding, imported: ImportedCommand) -> bool:
    """Whether capture sizes that nobody lists follow from what the command states.

    The ladder ends at the last rung below the largest batch (vllm-ascend platform.py:1275-1309 at
    182b75ea, the same in 0.23.0 and 0.26.0rc1): requests, graph mode and drafts decide it.
    """
    decided = {"scheduler.max_num_seqs", "graph.kind"} <= imported.overrides.keys()
    assumed = {"scheduler.max_num_seqs", "graph.kind"} & imported.assumed.keys()
    drafts = "extra_args.speculative_config" in imported.overrides
    return item.id == _LADDER and decided and not assumed and not drafts


def known_part(command: ServeCommand, arguments: Arguments) -> _Reading:
    """The words and variables that are known, each flag once, JSON without its unknown parts."""
    words = ["vllm", "serve"]
    if arguments.model is not None and arguments.model.is_known:
        words.append(arguments.model.text)
    last = {item.name: item for item in arguments.items}
    counts: list[str] = []
    unknown: list[str] = []
    for item in last.values():
        if item.is_json:
            words += _known_json(item, unknown)
        elif item.is_known and not item.is_placeholder:
            words += [item.name, *(value.text for value in item.values)]
        elif item.name in _COUNTS:
            counts.append(_COUNTS[item.name])
        elif item.name not in _HARMLESS:
            unknown.append(item.name)
    env = {
        name: word.text
        for name, word in command.env.items()
        if word.is_known and name.isidentifier()
    }
    return _Reading(tuple(words), env, tuple(counts), tuple(unknown))


def _known_json(item: Argument, unknown: list[str]) -> list[str]:
    word = item.values[0]
    value = read_json(word)
    if isinstance(value, BrokenJson) or value is None:
        unknown.append(item.name)
        return []
    # Of a connector only the role matters to one process; addresses and ports do not.
    role_is_known = isinstance(value, dict) and "kv_role" in value
    if word.holes and not (item.name == _TRANSFER and role_is_known):
        unknown.append(item.name)
    return [item.name, json.dumps(value, ensure_ascii=False)]


def possible_hardware(command: ServeCommand) -> Sequence[str]:
    """Generations that the command may be for: what its title or its file's name says, or all."""
    for text in (command.heading, command.file.rpartition("/")[2]):
        named = [name for name, pattern in _HARDWARE_NAMES.items() if pattern.search(text)]
        if named:
            return named
    return _HARDWARE


def possible_models(imported: ImportedCommand) -> list[ImportedCommand]:
    """The import for its model, or for stand-ins that have as many drafts and such weights."""
    overrides = dict(imported.overrides)
    speculative = overrides.get("extra_args.speculative_config")
    overrides.setdefault("parallel.tp", 1)
    if overrides["graph.kind"] == "none":
        overrides = {
            path: value
            for path, value in overrides.items()
            if not path.startswith("graph.") or path == "graph.kind"
        }
    if "model" in overrides:
        imported = replace(imported, overrides=overrides)
        return [] if isinstance(speculative, dict) and "method" in speculative else [imported]
    quantized = overrides.pop("extra_args.quantization", None) is not None
    if isinstance(speculative, dict):
        overrides.pop("extra_args.speculative_config")
        overrides["drafter.kind"] = "mtp"
        overrides["drafter.num_draft_tokens"] = speculative.get("num_speculative_tokens", 1)
    if overrides.get("drafter.kind") != "none":
        overrides["drafter.kind"] = "mtp"
    overrides.setdefault("scheduler.max_model_len", 4096)
    overrides["cache.kind"] = "paged"
    variant = "w8a8" if quantized else "bf16"
    overrides |= {"checkpoint.variant": variant, "quant.kind": "w8a8" if quantized else "none"}
    rows = registry_with_stand_ins().models
    kinds = {name: rows[name].attention_kinds[0] for name in STAND_INS}
    return [
        replace(imported, overrides={**overrides, "model": name, "attention.kind": kind})
        for name, kind in kinds.items()
    ]
