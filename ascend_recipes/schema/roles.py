"""The recipe as one role of a disaggregated deployment sees it."""

import json

from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.schema.serving import RoleName


def role_recipe(recipe: Recipe, role: RoleName) -> Recipe:
    """Merge the role's overrides into the sections of the recipe.

    Raises:
        pydantic.ValidationError: an override that the section does not know or take.
    """
    spec = recipe.roles[role]
    tree = json.loads(recipe.model_dump_json())
    for section, changes in spec.sections.items():
        if changes:
            kind = changes.get("kind", tree[section].get("kind"))
            base = tree[section] if kind == tree[section].get("kind") else {}
            tree[section] = {**base, **changes}
    tree["env"] = {**tree["env"], **spec.env}
    tree["nodes"] = spec.nodes
    return Recipe.model_validate_json(json.dumps(tree))
