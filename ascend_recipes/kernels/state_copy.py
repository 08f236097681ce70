"""Copies of recurrent states between blocks, given as bare addresses.

Prefix caching in `align` mode keeps one state a block: when a request enters a new block, vLLM
copies its last state into the new one. Sources and destinations arrive as addresses.

Legend: N copies.
"""

import torch

from ascend_recipes.apply import current_plan
from ascend_recipes.worker.device.current import runtime_for


def copy_states(
    src_ptrs: torch.Tensor, dst_ptrs: torch.Tensor, sizes: torch.Tensor, BLOCK_SIZE: int
) -> None:
    """Copy N byte ranges; a range may overlap its own source.

    Parameter names are those of the kernel `batch_memcpy_kernel`. Reading the addresses waits
    for the device, which is acceptable because copies happen once a block, not once a token.

    Args:
        src_ptrs: int64 `[N]`, addresses.
        dst_ptrs: int64 `[N]`, addresses.
        sizes: int32 `[N]`, bytes.
        BLOCK_SIZE: tile of the Triton kernel; irrelevant here.
    """
    runtime = runtime_for(current_plan().device)
    ranges = zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True)
    for source, destination, size in ranges:
        if size == 0:
            continue
        # The convolution window is shifted inside its own block, so read all before writing.
        content = runtime.bytes_at(source, size).clone()
        runtime.bytes_at(destination, size).copy_(content)
