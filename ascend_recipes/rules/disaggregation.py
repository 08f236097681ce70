"""Rules over a pair of roles: what prefill writes, decode must be able to read.

Nothing compares the two scripts at run time; most of these mistakes give wrong text, not an error.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from ascend_recipes.errors import Finding, Severity
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.graph import query_length
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.roles import HYBRID, POINT_TO_POINT, Role
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.parallel import ParallelSpec

_LATENT = frozenset({"mla", "sfa", "dsa"})
"""Attention whose cache every die of a tensor-parallel group holds whole."""

_SPLIT_DRAFTS = 3
"""Most draft tokens that documents use together with a context split over dies."""

_BLOCK_DRAFTERS = frozenset({"dspark", "dflash"})


def pages_agree(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """Blocks, element types and layout are the same on both sides, whichever the runtime."""
    for path, name_of in (
        ("cache.block_size", "pd.block_size"),
        ("cache.kv_dtype", "pd.cache_dtype"),
        ("cache.state_dtype", "pd.state_dtype"),
        ("attention.indexer_cache", "pd.index_dtype"),
    ):
        section, _, name = path.partition(".")
        here = getattr(getattr(prefill.recipe, section), name, None)
        there = getattr(getattr(decode.recipe, section), name, None)
        if here != there:
            yield finding(
                name_of,
                at=_placed(path, prefill, decode),
                fix=Role("prefill", prefill).word(path, there),
                prefill=here,
                decode=there,
            )


@holds("vllm_ascend")
def degrees_agree(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """A decode die reads whole shares of prefill dies."""
    one, other = prefill.recipe.parallel, decode.recipe.parallel
    at = _placed("parallel.tp", prefill, decode)
    latent = prefill.recipe.attention.kind in _LATENT
    fix = _split(other, _fitting(one.tp, other.tp))
    if latent and one.tp < other.tp:
        yield finding("pd.tp_order", at=at, fix=fix, prefill=one.tp, decode=other.tp)
    if not latent and one.tp % other.tp:
        yield finding("pd.tp_multiple", at=at, fix=fix, prefill=one.tp, decode=other.tp)
    hybrid = HYBRID in Role("decode", decode).connectors
    if "recurrent_state" in prefill.model.traits and hybrid and one.tp != other.tp:
        yield finding(
            "pd.state_tp",
            at=at,
            fix=_split(other, one.tp),
            prefill=one.tp,
            decode=other.tp,
        )
    if one.dcp % other.dcp:
        yield finding(
            "pd.dcp_multiple",
            at=_placed("parallel.dcp", prefill, decode),
            fix=f"roles.decode.parallel.dcp={_fitting(one.dcp, other.dcp)}",
            prefill=one.dcp,
            decode=other.dcp,
        )


def _placed(path: str, prefill: ResolvedRecipe, decode: ResolvedRecipe) -> str:
    """Where a field that differs is set: in a role, or for both."""
    at = Role("decode", decode).at(path)
    return at if at != path else Role("prefill", prefill).at(path)


def _split(decode: ParallelSpec, tp: int) -> str:
    """Another split of the decode role over the dies that it has."""
    dp = max(1, decode.tp * decode.dp // tp)
    return f"roles.decode.parallel.tp={tp} roles.decode.parallel.dp={dp}"


def _fitting(prefill: int, decode: int) -> int:
    """The largest divisor of the prefill degree that is at most the decode degree."""
    return max(n for n in range(1, min(prefill, decode) + 1) if prefill % n == 0)


@holds("vllm_ascend")
def drafts_agree(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """Drafters of both sides: the same one, and the same length where it shapes the cache."""
    one, other = prefill.recipe.drafter, decode.recipe.drafter
    lengths = query_length(prefill) - 1, query_length(decode) - 1
    if one.kind != other.kind:
        yield finding(
            "pd.drafter",
            at=Role("prefill", prefill).at("drafter.kind"),
            prefill=one.kind,
            decode=other.kind,
        )
        return
    equal = "recurrent_state" in prefill.model.traits or one.kind in _BLOCK_DRAFTERS
    at = _placed("drafter.num_draft_tokens", prefill, decode)
    if equal and lengths[0] != lengths[1]:
        yield finding(
            "pd.spec_block" if one.kind in _BLOCK_DRAFTERS else "pd.spec_hybrid",
            at=at,
            fix=f"roles.prefill.drafter.num_draft_tokens={lengths[1]}",
            prefill=lengths[0],
            decode=lengths[1],
        )
    elif not equal and lengths[0] > 1:
        yield finding(
            "pd.spec_prefill",
            at=Role("prefill", prefill).at("drafter.num_draft_tokens"),
            fix="roles.prefill.drafter.num_draft_tokens=1",
            prefill=lengths[0],
        )


@holds("vllm_ascend")
def split_context_drafts(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """Drafts together with a split context are reported to fail when caches are moved."""
    for role in (Role("prefill", prefill), Role("decode", decode)):
        parallel, drafts = role.view.recipe.parallel, query_length(role.view) - 1
        if parallel.dcp > 1 and drafts > _SPLIT_DRAFTS:
            yield finding(
                "pd.dcp_mtp",
                at=role.at("drafter.num_draft_tokens"),
                fix=role.word("drafter.num_draft_tokens", _SPLIT_DRAFTS),
                dcp=parallel.dcp,
                drafts=drafts,
            )


@holds("vllm_ascend")
def eight_bit_latents_move(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """Wrong text is reported where 8-bit caches of sparse latent attention are moved."""
    for role in (Role("prefill", prefill), Role("decode", decode)):
        recipe = role.view.recipe
        if recipe.attention.kind == "sfa" and getattr(recipe.cache, "kv_dtype", "") == "int8":
            at = _placed("cache.kv_dtype", prefill, decode)
            fix = f"{at}=model" if at == "cache.kv_dtype" else role.word("cache.kv_dtype", "model")
            yield finding("attention.sfa_c8", at=at, fix=fix)
            return


def ends_meet(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """One connector, and a number of its own for every engine."""
    roles = {"prefill": prefill.recipe.roles["prefill"], "decode": decode.recipe.roles["decode"]}
    one, other = roles["prefill"].transfer, roles["decode"].transfer
    for name, spec in roles.items():
        if spec.transfer is None:
            yield finding("pd.transfer_missing", at=f"roles.{name}.transfer", role=name)
    if one is None or other is None:
        return
    sends, receives = (
        tuple(name for name in role.connectors if name not in options.NO_CARRIERS)
        for role in (Role("prefill", prefill), Role("decode", decode))
    )
    if sends != receives:
        yield finding(
            "pd.connector",
            at="roles.decode.transfer.connector",
            fix=f"roles.decode.transfer.connector={one.connector}",
            prefill=sends or one.connector,
            decode=receives or other.connector,
        )
    writers = range(one.engine_id, one.engine_id + roles["prefill"].instances)
    readers = range(other.engine_id, other.engine_id + roles["decode"].instances)
    shared = sorted(set(writers) & set(readers))
    if shared:
        yield finding(
            "pd.engine_id",
            at="roles.decode.transfer.engine_id",
            fix=f"roles.decode.transfer.engine_id={writers.stop}",
            shared=shared,
            prefill=f"{writers.start}-{writers.stop - 1}",
            decode=f"{readers.start}-{readers.stop - 1}",
        )


@holds("vllm_ascend")
def connectors_exist(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """The runtime registers the connectors by name, and those that listen have a port."""
    known = prefill.runtime.connectors
    for role in (Role("prefill", prefill), Role("decode", decode)):
        transfer = role.view.recipe.roles[role.name].transfer
        if transfer is None:
            continue
        path = f"roles.{role.name}.transfer"
        foreign = "kv_connector_module_path" in transfer.options
        for name in () if foreign else role.connectors:
            if known and name not in known:
                close = get_close_matches(name, known, n=1)
                own = name == transfer.connector and close
                yield finding(
                    "pd.connector_unknown",
                    at=f"{path}.connector" if name == transfer.connector else f"{path}.options",
                    fix=f"{path}.connector={close[0]}" if own else "",
                    connector=name,
                    close=close or sorted(known),
                )
        if transfer.port is None and any(name in POINT_TO_POINT for name in role.connectors):
            port = 30000 if role.name == "prefill" else 30100
            yield finding(
                "pd.port_missing", at=f"{path}.port", fix=f"{path}.port={port}", role=role.name
            )


@holds("vllm_ascend")
def declared_sizes_are_true(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """Sizes that a connector is told by hand are those that the roles have."""
    views = {"prefill": prefill, "decode": decode}
    for role in (Role("prefill", prefill), Role("decode", decode)):
        transfer = role.view.recipe.roles[role.name].transfer
        if transfer is not None:
            at = f"roles.{role.name}.transfer.options"
            yield from declared_sizes(transfer.options, views, at)


@holds("vllm_ascend")
def own_size_is_true(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The same for a single script, which knows its own side only (utils.py:1222-1246)."""
    if "serve" not in resolved.recipe.roles:
        return
    role = Role("serve", resolved)
    own = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(role.kv_role)
    extra = role.transfer.get("kv_connector_extra_config")
    if own is not None and isinstance(extra, dict):
        at = "extra_args.kv_transfer_config.kv_connector_extra_config"
        yield from declared_sizes(extra, {own: resolved}, at)


