"""Describes a planned deployment for the targets: machines, processes, image, folders."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ascend_recipes.export.image import find_image
from ascend_recipes.export.layout import VISIBLE, Layout, Node, Router, Server
from ascend_recipes.export.places import MARKER, Places
from ascend_recipes.export.words import Variable, Word
from ascend_recipes.launch.members import Member, bound_host, name_members
from ascend_recipes.launch.routing import (
    EXECUTABLE,
    MODULE,
    RouterPlan,
    bound_by_router,
    calls_back,
    choose_router,
    router_arguments,
    router_settings,
)
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.planning.nodes import NodePlace, deployment_nodes
from ascend_recipes.planning.ports import meeting_port
from ascend_recipes.rendering.render import render_commands
from ascend_recipes.rendering.topology import NO_INTERFACE
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.roles import role_recipe
from ascend_recipes.schema.rows import ContainerFacts
from ascend_recipes.schema.serving import RoleName

_LEADERS = ("--data-parallel-address", "--master-addr")
"""Flags that name an instance's first machine."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Wildcard that a server binds -> where it is asked on its own machine."""
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_CACHE = "/var/cache/ascend-recipes"
"""Where downloads are kept on a machine whose site names no folder."""


def describe(planned: PlannedLaunch, places: Places, command: str) -> Layout:
    """Render the deployment with the machines' names of one target.

    Args:
        planned: Its plan, for an installed runtime.
        places: How the target calls machines.
        command: What to type to write the files again.
    """
    resolved = _unsited(planned.resolved) if places.deals_out else planned.resolved
    recipe, runtime = resolved.recipe, resolved.recipe.runtime.kind
    members = name_members(render_commands(resolved))
    stack = resolved.registry.stacks[runtime]
    container = resolved.hardware.container or ContainerFacts(resource="")
    return Layout(
        recipe=planned.plan.recipe,
        digest=planned.plan.digest,
        runtime=f"{stack.distribution} {resolved.runtime_version}",
        command=command,
        nodes=tuple(_nodes(recipe, members, places)),
        router=_router(recipe, members, places),
        image=find_image(resolved) or "",
        container=container,
        resource=recipe.site.npu_resource or container.resource,
        shared_memory_gib=stack.shared_memory_gib,
        environment_files=stack.environment_files,
        weights=tuple(_weights(recipe, members)),
        weights_claim=recipe.site.weights_claim,
        cache_folder=_downloads(recipe, members),
        secrets=tuple(recipe.site.secrets),
        device_folder=recipe.site.device_folder,
        ready_seconds=recipe.serving.ready_timeout_s,
        port=recipe.serving.port,
    )


def _unsited(resolved: ResolvedRecipe) -> ResolvedRecipe:
    """Without the addresses of machines that the target chooses itself."""
    site = resolved.recipe.site.model_copy(update={"node_addresses": ()})
    return replace(resolved, recipe=resolved.recipe.model_copy(update={"site": site}))


def _nodes(recipe: Recipe, members: Sequence[Member], places: Places) -> list[Node]:
    every = deployment_nodes(recipe)
    sizes: dict[tuple[str, int], int] = {}
    for place in every:
        key = (place.role, place.instance)
        sizes[key] = sizes.get(key, 0) + 1
    return [
        Node(
            number=place.node,
            role=place.role,
            instance=place.instance,
            local=place.node_rank,
            size=sizes[place.role, place.instance],
            servers=tuple(
                _server(item, _dies(recipe, place, item), places)
                for item in members
                if item.command.node == place.node
            ),
            address=places.reached(place.node),
        )
        for place in every
    ]


def _server(member: Member, dies: tuple[int, ...], places: Places) -> Server:
    command = member.command
    argv: list[Word] = []
    for before, text in zip(("", *command.argv), command.argv, strict=False):
        listened = before == "--host" and MARKER.fullmatch(text) is None
        argv.append(places.listened(text) if listened else _word(text, before, places))
    has_host = "--host" in command.argv
    host = argv[command.argv.index("--host") + 1] if has_host else Word.of(bound_host(command))
    return Server(
        name=member.name,
        rank=command.rank,
        argv=tuple(argv),
        env={name: _word(text, name, places) for name, text in sorted(command.env.items())},
        dies=dies,
        port=command.port,
        host=_asked(host),
    )


