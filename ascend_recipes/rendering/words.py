"""Reads the words of a `vllm serve` command the way vLLM's own parser does.

Source: `FlexibleArgumentParser` in vllm/utils/argparse_utils.py: underscores are dashes, `--a.b v`
is a key of the JSON flag `--a`, `--a=v` and `--a v` are one, of a repeated flag the last counts.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ascend_recipes.rendering.arguments import Arguments
from ascend_recipes.rendering.codecs import ON, SWITCH
from ascend_recipes.rendering.table import ROWS
from ascend_recipes.schema.base import Json

SHORT: Mapping[str, str] = {
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-cc": "--compilation-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port",
    "-dpr": "--data-parallel-start-rank",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-O": "--optimization-level",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
}
"""Short flags (vllm/engine/arg_utils.py)."""

_SWITCHES = frozenset(
    row.target for row in ROWS if row.target.startswith("--") and row.codec in (ON, SWITCH)
) | {
    "--disable-hybrid-kv-cache-manager",
    "--enable-auto-tool-choice",
    "--enable-chunked-prefill",
    "--enforce-eager",
    "--headless",
}
"""Flags of ours that take no value; others are taken to have one if a plain word follows."""

_SERVER_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")


@dataclass(frozen=True)
class ReadCommand:
    """The words of a command by what they mean."""

    model: str | None
    flags: Mapping[str, Json]
    """Flag -> value: a truth value, a text, a list of texts, or the object of a JSON flag."""
    repeated: tuple[str, ...] = ()
    """Flags that were given more than once with different values."""
    unreadable: tuple[tuple[str, str], ...] = ()
    """JSON flags whose value does not parse, with the reason."""
    stray: tuple[str, ...] = ()
    """Words that belong to no flag."""


@dataclass
class _Reader:
    rest: list[str]
    flags: dict[str, Json] = field(default_factory=dict)
    dotted: Arguments = field(default_factory=Arguments)
    repeated: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)

    def read(self) -> None:
        while self.rest:
            word = self.rest.pop(0)
            if word == "--":
                self.stray += self.rest
                return
            if not is_flag(word):
                self.stray.append(word)
                continue
            name, equals, attached = split_flag(word)
            self.set(name, attached if equals else self.value(name))

    def value(self, name: str) -> Json:
        if name in _SWITCHES or name.startswith("--no-"):
            return True
        values = []
        while self.rest and not is_flag(self.rest[0]) and self.rest[0] != "--":
            values.append(self.rest.pop(0))
        if not values:
            return True
        plain: list[Json] = list(values)
        return values[0] if len(values) == 1 else plain

    def set(self, name: str, value: Json) -> None:
        if "." in name:
            flag, *keys = name.split(".")
            # Of a key that is given twice the last counts, as with flags.
            self.dotted.replace(f"{flag}.{'.'.join(keys)}", plain_value(value))
            return
        if name.startswith("--no-") and value is True:
            name, value = f"--{name.removeprefix('--no-')}", False
        if name in self.flags and self.flags[name] != value:
            self.repeated.append(name)
        self.flags[name] = value


def read_words(argv: Sequence[str]) -> ReadCommand:
    """Read `vllm serve MODEL --flag …` or `python -m …api_server --model MODEL …`."""
    reader = _Reader(list(_arguments(argv)))
    model = reader.rest.pop(0) if reader.rest and not is_flag(reader.rest[0]) else None
    reader.read()
    unreadable: list[tuple[str, str]] = []
    flags: dict[str, Json] = {}
    for name, value in reader.flags.items():
        flags[name] = _object(name, value, unreadable)
    for name, value in reader.dotted.flags.items():
        present = flags.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            # vLLM hands the dotted form on as a second JSON flag, of which the last counts.
            reader.repeated.append(name)
        flags[name] = value
    named = flags.pop("--model", None)
    return ReadCommand(
        model=model if model is not None else (str(named) if named is not None else None),
        flags=flags,
        repeated=tuple(dict.fromkeys(reader.repeated)),
        unreadable=tuple(unreadable),
        stray=tuple(reader.stray),
    )


def is_flag(word: str) -> bool:
    """Whether a word is a flag, and neither a value nor a negative number."""
    if word.startswith("--"):
        return len(word) > 2
    head = word.partition("=")[0].partition(".")[0]
    return head in SHORT or (head.startswith("-O") and head[2:].isdigit())


def split_flag(word: str) -> tuple[str, bool, str]:
    """Long name with dashes, whether a value is attached, and the value."""
    head, equals, value = word.partition("=")
    if head.startswith("-O") and head[2:].isdigit():
        return SHORT["-O"], True, head[2:]
    name, dot, keys = head.partition(".")
    name = SHORT.get(name, name.replace("_", "-"))
    return f"{name}{dot}{keys}", bool(equals), value


def plain_value(value: Json) -> Json:
    """A text as JSON reads it, else as it is."""
    if not isinstance(value, str):
        return value
    try:
        parsed: Json = json.loads(value)
    except ValueError:
        return value
    return parsed


def _object(name: str, value: Json, unreadable: list[tuple[str, str]]) -> Json:
    """The object of a flag that takes JSON; a value that begins with a brace must parse."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        parsed: Json = json.loads(value)
    except ValueError as error:
        unreadable.append((name, str(error)))
        return value
    return parsed


def _arguments(argv: Sequence[str]) -> Iterator[str]:
    """Words after `vllm serve` or after the server module."""
    words = list(argv)
    for index, word in enumerate(words):
        if word == "serve" or word in _SERVER_MODULES:
            yield from words[index + 1 :]
            return
    yield from words
