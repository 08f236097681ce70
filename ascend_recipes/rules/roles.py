"""Rules about what only some roles of a deployment may do, judged for one role at a time.

A role is the recipe's own (`prefill`, `decode`), or what a single script says of itself through
`kv_role` in its transfer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.holding import holds
from ascend_recipes.schema.serving import RoleName

PRODUCER, CONSUMER, BOTH = "kv_producer", "kv_consumer", "kv_both"

LAYERWISE = "MooncakeLayerwiseConnector"
HYBRID = "MooncakeHybridConnector"
POINT_TO_POINT = ("MooncakeConnectorV1", HYBRID, LAYERWISE)
"""Connectors that move caches from prefill to decode."""


@dataclass(frozen=True)
class Role:
    """One role: the deployment as it sees it, and where its values stand."""

    name: RoleName
    view: ResolvedRecipe

    @property
    def transfer(self) -> dict[str, object]:
        """Its transfer, as vLLM gets it."""
        return dict(options.transfer(self.view, self.name))

    @property
    def kv_role(self) -> str:
        """`kv_producer`, `kv_consumer`, `kv_both`, or empty where nothing is moved."""
        if not self.transfer:
            return ""
        return str(self.transfer.get("kv_role", BOTH))

    @property
    def connectors(self) -> tuple[str, ...]:
        """Names of its connectors, those inside a MultiConnector too."""
        return options.connectors(options.transfer(self.view, self.name))

    def at(self, path: str) -> str:
        """Where a field of the recipe is set for the role."""
        if self.name == "serve":
            return path
        section, _, field = path.partition(".")
        spec = self.view.recipe.roles[self.name]
        own = spec.env if section == "env" else spec.sections.get(section, {})
        return f"roles.{self.name}.{path}" if field in own else path

    def word(self, path: str, value: object) -> str:
        """The override that changes a field for the role alone."""
        shown = str(value).lower() if isinstance(value, bool) else value
        return f"{path}={shown}" if self.name == "serve" else f"roles.{self.name}.{path}={shown}"

    def off(self, setting: options.Setting) -> str:
        """The override that takes a setting back for the role alone, where roles have it."""
        word = options.off(setting)
        shared = setting.at.startswith((options.KEYS, "extra_args"))
        return word if self.name == "serve" or shared else f"roles.{self.name}.{word}"


@holds("vllm_ascend")
def single_role_may(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A deployment of one role, with or without a transfer of its own."""
    if "serve" in resolved.recipe.roles:
        yield from role_may(Role("serve", resolved))


