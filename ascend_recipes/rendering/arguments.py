"""Arguments of one process: flags, JSON values that merge leaf by leaf, environment, reasons."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from ascend_recipes.schema.base import Json


@dataclass(frozen=True)
class Clash:
    """Two parts of a recipe that say different things for one argument."""

    target: str
    first: str
    """Recipe path that spoke first."""
    second: str
    values: tuple[Json, Json]


@dataclass
class Arguments:
    """Arguments under construction, by target (see `table.py`)."""

    flags: dict[str, Json] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Target -> recipe path, registry row or sentence."""
    clashes: list[Clash] = field(default_factory=list)

    def put(self, target: str, value: Json, because: str) -> None:
        """Set an argument; objects merge with what is there, a differing leaf is a clash."""
        if target.startswith("$"):
            self._put_variable(target, str(value), because)
            return
        flag, *keys = target.split(".")
        if not keys:
            self._merge_into(self.flags, flag, value, flag, because)
            return
        node = self.flags.setdefault(flag, {})
        for key in keys[:-1]:
            assert isinstance(node, dict), f"{target} is inside a plain value"
            node = node.setdefault(key, {})
        assert isinstance(node, dict), f"{target} is inside a plain value"
        self._merge_into(node, keys[-1], value, target, because)

    def _put_variable(self, target: str, value: str, because: str) -> None:
        name = target.removeprefix("$")
        if name in self.variables and self.variables[name] != value:
            self._clash(target, self.variables[name], value, because)
            return
        self.variables[name] = value
        self.reasons[target] = because

    def _merge_into(
        self, node: dict[str, Json], key: str, value: Json, target: str, because: str
    ) -> None:
        present = node.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            for inner, item in value.items():
                self._merge_into(present, inner, item, f"{target}.{inner}", because)
        elif isinstance(value, dict):
            if key in node:
                self._clash(target, present, value, because)
                return
            node[key] = {}
            self._merge_into(node, key, value, target, because)
            self.reasons.setdefault(target, because)
        elif key in node and present != value:
            self._clash(target, present, value, because)
        else:
            node[key] = value
            self.reasons.setdefault(target, because)

    def _clash(self, target: str, present: Json, value: Json, because: str) -> None:
        first = self.reasons.get(target, "")
        self.clashes.append(Clash(target, first, because, (present, value)))

    def offer(self, target: str, value: Json, because: str) -> None:
        """Set an argument unless something has spoken for it already."""
        before = len(self.clashes)
        self.put(target, value, because)
        del self.clashes[before:]

    def replace(self, target: str, value: Json) -> None:
        """Set a key of a JSON flag, whatever was there."""
        flag, *keys = target.split(".")
        node = self.flags.setdefault(flag, {})
        for key in keys[:-1]:
            assert isinstance(node, dict), f"{target} is inside a plain value"
            inner = node.get(key)
            node = node[key] = inner if isinstance(inner, dict) else {}
        assert isinstance(node, dict), f"{target} is inside a plain value"
        node[keys[-1]] = value

    def drop(self, flag: str) -> None:
        """Take a flag out again."""
        self.flags.pop(flag, None)
        self.reasons.pop(flag, None)

    def words(self) -> tuple[str, ...]:
        """The flags as a shell would pass them, each flag once."""
        return tuple(word for flag, value in self.flags.items() for word in flag_words(flag, value))


def flag_words(flag: str, value: Json, *, joined: bool = False) -> Iterator[str]:
    """A flag with its value as a shell would pass them; nothing where there is no value.

    Args:
        flag: With its dashes.
        value: What it is set to; a list is several words.
        joined: Write a single value as `--flag=value`, as always where it starts with a dash.
    """
    match value:
        case None:
            return
        case True:
            yield flag
        case False:
            yield flag.replace("--", "--no-", 1)
        case dict():
            yield from (flag, json.dumps(value, ensure_ascii=False))
        case list():
            yield from (flag, *(_word(item) for item in value))
        case _:
            word = _word(value)
            # One word where the value could be taken for a flag, or for nothing.
            apart = not joined and word and not word.startswith("-")
            yield from (flag, word) if apart else (f"{flag}={word}",)


def _word(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