def _word(text: str, flag: str, places: Places) -> Word:
    """A word of rendering; a text that stands for an address or interface becomes one."""
    if text == NO_INTERFACE:
        return Word.of(Variable(NO_INTERFACE))
    if found := MARKER.fullmatch(text):
        node = int(found[1])
        return places.leader(node) if flag in _LEADERS else places.own(node)
    assert MARKER.search(text) is None, f"{flag} hides an address in {text}"
    return Word.of(text)


def _dies(recipe: Recipe, place: NodePlace, member: Member) -> tuple[int, ...]:
    """Numbers of a process's dies: those that rendering names, else the machine's first ones."""
    named = member.command.env.get(VISIBLE)
    view = recipe if place.role == "serve" else role_recipe(recipe, place.role)
    width = view.parallel.tp * view.parallel.pp
    count = width if member.command.rank is not None else -(-view.parallel.world_size // view.nodes)
    if named:
        return tuple(int(number) for number in named.split(","))[:count]
    return tuple(range(count))


def _router(recipe: Recipe, members: Sequence[Member], places: Places) -> Router | None:
    if "serve" in recipe.roles:
        return None
    names = recipe.site.secrets
    kind, because = choose_router(recipe, members, names=names, installed=True)
    layerwise = calls_back(members)
    host = places.listened(recipe.serving.host)
    if not host.variables:
        host = _parsed(bound_by_router(recipe, places.router().text, layerwise=layerwise))
    plan = RouterPlan(
        kind=kind,
        because=because,
        host=host.text,
        port=recipe.serving.port,
        address=places.router().text,
        prefill=_reached(members, "prefill", places),
        decode=_reached(members, "decode", places),
        layerwise=layerwise,
        metrics_port=meeting_port(recipe.site.port_base) + 1,
    )
    minimal = kind == "minimal"
    argv = ("python3", "-m", MODULE) if minimal else (EXECUTABLE, *router_arguments(plan))
    return Router(
        kind=kind,
        because=because,
        port=plan.port,
        argv=tuple(map(_parsed, argv)),
        settings=_parsed(json.dumps(router_settings(plan))) if minimal else None,
        host=_asked(host),
    )


def _reached(
    members: Sequence[Member], role: RoleName, places: Places
) -> tuple[tuple[str, int], ...]:
    return tuple(
        (places.reached(item.command.node).text, item.command.port)
        for item in members
        if item.command.role == role and item.command.port is not None
    )


def _parsed(text: str) -> Word:
    """A word from the text of words: addresses and names of variables have no dollar sign."""
    parts = _VARIABLE.split(text)
    return Word(
        tuple(Variable(part) if number % 2 else part for number, part in enumerate(parts) if part)
    )


def _asked(bound: Word) -> Word:
    """Where a server is asked that binds an address or every one."""
    return Word.of(_ANY.get(bound.text, bound.text)) if not bound.variables else bound


def _weights(recipe: Recipe, members: Sequence[Member]) -> Iterator[str]:
    """Folders of the machine that occur in the commands: weight roots, else single checkpoints."""
    words = "\n".join(word for item in members for word in item.command.argv)
    rest = words
    for root in recipe.site.weight_roots:
        if f"{root.rstrip('/')}/" in words:
            yield root
            rest = rest.replace(f"{root.rstrip('/')}/", "")
    model = members[0].command.argv[2]
    if Path(model).is_absolute() and model in rest:
        yield model


def _downloads(recipe: Recipe, members: Sequence[Member]) -> str | None:
    """Folder for downloads, where a model is named by its identifier on a hub."""
    model = members[0].command.argv[2]
    return None if Path(model).is_absolute() else recipe.site.cache_folder or _CACHE
