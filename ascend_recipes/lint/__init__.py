"""Lint: finds `vllm serve` commands in scripts, pages and manifests, and judges them."""

from ascend_recipes.lint.command import ServeCommand, Word
from ascend_recipes.lint.files import find_commands

__all__ = ["ServeCommand", "Word", "find_commands"]
