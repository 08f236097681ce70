"""Who performs each operation on each generation, what a fall-back costs, and what loads here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from ascend_recipes.errors import Finding
from ascend_recipes.findings import Phrase, finding, phrase
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.registry.load import Registry
from ascend_recipes.resolve import binding_name, choose_binding
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.expression import evaluate
from ascend_recipes.schema.operation import OperationContract
from ascend_recipes.schema.plan import LaunchPlan
from ascend_recipes.schema.rows import ProviderRow

REFERENCE = "torch"
"""Provider of the plain PyTorch references."""

_FEW = 4
"""Operations that one may sensibly leave to the reference; more, and the stack is what is wrong."""

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}

_OTHER_SPELLINGS = {
    "n_routed_experts": ("num_experts", "num_local_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_topk"),
    # Without a dense layer the only plain SwiGLU is that of the shared expert.
    "intermediate_size": ("shared_expert_intermediate_size", "moe_intermediate_size"),
}
"""Field that contracts name -> fields in which other configurations write the same number."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Least work of one call in a step of a deployment."""

    tokens: int
    flops: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class ServedOperation:
    """One operation on one generation."""

    operation: str
    hardware: str
    binding: str | None
    """`<provider>.<symbol>` that serves it; none where nobody does."""
    others: tuple[str, ...]
    """Bindings that the contract lists for this hardware besides, with what they need."""
    heavy: bool
    decode: StepCost | None = None
    prefill: StepCost | None = None

    @property
    def provider(self) -> str | None:
        """Who supplies the binding."""
        return self.binding.partition(".")[0] if self.binding else None

    @property
    def falls_back(self) -> bool:
        """Whether only the plain PyTorch reference serves it."""
        return self.provider == REFERENCE


@dataclass(frozen=True, kw_only=True)
class ProviderState:
    """A provider beside what is installed."""

    provider: str
    wanted: Mapping[str, str]
    installed: Mapping[str, str | None]
    differences: tuple[Phrase, ...]
    """Why it cannot be loaded here; empty if it can."""


# --- who serves what ----------------------------------------------------------------------------
def served_everywhere(registry: Registry) -> list[ServedOperation]:
    """Every operation on every generation, for a plan without further traits."""
    return [
        _served(name, registry.operations[name], hardware, _default(registry, name, hardware))
        for name in registry.operations
        for hardware in registry.hardware
    ]


def served_by_plan(planned: PlannedLaunch) -> list[ServedOperation]:
    """The operations of one plan, with what a decode step and a prefill step cost at least."""
    plan, registry = planned.plan, planned.resolved.registry
    return [
        _served(name, registry.operations[name], plan.hardware, binding, _step_sizes(planned))
        for name, binding in plan.operations.items()
    ]


def _default(registry: Registry, name: str, hardware: str) -> str | None:
    chosen = choose_binding(registry.operations[name], hardware, frozenset())
    return binding_name(chosen) if chosen else None


def _served(
    name: str,
    contract: OperationContract,
    hardware: str,
    binding: str | None,
    steps: Sequence[Mapping[str, float]] = (),
) -> ServedOperation:
    rows = [row for row in contract.bindings if hardware in row.hardware]
    others = [
        binding_name(row) + (f" (needs {', '.join(row.needs)})" if row.needs else "")
        for row in rows
        if binding_name(row) != binding
    ]
    costs = [_cost(contract, sizes) for sizes in steps] or [None, None]
    return ServedOperation(
        operation=name,
        hardware=hardware,
        binding=binding,
        others=tuple(others),
        heavy=contract.heavy,
        decode=costs[0],
        prefill=costs[1],
    )


# --- what it costs ------------------------------------------------------------------------------
def deployment_sizes(
    config: Mapping[str, Json],
    *,
    tensor_parallel: int,
    tokens: int,
    requests: int,
    context: int,
    block: int,
) -> dict[str, float]:
    """Sizes over which contracts write theirs: the configuration's numbers and the batch.

    Args:
        config: Configuration of the language model; numbers of nested sections count too.
        tensor_parallel: Dies that share a layer.
        tokens: Tokens of a step.
        requests: Sequences of a step.
        context: Keys of a request.
        block: Tokens of a cache block.
    """
    sizes: dict[str, float] = {}
    for section in (*(part for part in config.values() if isinstance(part, dict)), config):
        for key, value in section.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                sizes[key] = value
    for name, others in _OTHER_SPELLINGS.items():
        written = next((other for other in others if other in sizes), None)
        if name not in sizes and written is not None:
            sizes[name] = sizes[written]
    return sizes | {
        "tp": tensor_parallel,
        "tokens": tokens,
        "requests": requests,
        "context": context,
        "block": block,
    }


