"""The vLLM platform: one class for both devices and every generation.

vLLM asks its platform some forty questions; the answers that matter are collected here. What
depends on the device comes from the device runtime, what depends on the deployment from the plan.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from ascend_recipes.apply import current_plan, kernel_overrides
from ascend_recipes.findings import recipe_error
from ascend_recipes.platform.selection import attention_backend
from ascend_recipes.registry.load import load_registry
from ascend_recipes.torchvision_schemas import define_missing_schemas
from ascend_recipes.worker.device.current import runtime_for
from ascend_recipes.worker.device.interface import DeviceRuntime

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

LARGEST_GRAPH = 512
"""Tokens of the largest decode graph, whatever the number of sequences."""

_GIB = 1 << 30

_FORCED_ENVIRONMENT: Mapping[str, str] = {
    # Breakable graphs are vLLM's default for several families on any platform but ROCm, capture
    # through torch.cuda, and switch compilation off; ours are static graphs.
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "0",
    # Forked workers would inherit an initialised device.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


class AscendPlatform(Platform):
    """Ascend NPUs, or their emulation on a CPU."""

    _enum = PlatformEnum.OOT
    ray_device_key: str = "NPU"
    device_control_env_var: str = "ASCEND_RT_VISIBLE_DEVICES"
    simple_compile_backend: str = "eager"
    supported_quantization: ClassVar[list[str]] = []  # type: ignore[misc]
    """Quantization methods of the registry; filled when vLLM creates the platform."""

    def __init__(self) -> None:
        """Fix what vLLM reads as class attributes; it creates one instance a process."""
        # The platform is created while vLLM's configuration modules are imported, just before
        # transformers, which imports torchvision; general plugins run too late.
        define_missing_schemas()
        cls = type(self)
        runtime = _runtime()
        # Torch device strings: vLLM builds devices and process groups from both.
        cls.device_type = cls.device_name = runtime.device_type
        cls.dispatch_key = runtime.dispatch_key
        cls.dist_backend = runtime.collectives_backend
        rows = load_registry().quantization.values()
        cls.supported_quantization = sorted({row.method for row in rows if row.method})

    @classmethod
    def pre_register_and_update(cls, parser: "FlexibleArgumentParser | None" = None) -> None:
        """Decide what vLLM would otherwise decide from the environment."""
        os.environ.update(_FORCED_ENVIRONMENT)

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: "VllmConfig") -> None:
        """Cap graph sizes: decode graphs beyond the largest decode batch are never replayed."""
        compilation = vllm_config.compilation_config
        scheduler = vllm_config.scheduler_config
        cap = largest_graph(scheduler.max_num_seqs, vllm_config.uniform_decode_query_len)
        if compilation.max_cudagraph_capture_size is None:
            sizes = compilation.cudagraph_capture_sizes
            compilation.max_cudagraph_capture_size = max(sizes) if sizes else cap

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Put our worker in place and refuse what it does not serve."""
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "ascend_recipes.worker.worker.AscendWorker"
        if vllm_config.use_v2_model_runner:
            at = "env.VLLM_USE_V2_MODEL_RUNNER"
            raise recipe_error("engine.runner_v2", at=at, fix=f"{at}=0")
        # It compiles vLLM's Triton kernels ahead, none of which is launched here.
        vllm_config.kernel_config.enable_jit_warmup = False
        _decide_async_scheduling(vllm_config)

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: "AttentionBackendEnum | None",
        attn_selector_config: "AttentionSelectorConfig",
        num_heads: int | None = None,
    ) -> str:
        """Class path of the plan's backend for this combination of properties."""
        return attention_backend(current_plan(), attn_selector_config)

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Replace the Triton kernels that the plan names; vLLM calls this in workers only."""
        from vllm.triton_utils.dispatcher import register_kernels

        register_kernels(kernel_overrides(current_plan()))

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Generation of the hardware that the plan is for."""
        return f"Ascend {current_plan().hardware}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes of one die; from the registry, because the front-end must not open a device."""
        return load_registry().hardware[current_plan().hardware].memory_gib * _GIB

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device | None = None) -> float:
        """Bytes in use on the current device."""
        free, total = _runtime().memory()
        return float(total - free)

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Make a device current in this process."""
        _runtime().select(device.index or 0)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the device's generators."""
        _runtime().seed(seed)

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Cores that kernels may spread over."""
        return _runtime().compute_units()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Whether host buffers are page-locked."""
        return _runtime().pins_host_memory

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Refuse a model dtype that the hardware lacks, unless the plan relaxes it."""
        name = str(dtype).removeprefix("torch.")
        plan = current_plan()
        legal = load_registry().hardware[plan.hardware].dtypes
        if name not in legal and f"dtype.{name}" not in plan.relaxed:
            raise recipe_error(
                "engine.dtype", at="model.dtype", hardware=plan.hardware, legal=legal, dtype=name
            )

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Collectives over the runtime's back-end."""
        return "ascend_recipes.distributed.communicator.AscendCommunicator"

    @classmethod
    def get_static_graph_wrapper_cls(cls) -> str:
        """Wrapper that captures and replays through the device runtime."""
        return "ascend_recipes.graph.static_graph.StaticGraphWrapper"

    @classmethod
    def graph_pool_handle(cls) -> object:
        """Memory pool that the graphs of a process share."""
        return _runtime().create_graph_pool()

    @classmethod
    def import_kernels(cls) -> None:
        """Nothing: vLLM's own compiled kernels are for other devices."""

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """Allow it: a drafter's layer 0 shares its index with layer 0 of the model."""

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Attention is one opaque operator, so that graphs can be split around it."""
        return True

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Decode steps can be captured."""
        return True

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Recurrent states and paged caches share one pool of blocks."""
        return True

    def is_sleep_mode_available(self) -> bool:
        """No: it needs an allocator that can release memory behind live tensors."""
        return False

    def is_cumem_allocator_available(self) -> bool:
        """No, see `is_sleep_mode_available`."""
        return False


def largest_graph(max_num_seqs: int, decode_query_length: int) -> int:
    """Tokens of the largest useful decode graph."""
    return min(max_num_seqs * decode_query_length, LARGEST_GRAPH)


def _runtime() -> DeviceRuntime:
    return runtime_for(current_plan().device)


def _decide_async_scheduling(vllm_config: Any) -> None:
    """Schedule synchronously where vLLM 0.32 would pick wrong recurrent states.

    With aligned prefix caching and drafts, `InputBatch.swap_states` permutes the accepted counts
    that `_prepare_inputs` then gathers through the previous positions: with several requests the
    permutation is applied twice whenever the copy to the host ends before the swap.
    """
    aligned = vllm_config.cache_config.mamba_cache_mode == "align"
    if aligned and vllm_config.speculative_config is not None:
        vllm_config.scheduler_config.async_scheduling = False
