"""`transpose`: the same deployment on another generation of machines."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.cli.output import Output
from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import finding

if TYPE_CHECKING:
    from rich.table import Table

    from ascend_recipes.commands.transpose import Transposition
    from ascend_recipes.errors import Finding


def run_transpose(invocation: Invocation, output: Output) -> ExitCode:
    """`transpose [NAME] recipe=… --to HARDWARE`: propose, and with `--write` save as a recipe."""
    from ascend_recipes.commands.transpose import transpose

    if not invocation.hardware:
        raise RecipeError((finding("transpose.no_target", fix="--to a2"),), ExitCode.USAGE)
    if len(invocation.arguments) > 1 or (invocation.arguments and not invocation.write):
        word, fix = invocation.arguments[-1], "ascend-run transpose NAME recipe=… --to … --write"
        raise RecipeError((finding("transpose.stray_word", fix=fix, word=word),), ExitCode.USAGE)
    found = transpose(invocation.words, invocation.hardware, invocation.config_dirs)
    path = _save(invocation, found) if invocation.write else None
    if output.json:
        body = found.to_json() | {"path": str(path) if path else None}
        output.document("transpose", ExitCode.OK, body)
        return ExitCode.OK
    _tell(found, output)
    if path is not None:
        output.text(f"wrote {path}")
    return ExitCode.OK


def _tell(found: Transposition, output: Output) -> None:
    chinese = output.language == "zh"
    output.show(_changes(found))
    if found.donors:
        output.text(f"{'参考配方' if chinese else 'donors'}: {', '.join(found.donors)}")
    if found.losses:
        output.text("\n失去的：" if chinese else "\nwhat is lost:")
        output.show(_losses(found.losses, chinese=chinese))
    if found.remaining:
        output.text("\n仍然存在：" if chinese else "\nwhat remains:")
        output.findings(found.remaining, stderr=False)
    output.text(f"\nascend-run plan {shlex.join(found.words)}")


def _changes(found: Transposition) -> Table:
    """One row a value: before, after, and what asks for the change."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("field", found.source, found.target, "without the change", "as in"):
        table.add_column(column, overflow="fold")
    for swap in found.swaps:
        shown = (json.dumps(value, ensure_ascii=False) for value in (swap.before, swap.after))
        table.add_row(swap.at, *shown, ", ".join(swap.returns), swap.documented_by)
    return table


def _losses(items: Iterable[Finding], *, chinese: bool) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(overflow="fold")
    for item in items:
        why = item.why_zh if chinese else item.why
        table.add_row(item.at, item.message_zh if chinese else item.message, why)
    return table


def _save(invocation: Invocation, found: Transposition) -> Path:
    """Write the result as a recipe that was planned from the very text."""
    from ascend_recipes.commands.init import write_starter
    from ascend_recipes.commands.transpose import transposed_recipe

    name = invocation.arguments[0] if invocation.arguments else f"{found.recipe}_on_{found.target}"
    folder = invocation.config_dirs[0] if invocation.config_dirs else Path.cwd()
    is_file = Path(name).suffix in (".yaml", ".yml")
    path = Path(name) if is_file else folder / "recipe" / f"{name}.yaml"
    text = transposed_recipe(found)
    with tempfile.TemporaryDirectory() as trial:
        write_starter(text, Path(trial) / "recipe" / f"{path.stem}.yaml")
        planned_launch([f"recipe={path.stem}"], [Path(trial), *invocation.config_dirs])
    write_starter(text, path)
    return path
