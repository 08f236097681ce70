"""Target `shell`: one script a machine, one that keeps the order, one for the router."""

from collections.abc import Iterator

from ascend_recipes.export.layout import ExportFile, Layout, Node
from ascend_recipes.export.router_sources import router_sources
from ascend_recipes.export.script import (
    HERE,
    UNTIL_ONE_ENDS,
    demands,
    guard,
    node_program,
    patience,
    program,
    router_program,
    waiting,
)
from ascend_recipes.export.words import variables_of


def shell_files(layout: Layout) -> Iterator[ExportFile]:
    """Scripts for every machine, and `start.sh NODE` for each machine to run."""
    for node in layout.nodes:
        yield ExportFile(f"{node.name}.sh", node_program(layout, node), is_program=True)
    if layout.router is not None:
        text = router_program(layout, layout.router)
        yield ExportFile("router.sh", text, is_program=True)
        yield from router_sources(layout.router)
    yield ExportFile("start.sh", _start(layout), is_program=True)


def _start(layout: Layout) -> str:
    order = " -> ".join([*layout.groups, *(["router"] if layout.router else [])])
    numbers = " ".join(str(node.number) for node in layout.nodes)
    usage = f'echo "usage: bash start.sh NODE   (nodes: {numbers}; order: {order})" >&2'
    cases = "\n".join(_case(layout, node) for node in layout.nodes)
    blocks = [HERE]
    if any(layout.before(node.role) for node in layout.nodes):
        blocks.append(patience())
    if layout.router is not None:
        blocks.append(guard())
    blocks.append(f'case "${{1:-}}" in\n{cases}\n  *)\n    {usage}\n    exit 2\n    ;;\nesac')
    return program(layout, f"start each node in its turn: {order}", *blocks)


def _case(layout: Layout, node: Node) -> str:
    lines: list[str] = []
    urls = [other.reached(item) for other in layout.before(node.role) for item in other.listening]
    if urls:
        lines += demands(layout, variables_of(urls), secrets=False).splitlines()
        lines += waiting(layout.ready_seconds, urls).splitlines()
    if layout.router is not None and node.number == 0:
        lines += [f'bash "${{here}}/{node.name}.sh" &', 'processes+=("$!")']
        lines += ['bash "${here}/router.sh" &', 'processes+=("$!")']
        lines += UNTIL_ONE_ENDS.splitlines()
    else:
        lines.append(f'exec bash "${{here}}/{node.name}.sh"')
    return "\n".join([f"  {node.number})", *(f"    {line}" for line in lines), "    ;;"])
