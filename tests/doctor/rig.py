"""A recorded machine: a folder that stands for `/`, an environment, and answers of commands."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ascend_recipes.doctor.host import Host, Plugin, Ran, Space
from ascend_recipes.doctor.probe import Case, Check, examine
from ascend_recipes.doctor.probes import PROBES
from ascend_recipes.errors import Finding
from ascend_recipes.machine import InstalledVersions, this_machine
from ascend_recipes.registry.load import load_registry

MACHINES = Path(__file__).with_name("machines")
GB = 10**9
STACK = {
    "vllm": "0.27.1",
    "vllm_ascend": "0.27.1rc1",
    "torch": "2.10.0",
    "torch_npu": "2.10.0.post4",
    "transformers": "5.14.1",
    "triton": None,
    "triton_ascend": "3.2.2",
    "mooncake": "0.3.11.post1",
    "python": "3.11.9",
    "arch": "aarch64",
    "glibc": "2.39",
    "plugins": (),
    "vllm_commit": None,
}
"""One row of the compatibility matrix."""
ENVIRON = {
    "HOME": "/root",
    "ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest",
    "ATB_HOME_PATH": "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1",
}
FILES = {
    "usr/local/Ascend/driver/version.info": "Version=26.0.rc2\n",
    "usr/local/Ascend/firmware/version.info": "Version=7.8.0.5.216\n",
    "usr/local/Ascend/ascend-toolkit/set_env.sh": "",
    "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": (
        "version=9.1.0\n"
    ),
    "usr/local/Ascend/nnal/atb/set_env.sh": "",
    "usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1/lib/libatb.so": "",
    "sys/class/net/eth0/address": "",
    "sys/class/net/lo/address": "",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "proc/sys/vm/nr_hugepages": "0\n",
    "dev/shm/used": "",
}
PLUGINS = (
    Plugin("vllm.general_plugins", "ascend_model", "vllm-ascend"),
    Plugin("vllm.platform_plugins", "ascend", "vllm-ascend"),
    Plugin("vllm.platform_plugins", "ascend_recipes", "ascend-recipes"),
)


def machine(
    root: Path,
    *,
    smi: str | Ran | None = "a3",
    files: Mapping[str, str | None] = {},
    environ: Mapping[str, str | None] = {},
    versions: Mapping[str, object] = {},
    plugins: Sequence[Plugin] = PLUGINS,
    space: Mapping[str, int] = {},
    limits: Mapping[str, int | None] = {},
    addresses: Sequence[str] = ("127.0.0.1", "10.0.0.1"),
) -> Host:
    """A machine that lacks nothing, changed as the arguments say; None takes something away."""
    for path, text in (FILES | dict(files)).items():
        if text is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
    merged = {key: text for key, text in (ENVIRON | dict(environ)).items() if text is not None}
    wanted = STACK | dict(versions)

    def run(argv: Sequence[str]) -> Ran | None:
        assert tuple(argv) == ("npu-smi", "info")
        if smi is None or isinstance(smi, Ran):
            return smi
        return Ran(0, (MACHINES / f"{smi}.txt").read_text())

    def installed(host: Host) -> InstalledVersions:
        return replace(this_machine(host.root, host.environ), **wanted)

    def at(path: Path) -> Space | None:
        place = "/" + path.relative_to(root).as_posix()
        free = next((size for key, size in space.items() if place.startswith(key)), 500 * GB)
        return Space(free, 1000 * GB)

    return Host(
        root=root,
        environ=merged,
        run=run,
        space=at,
        limit=lambda name: limits.get(name),
        owns_address=lambda address: address in addresses,
        installed=installed,
        plugins=lambda: tuple(plugins),
    )


def report(host: Host, **about: object) -> dict[str, Check]:
    """Every check of a machine, by its id."""
    case = Case(host, load_registry(), **about)
    return {check.id: check for check in examine(case, PROBES)}


def findings(checks: Mapping[str, Check]) -> dict[tuple[str, str], Finding]:
    """Every finding, by the check and its id."""
    return {(check.id, item.id): item for check in checks.values() for item in check.findings}
