"""The minimal router as files: it needs nothing but Python, so that exports can bring it."""

from collections.abc import Iterator
from pathlib import Path

import ascend_recipes
from ascend_recipes.export.layout import ExportFile, Router
from ascend_recipes.export.script import SIGNATURE

FOLDER = "router"
"""Folder beside the scripts from which Python imports the router."""

_MODULES = (
    "__init__.py",
    "launch/__init__.py",
    "launch/router/__init__.py",
    "launch/router/handshake.py",
    "launch/router/server.py",
    "launch/router/wire.py",
)


def router_sources(router: Router | None) -> Iterator[ExportFile]:
    """Its modules below `FOLDER`; nothing for another router."""
    if router is None or router.kind != "minimal":
        return
    package = Path(ascend_recipes.__file__).parent
    for name in _MODULES:
        text = (package / name).read_text(encoding="utf-8")
        head = f"# Copied by {SIGNATURE} from ascend_recipes {ascend_recipes.__version__}.\n"
        yield ExportFile(f"{FOLDER}/{package.name}/{name}", head + text)
