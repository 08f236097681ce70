"""The commands that look at recipes without starting anything."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.cli.arguments import COMMANDS, FLAGS, Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.pipeline import planned_launch, planned_with_composition
from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error
from ascend_recipes.words import split_override

if TYPE_CHECKING:
    from ascend_recipes.schema.base import Json


def run_explain(invocation: Invocation, output: Output) -> ExitCode:
    """`explain [KEY]`: where a value or argument comes from, and why it is what it is."""
    from ascend_recipes.commands.explain import explain
    from ascend_recipes.commands.rendered import explain_argument, is_argument, with_rendering

    (key,) = _arguments(invocation, "")
    composition, planned = planned_with_composition(invocation.words, invocation.config_dirs)
    if is_argument(key):
        found = explain_argument(composition, planned, key)
    else:
        found = with_rendering(explain(composition, planned, key), planned)
    if output.json:
        values = [item.to_json() for item in found]
        output.document("explain", ExitCode.OK, {"recipe": composition.name, "values": values})
        return ExitCode.OK
    from ascend_recipes.cli.tables import render_explanations

    output.show(*render_explanations(found))
    return ExitCode.OK


def run_show(invocation: Invocation, output: Output) -> ExitCode:
    """`show [NAME]`: a recipe as people look at it."""
    from ascend_recipes.commands.show import portray

    (name,) = _arguments(invocation, "")
    words = _named(name, invocation.words)
    portrait = portray(planned_launch(words, invocation.config_dirs))
    if output.json:
        output.document("show", ExitCode.OK, portrait.to_json())
        return ExitCode.OK
    from ascend_recipes.cli.tables import render_portrait

    output.show(*render_portrait(portrait))
    return ExitCode.OK


def run_diff(invocation: Invocation, output: Output) -> ExitCode:
    """`diff A B`: what two recipes plan differently; overrides apply to both."""
    from ascend_recipes.commands.diff import diff_plans

    if len(invocation.arguments) != 2:
        raise recipe_error(
            "usage.diff_names", fix="ascend-run diff NAME OTHER", exit_code=ExitCode.USAGE
        )
    first, second = (
        planned_launch(_named(name, invocation.words), invocation.config_dirs).plan
        for name in invocation.arguments
    )
    found = diff_plans(first, second)
    if output.json:
        body: dict[str, object] = {"left": first.recipe, "right": second.recipe}
        body["differences"] = [item.to_json() for item in found]
        output.document("diff", ExitCode.OK, body)
        return ExitCode.OK
    from ascend_recipes.cli.tables import render_differences

    output.show(render_differences(found, first.recipe, second.recipe))
    return ExitCode.OK


def run_schema(invocation: Invocation, output: Output) -> ExitCode:
    """`schema [NAME]`: the JSON Schema of recipe files, presets or rows."""
    from ascend_recipes.commands.schema import json_schema, schema_names

    (name,) = _arguments(invocation, "recipe")
    schema = json_schema(name)
    if output.json:
        body = {"name": name, "names": list(schema_names()), "schema": schema}
        output.document("schema", ExitCode.OK, body)
    else:
        output.text(json.dumps(schema, indent=2, ensure_ascii=False))
    return ExitCode.OK


def run_completion(invocation: Invocation, output: Output) -> ExitCode:
    """`completion SHELL`: the script for a shell; `completion words PREFIX`: what may follow."""
    from ascend_recipes.commands.completion import complete_word, completion_script

    if invocation.arguments[:1] == ("words",):
        prefix = invocation.arguments[1] if len(invocation.arguments) > 1 else ""
        flags = [name for flag in FLAGS for name in flag.names if name.startswith("--")]
        found = complete_word(
            prefix, commands=COMMANDS, flags=flags, config_dirs=invocation.config_dirs
        )
        if output.json:
            output.document("completion", ExitCode.OK, {"words": list(found)})
        elif found:
            output.text("\n".join(found))
        return ExitCode.OK
    (shell,) = _arguments(invocation, "bash")
    script = completion_script(shell)
    if output.json:
        output.document("completion", ExitCode.OK, {"shell": shell, "script": script})
    else:
        sys.stdout.write(script)
    return ExitCode.OK


def run_init(invocation: Invocation, output: Output) -> ExitCode:
    """`init [NAME] model=… hardware=…`: a starter recipe, printed or written to a new file."""
    from ascend_recipes.commands.init import starter_recipe, write_starter
    from ascend_recipes.registry.load import load_registry

    (name,) = _arguments(invocation, "")
    model, hardware = _model_and_hardware(invocation.words)
    text = starter_recipe(load_registry(), model=model, hardware=hardware, name=name)
    path = _starter_path(invocation, name)
    if path is not None:
        write_starter(text, path)
    if output.json:
        written: Json = str(path) if path else None
        output.document("init", ExitCode.OK, {"text": text, "path": written})
    elif path is not None:
        output.text(f"wrote {path}")
        output.note(f"next: ascend-run plan --config-dir {path.parents[1]} recipe={name}")
    else:
        sys.stdout.write(text)
    return ExitCode.OK


def run_check_all(invocation: Invocation, output: Output) -> ExitCode:
    """`check --all`: findings of every recipe, over all cores."""
    from ascend_recipes.cli.checking import check_all

    verdicts = check_all(invocation.words, invocation.config_dirs)
    failed = [item for item in verdicts if item.refused or (invocation.strict and item.doubtful)]
    code = ExitCode.FINDINGS if failed else ExitCode.OK
    if output.json:
        output.document("check", code, {"recipes": [item.to_json() for item in verdicts]})
        return code
    from ascend_recipes.cli.tables import render_verdicts, verdict_summary

    output.show(render_verdicts(verdicts, output.language))
    output.note(verdict_summary(verdicts, invocation.words, output.language))
    return code


def _arguments(invocation: Invocation, *defaults: str) -> tuple[str, ...]:
    given = invocation.arguments
    if len(given) > len(defaults):
        raise recipe_error(
            "usage.too_many_words",
            fix=f"ascend-run {invocation.command} {given[0]}",
            exit_code=ExitCode.USAGE,
            command=invocation.command,
            limit=len(defaults),
            words=" ".join(given),
        )
    return (*given, *defaults[len(given) :])


def _named(name: str, words: Sequence[str]) -> tuple[str, ...]:
    """Words with the recipe that was given by its bare name, if one was."""
    return (f"recipe={name}", *words) if name else tuple(words)


def _model_and_hardware(words: Sequence[str]) -> tuple[str, str]:
    values = dict(split_override(word) for word in words)
    unknown = sorted(set(values) - {"model", "hardware"})
    missing = [key for key in ("model", "hardware") if not values.get(key)]
    fix = "ascend-run init NAME model=MODEL hardware=HARDWARE"
    if missing:
        exit_code = ExitCode.USAGE
        raise recipe_error("usage.init_missing", fix=fix, exit_code=exit_code, missing=missing)
    if unknown:
        raise recipe_error("usage.init_word", fix=fix, exit_code=ExitCode.USAGE, word=unknown[0])
    return str(values["model"]), str(values["hardware"])


def _starter_path(invocation: Invocation, name: str) -> Path | None:
    if not name:
        return None
    folder = invocation.config_dirs[0] if invocation.config_dirs else Path.cwd()
    return folder / "recipe" / f"{name}.yaml"
