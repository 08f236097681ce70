"""The patch plane: what we change in vLLM, what we hook into, and what an upgrade would break."""
