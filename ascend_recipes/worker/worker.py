"""The worker: vLLM's worker over the device runtime, with a receipt."""

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vllm.config import CUDAGraphMode
from vllm.distributed.parallel_state import get_pp_group
from vllm.platforms import current_platform
from vllm.platforms.interface import set_assigned_physical_gpu_ids
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory
from vllm.v1.worker.worker_base import CompilationTimes

from ascend_recipes.apply import current_plan, update_receipt
from ascend_recipes.ops import operations
from ascend_recipes.worker.device.current import runtime_for
from ascend_recipes.worker.effective import effective_values
from ascend_recipes.worker.model_runner import AscendModelRunner


class AscendWorker(Worker):
    """One process of a parallel group, on either device."""

    _steps = 0

    def init_device(self) -> None:
        """Select the device, join the parallel groups, measure memory and build the runner.

        vLLM's own method does the same for `cuda` and raises for every other device type.
        """
        runtime = runtime_for(current_plan().device)
        current_platform.check_if_supports_dtype(self.model_config.dtype)
        self.device = runtime.select(_visible_device(self.parallel_config, self.local_rank))
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        gc.collect()
        runtime.release_memory()
        self.init_snapshot = MemorySnapshot(device=self.device)
        # A cache of a given size asks for no share of the device, which may be partly taken.
        self.requested_memory = self.cache_config.kv_cache_memory_bytes or request_memory(
            self.init_snapshot, self.cache_config
        )
        self._init_workspace_and_model_runner()
        update_receipt(rank=self.rank)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Capture graphs, touch the sampler once, and record what is in effect.

        vLLM's own method also warms up the Triton kernels of the model type, which are not
        launched here and cannot be compiled without a Triton driver.
        """
        runner = self.model_runner
        if not self.model_config.enforce_eager:
            runner.capture_model()
        if get_pp_group().is_last_rank:
            scheduler = self.scheduler_config
            rows = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
            _, last_hidden = runner._dummy_run(rows, cudagraph_runtime_mode=CUDAGraphMode.NONE)
            runner._dummy_sampler_run(hidden_states=last_hidden)
        set_random_seed(self.model_config.seed, self.parallel_config.data_parallel_index)
        freeze_gc_heap()
        update_receipt(effective=effective_values(self), calls=operations.calls())
        compilation = self.compilation_config
        return CompilationTimes(
            language_model=compilation.compilation_time,
            encoder=compilation.encoder_compilation_time,
        )

    def execute_model(self, scheduler_output: Any) -> Any:
        """Run a step; after 1, 2, 4, ... steps, record which operations were called."""
        result = super().execute_model(scheduler_output)
        self._steps += 1
        if self._steps & (self._steps - 1) == 0:
            self._record_counts()
        return result

    def record_calls(self) -> dict[str, int]:
        """Write the counts so far into the receipt, return the calls; for `collective_rpc`."""
        self._record_counts()
        return operations.calls()

    def shutdown(self) -> None:
        """Record the last counts and end."""
        self._record_counts()
        super().shutdown()

    def _record_counts(self) -> None:
        acceptance = self.model_runner.acceptance
        drafts = acceptance.counts() if acceptance is not None else None
        update_receipt(calls=operations.calls(), drafts=drafts)

    def _make_model_runner(self) -> AscendModelRunner:
        return AscendModelRunner(self.vllm_config, self.device)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[None]:
        """No memory pool: vLLM's needs its CUDA allocator, which only sleep mode uses."""
        return nullcontext()

    def synchronize_device(self) -> None:
        """Block until all device work is done."""
        runtime_for(current_plan().device).synchronize(self.device)


def _visible_device(parallel_config: Any, local_rank: int) -> int:
    """Device of this process among the visible ones.

    Outside CUDA, vLLM gives each data-parallel replica its share of the devices as a list; local
    ranks count within it.
    """
    if (assigned := parallel_config.assigned_physical_gpu_ids) is not None:
        set_assigned_physical_gpu_ids(assigned)
    visible: int = current_platform.logical_device_id_to_visible_device_id(local_rank)
    return visible
