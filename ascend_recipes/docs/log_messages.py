"""`docs/log-messages.md`: every message that `doctor --log` knows, in both languages."""

from collections.abc import Iterator

from ascend_recipes.registry.load import Table
from ascend_recipes.schema.log_message import LogMessage, LogMessagesRow, Remedy

_HEAD = """\
# Messages of logs / 日志信息

What `ascend-run doctor --log FILE` looks for and what it says, generated from
`registry/log_messages/` by `python -m ascend_recipes.docs`. A line is one of a row where it holds
one of the texts. **Follows** marks what only reports that something else went wrong before, here or
on another rank; it stands below the causes. **General** counts only on lines that no other row
explains.

由 `registry/log_messages/` 生成。某行含有“文本”之一即视为该信息。**follows** 表示它只是转述更早（或
其它 rank）的错误，排在原因之后；**general** 只在没有其它信息能解释该行时使用。
"""
_COLUMNS = "| message | texts | means | 含义 | look at | source |\n|---|---|---|---|---|---|"


def log_messages_page(table: Table[LogMessagesRow]) -> str:
    """The page."""
    return "\n".join([_HEAD, *(line for key in table for line in _component(table[key]))])


def _component(row: LogMessagesRow) -> Iterator[str]:
    yield f"## {row.about}\n\n{_COLUMNS}"
    for name, message in sorted(row.messages.items()):
        cells = (
            f"`{name}`{_mark(message)}",
            ", ".join(f"`{text}`" for text in message.literals),
            f"{message.cause.en}; {message.help.en}",
            f"{message.cause.zh}；{message.help.zh}",
            ", ".join(_places(message)),
            message.source,
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _mark(message: LogMessage) -> str:
    severity = "" if message.severity == "error" else f" **{message.severity}**"
    follows = " **follows**" if message.consequence else ""
    return severity + follows + (" **general**" if message.general else "")


def _places(message: LogMessage) -> Iterator[str]:
    changed = {remedy.at: _change(remedy) for remedy in message.remedies}
    for path in dict.fromkeys((*message.fields, *changed)):
        yield f"`{changed.get(path, path)}`"


def _change(remedy: Remedy) -> str:
    if remedy.set is not None:
        return f"{remedy.at}={remedy.set}"
    assert remedy.times is not None
    return f"{remedy.at} {'↑' if remedy.times > 1 else '↓'}"
