"""What a machine has installed: read from this one, or from a file that another one wrote.

Nothing is imported and nothing is run: package metadata, the version files that CANN and the
driver leave behind, and a table of the kernel's are read.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from ascend_recipes.errors import ExitCode, RecipeError, Source
from ascend_recipes.findings import Phrase, finding, phrase
from ascend_recipes.paths import display_path

PACKAGES = {
    "vllm": "vllm",
    "vllm_ascend": "vllm-ascend",
    "torch": "torch",
    "torch_npu": "torch-npu",
    "triton": "triton",
    "triton_ascend": "triton-ascend",
    "transformers": "transformers",
    "mooncake": "mooncake-transfer-engine-npu",
}
"""Field -> distribution whose version it holds."""

PLUGIN_GROUPS = ("vllm.platform_plugins", "vllm.general_plugins")

_OURS = frozenset({"ascend-recipes", "vllm-ascend"})


@dataclass(frozen=True, kw_only=True)
class InstalledVersions:
    """Versions and traits of one machine; none where they are not known."""

    vllm: str | None = None
    vllm_ascend: str | None = None
    torch: str | None = None
    torch_npu: str | None = None
    triton: str | None = None
    """The GPU build of Triton, which must not stand beside triton-ascend."""
    triton_ascend: str | None = None
    transformers: str | None = None
    mooncake: str | None = None
    """Version of the NPU build of Mooncake's transfer engine."""
    python: str | None = None
    glibc: str | None = None
    cann: str | None = None
    driver: str | None = None
    firmware: str | None = None
    hdk: str | None = None
    """Release of driver and firmware together; the driver's where nobody says more."""
    arch: str | None = None
    """Processor: `x86_64` or `aarch64`."""
    soc: str | None = None
    """SoC name that the driver reports, such as `ascend910_9391`."""
    built_for: str | None = None
    """Generation that vllm-ascend's compiled part is for, as it writes it: `A2`, `_310P`."""
    image: str | None = None
    """Container image, with its tag."""
    devices: int | None = None
    """Dies that the driver shows."""
    free_disk_gb: int | None = None
    """Free space for weights, in 10^9 bytes."""
    plugins: tuple[str, ...] = ()
    """Other distributions that extend vLLM when it starts."""
    vllm_commit: str | None = None
    """Commit of vLLM's sources, where it was not installed from a release."""
    listening_ports: tuple[int, ...] = ()
    """TCP ports that somebody listens on."""

    @property
    def known(self) -> Mapping[str, str]:
        """Fields that hold a version, as text."""
        return {key: value for key, value in asdict(self).items() if isinstance(value, str)}

    def to_json(self) -> dict[str, object]:
        """What is known, as the file format has it."""
        return {key: value for key, value in asdict(self).items() if value not in (None, ())}


def read_installed(path: Path) -> InstalledVersions:
    """Read a YAML or JSON file of fields.

    Raises:
        RecipeError: the file cannot be read, or holds something else; exit code 2.
    """
    from ascend_recipes.yaml_files import leaf_lines, load_yaml

    tree = load_yaml(path)
    if not isinstance(tree, dict):
        raise _invalid(path, phrase("machine.no_mapping"), 1)
    known = {item.name for item in fields(InstalledVersions)}
    values: dict[str, Any] = {}
    for key, value in tree.items():
        line = leaf_lines(path).get((key,), 1)
        if key not in known:
            raise _invalid(path, phrase("machine.unknown", key=key, options=sorted(known)), line)
        try:
            values[key] = _typed(key, value)
        except (TypeError, ValueError):
            told = phrase("machine.wrong", key=key, value=repr(value))
            raise _invalid(path, told, line) from None
    return InstalledVersions(**values)


def _typed(key: str, value: object) -> object:
    """A field's value; YAML reads versions such as 9.1 as numbers."""
    if key in ("devices", "free_disk_gb"):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(key)
        return value
    if key in ("plugins", "listening_ports"):
        if not isinstance(value, list):
            raise TypeError(key)
        return tuple(str(item) if key == "plugins" else int(item) for item in value)
    if value is None or isinstance(value, dict | list | bool):
        raise TypeError(key)
    return str(value)


