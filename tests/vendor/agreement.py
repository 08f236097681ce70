"""What can be wrong between us and the vendor; each check returns one sentence a problem."""

from collections.abc import Iterable, Mapping

import torch

from tests.vendor.environment import Answer, Verdict
from tests.vendor.recording import Recorded


def normal(schema: str) -> str:
    """A schema as the dispatcher would print it, so that blanks and number forms do not matter."""
    return str(torch._C.parse_schema(schema))


def schema_differences(ours: Mapping[str, str], vendor: Mapping[str, list[str]]) -> list[str]:
    """Operators whose schema in our snapshot is not the vendor's."""
    return [
        f"{name}: ours is {normal(schema)}, the vendor's {vendor.get(name) or 'does not exist'}"
        for name, schema in ours.items()
        if normal(schema) not in map(normal, vendor.get(name, []))
    ]


def unbound_calls(recorded: Iterable[Recorded], answer: Answer) -> list[str]:
    """Calls that the vendor's schema does not take."""
    return [
        f"{item.call.operator}: {verdict.error}"
        for item, verdict in zip(recorded, answer.verdicts, strict=True)
        if not verdict.bound
    ]


def output_differences(recorded: Recorded, verdict: Verdict) -> list[str]:
    """Where the vendor's Meta kernel and our emulated kernels disagree about results."""
    name = recorded.call.operator
    if verdict.outputs is None:
        return [f"{name}: {verdict.error}"] if verdict.error else []
    return [
        f"{name}: the vendor returns {_text(verdict.outputs)}, our {device} kernel {_text(ours)}"
        for device, ours in (("CPU", recorded.outputs), ("Meta", recorded.meta_outputs))
        if ours != verdict.outputs
    ]


def _text(outputs: list[dict[str, object]]) -> str:
    return ", ".join(f"{item['dtype']}{item['shape']}" for item in outputs) or "nothing"
