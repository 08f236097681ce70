"""Commands as flat tables: target -> value, read without the table that renders them."""

import json
from collections.abc import Mapping, Sequence

from ascend_recipes.schema.base import Json


def atoms(argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Json]:
    """Every flag, every leaf of a JSON flag, every variable; `argv` as rendering writes it."""
    assert argv[:2] == ("vllm", "serve")
    found: dict[str, Json] = {"MODEL": argv[2]}
    rest = list(argv[3:])
    while rest:
        flag = rest.pop(0)
        assert flag.startswith("--"), f"{flag!r} belongs to no flag"
        flag, equals, attached = flag.partition("=")
        values = [attached] if equals else []
        while rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        assert flag not in found, f"{flag} is given twice"
        _add(found, flag, _value(flag, values))
    return found | {f"${name}": value for name, value in env.items()}


def _value(flag: str, values: list[str]) -> Json:
    if not values:
        return not flag.startswith("--no-")
    if len(values) > 1:
        return list(values)
    return json.loads(values[0]) if values[0].startswith("{") else values[0]


def _add(found: dict[str, Json], target: str, value: Json) -> None:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            _add(found, f"{target}.{key}", item)
    else:
        found[target.replace("--no-", "--", 1)] = value
