"""Pieces of bash that all targets share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ascend_recipes import __version__
from ascend_recipes.export.layout import Layout, Node, Router, Server
from ascend_recipes.export.places import hint
from ascend_recipes.export.words import Word

SIGNATURE = "ascend-run export"
"""Stands in the first lines of each file: what has it may be overwritten."""

STRICT = "set -euo pipefail"

HERE = 'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"'
"""Folder of the script."""

_HEALTH = """\
import http.client, sys, time, urllib.request
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
deadline = time.monotonic() + float(sys.argv[1])
for url in sys.argv[2:]:
    while True:
        try:
            ask(url, timeout=5).close()
            break
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > deadline:
                sys.exit(f"{url} does not answer: {error}")
        time.sleep(2)
"""
"""Waits for servers; proxies are for downloads, not for neighbours."""

HEALTH_COMMAND = ("python3", "-c", _HEALTH)
"""Words before the seconds to wait and the URLs."""

_PATIENCE = """\
# wait_for SECONDS URL…: until every server answers.
wait_for() {
  python3 -c '
%s' "$@"
}"""

_GUARD = """\
processes=()
# shellcheck disable=SC2329  # The trap calls it.
stop() {
  trap - EXIT
  mapfile -t running <<<"$(jobs -p)"
  kill "${running[@]}" 2>/dev/null || true
  wait
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM"""

_READY = """\
# Waits for servers, unless a process of ours ends first.
ready() {
  wait_for "$@" &
  local waiter=$! status=0
  wait -n "${processes[@]}" "${waiter}" || status=$?
  if [ "${status}" -ne 0 ] || kill -0 "${waiter}" 2>/dev/null; then
    echo "a process ended, or the servers did not answer in time" >&2
    exit 1
  fi
}"""

UNTIL_ONE_ENDS = """\
# Whichever ends first ends the others.
status=0
wait -n "${processes[@]}" || status=$?
exit "${status}\""""


def heading(layout: Layout, what: str) -> Iterator[str]:
    """Comment lines at the top of a file."""
    yield f"# {layout.recipe}, plan {layout.digest}: {what}"
    yield f"# {layout.runtime}; written by ascend_recipes {__version__}:"
    yield f"#   {layout.command}"


def program(layout: Layout, what: str, *blocks: str) -> str:
    """A whole script in strict mode; blocks are set apart by blank lines."""
    head = "\n".join(["#!/usr/bin/env bash", *heading(layout, what), STRICT])
    return "\n\n".join([head, *(block for block in blocks if block)]) + "\n"


def demands(layout: Layout, variables: Iterable[str], *, secrets: bool = True) -> str:
    """Lines that end the script where a variable is missing that somebody must set."""
    wanted = {name: hint(name) for name in variables}
    told = {name: text for name, text in wanted.items() if text is not None}
    if secrets:
        told |= dict.fromkeys(layout.secrets, "a secret of the site")
    return "\n".join(f': "${{{name}:?export {name}: {text}}}"' for name, text in told.items())


def environment(layout: Layout) -> str:
    """Lines that set up the toolkit, which images do for interactive shells only."""
    files = " ".join(layout.environment_files)
    return "\n".join(
        [
            "# Images set up their toolkit for interactive shells only.",
            f"for file in {files}; do",
            '  if [ -f "${file}" ]; then',
            "    set +eu",
            "    # shellcheck disable=SC1090",
            '    source "${file}"',
            "    set -eu",
            "  fi",
            "done",
            'export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+${LD_LIBRARY_PATH}:}/usr/local/lib"',
        ]
    )


def command_text(words: Sequence[Word], *, prefix: str = "") -> str:
    """A command over several lines: a flag and its values stand together."""
    first, *rest = _grouped(words)
    return " \\\n  ".join([f"{prefix} {first}" if prefix else first, *rest])


def _grouped(words: Sequence[Word]) -> list[str]:
    groups: list[list[str]] = [[]]
    for word in words:
        if word.text.startswith("--") and groups[-1]:
            groups.append([])
        groups[-1].append(word.in_shell())
    return [" ".join(group) for group in groups]


def exports(env: Mapping[str, Word]) -> Iterator[str]:
    """Lines that set variables for what follows."""
    return (f"export {name}={word.in_shell()}" for name, word in env.items())


def node_program(layout: Layout, node: Node) -> str:
    """The script of a machine: its process, or all of them until one ends."""
    names = ", ".join(server.name for server in node.servers)
    what = f"node {node.number} ({names})"
    head = (demands(layout, node.variables), environment(layout))
    if len(node.servers) == 1:
        (server,) = node.servers
        return program(layout, what, *head, "\n".join(_only(server)))
    started = ("\n".join(_one_of_many(server)) for server in node.servers)
    return program(layout, what, *head, _GUARD, *started, UNTIL_ONE_ENDS)


def _only(server: Server) -> Iterator[str]:
    yield from exports(server.env)
    yield command_text(server.argv, prefix="exec")


def _one_of_many(server: Server) -> Iterator[str]:
    yield f"# {server.name}"
    yield from in_background(server.env, server.argv)


def in_background(env: Mapping[str, Word], argv: Sequence[Word], *launcher: str) -> Iterator[str]:
    """A command that runs beside others, behind the lines of what launches it."""
    lines = [*launcher, "env"]
    lines += [word.joined(f"{name}=", "").in_shell() for name, word in env.items()]
    first, *rest = [*lines, *_grouped(argv)]
    yield " \\\n  ".join([first, *rest]) + " &"
    yield 'processes+=("$!")'


def waiting(seconds: int, urls: Sequence[Word], *, function: str = "wait_for") -> str:
    """A line that waits until servers answer."""
    asked = [Word.of(function), Word.of(str(seconds)), *urls]
    return " \\\n  ".join(word.in_shell() for word in asked)


def patience() -> str:
    """The function behind `waiting`."""
    return _PATIENCE % _HEALTH.replace("'", "'\\''")


def guard() -> str:
    """What ends all processes of a script together with it."""
    return _GUARD


def readiness() -> str:
    """The function `ready`, which waits as `wait_for` does and notices processes that end."""
    return _READY


def router_program(layout: Layout, router: Router) -> str:
    """The script of the router, which begins when every server answers."""
    servers = [node.reached(item) for node in layout.nodes for item in node.listening]
    return program(
        layout,
        f"the router ({router.because})",
        demands(layout, (*router.variables, *_variables(servers))),
        HERE if router.settings else "",
        patience(),
        waiting(layout.ready_seconds, servers),
        "\n".join(router_lines(router, "${here}", prefix="exec")),
    )


def router_lines(router: Router, here: str, *, prefix: str = "") -> Iterator[str]:
    """The router's command.

    Args:
        router: What to start.
        here: Folder with the files of the export, for the shell.
        prefix: Word before the command.
    """
    if router.settings is None:
        name = router.argv[0].text
        yield f"if ! command -v {name} >/dev/null; then"
        yield f'  echo "{name} is missing: python3 -m pip install {name}" >&2'
        yield "  exit 1"
        yield "fi"
        yield command_text(router.argv, prefix=prefix)
        return
    command = " ".join([*([prefix] if prefix else []), *(word.in_shell() for word in router.argv)])
    yield f'export PYTHONPATH="{here}/router${{PYTHONPATH:+:${{PYTHONPATH}}}}"'
    yield f"settings={router.settings.in_shell()}"
    yield f"{command} <(printf '%s' \"${{settings}}\")"


def _variables(words: Iterable[Word]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.name for word in words for part in word.variables))
