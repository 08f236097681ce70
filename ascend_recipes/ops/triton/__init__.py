"""Triton kernels of ours. They lower to HIVM; whether they run on an NPU nobody has seen."""
