"""Finds what the sources of an operator say about a call: refusals in host code, lines of a README.

A statement is one message that the host code logs or throws when it refuses a call, or one row of
a parameter table or point of the restrictions in a README. Messages about the code itself (a null
pointer of the framework, a step that "failed") are no statements about a call.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_COMMENT = re.compile(r"(\"(?:[^\"\\\n]|\\.)*\")|//[^\n]*|/\*.*?\*/", re.DOTALL)
_REFUSAL = re.compile(
    r"\b(?:OP_LOGE(?:_FOR\w+)?|OPS_LOG_E|KERNEL_LOG_ERROR|TORCH_CHECK|OPS_REPORT_\w+_INNER_ERR"
    r"|VECTOR_INNER_ERR_REPORT_TILIING|LogErrorShapeConsistency"
    r"|(?P<silent>OP_CHECK_(?:WRONG_DIMENSION|SHAPE_NOT\w+|DTYPE_NOT\w+|M(?:AX|IN)_DIM)))\s*\("
)
"""A call that logs or throws, or a macro that checks and brings its own message."""
_OF_THE_CODE = re.compile(r"null|[Ff]ail(?:ed)?\b|context|[Gg]etting|[Ee]rror occurred")
_OF_A_CALL = re.compile(r"should|must|expect|support|equal|in BSH|In TH|mismatch|invalid")
_CONDITION = 500
"""Characters in front of a message in which the condition of its check begins."""
_CHECK = re.compile(r"\bif ?\(|\b\w*(?:_IF|_CHECK|_COND)\(")
_SECTIONS = ("参数说明", "约束说明")
_POINT = re.compile(r"^\s*(?:-|\*|\d+\.)\s+\S")
_CELL = re.compile(r"^\s*<td[^>]*>(?=.*[\u4e00-\u9fff]).{7,}</td>")
"""Cell of an HTML table that describes something; shorter ones name kinds and types."""


def refusals(path: Path) -> dict[int, str]:
    """Line -> condition and message of every refusal in a C++ file."""
    text = _COMMENT.sub(_blank, path.read_text(encoding="utf-8", errors="replace"))
    found = {}
    for match in _REFUSAL.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        message = text[match.start() : _closed(text, match.end() - 1)]
        in_macro = "#define" in text[start : match.start()] or text[: start - 1].endswith("\\")
        if in_macro or ('"' not in message and not match["silent"]):
            continue
        literals = "".join(re.findall(r"\"((?:[^\"\\]|\\.)*)\"", message))
        if _OF_THE_CODE.search(literals) and not _OF_A_CALL.search(literals):
            continue
        line = text.count("\n", 0, match.start()) + 1
        found[line] = " ".join(f"{_condition(text, match.start())} => {message}".split())
    return found


def points(path: Path) -> dict[int, str]:
    """Line -> row or point of the README's sections on parameters and restrictions."""
    found = {}
    section = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("## "):
            section = line.lstrip("# ").strip()
        row = line.startswith("|") and not re.match(r"\|\s*(?:-|:|参数名)", line)
        if section in _SECTIONS and (row or _POINT.match(line) or _CELL.match(line)):
            found[number] = line.strip()
    return found


def statements(path: Path) -> dict[int, str]:
    """Line -> statement of a source."""
    return points(path) if path.suffix == ".md" else refusals(path)


def within(path: Path, function: str) -> range:
    """Lines of a C++ function's body.

    Raises:
        ValueError: the file does not define it.
    """
    text = _COMMENT.sub(_blank, path.read_text(encoding="utf-8", errors="replace"))
    for match in re.finditer(rf"\b{function}\s*\(", text):
        after = _closed(text, match.end() - 1)
        opened = re.match(r"\s*(?:const\s*)?\{", text[after:])
        if opened:
            first = after + opened.end() - 1
            last = _closed(text, first, "{}")
            return range(text.count("\n", 0, match.start()) + 1, text.count("\n", 0, last) + 2)
    raise ValueError(f"{path.name} does not define {function}")


def files_of(folder: Path) -> Iterator[Path]:
    """Sources of an operator's folder that say what a call may be."""
    for path in sorted(folder.rglob("*")):
        if "op_kernel" not in path.parts and path.suffix in {".cpp", ".h", ".md"}:
            yield path


def _blank(match: re.Match[str]) -> str:
    return match[1] or re.sub(r"[^\n]", " ", match[0])


def _condition(text: str, position: int) -> str:
    """What stands in front of a message, from the nearest `if` or checking macro on."""
    before = text[max(0, position - _CONDITION) : position]
    checks = list(_CHECK.finditer(before))
    return before[checks[-1].start() if checks else 0 :]


def _closed(text: str, start: int, pair: str = "()") -> int:
    """Place after the bracket that closes the one at `start`; strings do not count."""
    depth, place, quoted = 0, start, False
    while place < len(text):
        letter = text[place]
        if quoted:
            place += letter == "\\"
            quoted = letter != '"'
        elif letter == '"':
            quoted = True
        elif letter in pair:
            depth += 1 if letter == pair[0] else -1
            if depth == 0:
                return place + 1
        place += 1
    return len(text)
