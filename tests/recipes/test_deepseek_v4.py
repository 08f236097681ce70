"""DeepSeek-V4's published checkpoints, by generation of hardware and drafter: which are served.

One recipe a generation, its checkpoint and drafter exchanged. Errors are named here and explained
once; whatever else is found may inform or warn, and no plan without an error has one.
"""

import pytest

from ascend_recipes.errors import Severity
from ascend_recipes.registry.load import load_registry

RECIPES = {
    ("deepseek_v4_flash", "a2"): "deepseek_v4_a2",
    ("deepseek_v4_flash", "a3"): "deepseek_v4_a3",
    ("deepseek_v4_flash", "a5"): "deepseek_v4_a5",
    ("deepseek_v4_pro", "a2"): "deepseek_v4_pro_a2_4n",
    ("deepseek_v4_pro", "a3"): "deepseek_v4_pro_a3_2n",
    ("deepseek_v4_pro", "a5"): "deepseek_v4_pro_a5_2n",
}
CHECKPOINTS = {
    ("deepseek_v4_flash", "w8a8"): ("w8a8", "mtp"),
    ("deepseek_v4_flash", "w8a8_dspark"): ("w8a8", "dspark"),
    ("deepseek_v4_flash", "native_mtp"): ("fp8_fp4", "mtp"),
    ("deepseek_v4_flash", "native"): ("fp8_fp4", "dspark"),
    ("deepseek_v4_pro", "w4a8"): ("w4a8", "mtp"),
    ("deepseek_v4_pro", "native_mtp"): ("fp8_fp4", "mtp"),
    ("deepseek_v4_pro", "native"): ("fp8_fp4", "dspark"),
}
"""Format and drafter of what is published; W4A8 of Flash is a test's, and Pro has no ModelSlim
weights with DSpark, so that A2 and A3 serve Pro with MTP only."""

DRAFTERS = {
    "mtp1": ("mtp", 1),
    "mtp2": ("mtp", 2),
    "mtp3": ("mtp", 3),
    "dspark": ("dspark", 7),
}

UNSERVED = {
    # No FP8 and FP4 units: ModelSlim's integer weights are made for these generations.
    ("a2", "fp8_fp4", "native"): "quant.hardware",
    ("a2", "fp8_fp4", "vllm_ascend"): "quant.hardware",
    ("a3", "fp8_fp4", "native"): "quant.hardware",
    ("a3", "fp8_fp4", "vllm_ascend"): "quant.hardware",
    # No 4-bit integers.
    ("a5", "w4a8", "native"): "quant.hardware",
    ("a5", "w4a8", "vllm_ascend"): "quant.hardware",
    # vllm-ascend multiplies the output groups of attention in MXFP8 there; ours does not have to.
    ("a5", "w8a8", "vllm_ascend"): "quant.output_groups",
}
"""Formats that a generation refuses, by the finding that says so."""

OTHER_DRAFTER = "drafter.weights_missing"
"""A checkpoint holds the weights of one drafter."""

WARNED = {
    # Three tokens a request neither divide nor are a multiple of the dies that share tokens.
    ("a2", "mtp2"): {"graph.sp_drafts"},
    ("a3", "mtp2"): {"graph.sp_drafts"},
}
"""Warnings under vllm-ascend of plans without an error."""

CASES = [
    (model, hardware, variant, drafter)
    for model, hardware in RECIPES
    for owner, variant in CHECKPOINTS
    for drafter in DRAFTERS
    if owner == model
]


@pytest.mark.parametrize("runtime", ["native", "vllm_ascend"])
@pytest.mark.parametrize(("model", "hardware", "variant", "drafter"), CASES)
def test_checkpoint_is_served_or_refused_by_name(
    findings, model: str, hardware: str, variant: str, drafter: str, runtime: str
):
    format_, held = CHECKPOINTS[model, variant]
    kind, count = DRAFTERS[drafter]
    found = findings(
        *(f"recipe={RECIPES[model, hardware]}", f"runtime={runtime}"),
        *(f"checkpoint.variant={variant}", f"quant={format_}"),
        *(f"drafter={kind}", f"drafter.num_draft_tokens={count}"),
    )
    errors = {item.id for item in found if item.severity == Severity.ERROR}
    expected = {UNSERVED.get((hardware, format_, runtime))} - {None}
    assert errors == expected | ({OTHER_DRAFTER} if kind != held else set())
    if not errors:
        warnings = {item.id for item in found if item.severity == Severity.WARNING}
        assert warnings <= (
            WARNED.get((hardware, drafter), set()) if runtime != "native" else set()
        )


def test_every_published_checkpoint_is_tried():
    published = {
        (model, variant): (facts.format, facts.drafters)
        for model in ("deepseek_v4_flash", "deepseek_v4_pro")
        for variant, facts in load_registry().models[model].checkpoints.items()
        if facts.hub or facts.modelscope
    }
    tried = {key: (format_, (held,)) for key, (format_, held) in CHECKPOINTS.items()}
    assert published == tried
