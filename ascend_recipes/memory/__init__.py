"""Sizes of caches and states, computed from architecture facts without torch."""
