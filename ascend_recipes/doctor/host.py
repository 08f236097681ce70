"""Everything that the probes learn of a machine goes through here, so that one can be recorded."""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ascend_recipes.launch.deployment import is_own_address
from ascend_recipes.launch.members import find_executable
from ascend_recipes.launch.readiness import VLLM, installed_versions
from ascend_recipes.machine import PLUGIN_GROUPS, InstalledVersions, this_machine

_SECONDS = 20.0
"""Time for a command to answer; npu-smi takes seconds where many dies are busy."""


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    status: int
    output: str
    """Both streams."""


@dataclass(frozen=True)
class Space:
    """A file system."""

    free: int
    """Bytes."""
    total: int


@dataclass(frozen=True)
class Plugin:
    """An entry point that extends vLLM."""

    group: str
    name: str
    distribution: str


@dataclass(frozen=True)
class Host:
    """One machine as a shell on it sees it."""

    root: Path = Path("/")
    """Folder that stands for `/`."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    run: Callable[[Sequence[str]], Ran | None] = lambda argv: run_command(argv)
    """Runs a command; None where there is none of that name."""
    space: Callable[[Path], Space | None] = lambda path: space_at(path)
    """Space at a path, or at the nearest folder above it that exists."""
    limit: Callable[[str], int | None] = lambda name: hard_limit(name)
    """Hard limit of a resource of this process; None where there is no bound."""
    owns_address: Callable[[str], bool] = is_own_address
    installed: Callable[["Host"], InstalledVersions] = lambda host: versions_here(host)
    plugins: Callable[[], tuple[Plugin, ...]] = lambda: plugins_here()

    def read(self, path: str) -> str | None:
        """Text of a file; None where it cannot be read."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; none where it is not there."""
        try:
            return tuple(sorted(item.name for item in self.at(folder).iterdir()))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        return self.at(path).exists()

    def at(self, path: str) -> Path:
        """Where an absolute path lies."""
        return self.root / path.lstrip("/")


def run_command(argv: Sequence[str]) -> Ran | None:
    """Run a command and wait for it; one that hangs or cannot be started is a failed one."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(124, f"no answer within {_SECONDS:.0f} s")
    except OSError as error:
        return Ran(126, str(error))
    return Ran(done.returncode, done.stdout.decode("utf-8", errors="replace"))


def space_at(path: Path) -> Space | None:
    """Space of the file system that a path is on, or would be."""
    for place in (path, *path.parents):
        try:
            usage = shutil.disk_usage(place)
        except OSError:
            continue
        return Space(usage.free, usage.total)
    return None


def hard_limit(name: str) -> int | None:
    """Hard limit of `nofile`, `memlock` or `nproc`."""
    kinds = {
        "nofile": resource.RLIMIT_NOFILE,
        "memlock": resource.RLIMIT_MEMLOCK,
        "nproc": resource.RLIMIT_NPROC,
    }
    limit = resource.getrlimit(kinds[name])[1]
    return None if limit == resource.RLIM_INFINITY else limit


def versions_here(host: Host) -> InstalledVersions:
    """What is installed here; packages are those of the environment whose `vllm` would start."""
    machine = this_machine(host.root, host.environ)
    executable = find_executable(VLLM, host.environ)
    packages = installed_versions(executable) if executable else None
    if packages is None:
        return machine
    found: dict[str, Any] = dict(packages)
    return replace(machine, **found)


def plugins_here() -> tuple[Plugin, ...]:
    """Entry points of the two groups that vLLM loads when it starts."""
    found = {
        Plugin(point.group, point.name, item.metadata["Name"].lower().replace("_", "-"))
        for item in distributions()
        for point in item.entry_points
        if point.group in PLUGIN_GROUPS
    }
    return tuple(sorted(found, key=lambda item: (item.group, item.distribution, item.name)))
