"""Reads the operator definitions out of vllm-ascend's `csrc/torch_binding.cpp`."""

import re
from pathlib import Path

NAMESPACE = "_C_ascend"

_DEFINITION = re.compile(r"\bops\.def\(\s*((?:\"(?:[^\"\\]|\\.)*\"\s*)+)")
_LITERAL = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")
_COMMENT = re.compile(r"(\"(?:[^\"\\]|\\.)*\")|//[^\n]*|/\*.*?\*/", re.DOTALL)


def source_schemas(path: Path) -> dict[str, str]:
    """Definitions by dispatcher name: every string that the file hands to `ops.def`.

    The builds for different generations stand in preprocessor branches; a name that two of them
    define must have one schema.

    Raises:
        ValueError: no definition, or two that differ.
    """
    text = _COMMENT.sub(lambda match: match[1] or " ", path.read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for match in _DEFINITION.finditer(text):
        joined = "".join(_LITERAL.findall(match[1])).replace('\\"', '"').replace("\\n", " ")
        schema = f"{NAMESPACE}::{' '.join(joined.split())}"
        name = schema.partition("(")[0].strip()
        if found.setdefault(name, schema) != schema:
            raise ValueError(f"{name} has two definitions:\n{found[name]}\n{schema}")
    if not found:
        raise ValueError(f"{path} defines no operator")
    return found
