"""The text of a recipe that says the same as a command line."""

from collections.abc import Mapping, Sequence

from ascend_recipes.commands.search import is_choice
from ascend_recipes.findings import recipe_error
from ascend_recipes.schema.base import Json
from ascend_recipes.trial import set_leaf
from ascend_recipes.words import split_override


def derived_text(words: Sequence[str], remark: str, stated: Mapping[str, Json]) -> str:
    """A recipe that builds on the one that the words name.

    Args:
        words: a command line, `recipe=…` among it.
        remark: what the new recipe is, for its first comment.
        stated: what else it says of itself.

    Raises:
        RecipeError: a word takes a key away that a file of the user's holds.
    """
    import yaml

    recipe, choices, values = "", [], {}
    for word in words:
        key, value = split_override(word)
        if word.startswith("~"):
            raise recipe_error("fix.line_to_delete", at=key, key=key)
        if key == "recipe":
            recipe = str(value)
        elif is_choice(word):
            choices.append(f"  - override /{key}: {value}")
        else:
            values[key] = word
    tree: dict[str, Json] = dict(stated)
    for word in values.values():
        set_leaf(tree, word)
    body = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True) if tree else ""
    lines = ["# @package _global_", f"# {remark}", "defaults:", f"  - {recipe}", *choices]
    return "\n".join(lines) + "\n" + body
