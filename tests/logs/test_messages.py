"""Rows of registry/log_messages: each explains its documented text and nothing beside it."""

import io
import re
from pathlib import Path

import pytest

from ascend_recipes.compose import compose_recipe
from ascend_recipes.logs.decode import decode_log
from ascend_recipes.logs.patterns import known_messages, search_terms
from ascend_recipes.registry.load import load_registry
from ascend_recipes.validate import validate_recipe
from ascend_recipes.yaml_files import load_yaml

REGISTRY = load_registry()
MESSAGES = {item.name: item.message for item in known_messages(REGISTRY.log_messages)}
TERMS = search_terms(REGISTRY.log_messages)
EXCERPTS = load_yaml(Path(__file__).with_name("excerpts.yaml"))
OPEN_MAPS = ("env", "extra_args", "runtime.additional_config", "roles")


def found(*lines: str) -> list[str]:
    text = "\n".join(("INFO 11-30 01:00:00 [a.py:1] before", *lines, "INFO after"))
    return [match.name for match in decode_log(io.BytesIO(text.encode()), TERMS).matches]


def test_every_row_has_excerpts_and_every_name_is_its_own():
    names = [name for key in REGISTRY.log_messages for name in REGISTRY.log_messages[key].messages]
    assert len(names) == len(set(names))
    assert set(names) == set(EXCERPTS)


@pytest.mark.parametrize("name", EXCERPTS)
def test_row_explains_its_text(name):
    for line in EXCERPTS[name]["explained"]:
        assert name in found(line), line
        # A prefix of vLLM's and colours change nothing.
        assert name in found(f"\x1b[1;36m(Worker_TP1 pid=7)\x1b[0;0m ERROR 11-30 01:00:00 {line}")


@pytest.mark.parametrize("name", EXCERPTS)
def test_row_leaves_other_lines_alone(name):
    for line in EXCERPTS[name]["other"]:
        assert name not in found(line), line


def test_a_row_for_each_text_of_the_collected_issues():
    """Texts of users_peers 1.7, by the row that decodes them."""
    expected = {
        "error code is 207005, alloc sq cq failed": "streams_exhausted",
        "EL0009": "stream_resources",
        "rtMemcpy error 107030": "memcpy_address",
        "aclnnQuantMatmulWeightNz error 161002": "quant_matmul_arguments",
        "EZ9999: numHeads / numKvHeads = 8": "latent_heads",
        "EZ1001: socVersion does not support opType X": "soc_version",
        "aicore error 0x800000": "address_out_of_range",
        "error code is 507035": "vector_core_exception",
        "tiling failed in dispatch": "dispatch_window",
        "EI0006: Getting socket times out": "hccl_link_timeout",
        "EI0010: P2P communication failed": "hccl_peer_to_peer",
        "has a conflicting tensor parallel size": "transfer_tensor_size",
        "assert sum_page_size_bytes % page_size == 0": "mixed_pages",
        "batchIdx out of range": "drafter_batch",
        "Available KV cache memory: -1.5 GiB": "cache_memory_negative",
        "Hybrid KV cache manager is disabled": "hybrid_manager_off",
        "No module named 'vllm.x'": "module_missing",
        "socversion A does not match B": "wrong_chip",
        "Cannot find the config file for ascend": "no_description",
        "InvalidVersion": "version_not_a_number",
    }
    assert {line: name for line, name in expected.items() if name not in found(line)} == {}


def recipe_tree(name: str) -> dict:
    return validate_recipe(compose_recipe([f"recipe={name}"])).model_dump(mode="json")


TREES = [recipe_tree(name) for name in ("deepseek_v4_a3", "qwen3_5_27b_w8a8_a3_2n_pd")]


def holds(tree: dict, path: str) -> bool:
    if path.startswith(OPEN_MAPS) or path == "checkpoint":
        return path.partition(".")[0] in tree
    node = tree
    for part in path.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


@pytest.mark.parametrize("name", MESSAGES)
def test_row_points_at_what_a_recipe_has(name):
    message = MESSAGES[name]
    for path in (*message.fields, *(item.at for item in message.remedies)):
        assert any(holds(tree, path) for tree in TREES), path


@pytest.mark.parametrize("name", MESSAGES)
def test_row_names_findings_that_exist(name):
    for rule in MESSAGES[name].rules:
        family, _, key = rule.partition(".")
        assert key in REGISTRY.findings[family].findings


@pytest.mark.parametrize("name", MESSAGES)
def test_row_speaks_both_languages(name):
    for text in (MESSAGES[name].cause, MESSAGES[name].help):
        assert re.search("[\u4e00-\u9fff]", text.zh)
        assert not re.search("[\u4e00-\u9fff]", text.en)
        assert not text.en.endswith(".")
