"""Target `argv`: one JSON object a line, for programs."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ascend_recipes import __version__
from ascend_recipes.export.layout import ExportFile, Layout, Node, Router, Server
from ascend_recipes.export.script import SIGNATURE
from ascend_recipes.export.words import Word
from ascend_recipes.schema.base import Json


def argv_files(layout: Layout) -> Iterator[ExportFile]:
    """Where the lines come from, then one process a line in the order of their start."""
    lines = [_head(layout)]
    lines += [_server(node, server) for node in layout.nodes for server in node.servers]
    if layout.router is not None:
        lines.append(_router(layout.router))
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    yield ExportFile("argv.jsonl", text)


def _head(layout: Layout) -> dict[str, Json]:
    return {
        "written_by": SIGNATURE,
        "version": __version__,
        "recipe": layout.recipe,
        "digest": layout.digest,
        "runtime": layout.runtime,
        "command": layout.command,
        "image": layout.image,
        "secrets": list(layout.secrets),
    }


def _server(node: Node, server: Server) -> dict[str, Json]:
    return {
        "name": server.name,
        "role": node.role,
        "node": node.number,
        "instance": node.instance,
        "rank": server.rank,
        "port": server.port,
        "dies": list(server.dies),
        "env": {name: word.text for name, word in server.env.items()},
        "argv": [word.text for word in server.argv],
        "shell": _line(server.env, server.argv),
    }


def _router(router: Router) -> dict[str, Json]:
    settings = router.settings
    return {
        "name": "router",
        "role": "router",
        "node": 0,
        "port": router.port,
        "env": {},
        "argv": [word.text for word in router.argv],
        "settings": json.loads(settings.text) if settings else None,
        "shell": None if settings else _line({}, router.argv),
    }


def _line(env: Mapping[str, Word], argv: Sequence[Word]) -> str:
    """One command to paste."""
    pairs = [f"{shlex.quote(name)}={word.in_shell()}" for name, word in env.items()]
    return " ".join([*pairs, *(word.in_shell() for word in argv)])
