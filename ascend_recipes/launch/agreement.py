"""What the launchers of one deployment must have in common, and how they find what differs."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes import __version__
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json

_SHARED_SITE = ("node_addresses", "port_base")
"""What of the site is one for all; folders, interfaces and devices may differ by machine."""
_OWN_NAMES = ("changed",)
_SHOWN = 3


@dataclass(frozen=True)
class Agreement:
    """Values that every node must start with, by their path."""

    values: Mapping[str, Json]

    @property
    def digest(self) -> str:
        """First 16 hex digits of the sha256 over the values."""
        text = json.dumps(self.values, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def difference(self, other: Mapping[str, Json]) -> str:
        """What the other side has differently, in a line: ours, then theirs."""
        keys = sorted(
            key
            for key in {*self.values, *other}
            if self.values.get(key, _ABSENT) != other.get(key, _ABSENT)
        )
        shown = [
            f"{key} is {_text(self.values, key)} here, {_text(other, key)} there"
            for key in keys[:_SHOWN]
        ]
        more = len(keys) - len(shown)
        return "; ".join(shown) + (f"; and {more} more" if more else "")


_ABSENT = object()


def agreement(resolved: ResolvedRecipe, checkpoint: Path) -> Agreement:
    """The recipe, the shared part of the site, our version and the model's configuration file."""
    recipe = resolved.recipe.model_dump(mode="json", exclude={"site", *_OWN_NAMES})
    site = resolved.recipe.site.model_dump(mode="json", include=set(_SHARED_SITE))
    values = dict(_leaves({**recipe, "site": site}, ""))
    values["runtime.version"] = resolved.runtime_version
    values["ascend_recipes"] = __version__
    config = checkpoint / "config.json"
    if config.is_file():
        digest = hashlib.sha256(config.read_bytes()).hexdigest()[:16]
        values["config.json of the checkpoint"] = digest
    return Agreement(values)


def _leaves(tree: Json, prefix: str) -> Iterator[tuple[str, Json]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, tree


def _text(values: Mapping[str, Json], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "nothing"
