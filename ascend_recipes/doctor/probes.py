"""The checks, in the order in which people read them."""

from collections.abc import Iterator
from typing import Any

from ascend_recipes.doctor import devices, network, software, system
from ascend_recipes.doctor.probe import Case, Probe
from ascend_recipes.errors import Finding
from ascend_recipes.findings import Phrase
from ascend_recipes.machine import PACKAGES


def _python(case: Case) -> str | None:
    return case.installed.python


def _recipe(case: Case) -> str | None:
    return None if case.planned is None else case.planned.plan.recipe


_ASKED_ELSEWHERE = ("installed.", "requires.")
"""Findings at these paths stand at the line of the part that they are about."""
_SHOWN_ELSEWHERE = ("image.", "hardware.", "net.")


def _rest(_: str, case: Case) -> Iterator[Finding]:
    """What no other line has said: the recipe as a whole beside this machine."""
    assert case.planned is not None
    yield from case.planned.findings
    yield from case.planned.blockers
    known = {*PACKAGES, "python", "cann", "plugins"}
    for item in case.misfits:
        part = item.at.removeprefix("installed.")
        told = (
            item.at.startswith("requires.") or part in known or item.id.startswith(_SHOWN_ELSEWHERE)
        )
        if not told:
            yield item


def _package(part: str) -> Probe[str]:
    name = PACKAGES[part]
    return Probe(
        part,
        Phrase(name, name),
        software.version_of(part),
        str,
        software.judgement_of(part),
        software.absence_of(part),
    )


PROBES: tuple[Probe[Any], ...] = (
    Probe(
        "npus",
        Phrase("NPUs", "NPU"),
        devices.read_devices,
        devices.show_devices,
        devices.judge_devices,
        devices.absent_devices,
    ),
    Probe(
        "npu_health",
        Phrase("NPU health", "NPU 健康状态"),
        devices.read_dies,
        devices.show_health,
        devices.judge_health,
    ),
    Probe(
        "npu_memory",
        Phrase("NPU memory", "NPU 显存"),
        devices.read_dies,
        devices.show_memory,
        devices.judge_memory,
    ),
    Probe(
        "driver",
        Phrase("driver", "驱动"),
        software.read_driver,
        str,
        software.judge_driver,
        software.absent_driver,
    ),
    Probe(
        "cann",
        Phrase("CANN", "CANN"),
        software.read_toolkit,
        software.show_toolkit,
        software.judge_toolkit,
        software.absent_toolkit,
    ),
    Probe(
        "nnal",
        Phrase("CANN nnal (atb)", "CANN nnal（atb）"),
        software.read_nnal,
        str,
        software.judge_nnal,
        software.absent_nnal,
    ),
    Probe("python", Phrase("Python", "Python"), _python, str, software.judgement_of("python")),
    *(
        _package(part)
        for part in (
            "torch",
            "torch_npu",
            "vllm",
            "vllm_ascend",
            "transformers",
            "triton",
            "triton_ascend",
            "mooncake",
        )
    ),
    Probe(
        "plugins",
        Phrase("plugins of vLLM", "vLLM 插件"),
        software.read_plugins,
        software.show_plugins,
        software.judge_plugins,
    ),
    Probe(
        "providers",
        Phrase("operator kernels", "算子库"),
        software.read_providers,
        software.show_providers,
        software.judge_providers,
    ),
    Probe(
        "limits",
        Phrase("limits", "资源上限"),
        system.read_limits,
        system.show_limits,
        system.judge_limits,
    ),
    Probe(
        "shared_memory",
        Phrase("shared memory", "共享内存"),
        system.read_shared_memory,
        system.show_space,
        system.judge_shared_memory,
    ),
    Probe(
        "large_pages",
        Phrase("large pages", "大页"),
        system.read_pages,
        system.show_pages,
        system.judge_pages,
    ),
    Probe(
        "variables",
        Phrase("variables", "环境变量"),
        network.read_variables,
        network.show_variables,
        network.judge_variables,
    ),
    Probe(
        "interfaces",
        Phrase("interfaces", "网卡"),
        network.read_interfaces,
        ", ".join,
        network.judge_interfaces,
    ),
    Probe(
        "addresses",
        Phrase("node", "节点"),
        network.read_addresses,
        network.show_addresses,
        network.judge_addresses,
    ),
    Probe(
        "ports",
        Phrase("ports", "端口"),
        network.read_ports,
        network.show_ports,
        network.judge_ports,
    ),
    Probe(
        "proxies",
        Phrase("proxies", "代理"),
        network.read_proxies,
        network.show_proxies,
        network.judge_proxies,
    ),
    Probe(
        "disk",
        Phrase("free disk", "磁盘剩余"),
        system.read_disk,
        system.show_disk,
        system.judge_disk,
    ),
    Probe(
        "checkpoint",
        Phrase("checkpoint", "权重"),
        system.read_checkpoint,
        str,
        system.judge_checkpoint,
    ),
    Probe("recipe", Phrase("recipe", "配方"), _recipe, str, _rest),
)
