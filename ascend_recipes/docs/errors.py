"""`docs/errors.md`: every finding of the text table, in both languages."""

from collections.abc import Iterator

from ascend_recipes.registry.load import Table
from ascend_recipes.schema.rows import FindingsRow, FindingText

_HEAD = """\
# Findings

Every finding of the text table, by family; generated from `registry/findings/` by
`python -m ascend_recipes.docs`. `ascend-run --lang zh` or `ASCEND_RECIPES_LANG=zh` prints Chinese.
An **error** stops the launch, a **warn** does not (with `--strict` it does), **info** is
advice. `because` in a recipe may silence a warning, with a reason and a source.
"""


def errors_page(table: Table[FindingsRow]) -> str:
    """The page."""
    return "\n".join([_HEAD, *(line for family in table for line in _family(family, table))])


def _family(family: str, table: Table[FindingsRow]) -> Iterator[str]:
    row = table[family]
    if not row.findings:
        return
    yield f"## {family}\n\n{row.about}.\n"
    for name, text in sorted(row.findings.items()):
        yield _section(f"{family}.{name}", text)


def _section(id: str, text: FindingText) -> str:
    lines = [f"### {id}", "", f"**{text.severity}**: {text.title.en} / {text.title.zh}", ""]
    lines += [f"- {text.message.en}", f"- {text.message.zh}"]
    if text.why:
        lines += [f"- why: {text.why.en}", f"- 原因：{text.why.zh}"]
    if text.fix:
        lines += [f"- fix: {text.fix.en}", f"- 修改：{text.fix.zh}"]
    if text.evidence:
        lines.append(f"- evidence: {text.evidence}")
    return "\n".join([*lines, ""])
