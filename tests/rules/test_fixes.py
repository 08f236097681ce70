"""For every finding with a fix, applying the fix removes it and adds no error.

Drawn: shipped recipes with overrides of every field that rules name. What is offered is then typed
behind the command and composed by Hydra, which the search for fixes that hold goes around.
"""

import ast
import re
import shlex
from collections import Counter
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.commands.changes import field_at
from ascend_recipes.errors import RecipeError, Severity
from ascend_recipes.paths import PACKAGE
from ascend_recipes.schema.recipe import Recipe
from ascend_recipes.trial import Bench, override_words
from tests.rules.test_examples import EXAMPLES
from tests.rules.test_no_false_alarms import DEPLOYMENTS, RECIPES

NUMBERS = [0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 24, 32, 48, 64, 128, 130, 256, 512, 1000]
NUMBERS += [1024, 2048, 4096, 16384, 131072, 1048576]
FRACTIONS = ["0.3", "0.5", "0.8", "0.95", "1.0"]
SIZES = ["[]", "[1]", "[2]", "[4,8]", "[1,2,3]", "[1,2,4,8,16,32]", "[6,12]", "[16,48,128]"]
RUNTIMES = [["runtime=vllm_ascend"]] * 4 + [[]] * 3
RUNTIMES += [["runtime=vllm_ascend", f"runtime.version={name}"] for name in ("0.23.0", "0.26.0rc1")]
_OWN_ROOT = ("recipe=", "runtime=", "runtime.version=", "name=", "because", "model=")


def fields_named_by_rules() -> list[str]:
    """Recipe paths that the rules point at or change."""
    texts = {
        word
        for path in (PACKAGE / "rules").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in [node.value.partition("=")[0]]
    }
    sections = set(Recipe.model_fields)
    return sorted(w for w in texts if re.fullmatch(r"\w+\.\w+", w) and w.split(".")[0] in sections)


def values_of(path: str) -> list[str]:
    """Values of a field worth trying, by its type in whichever variant of the section has it."""
    kinds = ("none", "mtp", "dspark", "full_decode", "hybrid", "paged", "heterogeneous", "dsa")
    section = path.partition(".")[0]
    annotations = (field_at(path, {section: {"kind": kind}}) for kind in kinds)
    annotation = next((item for item in annotations if item is not None), None)
    text = str(annotation)
    if path.endswith("capture_sizes"):
        return SIZES
    if "bool" in text:
        return ["true", "false"]
    if "float" in text:
        return FRACTIONS
    if "int" in text:
        return [str(number) for number in NUMBERS]
    return [str(item) for item in getattr(annotation, "__args__", ()) if isinstance(item, str)]


@cache
def vocabulary() -> tuple[tuple[str, ...], ...]:
    """Overrides that belong together, from fields and from the examples of rules."""
    of_fields = [
        (f"{path}={value}",) for path in fields_named_by_rules() for value in values_of(path)
    ]
    presets = ["graph=none", "drafter=none", "drafter=mtp", "drafter=mtp3", "drafter=dspark"]
    presets += ["cache=paged", "cache=hybrid", "cache=heterogeneous", "attention=mla", "quant=none"]
    presets += ["attention=full", "attention=sfa", "quant=w8a8", "quant=w4a8", "scale=tiny"]
    presets += [f"hardware={name}" for name in ("a2", "a3", "a5", "310p")]
    presets += [f"nodes={count}" for count in (1, 2, 3, 4, 8)]
    lists = [
        g for example in EXAMPLES for g in (*example.get("fires", ()), *example.get("silent", ()))
    ]
    given = [
        (word,)
        for item in lists
        for word in (item.get("words", ()) if isinstance(item, dict) else item)
        if not word.startswith(_OWN_ROOT)
    ]
    return tuple(dict.fromkeys([*of_fields, *((word,) for word in presets), *given]))


def key_of(item):
    """Id and field, whichever role has it."""
    parts = item.at.split(".")
    return item.id, ".".join(parts[2:]) if parts[0] == "roles" and len(parts) > 2 else item.at


def errors_in(findings):
    """Errors by id and field."""
    return {key_of(item) for item in findings if item.severity is Severity.ERROR}


def judged(words):
    """Findings, and what stops a launch; the latter is not asked where there is no plan."""
    try:
        planned = planned_launch(words, ())
    except RecipeError as error:
        return error.findings, ()
    return planned.findings, planned.blockers


