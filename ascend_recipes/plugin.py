"""Entry points that vLLM calls in every one of its processes.

`platform` answers for `vllm.platform_plugins`, `apply` for `vllm.general_plugins`. Both are
inert without a plan, so that another Ascend plugin can be installed beside us.
"""

import multiprocessing
import os
import sys

from ascend_recipes.paths import PLAN_VARIABLE
from ascend_recipes.receipts import Phase

PLATFORM_CLASS = "ascend_recipes.platform.ascend.AscendPlatform"
"""One class for every plan and device; the plan's platform row is checked against it."""

_INSPECTION_MODULE = "vllm.model_executor.models.registry"


def platform() -> str | None:
    """Name the platform class if a plan is set.

    vLLM calls this twice, and swallows exceptions, hence it does nothing that can fail.
    """
    return PLATFORM_CLASS if os.environ.get(PLAN_VARIABLE) else None


def apply() -> None:
    """Apply the plan of this process, if one is set."""
    if not os.environ.get(PLAN_VARIABLE):
        return
    # Deferred: without a plan, installing this package must cost vLLM nothing.
    from ascend_recipes.apply import apply_plan, current_plan

    apply_plan(current_plan(), process_phase())


def process_phase() -> Phase:
    """Tell which of vLLM's processes this is, from the names that vLLM gives them."""
    main_module = sys.modules.get("__main__")
    spec = main_module.__spec__ if main_module is not None else None
    if spec is not None and spec.name == _INSPECTION_MODULE:
        return "inspect"
    name = multiprocessing.current_process().name
    if name.startswith("EngineCore"):
        return "core"
    if name.startswith("VllmWorker"):
        return "worker"
    return "frontend"
