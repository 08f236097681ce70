"""Writes an export into a folder; what somebody else wrote there stays."""

from collections.abc import Sequence
from pathlib import Path

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.export.layout import ExportFile
from ascend_recipes.export.script import SIGNATURE
from ascend_recipes.findings import finding
from ascend_recipes.rendering.recipe_file import write_beside

_HEAD_CHARACTERS = 2000
_PROGRAM = 0o755


def write_files(
    files: Sequence[ExportFile], folder: Path, *, force: bool = False
) -> tuple[Path, ...]:
    """Write all files, or none where one of them would replace a file that is not ours.

    Raises:
        RecipeError: files that an export did not write, without `force` (exit code 2), or a folder
            that cannot be written (4).
    """
    paths = [folder / item.name for item in files]
    foreign = [path for path in paths if path.exists() and not _is_ours(path)]
    if foreign and not force:
        items = tuple(finding("export.foreign_file", path=path, fix="--force") for path in foreign)
        raise RecipeError(items, ExitCode.USAGE)
    for item, path in zip(files, paths, strict=True):
        try:
            write_beside(item.text, path)
            if item.is_program:
                path.chmod(_PROGRAM)
        except OSError as error:
            reason = error.strerror or str(error)
            problem = finding("export.not_written", path=path, reason=reason)
            raise RecipeError((problem,), ExitCode.ENVIRONMENT) from None
    return tuple(paths)


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return SIGNATURE in file.read(_HEAD_CHARACTERS)