def broken_fixes(words: tuple[str, ...]) -> tuple[list[str], int]:
    """Fixes that do not hold, in words; and how many were typed."""
    found, blockers = judged(words)
    broken, typed = [], 0
    for item in (*found, *blockers):
        added = override_words(item.fix)
        if not added:
            continue
        typed += 1
        after, stopping = judged((*words, *added))
        before = found
        if item in blockers:
            before, after = (*found, *blockers), (*after, *stopping)
        counts, there = Counter(map(key_of, after)), Counter(map(key_of, before))
        stays = (item.id, item.at) in {(other.id, other.at) for other in after}
        if stays or counts[key_of(item)] >= there[key_of(item)]:
            broken.append(f"{item.id} stays: {shlex.join(words)} + {item.fix}")
        if new := errors_in(after) - errors_in(before):
            broken.append(f"{item.id} adds {sorted(new)}: {shlex.join(words)} + {item.fix}")
    return broken, typed


@st.composite
def configurations(draw):
    name, *typed = draw(st.sampled_from(ROOTS))
    runtime = draw(st.sampled_from(RUNTIMES))
    overrides = draw(st.lists(st.sampled_from(vocabulary()), min_size=1, max_size=4))
    return (f"recipe={name}", *typed, *runtime, *(word for item in overrides for word in item))


ROOTS = [(name,) for name in RECIPES] + sorted(set(DEPLOYMENTS))


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(configurations())
def test_applied_fixes_remove_their_finding_and_add_no_error(words):
    broken, _ = broken_fixes(words)
    assert broken == []


ASCEND = "runtime=vllm_ascend"
COMPANIONS = [
    # What one rule proposes, with what its neighbours then want.
    (
        "cache.state_mode",
        "recipe=qwen3_5_27b_a2 cache.state_mode=none scheduler.max_num_batched_tokens=512",
        "cache.state_mode=align scheduler.max_num_batched_tokens=896",
    ),
    (
        "moe.fused_drafter",
        f"recipe=qwen3_5_397b_a17b_w8a8_a3 {ASCEND} env.HCCL_BUFFSIZE=100",
        "moe.fused_communication=false env.HCCL_BUFFSIZE=320",
    ),
    (
        "parallel.sfa_dcp",
        f"recipe=glm_5_2_w4a8_a3_4n_pd {ASCEND} roles.decode.parallel.dcp=2",
        "roles.decode.parallel.dcp=1",
    ),
    (
        "attention.kind_not_offered",
        f"recipe=glm_5_1_w8a8_a3 {ASCEND} attention=mla parallel.dcp=8",
        "attention=sfa parallel.dcp=16",
    ),
    ("parallel.world_exceeds_nodes", f"recipe=qwen3_5_27b_a2 {ASCEND} parallel.dp=5", "nodes=5"),
    # An earlier stage hides what the rules say of the same deployment: both are said at once.
    (
        "drafter.query_tokens",
        f"recipe=qwen3_5_27b_a2 {ASCEND} drafter=dspark drafter.num_draft_tokens=20",
        "drafter.num_draft_tokens=15",
    ),
    (
        "schema.unknown_key",
        "recipe=qwen3_6_27b_w8a8_a3 drafter.num_draft_tokens=3 drafter=none",
        "~drafter.num_draft_tokens",
    ),
    # No number of machines holds two replicas of thirty-two dies in equal shares.
    (
        "rendering.nodes_uneven",
        f"recipe=kimi_k3_w4a8_a3_4n {ASCEND} parallel.tp=32 parallel.dp=2 nodes=3",
        "",
    ),
]


@pytest.mark.parametrize(("id", "words", "fix"), COMPANIONS, ids=lambda text: text[:40])
def test_a_fix_brings_what_else_must_change_and_is_left_out_where_nothing_helps(id, words, fix):
    words = tuple(words.split())
    (found,) = {item for item in judged(words)[0] if item.id == id}
    assert found.fix == fix
    assert broken_fixes(words)[0] == []


def test_fixes_as_rules_propose_them_would_not_all_hold():
    words = tuple(COMPANIONS[0][1].split())
    raw = next(item for item in Bench()(words).findings if item.id == "cache.state_mode")
    after = judged((*words, *override_words(raw.fix)))[0]
    assert {item.id for item in after if item.severity is Severity.ERROR} == {
        "cache.aligned_block_exceeds_batch"
    }