@holds("vllm_ascend")
def both_roles_may(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """Both roles of a disaggregated deployment; what the recipe sets for both is said once."""
    found = [list(role_may(Role("prefill", prefill))), list(role_may(Role("decode", decode)))]
    read = {(item.id, item.at) for item in found[1]}
    shared = {(item.id, item.at) for item in found[0]} & read
    for item in found[0]:
        both = (item.id, item.at) in shared
        yield replace(item, fix=item.fix.replace("roles.prefill.", "")) if both else item
    yield from (item for item in found[1] if (item.id, item.at) not in shared)


def role_may(role: Role) -> Iterator[Finding]:
    """What a role asks for that is for other roles."""
    yield from _recompute(role)
    yield from _balance(role)
    yield from _cache_layout(role)
    yield from _sampling(role)
    yield from _pool(role)
    yield from _load_failure(role)
    yield from _connector_limits(role)
    yield from _variables(role)


def _recompute(role: Role) -> Iterator[Finding]:
    """Requests go back to prefill from a decode role only (platform.py:893-925)."""
    setting = options.recompute_scheduling(role.view)
    if setting is None or role.kv_role == CONSUMER:
        return
    if role.kv_role == PRODUCER:
        yield finding("pd.recompute", at=role.at(setting.at), fix=role.off(setting))
    else:
        yield finding("pd.recompute_mixed", at=role.at(setting.at), fix=role.off(setting))


def _balance(role: Role) -> Iterator[Finding]:
    """Replicas are levelled where one role does everything (platform.py:822-831)."""
    setting = options.balanced_scheduling(role.view)
    if setting is not None and role.kv_role in (PRODUCER, CONSUMER):
        yield finding("pd.balance", at=role.at(setting.at), fix=role.off(setting))


def _cache_layout(role: Role) -> Iterator[Finding]:
    """The blocked cache layout is for decode roles of latent attention (ascend_config.py:251)."""
    setting = options.switched_on(options.key(role.view, "enable_kv_nz"))
    if setting is None:
        return
    if role.kv_role != CONSUMER or role.view.recipe.attention.kind != "mla":
        attention = role.view.recipe.attention.kind
        yield finding(
            "pd.kv_nz", at=setting.at, fix=role.off(setting), role=role.name, attention=attention
        )


def _sampling(role: Role) -> Iterator[Finding]:
    """Reduced sampling is refused on prefill roles and beside a split head (…:297-312)."""
    setting = options.switched_on(options.key(role.view, "enable_reduce_sample"))
    if setting is None:
        return
    if role.kv_role == PRODUCER:
        yield finding("pd.reduce_sample", at=setting.at, fix=role.off(setting))
    if role.view.recipe.parallel.lm_head_tp:
        yield finding(
            "scheduler.reduce_sample",
            at=setting.at,
            fix=role.off(setting),
            split=role.view.recipe.parallel.lm_head_tp,
        )


def _pool(role: Role) -> Iterator[Finding]:
    """Machines that share a pool hash prefixes alike."""
    pool = next((name for name in role.connectors if name in options.POOLS), None)
    seed = options.variable(role.view, "PYTHONHASHSEED")
    if pool is not None and (seed is None or seed.value == "random"):
        yield finding(
            "pd.hashseed",
            at="env.PYTHONHASHSEED" if seed is None else role.at(seed.at),
            fix="env.PYTHONHASHSEED=0" if seed is None else role.word("env.PYTHONHASHSEED", 0),
            connector=pool,
        )


def _load_failure(role: Role) -> Iterator[Finding]:
    """States cannot be recomputed from where a transfer failed (platform.py:928-934)."""
    if "recurrent_state" not in role.view.model.traits:
        return
    spec = role.view.recipe.roles[role.name].transfer
    path = f"roles.{role.name}.transfer.options.kv_load_failure_policy"
    chosen = spec.options.get("kv_load_failure_policy") if spec is not None else None
    given = options.argument(role.view, "kv_transfer_config.kv_load_failure_policy")
    found = options.Setting(chosen, path) if chosen else given
    if found is not None and found.value == "recompute":
        yield finding("pd.kv_failure", at=found.at, fix=f"{found.at}=fail")


def _connector_limits(role: Role) -> Iterator[Finding]:
    """What the connectors cannot move (distributed/kv_transfer/kv_p2p)."""
    recipe = role.view.recipe
    kv_dtype = getattr(recipe.cache, "kv_dtype", "model")
    grouped = recipe.attention.kind in ("full", "hybrid")
    moved = [name for name in role.connectors if name in POINT_TO_POINT]
    if kv_dtype == "int8" and grouped and moved and LAYERWISE not in moved:
        yield finding(
            "pd.c8_gqa",
            at=role.at("cache.kv_dtype"),
            fix="cache.kv_dtype=model",
            connector=moved[0],
        )
    if kv_dtype != "model" and recipe.attention.kind == "sfa" and LAYERWISE in moved:
        yield finding("pd.c8_layerwise", at=role.at("cache.kv_dtype"), fix="cache.kv_dtype=model")
    if HYBRID in moved and recipe.parallel.dcp > 1:
        yield finding(
            "pd.hybrid_dcp",
            at=role.at("parallel.dcp"),
            fix=role.word("parallel.dcp", 1),
            dcp=recipe.parallel.dcp,
        )
    if role.kv_role == CONSUMER and moved and LAYERWISE not in moved and recipe.parallel.pp > 1:
        yield finding(
            "pd.decode_pp",
            at=role.at("parallel.pp"),
            fix=role.word("parallel.pp", 1),
            pp=recipe.parallel.pp,
        )
    if recipe.attention.kind == "dsa" and moved and HYBRID not in moved:
        yield finding(
            "pd.connector_kind",
            at=f"roles.{role.name}.transfer.connector",
            fix=" ".join(f"roles.{name}.transfer.connector={HYBRID}" for name in recipe.roles),
            connector=moved[0],
            usual=HYBRID,
        )


def _variables(role: Role) -> Iterator[Finding]:
    """Variables of the transfer that belong to one generation, and addresses nobody can reach."""
    moves = any(name.startswith("Mooncake") for name in role.connectors)
    if not moves:
        return
    recipe = role.view.recipe
    wanted = {"a3": "1", "a2": "0"}.get(recipe.hardware)
    given = options.variable(role.view, "ASCEND_A3_ENABLE")
    if wanted is not None and given is not None and given.value != wanted:
        yield finding(
            "pd.a3_env",
            at=role.at(given.at),
            fix=role.word("env.ASCEND_A3_ENABLE", wanted),
            value=given.value,
            hardware=recipe.hardware,
            wanted=wanted,
        )
    if LAYERWISE in role.connectors and recipe.serving.host in ("0.0.0.0", "::"):
        addresses = recipe.site.node_addresses
        yield finding(
            "net.wildcard",
            at="serving.host",
            fix=f"serving.host={addresses[0]}" if addresses else "",
            host=recipe.serving.host,
            connector=LAYERWISE,
        )
