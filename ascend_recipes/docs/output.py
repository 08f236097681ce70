"""`docs/json-output.md`: what each command prints with `--json`."""

from collections.abc import Iterator
from typing import Any

from ascend_recipes.commands.documents import document_types, output_schema

_HEAD = """\
# What `--json` prints

Every command takes `--json` and then prints **one JSON object on stdout**, whatever happens; notes
and progress go to stderr. The object begins with `command`, `ok` and `exit_code`. A command that
stops early prints its findings and nothing else (`StoppedDocument`). Fields are added, never
renamed within a version.

The JSON Schema (draft 2020-12) is [output.schema.json](output.schema.json), or
`ascend-run schema output`. This page is generated from it by `python -m ascend_recipes.docs`; a
test holds each command's output to it.

```console
$ ascend-run check recipe=NAME parallel.tp=3 --json | jq -r '.findings[].fix'
```

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | an error of ours |
| 2 | the command line is wrong |
| 3 | findings |
| 4 | this machine cannot do it |
| 5 | the launch failed |
| 130 | interrupted |

`plan`, `check` and `import` print their findings beside the rest, so look at `ok` first.
"""


def output_page() -> str:
    """The page."""
    schema = output_schema()["$defs"]
    documents = [kind.__name__ for kind in document_types()]
    objects = sorted(name for name in schema if name.endswith("Object"))
    lines = [_HEAD, "## Documents\n"]
    lines += [line for name in documents for line in _section(name, schema[name])]
    lines.append("## Objects in them\n")
    lines += [line for name in objects for line in _section(name, schema[name])]
    return "\n".join(lines)


def _section(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{schema['description']}\n"
    yield "| field | type | |"
    yield "|---|---|---|"
    required = schema.get("required", ())
    for field, value in schema["properties"].items():
        if name.endswith("Document") and field in ("command", "ok", "exit_code"):
            continue
        text = " ".join(value.get("description", "").split())
        kind = _type(value)
        if field not in required:
            kind = kind.removesuffix(" or null") + ", may be left out"
        yield f"| `{field}` | {kind} | {text} |"
    yield ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2].replace("JsonValue", "any")
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(item) for item in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{item}`" for item in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(inner := schema.get("additionalProperties"), dict):
        return f"object of {_type(inner)}"
    return str(kind)
