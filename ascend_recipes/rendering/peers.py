"""Reads `--kv-transfer-config` back into a role's transfer section."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ascend_recipes.rendering.transfer import KV_ROLES
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.serving import RoleName

_ROLES: Mapping[str, RoleName] = {name: role for role, name in KV_ROLES.items()}
_SIDES: tuple[RoleName, ...] = ("prefill", "decode")
_EXTRA = "kv_connector_extra_config"


@dataclass
class ReadTransfer:
    """A connector's configuration by parts."""

    role: RoleName
    spec: dict[str, Json] | None
    """The transfer section; none where the connector serves no split deployment."""
    rest: dict[str, Json] = field(default_factory=dict)
    """Keys without a field."""
    peers: dict[RoleName, Mapping[str, int]] = field(default_factory=dict)


def read_transfer(config: Mapping[str, Json]) -> ReadTransfer:
    """Split a connector's configuration into the transfer section and what is left."""
    role = _ROLES.get(str(config.get("kv_role")))
    if role is None:
        return ReadTransfer("serve", None, dict(config))
    read = ReadTransfer(role, {})
    assert read.spec is not None
    for key, value in config.items():
        _read_key(read, read.spec, key, value)
    return read


def _read_key(read: ReadTransfer, spec: dict[str, Json], key: str, value: Json) -> None:
    if key == "kv_role":
        return
    if key == "kv_connector":
        spec["connector"] = value
    elif key == "kv_port" and str(value).isdigit():
        spec["port"] = int(str(value))
    elif key == "engine_id" and str(value).isdigit():
        spec["engine_id"] = int(str(value))
    elif key == "kv_load_failure_policy" and value in ("fail", "recompute"):
        spec["load_failure"] = value
    elif key == _EXTRA and isinstance(value, dict):
        if options := _read_extra(read, spec, value):
            spec["options"] = options
    else:
        read.rest[key] = value


def _read_extra(
    read: ReadTransfer, spec: dict[str, Json], extra: Mapping[str, Json]
) -> dict[str, Json]:
    options: dict[str, Json] = {}
    for key, value in extra.items():
        side = next((name for name in _SIDES if name == key), None)
        if side and (sizes := _sizes(value)):
            read.peers[side] = sizes
        elif key == "connectors" and isinstance(value, list):
            options[key] = [_read_member(read, spec, item) for item in value]
        else:
            options[key] = value
    return options


def _sizes(value: Json) -> Mapping[str, int] | None:
    """Parallel sizes of one side, if nothing else stands there."""
    if not isinstance(value, dict) or set(value) != {"dp_size", "tp_size"}:
        return None
    sizes = {key: item for key, item in value.items() if isinstance(item, int)}
    return sizes if len(sizes) == len(value) else None


def _read_member(read: ReadTransfer, spec: dict[str, Json], member: Json) -> Json:
    """A connector inside a MultiConnector; the mover's port and sizes are the role's own."""
    if not isinstance(member, dict):
        return member
    kept: dict[str, Json] = {}
    for key, value in member.items():
        if key == "kv_role" and value == KV_ROLES[read.role]:
            continue
        if key == "kv_port" and "port" not in spec and str(value).isdigit():
            spec["port"] = int(str(value))
        elif key == _EXTRA and isinstance(value, dict):
            if left := _read_extra(read, spec, value):
                kept[key] = left
        else:
            kept[key] = value
    return kept["kv_connector"] if set(kept) == {"kv_connector"} else kept
