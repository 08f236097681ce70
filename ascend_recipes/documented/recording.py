"""Reads documented commands again from the documents."""

import json
import subprocess
from pathlib import Path

from ascend_recipes.documented.arguments import flat_arguments
from ascend_recipes.documented.reasons import is_site
from ascend_recipes.lint.files import read_text
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.documented import DocumentedCommand


def recorded_again(rows: str, repository: Path) -> str:
    """The text of a file of `registry/documented` with the arguments that the documents have.

    Args:
        rows: Its text; rows name document, commit, line and role, and may hold no arguments yet.
        repository: Of vllm-ascend, with the commits that the rows name.

    Raises:
        ValueError: a document has no command at the line of a row.
        CalledProcessError: the repository lacks a document.
    """
    found = [DocumentedCommand.model_validate_json(json.dumps(row)) for row in json.loads(rows)]
    lines = [
        json.dumps({**row.model_dump(), "arguments": _arguments(row, repository)}) for row in found
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _arguments(row: DocumentedCommand, repository: Path) -> dict[str, Json]:
    shown = ["git", "-C", str(repository), "show", f"{row.commit}:{row.file}"]
    text = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    commands = read_text(row.file, text, Path(row.file).suffix).commands
    command = next((item for item in commands if item.line == row.line), None)
    if command is None:
        begins = ", ".join(str(item.line) for item in commands) or "nowhere"
        raise ValueError(f"{row.file}: no command begins at line {row.line}; commands: {begins}")
    env = {name: word.text for name, word in command.env.items()}
    arguments = sorted(flat_arguments(command.texts, env).items())
    return {name: value for name, value in arguments if not is_site(name)}
