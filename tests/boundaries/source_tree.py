"""What the boundary tests know about the source tree."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ascend_recipes"

HEAVY_LIBRARIES = frozenset({"torch", "torch_npu", "torchvision", "transformers", "triton", "vllm"})

HEAVY = frozenset(
    {
        "attention",
        "cache",
        "distributed",
        "drafters",
        "emulation",
        "graph",
        "kernels",
        "layers",
        "models",
        "moe",
        "ops",
        "platform",
        "quantization",
        "torchvision_schemas",
        "worker",
    }
)
"""Parts that run inside vLLM's processes and may import torch and vLLM."""

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "findings", "paths", "schema", "yaml_files"}),
    frozenset(
        {
            "machine",
            "receipts",
            "suggest",
            "tiny",
            "tiny_modelslim",
            "tiny_native",
            "versions",
            "tiny_tokenizer",
            "tiny_weights",
            "words",
        }
    ),
    frozenset({"registry", "patching", "surface"}),
    frozenset({"compose", "merging"}),
    frozenset({"validate"}),
    frozenset(
        {
            "memory",
            "operations_page",
            "operations_table",
            "plan",
            "planning",
            "rendering",
            "resolve",
            "rules",
        }
    ),
    frozenset({"offering", "trial"}),
    frozenset({"commands", "documented", "lint", "logs"}),
    frozenset({"docs"}),
    frozenset({"launch"}),
    frozenset({"doctor", "export", "run"}),
    frozenset({"cli", "pytest_plugin"}),
)
"""The light side, lowest first: a module may import its own layer and those below."""

ENTRY_POINTS = frozenset({"apply", "plugin"})
"""Light at import, but they exist to reach the heavy side."""


_CITATION = re.compile(r"\bdocs/source/\S+\.(?:md|rst):\d+")
"""A file and line of somebody's documentation: evidence, which is called what it is called."""


def python_files(root: Path = PACKAGE) -> list[Path]:
    """Sources below a folder, sorted."""
    return sorted(path for path in root.rglob("*.py") if "_data" not in path.parts)


def part_of(path: Path, package: Path = PACKAGE) -> str:
    """First component below the package: `schema` for `schema/plan.py`, `run` for `run.py`."""
    return path.relative_to(package).parts[0].removesuffix(".py")


def module_name(path: Path, package: Path = PACKAGE) -> str:
    """Dotted name of a source file."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Dotted modules that a syntax tree imports, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def family_names(root: Path = ROOT) -> set[str]:
    """Families as the registry spells them, without version: `qwen`, `deepseek`, …"""
    rows = (root / "registry" / "models").glob("*.yaml")
    found = (re.search(r"^family: *([a-z]+)", row.read_text(), re.MULTILINE) for row in rows)
    return {match[1] for match in found if match}


def family_mentions(files: Iterable[Path], families: set[str]) -> list[str]:
    """`file:line: text` for each line that names a model family."""
    pattern = re.compile("|".join(sorted(families)), re.IGNORECASE)
    return [
        f"{path}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line) and not _CITATION.search(line)
    ]