def _invalid(path: Path, said: Phrase, line: int) -> RecipeError:
    invalid = finding(
        "machine.invalid_file",
        source=Source(origin=display_path(path), line=line),
        said=said,
    )
    return RecipeError((invalid,), ExitCode.USAGE)


def this_machine(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None
) -> InstalledVersions:
    """Look at the machine that this runs on.

    Args:
        root: Folder that stands for `/`, for tests.
        environ: Environment to read CANN's place from; this process's if none.
    """
    environ = os.environ if environ is None else environ
    driver = _driver(root)
    libc, release = platform.libc_ver()
    packages: dict[str, Any] = {key: _package(name) for key, name in PACKAGES.items()}
    return InstalledVersions(
        **packages,
        python=".".join(map(str, sys.version_info[:3])),
        glibc=release if libc == "glibc" else None,
        cann=_cann(root, environ),
        driver=driver,
        firmware=_labelled(root / "usr/local/Ascend/firmware/version.info"),
        hdk=driver,
        arch=platform.machine() or None,
        built_for=_built_for(),
        devices=len(list((root / "dev").glob("davinci[0-9]*"))) or None,
        plugins=tuple(_plugins()),
        vllm_commit=_commit(),
        listening_ports=tuple(sorted(set(_listening(root)))),
    )


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit that pip notes for packages installed from a repository."""
    try:
        from importlib.metadata import distribution

        note = distribution("vllm").read_text("direct_url.json")
        commit = json.loads(note or "{}").get("vcs_info", {}).get("commit_id")
    except (PackageNotFoundError, json.JSONDecodeError):
        return None
    return commit if isinstance(commit, str) else None


def _plugins() -> Iterator[str]:
    """Distributions with plugins of vLLM's, besides the two that we know all about."""
    names = set()
    for item in distributions():
        if any(point.group in PLUGIN_GROUPS for point in item.entry_points):
            names.add(item.metadata["Name"].lower().replace("_", "-"))
    yield from sorted(names - _OURS - {"vllm"})


def _built_for() -> str | None:
    """Generation in vllm-ascend's build note, a file of two lines beside its modules."""
    try:
        from importlib.metadata import distribution

        note = Path(str(distribution("vllm-ascend").locate_file("vllm_ascend/_build_info.py")))
        return _labelled(note, "__device_type__")
    except PackageNotFoundError:
        return None


def _cann(root: Path, environ: Mapping[str, str]) -> str | None:
    """Version of the toolkit that `set_env.sh` chose, else of the usual places."""
    homes = [environ.get("ASCEND_HOME_PATH"), environ.get("ASCEND_TOOLKIT_HOME")]
    usual = ("ascend-toolkit/latest", "cann/latest", "cann", "latest")
    folders = [Path(home) for home in homes if home]
    folders += [root / "usr/local/Ascend" / name for name in usual]
    return _first(_cann_files(folders), _labelled)


def _cann_files(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        for system in ("aarch64-linux", "x86_64-linux"):
            yield folder / system / "ascend_toolkit_install.info"
        yield folder / "ascend_toolkit_install.info"
        yield folder / "version.cfg"
        yield from sorted(folder.glob("share/info/*/version.info"))


def _driver(root: Path) -> str | None:
    return _labelled(root / "usr/local/Ascend/driver/version.info")


def _first(paths: Iterator[Path], read: Callable[[Path], str | None]) -> str | None:
    return next((found for path in paths if (found := read(path))), None)


def _labelled(path: Path, label: str = "version") -> str | None:
    """Value of the line `label=…`, in whichever case and with or without quotes.

    `version.cfg` writes `name=[version:place]`; the version is what is wanted.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, separator, value = line.partition("=")
        plain = key.strip().lower()
        if separator and (plain == label or (label == "version" and _is_running(plain))):
            text = value.strip().strip("\"'[]").partition(":")[0].strip()
            return text or None
    return None


def _is_running(key: str) -> bool:
    """Whether a line of `version.cfg` says what runs, not what may be upgraded from."""
    return key.endswith("_running_version")


def _listening(root: Path) -> Iterator[int]:
    """Ports in state LISTEN (0A) of the kernel's table."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (root / "proc/net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if len(columns) > 3 and columns[3] == "0A":
                yield int(columns[1].rpartition(":")[2], 16)
