"""Where data folders and caches live. A checkout is preferred over the packaged copy."""

import os
from functools import cache, lru_cache
from pathlib import Path

PLAN_VARIABLE = "ASCEND_RECIPES_PLAN"
"""Environment variable through which every vLLM process finds the launch plan."""

PACKAGE = Path(__file__).resolve().parent


@cache
def data_root() -> Path:
    """Folder that holds `recipes/`, `registry/` and `ops/`.

    An editable install keeps the checkout beside the package; its files are the ones being
    edited, so they win over the copy inside the wheel, which would be stale.
    """
    checkout = PACKAGE.parent
    return checkout if (checkout / "recipes" / "serve.yaml").is_file() else PACKAGE / "_data"


def cache_root() -> Path:
    """Folder for tiny checkpoints, run folders and other things that can be made again."""
    if override := os.environ.get("ASCEND_RECIPES_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ascend_recipes"


def site_locations() -> tuple[Path, ...]:
    """Folders with the user's own `site/NAME.yaml`: the project's, then the user's."""
    base = os.environ.get("XDG_CONFIG_HOME")
    config = Path(base) if base else Path.home() / ".config"
    return (Path.cwd(), config / "ascend_recipes")


def display_path(path: Path) -> str:
    """Path as shown to people: relative to the data root or the working directory if inside."""
    return _shown(path, data_root(), Path.cwd())


@lru_cache(maxsize=4096)
def _shown(path: Path, *bases: Path) -> str:
    for base in bases:
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.as_posix()
