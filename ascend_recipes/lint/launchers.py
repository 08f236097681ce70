"""Recognises the words that start vLLM, behind whatever starts them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ascend_recipes.lint.command import Word, plain_word
from ascend_recipes.lint.source import Place

_SERVER_MODULES = frozenset(
    {
        "vllm.entrypoints.openai.api_server",
        "vllm.entrypoints.api_server",
        "vllm.entrypoints.cli.main",
    }
)
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ash", "eval", "ssh", "screen", "tmux"})
_LAUNCHERS = _SHELLS | frozenset(
    {
        *("nohup", "env", "exec", "sudo", "time", "timeout", "numactl", "taskset", "nice"),
        *("stdbuf", "setsid", "command", "ionice", "chrt", "unbuffer", "uv", "poetry", "conda"),
        *("docker", "podman", "nerdctl", "kubectl", "srun", "mpirun", "msprof", "xargs"),
        *("strace", "gdb", "py-spy", "nsys", "catchsegv", "systemd-run", "script", "tini"),
    }
)
"""Programs that run the command which follows among their own arguments."""
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_SERVER_IMAGE = re.compile(r"(^|/)vllm-(openai|server)(:|@|$)")
"""Images whose entry point is the server, so that its arguments follow the name."""
_INNER_COMMAND = re.compile(r"\s")
MENTIONS_SERVER = re.compile(r"vllm(?:\s+serve\b|\.entrypoints)")
"""Cheap test for texts that may start a server."""
_PAIR = re.compile(r"([A-Za-z_]\w*)=")


@dataclass(frozen=True)
class Launch:
    """A server's command line, or a script that may hold some."""

    line: int
    argv: tuple[Word, ...] = ()
    """`vllm serve MODEL …`."""
    env: Mapping[str, Word] = field(default_factory=dict)
    """Variables that launchers set: `env A=B`, `docker run -e A=B`."""
    script: Word | None = None
    """Argument of `bash -c` and the like, which is a script of its own."""


def find_launch(words: Sequence[Word]) -> Launch | None:
    """What a simple command launches, if that is vLLM's server or may contain it."""
    program = _base(words[0].text)
    if program not in _LAUNCHERS and program != "vllm" and not program.startswith("python"):
        return None
    for index, word in enumerate(words):
        arguments = _server_arguments(words, index)
        if arguments is not None:
            env = _launcher_env(words[:index])
            return Launch(word.line, normalise(word.place(), arguments), env)
        if program in _LAUNCHERS and index and _is_script(word):
            return Launch(word.line, env=_launcher_env(words[:index]), script=word)
    return None


def normalise(place: Place, arguments: Sequence[Word]) -> tuple[Word, ...]:
    """`vllm serve MODEL …` from the words after `serve`; vLLM moves `--model` likewise."""
    head = (plain_word("vllm", place), plain_word("serve", place))
    rest = list(arguments)
    for index, word in enumerate(rest):
        if word.text == "--model" and index + 1 < len(rest):
            model = rest[index + 1]
            return (*head, model, *rest[:index], *rest[index + 2 :])
        if word.text.startswith("--model="):
            model = word.tail(len("--model="))
            return (*head, model, *rest[:index], *rest[index + 1 :])
    return (*head, *rest)


def _server_arguments(words: Sequence[Word], index: int) -> Sequence[Word] | None:
    """Words after `vllm serve` or `-m vllm.entrypoints…`, if those stand at `index`."""
    following = words[index + 1].text if index + 1 < len(words) else ""
    program = _base(words[index].text)
    if program == "vllm" and following == "serve":
        return words[index + 2 :]
    if words[index].text == "-m" and following in _SERVER_MODULES:
        rest = words[index + 2 :]
        if following.endswith("cli.main"):
            return rest[1:] if rest and rest[0].text == "serve" else None
        return rest
    if _SERVER_IMAGE.search(words[index].text) and following.startswith("-"):
        return words[index + 1 :]
    return None


def _is_script(word: Word) -> bool:
    return bool(_INNER_COMMAND.search(word.text)) and bool(MENTIONS_SERVER.search(word.text))


def _launcher_env(words: Sequence[Word]) -> dict[str, Word]:
    """Variables among the words in front of the server's command."""
    env: dict[str, Word] = {}
    in_container = any(_base(word.text) in _CONTAINERS for word in words)
    for index, word in enumerate(words):
        before = words[index - 1].text if index else ""
        begin = len("--env=") if word.text.startswith("--env=") else 0
        is_variable = before in ("-e", "--env") or begin if in_container else True
        if is_variable and (pair := _PAIR.match(word.text, begin)):
            env[pair.group(1)] = word.tail(pair.end())
    return env


def _base(text: str) -> str:
    return text.rpartition("/")[2]
