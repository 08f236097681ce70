"""The static check against edited copies of the installed vLLM: each break has its own finding."""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

import pytest

from ascend_recipes.patching.compatibility import mismatch
from ascend_recipes.patching.facts import (
    Change,
    LiveDefinitions,
    RecordedDefinitions,
    compare,
    function_of,
)
from ascend_recipes.patching.report import PINNED, check_version
from ascend_recipes.patching.sources import installed_sources
from ascend_recipes.patching.tree import SourceTree
from ascend_recipes.registry.load import load_registry
from tests.boundaries.source_tree import ROOT

REGISTRY = load_registry()


@dataclass(frozen=True)
class Edited:
    """Sources of which one file reads differently."""

    path: str
    old: str
    new: str
    package: str = "vllm"
    version: str = "0.32.0"

    def read(self, path):
        text = installed_sources("vllm").read(path)
        if path == self.path:
            assert self.old in text
            text = text.replace(self.old, self.new)
        return text

    def paths(self):
        return installed_sources("vllm").paths()


def base_ids():
    return {(item.id, item.at) for item in report_of(None).findings}


@cache
def report_of(sources):
    tree = SourceTree(sources or installed_sources("vllm"))
    return check_version(REGISTRY, LiveDefinitions(tree))


def new_findings(path, old, new):
    found = report_of(Edited(path, old, new)).findings
    return {item.id: item for item in found if (item.id, item.at) not in base_ids()}


def test_installed_vllm_is_the_pinned_one_and_breaks_nothing():
    report = report_of(None)
    assert report.version == PINNED
    assert report.errors == ()
    assert {line.change for line in report.lines} == {Change.SAME}


LAYERNORM = "model_executor/layers/layernorm.py"
RUNNER = "v1/worker/gpu_worker.py"


def test_renamed_layer():
    found = new_findings(LAYERNORM, "class RMSNormGated(", "class GatedRMSNorm(")
    assert "vllm.model_executor.layers.layernorm:RMSNormGated, which vLLM 0.32.0 lacks" in (
        found["upgrade.hook_missing"].message
    )
    assert str(found["upgrade.hook_missing"].source).startswith("registry/hooks/")
    assert set(found) == {
        "upgrade.hook_missing",
        "upgrade.import_missing",
        "upgrade.base_missing",
    }


def test_renamed_method_that_ours_overrides():
    found = new_findings(RUNNER, "def _make_model_runner(", "def _build_model_runner(")
    assert set(found) == {"upgrade.method_missing"}
    assert "ours would never be called" in found["upgrade.method_missing"].message


def test_renamed_method_that_a_base_class_still_has():
    found = new_findings(RUNNER, "def init_device(", "def initialize_device(")
    assert set(found) == {"upgrade.method_moved"}
    assert "vllm.v1.worker.worker_base:WorkerBase.init_device" in (
        found["upgrade.method_moved"].message
    )


def test_changed_signature_of_a_method_that_ours_overrides():
    found = new_findings(RUNNER, "def _make_model_runner(self", "def _make_model_runner(self, kind")
    assert set(found) == {"upgrade.override_mismatch"}
    assert found["upgrade.override_mismatch"].severity == "error"
    assert "it lacks 'kind'" in found["upgrade.override_mismatch"].message


def test_changed_body_that_ours_replaces():
    body = "def check_runner_kv_caches_multi_layer(cls) -> None:"
    found = new_findings("platforms/interface.py", body, f"{body}\n        print()")
    assert set(found) == {"upgrade.replaced_body"}
    assert found["upgrade.replaced_body"].severity == "warn"


def test_changed_kernel_parameters_and_import_gone():
    found = new_findings(
        "v1/worker/mamba_utils.py",
        "def batch_memcpy_kernel(src_ptrs,",
        "def batch_memcpy_kernel(stream, src_ptrs,",
    )
    assert set(found) == {"upgrade.kernel_signature"}
    assert "(stream, src_ptrs, dst_ptrs" in found["upgrade.kernel_signature"].message
    found = new_findings("utils/gc_utils.py", "def freeze_gc_heap", "def freeze_heap")
    assert set(found) == {"upgrade.import_missing"}


def test_counts_overridden_methods_and_those_without_super():
    lines = {line.key: line for line in report_of(None).of_kind("class")}
    runner = lines["ascend_recipes.worker.model_runner:AscendModelRunner"]
    assert runner.overridden > runner.without_super > 0
    assert lines["ascend_recipes.platform.ascend:AscendPlatform"].overridden > 15


def test_recorded_evidence_gives_the_same_answer_as_the_sources():
    recorded = check_version(REGISTRY, RecordedDefinitions(REGISTRY.vllm_versions[PINNED]))
    live = report_of(None)
    assert recorded.errors == ()
    # What was added since the last recording is named instead of being passed over.
    known = REGISTRY.vllm_versions[PINNED].definitions
    assert not set(recorded.unrecorded) & set(known)
    assert live.unrecorded == ()
    assert changes(recorded) == changes(live)


