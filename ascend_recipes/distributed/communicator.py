"""Collectives of a parallel group: hccl on NPUs, gloo on the emulated device.

vLLM's XPU communicator is plain torch.distributed over the device group, which is what both of
our back-ends offer. Deriving from it also satisfies `GroupCoordinator.graph_capture`, which
admits only vLLM's CUDA and XPU communicators.
"""

from vllm.distributed.device_communicators.xpu_communicator import XpuCommunicator


class AscendCommunicator(XpuCommunicator):
    """All-reduce, gather, scatter and expert dispatch over the device group."""
