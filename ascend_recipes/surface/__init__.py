"""Legal flags, keys, variables and models of vLLM and vllm-ascend, by release."""

from ascend_recipes.surface.load import Surface, load_surface

__all__ = ["Surface", "load_surface"]