def changes(report):
    return [(line.kind, line.key, line.target, line.change) for line in report.lines]


def test_names_that_the_evidence_lacks_are_listed():
    row = REGISTRY.vllm_versions[PINNED]
    target = "vllm.v1.worker.gpu_worker:Worker.init_device"
    fewer = {name: facts for name, facts in row.definitions.items() if name != target}
    old = RecordedDefinitions(row.model_copy(update={"definitions": fewer}))
    assert target in check_version(REGISTRY, old).unrecorded


@pytest.mark.parametrize(
    ("theirs", "ours", "reason"),
    [
        ("(a, b)", "(a, b)", ""),
        ("(a, b)", "(*args, **kwargs)", ""),
        ("(a, b)", "(a, c)", "is 'c' here, 'b' there"),
        ("(a, b=)", "(a, b)", "optional there"),
        ("(a)", "(a, b)", "requires 'b'"),
        ("(a)", "(a, b=, *, c=)", ""),
        ("(a, *, k=)", "(a)", "lacks 'k'"),
        ("(a, **k)", "(a)", "lacks **k"),
        ("(a, *k)", "(a)", "lacks *k"),
        ("(a)", "(a, *, k)", "requires 'k'"),
        ("(a, b)", "(a, *, b)", "only by name"),
    ],
)
def test_compatibility_of_parameters(theirs, ours, reason):
    found = mismatch(function_of(ours), function_of(theirs))
    assert reason in str(found or "")
    assert bool(reason) == bool(found)


def test_compare_tells_moves_from_changes():
    facts = dict(REGISTRY.vllm_versions[PINNED].definitions)
    facts = facts["vllm.v1.worker.gpu_worker:Worker.init_device"]
    assert compare(facts, facts) is Change.SAME
    assert compare(facts, None) is Change.GONE
    assert compare(None, facts) is Change.NEW
    assert compare(None, None) is Change.ABSENT
    assert compare(facts, facts.model_copy(update={"body": "0" * 12})) is Change.BODY
    assert compare(facts, facts.model_copy(update={"signature": "0" * 12})) is Change.SIGNATURE
    assert compare(facts, facts.model_copy(update={"home": "vllm.x:y"})) is Change.MOVED


COPY = """
import sys
sys.path.insert(0, {root!r})
from ascend_recipes.errors import RecipeError
from ascend_recipes.patching.patcher import apply_rows
from ascend_recipes.schema.patch import PatchRow
row = PatchRow.model_validate_json({row!r})
{before}
try:
    apply_rows({{"row": row}}, "worker")
except RecipeError as error:
    print(*sorted(item.id for item in error.findings))
else:
    print("applied")
import vllm.utils.math_utils as module
print(getattr(module, "next_power_of_2", module.round_up).__module__)
assert "torch" not in sys.modules
"""
EARLY = "import early"
TWICE = "import vllm.utils.math_utils as m; m.next_power_of_2 = m.cdiv"


@pytest.mark.parametrize(
    ("old", "new", "before", "finding"),
    [
        ("", "", "", "applied"),
        ("def next_power_of_2(", "def next_power_of_two(", "", "patch.target_missing"),
        ("def next_power_of_2(n: int)", "def next_power_of_2(n: int, m=0)", "", "signature"),
        ("return 1 if n < 1", "return 2 if n < 1", "", "patch.body_changed"),
        ("", "", EARLY, "patch.stale_alias"),
        ("", "", TWICE, "patch.changed_by_others"),
    ],
)
def test_five_failures_against_a_copy_of_vllm(tmp_path, old, new, before, finding):
    sources = installed_sources("vllm")
    tree = SourceTree(sources)
    target = "vllm.utils.math_utils:next_power_of_2"
    symbol = tree.find(target)
    for path in ("utils/math_utils.py", "__init__.py", "utils/__init__.py"):
        file = tmp_path / "vllm" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(sources.read(path).replace(old, new) if path.endswith("utils.py") else "")
    (tmp_path / "PKG-INFO").write_text("Name: vllm\nVersion: 0.32.0\n")
    (tmp_path / "early.py").write_text("from vllm.utils.math_utils import next_power_of_2 as up\n")
    (tmp_path / "fixes").mkdir()
    (tmp_path / "fixes" / "__init__.py").write_text("def double(n): return 2 * n\n")
    row = {
        "target": target,
        "action": "replace",
        "implementation": "fixes:double",
        "phases": ["worker"],
        "versions": ">=0.32,<0.33",
        "fingerprints": {
            "0.32.0": {"signature": symbol.signature_fingerprint, "body": symbol.body_fingerprint}
        },
        "because": "a test",
        "upstream": "none: a test",
        "remove_when": {"version_at_least": "0.33"},
        "test": "tests/patching",
        "needs": {"traits": ["none"]},
    }
    script = COPY.format(root=str(tmp_path), row=json.dumps(row), before=before)
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert any(finding in word for word in words[:-1]), done.stdout
    untouched = "vllm.utils.math_utils"
    assert words[-1] == ("fixes" if finding == "applied" else untouched)
