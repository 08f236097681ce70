r"""Reads the commands of `registry/documented/*.json` again from a repository of vllm-ascend.

    python scripts/record_documented.py FOLDER

A row names document, commit and line; its arguments are written anew. To add a command, add a row
with `"arguments": {}`. `registry/documented/notes.yaml` is written by hand; arguments that it
calls the site's are not recorded.
"""

import argparse
import json
import subprocess
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from ascend_recipes.documented.arguments import flat_arguments
from ascend_recipes.documented.facts import documented_notes
from ascend_recipes.lint.files import read_text
from ascend_recipes.paths import data_root
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.documented import DocumentedCommand


def main() -> None:
    """Write every file, or none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repository", type=Path)
    repository = parser.parse_args().repository
    folder = data_root() / "registry" / "documented"
    texts = {path: _recorded(path, repository) for path in sorted(folder.glob("*.json"))}
    for path, text in texts.items():
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
        print(f"wrote registry/documented/{path.name}: {text.count(chr(10)) - 2} commands")


def _recorded(path: Path, repository: Path) -> str:
    rows = [
        DocumentedCommand.model_validate_json(json.dumps(row))
        for row in json.loads(path.read_bytes())
    ]
    lines = [
        json.dumps({**row.model_dump(), "arguments": _arguments(row, repository)}) for row in rows
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _arguments(row: DocumentedCommand, repository: Path) -> dict[str, Json]:
    shown = ["git", "-C", str(repository), "show", f"{row.commit}:{row.file}"]
    text = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    found = read_text(row.file, text, Path(row.file).suffix).commands
    command = next((item for item in found if item.line == row.line), None)
    if command is None:
        lines = ", ".join(str(item.line) for item in found)
        raise SystemExit(f"{row.file} has no command at line {row.line}, but at {lines}")
    env = {name: word.text for name, word in command.env.items()}
    site = documented_notes().site
    return {
        name: value
        for name, value in sorted(flat_arguments(command.texts, env).items())
        if not any(map(partial(fnmatchcase, name), site))
    }


if __name__ == "__main__":
    main()