def declared_sizes(
    extra: Mapping[str, Json], views: Mapping[str, ResolvedRecipe], at: str
) -> Iterator[Finding]:
    """Compare `prefill` and `decode` of a connector's settings with the roles."""
    for name, view in views.items():
        declared = extra.get(name)
        if not isinstance(declared, dict):
            continue
        parallel = view.recipe.parallel
        dense = "moe" not in view.model.traits
        for key, actual in (("tp_size", parallel.tp), ("dp_size", parallel.dp)):
            stated, path = declared.get(key), f"{at}.{name}.{key}"
            if stated is None or stated == actual or (dense and key == "dp_size" and stated == 1):
                continue
            if key == "tp_size":
                fix = f"{path}={actual}"
                yield finding("pd.tp_conflict", at=path, fix=fix, stated=stated, actual=actual)
            elif not dense:
                fix = f"{path}={actual}"
                yield finding("pd.dp_mismatch", at=path, fix=fix, stated=stated, actual=actual)
        stated = declared.get("dp_size")
        if dense and isinstance(stated, int) and stated > 1:
            path = f"{at}.{name}.dp_size"
            yield finding("pd.dense_dp", at=path, fix=f"{path}=1", stated=stated)


@holds("vllm_ascend")
def dense_replicas_are_apart(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """Data-parallel engines of a dense model see themselves alone."""
    if "moe" in prefill.model.traits:
        return
    silent = []
    for role in (Role("prefill", prefill), Role("decode", decode)):
        transfer = role.view.recipe.roles[role.name].transfer
        declared = transfer.options.get(role.name) if transfer is not None else None
        stated = declared.get("dp_size") if isinstance(declared, dict) else None
        if role.view.recipe.parallel.dp > 1 and transfer is not None and stated is None:
            silent.append(role)
    if silent:
        words = [f"roles.{r.name}.transfer.options.{r.name}.dp_size=1" for r in silent]
        yield finding(
            "pd.dense_dp",
            severity=Severity.INFO,
            at=_placed("parallel.dp", prefill, decode),
            fix=" ".join(words),
            stated=max(role.view.recipe.parallel.dp for role in silent),
        )


@holds("vllm_ascend")
def seeds_agree(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """Both sides of a shared pool hash prefixes with the same seed."""
    one = options.variable(prefill, "PYTHONHASHSEED")
    other = options.variable(decode, "PYTHONHASHSEED")
    pooled = options.pooled_cache(prefill)
    if pooled and one is not None and other is not None and one.value != other.value:
        yield finding(
            "pd.hashseed_differs",
            at=Role("decode", decode).at(other.at),
            fix=f"roles.decode.env.PYTHONHASHSEED={one.value}",
            prefill=one.value,
            decode=other.value,
            connector=pooled,
        )


@holds("vllm_ascend")
def decode_reads_long_requests(
    prefill: ResolvedRecipe, decode: ResolvedRecipe
) -> Iterator[Finding]:
    """Decode takes every request that prefill takes."""
    one, other = prefill.recipe.scheduler.max_model_len, decode.recipe.scheduler.max_model_len
    if one > other:
        yield finding(
            "pd.context",
            at=Role("decode", decode).at("scheduler.max_model_len"),
            fix=f"roles.decode.scheduler.max_model_len={one}",
            prefill=one,
            decode=other,
        )
