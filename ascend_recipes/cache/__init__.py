"""Cache layers: what a model keeps per token, as vLLM's cache specifications."""
