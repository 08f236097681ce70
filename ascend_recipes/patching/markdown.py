"""Pieces of generated Markdown."""

from collections.abc import Iterable, Sequence

WRITTEN_BY = "<!-- Written by `ascend-run patches docs`; edit registry/ and run it again. -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars in cells are escaped."""
    lines = [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows)]
    return "\n".join(lines)


def page(*parts: str) -> str:
    """Parts with an empty line between them."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def code(text: str) -> str:
    """Inline code, or nothing."""
    return f"`{text}`" if text else ""


def short(target: str) -> str:
    """Target without the parts of the module that every target shares."""
    return target.removeprefix("vllm.").replace("model_executor.", "m.e.")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
