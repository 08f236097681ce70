"""Reads what a command printed with `--json`, held to the published schema."""

import json
from functools import cache

import jsonschema
from jsonschema.protocols import Validator

from ascend_recipes.commands.documents import document_types, output_adapter, output_schema


def conforming(text: str) -> dict:
    """The one document of a command; an assertion fails unless the schema admits it."""
    tree = json.loads(text)
    errors = _validator(tree["command"], tree["ok"]).iter_errors(tree)
    worst = jsonschema.exceptions.best_match(errors)
    assert worst is None, f"{worst.json_path}: {worst.message[:300]}"
    return tree


def kinds_of(text: str) -> set[str]:
    """Names of the document types that admit it."""
    found = output_adapter()
    assert found.validate_json(text)
    names = set()
    for kind in document_types():
        try:
            kind.model_validate_json(text)
        except ValueError:
            continue
        names.add(kind.__name__)
    return names


@cache
def _validator(command: str, ok: bool) -> Validator:
    """Of the documents that the command may print: an error then names the field at fault."""
    schema = output_schema()
    kinds = [kind for kind in document_types() if command in _commands(kind)]
    if not ok:
        kinds += [kind for kind in document_types() if kind.__name__ == "StoppedDocument"]
    assert kinds, f"no document is published for {command!r}"
    chosen = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds]
    return jsonschema.Draft202012Validator({**schema, "anyOf": chosen})


def _commands(kind: type) -> tuple[str, ...]:
    return getattr(kind.model_fields["command"].annotation, "__args__", ())
