r"""Regenerates `registry/surface/*.json` from unpacked source packages.

    python scripts/record_surface.py \
        --vllm 0.18.0=FOLDER/vllm --vllm 0.23.0=FOLDER/vllm! … \
        --vllm-ascend 0.22.1rc1=FOLDER/vllm_ascend --vllm-ascend 0.23.0=FOLDER/vllm_ascend! …

Oldest first; `!` marks a release that a runtime row names. `pip download --no-deps --no-binary
:all:` fetches source packages of both, `git archive TAG vllm_ascend` older tags of vllm-ascend.
`registry/surface/notes.yaml` is written by hand and never touched.
"""

import argparse
from pathlib import Path

from ascend_recipes.paths import data_root
from ascend_recipes.surface.recording import ReleaseSources, surface_files


def main() -> None:
    """Write every table, or none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vllm", action="append", type=_sources, required=True)
    parser.add_argument("--vllm-ascend", action="append", type=_sources, required=True)
    words = parser.parse_args()
    folder = data_root() / "registry" / "surface"
    folder.mkdir(exist_ok=True)
    for name, text in surface_files(words.vllm, words.vllm_ascend).items():
        beside = folder / f".{name}.new"
        beside.write_text(text, encoding="utf-8")
        beside.replace(folder / name)
        print(f"wrote registry/surface/{name}: {text.count(chr(10)) - 2} rows")


def _sources(word: str) -> ReleaseSources:
    release, _, folder = word.rstrip("!").partition("=")
    path = Path(folder)
    if not (path / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"{folder} is no package folder")
    return ReleaseSources(release, path, is_exact=word.endswith("!"))


if __name__ == "__main__":
    main()
