"""Python sources of a package without importing it: a folder, or a revision of a git repository."""

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import recipe_error

UNKNOWN_VERSION = "unknown"
_VERSION_LINE = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_VERSION_NAME = re.compile(r"^__version__ *(?:: *str)? *= *(?:version *= *)?['\"]([^'\"]+)", re.M)
_TAG = re.compile(r"^v?(\d+\.\d+(?:\.\d+)?\S*)$")


class Sources(Protocol):
    """Python files of one package."""

    @property
    def package(self) -> str:
        """Name of the top-level package, for example `vllm`."""

    @property
    def version(self) -> str:
        """Version of the package, or `unknown`."""

    def read(self, path: str) -> str | None:
        """Text of a file below the package's folder, for example `v1/outputs.py`."""

    def paths(self) -> Iterator[str]:
        """Every Python file below the package's folder."""


@dataclass(frozen=True)
class FolderSources:
    """An installed package or an unpacked source package."""

    package: str
    folder: Path
    """Folder of the package itself; its `__init__.py` lies directly inside."""

    @cached_property
    def version(self) -> str:
        """Version as the package's own metadata states it."""
        parent = self.folder.parent
        candidates = [parent / "PKG-INFO", *parent.glob(f"{self.package}-*.dist-info/METADATA")]
        for path in candidates:
            if path.is_file() and (
                match := _VERSION_LINE.search(path.read_text("utf-8", "replace"))
            ):
                return _public(match[1])
        for name in ("_version.py", "version.py"):
            if match := _VERSION_NAME.search(self.read(name) or ""):
                return _public(match[1])
        return _described(self.folder) or UNKNOWN_VERSION

    def read(self, path: str) -> str | None:
        """Text of a file, or none."""
        file = self.folder / path
        return file.read_text(encoding="utf-8") if file.is_file() else None

    def paths(self) -> Iterator[str]:
        """Every Python file, sorted."""
        for path in sorted(self.folder.rglob("*.py")):
            yield path.relative_to(self.folder).as_posix()


@dataclass(frozen=True)
class GitSources:
    """One revision of a git repository, read without touching its work tree."""

    package: str
    repository: Path
    revision: str

    @cached_property
    def version(self) -> str:
        """The revision if it is a release tag, else what git describes it as."""
        if match := _TAG.match(self.revision):
            return match[1]
        return _described(self.repository, self.revision) or UNKNOWN_VERSION

    @cached_property
    def _listing(self) -> frozenset[str]:
        names = _git(self.repository, "ls-tree", "-r", "--name-only", self.revision, self.package)
        prefix = f"{self.package}/"
        return frozenset(
            name.removeprefix(prefix) for name in names.splitlines() if name.endswith(".py")
        )

    def read(self, path: str) -> str | None:
        """Text of a file, or none."""
        if path not in self._listing:
            return None
        return _git(self.repository, "show", f"{self.revision}:{self.package}/{path}")

    def paths(self) -> Iterator[str]:
        """Every Python file, sorted."""
        yield from sorted(self._listing)


def installed_sources(package: str) -> Sources | None:
    """Sources of an installed package, or none; a top-level package is found without running it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return FolderSources(package, Path(next(iter(spec.submodule_search_locations))))


def sources_at(place: str, package: str) -> Sources:
    """Sources at a path that the user typed: a folder, or `REPOSITORY@REVISION`.

    Raises:
        RecipeError: there is no such package at the place (exit code 4).
    """
    folder, at, revision = place.rpartition("@")
    if at and folder:
        return _git_sources(Path(folder).expanduser(), revision, package)
    root = Path(place).expanduser()
    for candidate in (root, root / package, root / "src" / package):
        if candidate.name == package and (candidate / "__init__.py").is_file():
            return FolderSources(package, candidate)
    raise _no_sources(place, package)


def _git_sources(repository: Path, revision: str, package: str) -> Sources:
    if not repository.is_dir():
        raise _no_sources(f"{repository}@{revision}", package)
    sources = GitSources(package, repository, revision)
    if sources.read("__init__.py") is None:
        raise _no_sources(f"{repository}@{revision}", package)
    return sources


def _no_sources(place: str, package: str) -> RecipeError:
    exit_code = ExitCode.ENVIRONMENT
    return recipe_error("patches.no_sources", exit_code=exit_code, place=place, package=package)


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise recipe_error(
            "patches.git",
            exit_code=ExitCode.ENVIRONMENT,
            command=words[0],
            repository=repository,
            said=done.stderr.strip(),
        )
    return done.stdout


def _public(version: str) -> str:
    """Version without the build's own suffix: `0.32.0+empty` has the sources of `0.32.0`."""
    return version.partition("+")[0]


def _described(place: Path, revision: str = "HEAD") -> str | None:
    done = subprocess.run(
        ["git", "-C", str(place), "describe", "--tags", revision],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip().removeprefix("v") or None if done.returncode == 0 else None
