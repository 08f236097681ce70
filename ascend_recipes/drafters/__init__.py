"""Proposers of drafts that vLLM's first model runner does not have."""
