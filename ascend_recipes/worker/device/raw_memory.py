"""Raw device memory as tensors: vLLM hands some kernels bare addresses."""

import torch


def memory_view(address: int, size: int, device: torch.device) -> torch.Tensor:
    """View raw memory of a device as uint8 `[size]` without taking ownership."""
    empty = torch.empty(0, dtype=torch.uint8, device=device)
    storage = torch._C._construct_storage_from_data_pointer(address, empty.device, size)
    return empty.set_(storage, 0, (size,), (1,))
