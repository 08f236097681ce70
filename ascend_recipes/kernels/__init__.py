"""Torch code for the Triton kernels that vLLM itself launches, on both devices."""
