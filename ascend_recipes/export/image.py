"""The container image of a deployment."""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe


def find_image(resolved: ResolvedRecipe) -> str | None:
    """The site's image, else the published one of the runtime's version and the generation."""
    recipe = resolved.recipe
    if recipe.site.image:
        return recipe.site.image
    row = resolved.registry.stacks[recipe.runtime.kind]
    tag = row.image_tags.get(resolved.runtime_version)
    suffix = row.image_suffixes.get(recipe.hardware)
    if tag is None or suffix is None or not row.image_repository:
        return None
    return f"{row.image_repository}:{tag}{suffix}"


def image_findings(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """An image that nobody publishes, or one that changes under its name; unknown devices."""
    recipe = resolved.recipe
    if resolved.hardware.container is None:
        yield finding("export.no_container", at="hardware", hardware=recipe.hardware)
    image = find_image(resolved)
    if image is None:
        yield finding(
            "export.no_image",
            at="site.image",
            fix="site.image=<image>",
            version=resolved.runtime_version,
            hardware=recipe.hardware,
        )
        return
    row = resolved.registry.stacks[recipe.runtime.kind]
    tag = row.image_tags.get(resolved.runtime_version)
    if not recipe.site.image and tag in row.image_moving:
        name = image.rpartition(":")[0]
        yield finding(
            "export.moving_image",
            at="site.image",
            fix=f"site.image={name}@sha256:<digest>",
            image=image,
        )
