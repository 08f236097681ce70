"""Rules about the schedulers that vllm-ascend adds: who may run them, and which exclude others.

They are keys of `scheduler_config`; some also have a field in the recipe. `platform.py:822-925` and
`ascend_config.py:88-102` at 182b75ea are where vllm-ascend stops, or silently takes the last one.
"""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.roles import CONSUMER, Role

_DYNTRA = "dyntra_lb_config.enabled"
_CHUNKS = "profiling_chunk_config.enabled"
_SHORT = "short_request_first_config.enabled"
_JOBS = "batch_job_sched_config.enabled"


@holds("vllm_ascend")
def chunks_have_stages(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Measured prefill chunks keep pipeline stages busy: there must be several."""
    chunks = _on(resolved, _CHUNKS)
    if chunks is None:
        return
    if resolved.recipe.parallel.pp == 1:
        yield finding("scheduler.profiling_chunk", at=chunks.at, fix=options.off(chunks))
    yield from _excludes(chunks, options.balanced_scheduling(resolved))


@holds("vllm_ascend")
def short_requests_have_a_queue(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Letting short requests pass reorders a first-come queue, and nothing else may."""
    short = _on(resolved, _SHORT)
    if short is None:
        return
    policy = options.argument(resolved, "scheduling_policy")
    if policy is not None and policy.value != "fcfs":
        yield finding(
            "scheduler.short_policy",
            at=policy.at,
            fix=f"{policy.at}=fcfs",
            policy=policy.value,
        )
    for other in (_on(resolved, _JOBS), _on(resolved, _CHUNKS)):
        yield from _excludes(short, other)


@holds("vllm_ascend")
def batch_jobs_stand_alone(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The last scheduler class that is assigned wins, without a word about the others."""
    jobs = _on(resolved, _JOBS)
    others = (_on(resolved, _DYNTRA), _on(resolved, _CHUNKS), _recompute(resolved))
    for other in others:
        if jobs is not None and other is not None:
            yield finding(
                "scheduler.overruled", at=other.at, fix=options.off(other), winner=jobs.at
            )


@holds("vllm_ascend")
def replicas_to_level(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Levelling replicas needs replicas."""
    balance = options.balanced_scheduling(resolved)
    if balance is not None and resolved.recipe.parallel.dp == 1:
        yield finding("scheduler.nothing_to_balance", at=balance.at, fix=options.off(balance))


@holds("vllm_ascend")
def single_role_schedules(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Role-bound schedulers in a deployment of one role."""
    if "serve" in resolved.recipe.roles:
        yield from _role_bound(Role("serve", resolved))


@holds("vllm_ascend")
def both_roles_schedule(prefill: ResolvedRecipe, decode: ResolvedRecipe) -> Iterator[Finding]:
    """The same for prefill and decode, which share the keys."""
    found = [*_role_bound(Role("prefill", prefill)), *_role_bound(Role("decode", decode))]
    yield from {(item.id, item.at): item for item in found}.values()


def _role_bound(role: Role) -> Iterator[Finding]:
    dyntra, short = _on(role.view, _DYNTRA), _on(role.view, _SHORT)
    if short is not None and role.kv_role == CONSUMER:
        yield finding("scheduler.short_on_decode", at=short.at, fix=options.off(short))
    if dyntra is None:
        return
    yield from _excludes(dyntra, options.balanced_scheduling(role.view))
    yield from _excludes(dyntra, _on(role.view, _CHUNKS))
    if role.kv_role != CONSUMER:
        yield finding(
            "scheduler.dyntra_role", at=dyntra.at, fix=options.off(dyntra), role=role.name
        )
        return
    parallel, nodes = role.view.recipe.parallel, role.view.recipe.nodes
    if parallel.dp == 1 or nodes > 1:
        yield finding(
            "scheduler.dyntra_world",
            at=dyntra.at,
            fix=options.off(dyntra),
            dp=parallel.dp,
            nodes=nodes,
        )


def _on(resolved: ResolvedRecipe, path: str) -> options.Setting | None:
    return options.switched_on(options.scheduler_key(resolved, path))


def _recompute(resolved: ResolvedRecipe) -> options.Setting | None:
    return options.recompute_scheduling(resolved)


def _excludes(one: options.Setting, other: options.Setting | None) -> Iterator[Finding]:
    if other is not None:
        yield finding("scheduler.exclusive", at=one.at, fix=options.off(one), other=other.at)
