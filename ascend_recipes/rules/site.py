"""What a deployment needs to know about the place where it is started.

None of it belongs into a recipe, so that a plan can be made anywhere; a launch needs it.
"""

from collections import Counter
from collections.abc import Iterator

from ascend_recipes.compose import EXAMPLE_SITE
from ascend_recipes.errors import Finding
from ascend_recipes.findings import Phrase, finding, phrase
from ascend_recipes.planning.nodes import NodePlace, deployment_nodes
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.roles import role_recipe


def missing_site_values(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Addresses, interface and devices that this deployment needs and the site does not name."""
    places = deployment_nodes(resolved.recipe)
    if len(places) > 1 and resolved.recipe.runtime.kind != "native":
        yield from _network(resolved, places)
    yield from _devices(resolved, places)


def _network(resolved: ResolvedRecipe, places: tuple[NodePlace, ...]) -> Iterator[Finding]:
    site, nodes = resolved.recipe.site, len(places)
    file = _site_file(resolved)
    if (given := len(site.node_addresses)) < nodes:
        example = ",".join([*site.node_addresses, *(f"<node {n}>" for n in range(given, nodes))])
        yield finding(
            "site.too_few_addresses",
            at="site.node_addresses",
            fix=f"site.node_addresses=[{example}]",
            nodes=nodes,
            given=given,
            missing=given,
            role=places[given].role,
            file=file,
        )
    if site.network_interface is None:
        yield finding(
            "site.no_interface",
            at="site.network_interface",
            fix="site.network_interface=<interface>",
            nodes=nodes,
            file=file,
        )


def _devices(resolved: ResolvedRecipe, places: tuple[NodePlace, ...]) -> Iterator[Finding]:
    recipe = resolved.recipe
    ids = recipe.site.device_ids
    if not ids:
        return
    if repeated := sorted(number for number, count in Counter(ids).items() if count > 1):
        unique = ",".join(map(str, dict.fromkeys(ids)))
        fix = f"site.device_ids=[{unique}]"
        yield finding("site.repeated_device", at="site.device_ids", fix=fix, repeated=repeated)
    for role in dict.fromkeys(place.role for place in places):
        view = recipe if role == "serve" else role_recipe(recipe, role)
        nodes = recipe.nodes if role == "serve" else recipe.roles[role].nodes
        dies = -(-view.parallel.world_size // nodes)
        if dies > len(ids):
            fix = f"site.device_ids=[{','.join(map(str, range(dies)))}]"
            yield finding(
                "site.too_few_devices",
                at="site.device_ids",
                fix=fix,
                role=role,
                dies=dies,
                given=len(ids),
            )


def _site_file(resolved: ResolvedRecipe) -> Phrase | str:
    """File that people edit: their own site, or one that they still have to write."""
    source = resolved.source_of("site")
    if resolved.recipe.site.name == EXAMPLE_SITE or source is None:
        return phrase("site.own_file", path="~/.config/ascend_recipes/site/NAME.yaml")
    return source.origin
