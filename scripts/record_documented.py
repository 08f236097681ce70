r"""Reads the commands of `registry/documented/*.json` again from a repository of vllm-ascend.

    python scripts/record_documented.py FOLDER

A row names document, commit and line; its arguments are written anew. To add a command, add a row
with `"arguments": {}`. `registry/documented/notes.yaml` is written by hand; arguments that it
calls the site's are not recorded.
"""

import argparse
from pathlib import Path

from ascend_recipes.documented.recording import recorded_again
from ascend_recipes.paths import data_root


def main() -> None:
    """Write every file, or none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repository", type=Path)
    repository = parser.parse_args().repository
    files = sorted((data_root() / "registry" / "documented").glob("*.json"))
    texts = {path: recorded_again(path.read_text(encoding="utf-8"), repository) for path in files}
    for path, text in texts.items():
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
        print(f"wrote registry/documented/{path.name}: {text.count(chr(10)) - 2} commands")


if __name__ == "__main__":
    main()
