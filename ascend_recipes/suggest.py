"""Closest match for a mistyped word."""

from collections.abc import Iterable
from difflib import get_close_matches


def closest(word: str, options: Iterable[str]) -> str | None:
    """The option that looks most like `word`, or None if nothing does."""
    matches = get_close_matches(word, list(options), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(word: str, options: Iterable[str], *, template: str = "{}") -> str:
    """What to type, in no language: the closest option, or every option if none is close."""
    choices = list(options)
    if match := closest(word, choices):
        return template.format(match)
    return " | ".join(template.format(choice) for choice in choices)
