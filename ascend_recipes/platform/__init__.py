"""The vLLM platform class."""
