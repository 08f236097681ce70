"""The environment of vLLM's processes."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from ascend_recipes.paths import PLAN_VARIABLE
from ascend_recipes.schema.plan import LaunchPlan

_SECRET = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH", re.IGNORECASE
)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")

NATIVE = "native"
"""The runtime whose processes read the plan."""

_MISLEADING = ("VLLM_TARGET_DEVICE", "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH")
"""Variables that would keep vLLM from asking any plugin, or hide the log that stages come from."""

_NOT_INHERITED = (*_MISLEADING, PLAN_VARIABLE)

_OWN = {
    "PYTHONUNBUFFERED": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_LOGGING_COLOR": "0",
}


def child_environment(
    plan: LaunchPlan, plan_path: Path, outer: Mapping[str, str]
) -> dict[str, str]:
    """The launcher's environment, what the plan sets, and where the plan is."""
    inherited = {name: value for name, value in outer.items() if name not in _NOT_INHERITED}
    environment = inherited | _OWN | plan.env
    # Without the variable our plugin is inert, which another runtime needs.
    return environment | ({PLAN_VARIABLE: str(plan_path)} if plan.runtime.name == NATIVE else {})


def rendered_environment(variables: Mapping[str, str], outer: Mapping[str, str]) -> dict[str, str]:
    """The launcher's environment and what a rendered command adds to it."""
    inherited = {name: value for name, value in outer.items() if name not in _NOT_INHERITED}
    return inherited | _OWN | dict(variables)


def without_secrets(
    environment: Mapping[str, str], secrets: Collection[str] = ()
) -> dict[str, str]:
    """Copy fit for a file that people attach to reports: secrets are masked, names stay."""
    return {
        name: "***" if name in secrets or _SECRET.search(name) else _IN_URL.sub("***@", value)
        for name, value in sorted(environment.items())
    }
