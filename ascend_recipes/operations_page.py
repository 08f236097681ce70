"""Writes `docs/operations.md` from the contracts and provider rows."""

from collections.abc import Iterator, Sequence

from ascend_recipes.operations_table import ServedOperation, served_everywhere
from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.operation import OperationContract

_HEAD = """\
# Operations

<!-- Generated from ops/ and registry/providers/; pytest --update-golden rewrites it. -->

Model and backend code calls operations, never vendor symbols. A plan fixes one binding for each;
`ascend-run ops recipe=…` prints them with what a step costs at least and whether this machine's
packages can load the provider. *Reference* is plain PyTorch: right and slow. For an operation in
**bold** (attention, MoE, matrix multiplication) it stops a launch on NPUs, unless the recipe names
the operation in `allow_reference`. Where a binding needs a trait of the plan, it is in the list of
others.
"""


def operations_page(registry: Registry) -> str:
    """The whole page as Markdown."""
    rows = served_everywhere(registry)
    hardware = list(registry.hardware)
    parts = [
        _HEAD,
        "## Who serves what\n\n" + _matrix(registry, rows, hardware),
        "## Other bindings\n\n" + _others(rows),
        "## Vendor operators\n\n" + _operators(registry),
        "## What users of the vendor meet and we refuse\n\n" + _reasons(registry),
        "## What was read\n\n" + _readings(registry),
        "## Least work of one call\n\n" + _costs(registry),
        "## Providers\n\n" + _providers(registry),
    ]
    return "\n".join(parts)


def _matrix(registry: Registry, rows: Sequence[ServedOperation], hardware: Sequence[str]) -> str:
    cells = {(row.operation, row.hardware): _cell(row) for row in rows}
    return _markdown(
        ["operation", *hardware],
        (
            [_name(name, registry.operations[name]), *(cells[name, key] for key in hardware)]
            for name in registry.operations
        ),
    )


def _name(name: str, contract: OperationContract) -> str:
    return f"**{name}**" if contract.heavy else name


def _cell(row: ServedOperation) -> str:
    if row.binding is None:
        return "nobody"
    return "reference" if row.falls_back else f"`{row.binding}`"


def _others(rows: Sequence[ServedOperation]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for other in row.others:
            if not other.startswith("torch."):
                found.setdefault((row.operation, other), []).append(row.hardware)
    return _markdown(
        ["operation", "binding", "on"],
        ([name, f"`{other}`", ", ".join(keys)] for (name, other), keys in found.items()),
    )


def _operators(registry: Registry) -> str:
    head = (
        "Every demand has a source and a call that violates it; the tests make each of these "
        "calls, and the emulation refuses it. *Not emulated* is what the vendor offers beyond: no "
        "call of ours needs it, and it is refused too.\n\n"
    )
    rows = [(key, registry.operators[key]) for key in registry.operators]
    return head + _markdown(
        ["operator", "on", "demands", "not emulated"],
        (
            [
                f"[`{row.symbol}`](../registry/operators/{key}.yaml)",
                ", ".join(row.hardware),
                str(len(row.constraints)),
                str(len(row.not_emulated)),
            ]
            for key, row in rows
        ),
    )


def _reasons(registry: Registry) -> str:
    head = (
        "No call of ours needs what follows: forms that vllm-ascend calls for weights or models "
        "that no recipe serves so, and forms that the documentation leaves open. Weight-only "
        "linears (W8A16 and W4A16, `npu_weight_quant_batchmatmul`) have no row: no weights of "
        "[registry/models](../registry/models) need them.\n\n"
    )
    rows = {key: registry.operators[key] for key in registry.operators}
    return head + _markdown(
        ["operator", "argument", "not emulated", "why nobody here needs it"],
        (
            [f"`{row.symbol}`", f"`{entry.argument}`", entry.says, entry.because]
            for row in rows.values()
            for entry in row.not_emulated
            if entry.because is not None
        ),
    )


def _readings(registry: Registry) -> str:
    head = (
        "Of the operators in vllm-ascend's source package, every file of host code and every "
        "README was read. A *statement* is a refusal of the host code, or a row or point of the "
        "README on parameters and restrictions. The reading of an operator says for each line "
        "which demand holds it; the vendor lane finds the statements in the package anew and "
        "compares. *Put aside* is what no call can violate (cores of the chip, outputs of the "
        "wrapper, paths of other products, words without a demand), with the reason.\n\n"
    )
    rows = []
    for key in registry.readings:
        reading = registry.readings[key]
        held, dtypes, aside = reading.counts()
        name = f"[`{registry.operators[key].symbol}`](../registry/readings/{key}.yaml)"
        numbers = (len(reading.documents), held + dtypes + aside, held, dtypes, aside)
        rows.append([name, *map(str, numbers)])
    columns = [[int(row[number]) for row in rows] for number in range(1, 6)]
    total = ["all", *(str(sum(column)) for column in columns)]
    titles = ["operator", "documents", "statements", "held by demands", "dtypes", "put aside"]
    return head + _markdown(titles, iter([*rows, total]))


def _costs(registry: Registry) -> str:
    head = "Over the dimensions of the contract; `e` is the size of an element in bytes.\n\n"
    contracts = {name: registry.operations[name] for name in registry.operations}
    return head + _markdown(
        ["operation", "FLOPs", "bytes"],
        (
            [name, f"`{contract.cost.flops}`", f"`{contract.cost.bytes}`"]
            for name, contract in contracts.items()
            if contract.cost is not None
        ),
    )


def _providers(registry: Registry) -> str:
    rows = {key: registry.providers[key] for key in registry.providers}
    return _markdown(
        ["provider", "what it is", "built for"],
        (
            [key, row.about, ", ".join(f"{name} {number}" for name, number in row.abi.items())]
            for key, row in rows.items()
        ),
    )


def _markdown(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
