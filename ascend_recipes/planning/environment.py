"""Environment variables of every process."""

from collections.abc import Iterator

from ascend_recipes.planning.engine import checkpoint_source
from ascend_recipes.planning.ledger import Ledger, Section
from ascend_recipes.resolve import ResolvedRecipe

NATIVE_VARIABLES = {
    "VLLM_PLUGINS": ("ascend_recipes", "an installed vllm-ascend must not activate beside us"),
    "VLLM_USE_V2_MODEL_RUNNER": ("0", "our runner subclasses the V1 runner"),
    "VLLM_USE_BREAKABLE_CUDAGRAPH": ("0", "breakable graphs need CUDA graphs"),
    "VLLM_WORKER_MULTIPROC_METHOD": ("spawn", "a forked process inherits device state"),
    "VLLM_NO_USAGE_STATS": ("1", "no data leaves the machine unasked"),
}
"""What the native runtime sets, whatever a recipe says, and why."""


def plan_environment(resolved: ResolvedRecipe, ledger: Ledger) -> dict[str, str]:
    """The recipe's variables, and those that the runtime needs."""
    section = Section(ledger, "env")
    for name, value in sorted(resolved.recipe.env.items()):
        section.recipe(name, value, f"env.{name}")
    if resolved.recipe.runtime.kind == "native":
        for name, (value, because) in NATIVE_VARIABLES.items():
            section.decided(name, value, because, plan_environment)
    if resolved.recipe.checkpoint.rope_factor > 1:
        because = "the context is longer than config.json states"
        section.decided("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1", because, plan_environment)
    for name, value, path in download_variables(resolved):
        section.recipe(name, value, path)
    if resolved.recipe.device.kind == "emulated":
        because = "torch must not look for NPU libraries"
        section.decided("TORCH_DEVICE_BACKEND_AUTOLOAD", "0", because, plan_environment)
        because = "a tiny model's tensors are too small to share, and a laptop has few cores"
        section.decided("OMP_NUM_THREADS", "1", because, plan_environment)
    return {name: str(value) for name, value in section.values.items()}


def download_variables(resolved: ResolvedRecipe) -> Iterator[tuple[str, str, str]]:
    """What a process needs that fetches weights from a hub: which one, and the way out.

    Yields:
        Name, value, and the recipe path behind it.
    """
    source, site = checkpoint_source(resolved), resolved.recipe.site
    if source is None or source.identifier is None:
        return
    path = f"site.sources.{resolved.recipe.model}.{resolved.recipe.checkpoint.variant}"
    if source.modelscope:
        yield "VLLM_USE_MODELSCOPE", "True", f"{path}.modelscope"
    if site.proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            yield name, site.proxy, "site.proxy"
        # Nodes talk to each other directly.
        direct = ",".join(dict.fromkeys(("localhost", "127.0.0.1", "::1", *site.node_addresses)))
        yield "NO_PROXY", direct, "site.proxy"
