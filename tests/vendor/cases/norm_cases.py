"""Normalizations and activations: every tensor is drawn, only scalars are stated."""

from tests.vendor.cases.drawing import Case, CaseTable

EPSILON = {"epsilon": 1e-6}

CASES: CaseTable = {
    "rms_norm": lambda _: [Case(EPSILON)],
    "gemma_rms_norm": lambda _: [Case(EPSILON)],
    "add_rms_norm": lambda _: [Case(EPSILON)],
    "add_gemma_rms_norm": lambda _: [Case(EPSILON)],
    "gated_rms_norm": lambda _: [Case({**EPSILON, "activation": "silu"})],
    "swiglu": lambda _: [Case()],
}
