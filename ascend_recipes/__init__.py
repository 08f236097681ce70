"""Declarative recipes that serve large language models with vLLM on Ascend NPUs."""

__version__ = "0.1.0"
