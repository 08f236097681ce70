"""`python -m ascend_recipes.docs [--check]`: write what is generated, or say what is stale."""

import sys
from pathlib import Path

from ascend_recipes.docs.files import generated_files
from ascend_recipes.paths import data_root, display_path


def main() -> int:
    """Write every generated file below the checkout; with `--check`, only compare.

    Returns:
        0, or 1 if a file is stale and `--check` was given.
    """
    check = "--check" in sys.argv[1:]
    stale = [path for path, text in generated_files(data_root()) if _differs(path, text)]
    if not check:
        for path, text in generated_files(data_root()):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in stale:
        sys.stdout.write(f"{'stale' if check else 'wrote'} {display_path(path)}\n")
    return 1 if check and stale else 0


def _differs(path: Path, text: str) -> bool:
    return not path.is_file() or path.read_text(encoding="utf-8") != text


if __name__ == "__main__":
    raise SystemExit(main())
