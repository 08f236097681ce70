"""Recipes as the exact commands of an installed runtime, and back."""
