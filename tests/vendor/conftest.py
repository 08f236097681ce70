"""Every vendor call of every binding, and one answer of the vendor's package about all of them."""

from dataclasses import dataclass, replace

import pytest

from ascend_recipes.emulation import install
from ascend_recipes.emulation.register import load_schemas
from ascend_recipes.operations_table import deployment_sizes
from ascend_recipes.ops import binding_key, load_function
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.expression import names_in
from ascend_recipes.schema.operation import Binding, OperationContract
from tests.conftest import plan_of
from tests.vendor.cases.drawing import Case, CaseTable, arguments, load_cases
from tests.vendor.controls import DEFINITION, control_calls
from tests.vendor.environment import REMEDY, SOURCE, Answer, ask
from tests.vendor.recording import Recorded, record
from tests.vendor.source_schemas import source_schemas

RECIPES = ("qwen3_5_27b_a2", "deepseek_v4_a2")
"""An operation is drawn at the sizes of the first of these whose model has them."""
VENDOR_PROVIDERS = ("torch_npu", "cann_custom")
TOKENS = 6
"""Rows of a drawn batch; every other size is the plan's, so that the CPU kernels stay quick."""


@dataclass(frozen=True)
class Bound:
    """A binding with the vendor calls that it made."""

    operation: str
    binding: Binding
    recorded: list[Recorded]
    error: str = ""
    """Why it could not be run."""

    @property
    def name(self) -> str:
        return f"{self.operation}@{binding_key(self.binding)}"


@pytest.fixture(scope="session")
def deployments() -> list[dict[str, float]]:
    """Sizes of one die of each real plan."""
    return [_sizes_of(plan_of(f"recipe={name}")) for name in RECIPES]


def _sizes_of(planned: PlannedLaunch) -> dict[str, float]:
    plan = planned.plan
    return deployment_sizes(
        planned.resolved.config,
        tensor_parallel=int(str(plan.engine.get("tensor_parallel_size", 1))),
        tokens=TOKENS,
        requests=TOKENS,
        context=2 * plan.cache.kernel_block_size,
        block=plan.cache.kernel_block_size,
    )


def sizes_for(contract: OperationContract, deployments: list[dict[str, float]]) -> dict[str, float]:
    """The first deployment whose model has every size that the contract asks for."""
    needed = set().union(*map(names_in, contract.sizes.values()))
    return next(sizes for sizes in deployments if needed <= set(sizes))


def vendor_bindings() -> list[tuple[str, OperationContract, Binding]]:
    contracts = load_registry().operations
    return [
        (name, contracts[name], binding)
        for name in contracts
        for binding in contracts[name].bindings
        if binding.provider in VENDOR_PROVIDERS
    ]


@pytest.fixture(scope="session")
def bindings(deployments) -> list[Bound]:
    """Every binding to a vendor's operator, run on tensors of the real plan's sizes."""
    install()
    cases = load_cases()
    return [_run(*row, cases, deployments) for row in vendor_bindings()]


def _run(
    name: str,
    contract: OperationContract,
    binding: Binding,
    cases: CaseTable,
    deployments: list[dict[str, float]],
) -> Bound:
    sizes = sizes_for(contract, deployments)
    chosen = cases.get(f"{name}@{binding_key(binding)}") or cases.get(name)
    function = load_function(binding.implementation)
    calls: list[Recorded] = []
    try:
        for case in chosen(sizes) if chosen else [Case()]:
            calls += record(function, arguments(contract, case, sizes))
    except Exception as error:  # noqa: BLE001 - one binding must not hide what is wrong with another
        return Bound(name, binding, calls, f"{type(error).__name__}: {error}")
    return Bound(name, binding, calls)


@pytest.fixture(scope="session")
def definitions() -> dict[str, str]:
    """Schemas of vllm-ascend's source package."""
    assert SOURCE.is_file(), REMEDY
    return source_schemas(SOURCE)


@pytest.fixture(scope="session")
def asked(bindings, definitions) -> Answer:
    """What the vendor says about every recorded call and, at the end, the controls."""
    calls = [item.call for bound in bindings for item in bound.recorded]
    operators = {call.operator for call in calls} | set(load_schemas())
    return ask(
        calls=[*calls, *control_calls().values()],
        operators=operators,
        definitions=[*definitions.values(), DEFINITION],
    )


@pytest.fixture(scope="session")
def answer(asked) -> Answer:
    """Schemas of every operator that we emulate or call, and a verdict on every recorded call."""
    return replace(asked, verdicts=asked.verdicts[: -len(control_calls())])


@pytest.fixture(scope="session")
def control_answer(asked) -> Answer:
    """The same, with the verdicts on the controls."""
    return replace(asked, verdicts=asked.verdicts[-len(control_calls()) :])
