"""`--kv-transfer-config`: how caches move between prefill and decode."""

from collections.abc import Mapping

from ascend_recipes.rendering.arguments import Arguments
from ascend_recipes.rendering.table import TRANSFER
from ascend_recipes.rendering.topology import Process
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.serving import RoleName, TransferSpec

KV_ROLES: Mapping[RoleName, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}

_PORT_STEP = 100
"""Distance between the connector ports of two instances, as the tutorials count them."""

_MULTI = "MultiConnector"


def put_transfer(
    arguments: Arguments, views: Mapping[RoleName, ResolvedRecipe], process: Process
) -> None:
    """The connector of a role; nothing where one role serves alone."""
    spec = views[process.role].recipe.roles[process.role].transfer
    if spec is None:
        return
    at = f"roles.{process.role}.transfer"
    role = KV_ROLES.get(process.role, "kv_both")
    if spec.load_failure is not None:
        policy = f"{TRANSFER}.kv_load_failure_policy"
        arguments.put(policy, spec.load_failure, f"{at}.load_failure")
    if spec.connector != _MULTI:
        for key, value, path in _connector(spec, role, process):
            arguments.put(f"{TRANSFER}.{key}", value, f"{at}.{path}")
        extra = {**_layout(views), **spec.options}
        if extra:
            arguments.put(f"{TRANSFER}.kv_connector_extra_config", extra, f"{at}.options")
        return
    arguments.put(f"{TRANSFER}.kv_connector", _MULTI, f"{at}.connector")
    arguments.put(f"{TRANSFER}.kv_role", role, "the role")
    arguments.put(f"{TRANSFER}.engine_id", _engine_id(spec, process), f"{at}.engine_id")
    inner: dict[str, Json] = {
        "connectors": [
            _member(item, spec, role, views, process) for item in _members(spec.options)
        ],
        **{key: value for key, value in spec.options.items() if key != "connectors"},
    }
    arguments.put(f"{TRANSFER}.kv_connector_extra_config", inner, f"{at}.options")


def _connector(
    spec: TransferSpec, role: str, process: Process
) -> tuple[tuple[str, Json, str], ...]:
    entries: list[tuple[str, Json, str]] = [
        ("kv_connector", spec.connector, "connector"),
        ("kv_role", role, "connector"),
    ]
    if spec.port is not None:
        entries.append(("kv_port", spec.port + _PORT_STEP * process.instance, "port"))
    entries.append(("engine_id", _engine_id(spec, process), "engine_id"))
    return tuple(entries)


def _engine_id(spec: TransferSpec, process: Process) -> str:
    return str(spec.engine_id + process.instance)


def _layout(views: Mapping[RoleName, ResolvedRecipe]) -> dict[str, Json]:
    """Both sides' parallel sizes, which connectors compare with their own."""
    layout: dict[str, Json] = {}
    for role in ("prefill", "decode"):
        if role in views:
            parallel = views[role].recipe.parallel
            layout[role] = {"dp_size": parallel.dp, "tp_size": parallel.tp}
    return layout


def _members(options: Mapping[str, Json]) -> tuple[dict[str, Json], ...]:
    """Connectors inside a MultiConnector: by name alone, or as objects."""
    listed = options.get("connectors")
    members = listed if isinstance(listed, list) else []
    return tuple(item if isinstance(item, dict) else {"kv_connector": item} for item in members)


def _member(
    member: dict[str, Json],
    spec: TransferSpec,
    role: str,
    views: Mapping[RoleName, ResolvedRecipe],
    process: Process,
) -> Json:
    own: dict[str, Json] = {**member}
    own.setdefault("kv_role", role)
    moves = str(own.get("kv_connector", "")).startswith("Mooncake") and "Store" not in str(
        own.get("kv_connector")
    )
    if moves:
        if spec.port is not None:
            own.setdefault("kv_port", spec.port + _PORT_STEP * process.instance)
        extra = own.get("kv_connector_extra_config")
        own["kv_connector_extra_config"] = {
            **_layout(views),
            **(extra if isinstance(extra, dict) else {}),
        }
    return own