def _step_sizes(planned: PlannedLaunch) -> list[dict[str, float]]:
    """Sizes of the largest decode step and the largest prefill step, at half the context."""
    plan = planned.plan
    numbers = {key: value for key, value in plan.engine.items() if isinstance(value, int)}
    requests = numbers.get("max_num_seqs", 1)
    common = {
        "tensor_parallel": numbers.get("tensor_parallel_size", 1),
        "context": max(1, numbers.get("max_model_len", 1) // 2),
        "block": plan.cache.kernel_block_size,
    }
    drafts = plan.drafter.num_draft_tokens if plan.drafter else 0
    prefill = numbers.get("max_num_batched_tokens", requests)
    element = _BYTES.get(str(plan.engine.get("dtype")), 2)
    return [
        deployment_sizes(planned.resolved.config, tokens=tokens, requests=sequences, **common)
        | {"e": element}
        for tokens, sequences in ((requests * (1 + drafts), requests), (prefill, 1))
    ]


def _cost(contract: OperationContract, sizes: Mapping[str, float]) -> StepCost | None:
    """None where the contract states no cost, or the model lacks a size that it needs."""
    if contract.cost is None:
        return None
    try:
        dims = {name: evaluate(text, sizes) for name, text in contract.sizes.items()}
        dims["e"] = sizes["e"]
        return StepCost(
            tokens=int(sizes["tokens"]),
            flops=evaluate(contract.cost.flops, dims),
            bytes=evaluate(contract.cost.bytes, dims),
        )
    except ValueError:
        return None


# --- what loads here ----------------------------------------------------------------------------
def installed_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Versions by distribution name, read from their metadata; none for what is absent."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def provider_states(
    registry: Registry, installed: Mapping[str, str | None] | None = None
) -> dict[str, ProviderState]:
    """Every provider's binary interface beside what is installed.

    Args:
        registry: Rows of the providers.
        installed: Versions by package; read from this environment if none.
    """
    rows = registry.providers
    if installed is None:
        packages = {name for key in rows for name in _packages(rows[key])}
        installed = installed_versions(sorted(packages))
    return {key: _state(key, rows[key], installed) for key in rows}


def _packages(row: ProviderRow) -> set[str]:
    return {*row.abi, *([row.distribution] if row.distribution else [])}


def _state(key: str, row: ProviderRow, installed: Mapping[str, str | None]) -> ProviderState:
    here = {name: installed.get(name) for name in sorted(_packages(row))}
    return ProviderState(
        provider=key, wanted=row.abi, installed=here, differences=tuple(_differences(row, here))
    )


def _differences(row: ProviderRow, here: Mapping[str, str | None]) -> Iterator[Phrase]:
    for name, found in here.items():
        wanted = row.abi.get(name)
        if found is None:
            yield phrase("operation.not_installed", package=f"{name} {wanted or ''}".rstrip())
        # What follows a plus says how a package was built, for example `+cpu`.
        elif wanted is not None and found.partition("+")[0] != wanted:
            yield phrase("operation.other_installed", name=name, wanted=wanted, found=found)


def abi_findings(
    plan: LaunchPlan, registry: Registry, states: Mapping[str, ProviderState] | None = None
) -> Iterator[Finding]:
    """What stops a launch on NPUs: kernels built for another stack than the installed one.

    Heavy operations (attention, MoE, matrix multiplication) stop at any difference; the others
    only where the provider is not installed at all, because then the call itself fails.
    """
    if plan.device != "npu":
        return
    states = provider_states(registry) if states is None else states
    users: dict[str, list[str]] = {}
    for name, binding in plan.operations.items():
        users.setdefault(binding.partition(".")[0], []).append(name)
    for provider, names in sorted(users.items()):
        state = states[provider]
        row = registry.providers[provider]
        absent = row.distribution is not None and state.installed[row.distribution] is None
        affected = [name for name in names if absent or registry.operations[name].heavy]
        if state.differences and affected:
            yield _abi_finding(state, affected)


def _abi_finding(state: ProviderState, names: Sequence[str]) -> Finding:
    return finding(
        "operation.abi",
        at="allow_reference",
        fix=f"allow_reference=[{','.join(names)}]" if len(names) <= _FEW else "",
        evidence=f"registry/providers/{state.provider}.yaml",
        names=names,
        provider=state.provider,
        differences=state.differences,
        wanted=[f"{key}=={at}" for key, at in state.wanted.items()],
    )
