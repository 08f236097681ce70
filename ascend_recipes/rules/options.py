"""Options as the runtime will see them, whichever way the recipe states them.

vllm-ascend reads a setting from a key of `--additional-config`, else from a variable; a recipe has
a field for the common ones and takes the rest under `runtime.additional_config`, `extra_args` and
`env`. Rules ask here, so that a setting is judged wherever it stands.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.serving import RoleName

KEYS = "runtime.additional_config"
"""Path of the keys of `--additional-config` in a recipe."""

POOLS = ("AscendStoreConnector", "MooncakeConnectorStoreV1", "UCMConnector")
"""Connectors of shared pools (distributed/kv_transfer/__init__.py)."""

NO_CARRIERS = ("MultiConnector", *POOLS)
"""Connectors that themselves move nothing from prefill to decode."""

_SCHEDULER_ALIASES = frozenset(
    {
        "enable_balance_scheduling",
        "recompute_scheduler_enable",
        "short_request_first_config",
        "profiling_chunk_config",
        "batch_job_sched_config",
    }
)
"""Keys of `scheduler_config` that also stand at the top (ascend_config.py:1207-1232)."""


@dataclass(frozen=True)
class Setting:
    """A value with the recipe path that sets it."""

    value: Json
    at: str

    @property
    def on(self) -> bool:
        """Whether it switches something on, as Python's truth has it, for texts 0 and false."""
        if isinstance(self.value, str):
            return self.value.strip().lower() not in ("", "0", "false", "none", "off")
        return bool(self.value)


def key(resolved: ResolvedRecipe, path: str) -> Setting | None:
    """A key of `--additional-config`, dotted where it is nested; none if it is not set."""
    value: Json = dict(resolved.recipe.runtime.additional_config)
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return Setting(value, f"{KEYS}.{path}")


def scheduler_key(resolved: ResolvedRecipe, path: str) -> Setting | None:
    """A key of `scheduler_config`, also in its old place at the top."""
    nested = key(resolved, f"scheduler_config.{path}")
    if nested is None and path.partition(".")[0] in _SCHEDULER_ALIASES:
        return key(resolved, path)
    return nested


def argument(resolved: ResolvedRecipe, name: str) -> Setting | None:
    """An engine argument under `extra_args`; dotted where it is nested."""
    value: Json = dict(resolved.recipe.extra_args)
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return Setting(value, f"extra_args.{name}")


def variable(resolved: ResolvedRecipe, name: str) -> Setting | None:
    """An environment variable of the recipe, role overrides merged."""
    value = resolved.recipe.env.get(name)
    return None if value is None else Setting(value, f"env.{name}")


def switched_on(*settings: Setting | None) -> Setting | None:
    """The first setting that is given, if it switches something on: the first one counts."""
    given = next((item for item in settings if item is not None), None)
    return given if given is not None and given.on else None


def whole(setting: Setting) -> int | None:
    """The value, if it is a whole number."""
    number = isinstance(setting.value, int) and not isinstance(setting.value, bool)
    return setting.value if number else None  # type: ignore[return-value]


def field(value: Json, at: str) -> Setting | None:
    """A field of the recipe that is on; none otherwise, so that other places are asked."""
    return Setting(value, at) if value else None


def fused_communication(resolved: ResolvedRecipe) -> Setting | None:
    """Where the fused exchange of experts is switched on."""
    return switched_on(
        field(resolved.recipe.moe.fused_communication, "moe.fused_communication"),
        key(resolved, "enable_fused_mc2"),
        variable(resolved, "VLLM_ASCEND_ENABLE_FUSED_MC2"),
    )


def hierarchical_communication(resolved: ResolvedRecipe) -> Setting | None:
    """Where the two-level exchange of experts is switched on."""
    return switched_on(
        field(resolved.recipe.moe.hierarchical_communication, "moe.hierarchical_communication"),
        key(resolved, "enable_mc2_hierarchy_comm"),
    )


def dynamic_balancing(resolved: ResolvedRecipe) -> Setting | None:
    """Where experts are told to move at run time."""
    chosen = resolved.recipe.moe.load_balancing == "dynamic"
    return switched_on(
        field(chosen, "moe.load_balancing"),
        key(resolved, "eplb_config.dynamic_eplb"),
        key(resolved, "eplb_config.expert_map_record_path"),
    )


def balanced_scheduling(resolved: ResolvedRecipe) -> Setting | None:
    """Where the scheduler that levels data-parallel replicas is switched on."""
    return switched_on(
        field(resolved.recipe.scheduler.balance, "scheduler.balance"),
        scheduler_key(resolved, "enable_balance_scheduling"),
        variable(resolved, "VLLM_ASCEND_BALANCE_SCHEDULING"),
    )


def recompute_scheduling(resolved: ResolvedRecipe) -> Setting | None:
    """Where requests that run out of cache are told to go back to prefill."""
    return switched_on(
        field(resolved.recipe.scheduler.recompute, "scheduler.recompute"),
        scheduler_key(resolved, "recompute_scheduler_enable"),
    )


def second_runner(resolved: ResolvedRecipe) -> bool:
    """Whether vllm-ascend would use its second model runner: only where the variable says so."""
    return switched_on(variable(resolved, "VLLM_USE_V2_MODEL_RUNNER")) is not None


def off(setting: Setting) -> str:
    """The override that takes a setting back."""
    if setting.at == "moe.load_balancing":
        return "moe.load_balancing=off"
    if isinstance(setting.value, bool) or setting.at.startswith(("moe.", "scheduler.")):
        return f"{setting.at}=false"
    if isinstance(setting.value, int) or setting.at.startswith("env."):
        return f"{setting.at}=0"
    return removed(setting.at)


def removed(path: str) -> str:
    """The override that removes an entry."""
    return f"~{path}"


def transfer(resolved: ResolvedRecipe, role: RoleName = "serve") -> Mapping[str, Json]:
    """The key-value transfer of a role as vLLM gets it; empty without one."""
    spec = resolved.recipe.roles.get(role)
    given = argument(resolved, "kv_transfer_config")
    tree: dict[str, Json] = dict(given.value) if given and isinstance(given.value, dict) else {}
    if spec is not None and spec.transfer is not None:
        tree["kv_connector"] = spec.transfer.connector
        tree["kv_connector_extra_config"] = dict(spec.transfer.options)
        if role != "serve":
            tree["kv_role"] = "kv_producer" if role == "prefill" else "kv_consumer"
    return tree


def connectors(config: Mapping[str, Json]) -> tuple[str, ...]:
    """Names of the connectors of a transfer, those inside a MultiConnector too."""
    name, extra = config.get("kv_connector"), config.get("kv_connector_extra_config")
    found = [name] if isinstance(name, str) else []
    inner = extra.get("connectors") if isinstance(extra, dict) else None
    for item in inner if isinstance(inner, list) else ():
        found += (
            connectors(item) if isinstance(item, dict) else [item] if isinstance(item, str) else []
        )
    return tuple(found)


def pooled_cache(resolved: ResolvedRecipe) -> str:
    """Connector that keeps caches in a pool shared by several machines; empty without one."""
    names = (
        name
        for role in resolved.recipe.roles
        for name in connectors(transfer(resolved, role))
        if name in POOLS
    )
    return next(names, "")
