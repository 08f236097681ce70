"""Weight formats: what vLLM's layers do with quantized checkpoints."""
