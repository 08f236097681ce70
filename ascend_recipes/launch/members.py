"""Rendered commands as processes of this machine: names, environment, where they answer."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.launch.environment import rendered_environment
from ascend_recipes.launch.folder import RunFolder
from ascend_recipes.launch.http import ServerClient
from ascend_recipes.launch.session import SOLE_PROCESS, ProcessSpec
from ascend_recipes.rendering.command import RenderedCommand

LOG_FOLDER = "logs"


@dataclass(frozen=True)
class Member:
    """A rendered command and what people call it."""

    name: str
    command: RenderedCommand

    @property
    def group(self) -> str:
        """Members of one role start and end together."""
        return self.command.role

    @property
    def client(self) -> ServerClient | None:
        """Whom to ask whether it is healthy; nobody where it has no API of its own."""
        if self.command.port is None:
            return None
        return ServerClient(bound_host(self.command), self.command.port)


def name_members(commands: Sequence[RenderedCommand]) -> tuple[Member, ...]:
    """Give each process of a deployment a name: `decode-0-rank3`, or `vllm` for a single one."""
    if len(commands) == 1:
        return (Member(SOLE_PROCESS, commands[0]),)
    copied = {command.role for command in commands if command.instance > 0}
    return tuple(Member(_name(command, command.role in copied), command) for command in commands)


def _name(command: RenderedCommand, copied: bool) -> str:
    parts: list[str] = [command.role]
    if copied:
        parts.append(str(command.instance))
    parts.append(f"node{command.node}" if command.rank is None else f"rank{command.rank}")
    return "-".join(parts)


def bound_host(command: RenderedCommand) -> str:
    """Address that the API binds; vLLM binds every one unless told otherwise."""
    return flag_value(command.argv, "--host") or "0.0.0.0"


def flag_value(argv: Sequence[str], flag: str) -> str | None:
    """Value of a flag, in either spelling; the last one counts."""
    value = None
    for index, word in enumerate(argv):
        if word == flag and index + 1 < len(argv):
            value = argv[index + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value


def find_executable(name: str, outer: Mapping[str, str]) -> str | None:
    """The command of the shell's PATH, else one beside our own interpreter."""
    return shutil.which(name, path=outer.get("PATH")) or shutil.which(
        name, path=str(Path(sys.executable).parent)
    )


def process_spec(
    member: Member, folder: RunFolder, executable: str, outer: Mapping[str, str]
) -> ProcessSpec:
    """What a session starts for a member."""
    alone = member.name == SOLE_PROCESS
    return ProcessSpec(
        name=member.name,
        command=(executable, *member.command.argv[1:]),
        environment=rendered_environment(member.command.env, outer),
        log=folder.log if alone else folder.path / LOG_FOLDER / f"{member.name}.log",
        group=member.group,
        port=member.command.port,
    )
