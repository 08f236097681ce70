"""The radar over vllm-ascend's patches, the need analysis, and the generated documents."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from ascend_recipes.patching.documents import documents
from ascend_recipes.patching.facts import Change, LiveDefinitions, compare
from ascend_recipes.patching.peers import (
    PEER_COUNT,
    direct_count,
    peer_entries,
    peer_table,
    recorded_versions,
)
from ascend_recipes.patching.readme import READMES, status_block, with_status_block
from ascend_recipes.patching.record import recorded_targets, version_text
from ascend_recipes.patching.report import PINNED
from ascend_recipes.patching.shims import device_shims
from ascend_recipes.patching.sources import installed_sources
from ascend_recipes.patching.tree import SourceTree
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.patch import Action, Upstream
from tests.boundaries.source_tree import ROOT

REGISTRY = load_registry()
ENTRIES = list(peer_entries(REGISTRY))
VERSIONS = ["0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]
AGAIN = "run scripts/record_vllm_evidence.sh"


def test_every_direct_assignment_of_vllm_ascend_has_a_row():
    names = [entry.target.target for entry in ENTRIES]
    assert len(names) == len(set(names))
    assert direct_count(REGISTRY) == PEER_COUNT == 138
    assert sum(entry.target.indirect for entry in ENTRIES) == 2


def shown_by(seen: str) -> bool:
    """Whether the line of the installed vLLM holds what the evidence says."""
    match = re.fullmatch(r"(vllm/[\w/]+\.py):(\d+) (.+)", seen)
    assert match, seen
    folder = Path(next(iter(find_spec("vllm").submodule_search_locations))).parent
    lines = (folder / match[1]).read_text(encoding="utf-8").splitlines()
    return match[3] in lines[int(match[2]) - 1]


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.target.seen], ids=lambda e: e.read)
def test_evidence_stands_in_the_installed_vllm(entry):
    assert installed_sources("vllm").version == PINNED
    assert shown_by(entry.target.seen), entry.target.seen


def test_the_check_of_evidence_can_fail():
    seen = next(entry.target.seen for entry in ENTRIES if entry.target.seen)
    assert not shown_by(re.sub(r":\d+ ", ":1 ", seen))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.target.target)
def test_need_analysis_is_consistent(entry):
    target = entry.target
    # What is left open or claimed as a hook must be shown, unless the name is gone or not vLLM's.
    gone = REGISTRY.vllm_versions[PINNED].definitions.get(entry.read) is None
    if target.upstream in (Upstream.HOOK, Upstream.FIXED) and not gone:
        assert target.seen
    assert not (target.upstream is Upstream.OPEN and target.ours is Action.NOTHING) or (
        "no recipe" in target.how or "none of ours" in target.recipes
    )
    assert (target.ours is Action.PATCH) == (
        target.target in {REGISTRY.patches[key].target for key in REGISTRY.patches}
    )


def test_substituted_names_are_those_of_the_device_runtime():
    wanted = {e.target.target.replace(":", ".") for e in ENTRIES if e.target.ours is Action.SHIM}
    assert wanted <= set(device_shims())
    assert len(device_shims()) >= 10


def test_pinned_version_is_that_of_the_native_runtime():
    assert PINNED in REGISTRY.runtimes["native"].vllm.values()


def test_every_name_and_version_is_in_the_table():
    assert list(recorded_versions(REGISTRY)) == VERSIONS
    table = peer_table(REGISTRY)
    assert set(table) == {entry.target.target for entry in ENTRIES if entry.in_vllm}
    assert all(list(events) == VERSIONS for events in table.values())
    for row in recorded_versions(REGISTRY).values():
        assert {e.read for e in ENTRIES if e.in_vllm} <= set(row.definitions), row.version


def test_known_events_of_the_table():
    table = peer_table(REGISTRY)
    grouping = "vllm.v1.core.kv_cache_utils:group_and_unify_kv_cache_specs"
    assert table[grouping]["0.29.0"] is Change.GONE
    assert table[grouping]["0.33.0"] is Change.ABSENT
    field = "vllm.v1.outputs:ModelRunnerOutput.spec_token_ids"
    assert set(table[field].values()) == {Change.SAME}


def test_evidence_of_the_pinned_version_is_what_the_sources_say():
    live = LiveDefinitions(SourceTree(installed_sources("vllm")))
    recorded = REGISTRY.vllm_versions[PINNED].definitions
    wrong = {t for t, facts in recorded.items() if compare(facts, live.facts(t)) not in SAME}
    assert wrong == set(), AGAIN


SAME = (Change.SAME, Change.ABSENT)


def test_every_hook_row_and_override_is_recorded_for_every_version():
    uses = recorded_targets(REGISTRY, SourceTree(installed_sources("vllm")))
    wanted = {
        target
        for target, names in uses.items()
        if any(name.startswith(("hook ", "patch ")) for name in names)
    }
    for row in recorded_versions(REGISTRY).values():
        assert wanted <= set(row.definitions), f"{row.version}: {AGAIN}"


def test_recorded_rows_are_written_as_they_are_read():
    for version in VERSIONS:
        path = REGISTRY.vllm_versions.file(version)
        assert version_text(REGISTRY.vllm_versions[version]) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("key", list(REGISTRY.upgrade_notes))
def test_notes_are_about_definitions_that_changed(key):
    notes = REGISTRY.upgrade_notes[key]
    old, new = REGISTRY.vllm_versions[notes.against], REGISTRY.vllm_versions[notes.version]
    for target in notes.notes:
        change = compare(old.definitions[target], new.definitions[target])
        assert change not in SAME, target
        assert target in old.uses


def test_documents_are_current():
    found = documents(REGISTRY)
    assert {"patches.md", "patches_needed.md", "vllm_0_33.md"} <= set(found)
    for name, text in found.items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == text, f"docs/{name}: run ascend-run patches docs"


def test_documents_name_every_symbol():
    text = documents(REGISTRY)["patches_needed.md"]
    for entry in ENTRIES:
        assert entry.target.target.rpartition(":")[2] in text
        assert f"`{entry.file}`" in text


def test_status_block_counts_patches_and_substitutes_apart():
    block = status_block(REGISTRY)
    assert f"| monkey-patches | {len(REGISTRY.patches)} | 138 |" in block
    assert f"| {len(device_shims())} |" in block
    assert f"| 猴子补丁 | {len(REGISTRY.patches)} | 138 |" in status_block(REGISTRY, "zh")


@pytest.mark.parametrize(("name", "language"), READMES.items())
def test_block_of_the_readme_is_current(name, language):
    text = (ROOT / name).read_text(encoding="utf-8")
    block = status_block(REGISTRY, language)
    assert "<!-- patches:begin" in text
    assert with_status_block(text, block) == text, "run ascend-run patches docs"
    assert with_status_block(text, "other") != text
    assert with_status_block("no markers", block) == "no markers"


def test_few_patches_are_needed():
    # Raising a number is a change to be argued for in the same diff.
    assert len(REGISTRY.patches) <= 15
    assert list(REGISTRY.patches) == []
