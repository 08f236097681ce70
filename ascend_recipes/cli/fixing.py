"""`fix`: the smallest change that makes a refused configuration acceptable."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error

if TYPE_CHECKING:
    from ascend_recipes.commands.fix import Proposal


def run_fix(invocation: Invocation, output: Output) -> ExitCode:
    """`fix [NAME] recipe=…`: propose, and with `--write` save as the recipe NAME."""
    from ascend_recipes.commands.fix import propose_fix

    proposal = propose_fix(invocation.words, invocation.config_dirs, strict=invocation.strict)
    path = _save(invocation, proposal) if invocation.write and proposal.steps else None
    if output.json:
        body = proposal.to_json() | {"path": str(path) if path else None}
        output.document("fix", ExitCode.OK, body)
        return ExitCode.OK
    if not proposal.steps:
        output.text(f"{proposal.recipe}: nothing to fix")
        return ExitCode.OK
    from ascend_recipes.cli.tables import render_proposal

    output.show(render_proposal(proposal))
    output.text(f"ascend-run {shlex.join(proposal.words)}")
    if path is not None:
        output.text(f"wrote {path}")
    return ExitCode.OK


def _save(invocation: Invocation, proposal: Proposal) -> Path:
    """Write the proposal as a recipe that was planned from the very text."""
    from ascend_recipes.commands.fix import derived_recipe
    from ascend_recipes.commands.init import write_starter

    if len(invocation.arguments) > 1:
        raise recipe_error(
            "usage.too_many_words",
            fix=f"ascend-run fix {invocation.arguments[0]} recipe={proposal.recipe} --write",
            exit_code=ExitCode.USAGE,
            command="fix",
            limit=1,
            words=" ".join(invocation.arguments),
        )
    name = invocation.arguments[0] if invocation.arguments else f"{proposal.recipe}_fixed"
    folder = invocation.config_dirs[0] if invocation.config_dirs else Path.cwd()
    text = derived_recipe(proposal)
    with tempfile.TemporaryDirectory() as trial:
        write_starter(text, Path(trial) / "recipe" / f"{name}.yaml")
        planned_launch([f"recipe={name}"], [Path(trial), *invocation.config_dirs])
    path = folder / "recipe" / f"{name}.yaml"
    write_starter(text, path)
    return path
