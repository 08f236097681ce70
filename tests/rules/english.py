"""Finds English sentences where another language is meant to stand."""

import re

_COMMANDS = re.compile(
    r"ascend-run [a-z]+( [a-z]+)*|pip (un)?install [\w.\"=-]+( [\w.-]+)*|bash [\w/.]+|vllm serve"
)
_QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|\([^()]*[a-z_]+:[a-z_]+[^()]*\)")
_SENTENCE = re.compile(r"(?<![\w./=-])[A-Za-z]?[a-z]+(?: [a-z]+){2,}(?![\w./=-])")


def english_in(text: str) -> list[str]:
    """Three words or more in a row that are neither a command nor quoted."""
    return [match[0] for match in _SENTENCE.finditer(_QUOTED.sub("·", _COMMANDS.sub("·", text)))]
