"""Reading YAML: the C loader where PyYAML has it, and the line of every leaf."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ascend_recipes.errors import ExitCode, Source
from ascend_recipes.findings import recipe_error
from ascend_recipes.paths import display_path

if TYPE_CHECKING:
    # Texts of usage errors are read without the schemas.
    from ascend_recipes.schema.base import Json

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(path: Path) -> Json:
    """Parse one file; errors are those of `open` and of the parser."""
    tree: Json = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    return tree


def load_yaml(path: Path) -> Json:
    """Parse one file.

    Raises:
        RecipeError: the file cannot be read or is not YAML; exit code 2.
    """
    try:
        return parse_yaml(path)
    except OSError as error:
        raise recipe_error("file.unreadable", path=path, reason=error.strerror) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise recipe_error(
            "file.invalid_yaml",
            source=Source(origin=display_path(path), line=_error_line(error)),
            exit_code=ExitCode.USAGE,
            path=display_path(path),
            reason=_first_line(error),
        ) from None


def leaf_lines(path: Path) -> dict[tuple[str, ...], int]:
    """Line (1-based) of every mapping key of a file, by its path of keys."""
    return _lines_of(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=512)
def _lines_of(text: str) -> dict[tuple[str, ...], int]:
    root = yaml.compose(text, Loader=_LOADER)
    return dict(_walk(root, ())) if root is not None else {}


def _walk(node: yaml.Node, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = (*prefix, str(key.value))
        yield path, key.start_mark.line + 1
        yield from _walk(value, path)


def _error_line(error: Exception) -> int | None:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return mark.line + 1 if mark else None


def _first_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        return error.problem
    return str(error).splitlines()[0]
