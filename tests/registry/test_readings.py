"""The sources of every custom operator were read, and what they ask stands in its row."""

import pytest

from ascend_recipes.registry.load import load_registry

REGISTRY = load_registry()
CUSTOM = "cann_custom."


def test_every_custom_operator_was_read():
    custom = {key for key in REGISTRY.operators if key.startswith(CUSTOM)}
    assert custom == set(REGISTRY.readings)


@pytest.mark.parametrize("key", REGISTRY.readings)
def test_what_holds_a_statement_is_a_demand_of_the_row(key):
    row = REGISTRY.operators[key]
    demands = {entry.says for entry in (*row.constraints, *row.not_emulated)}
    held = {text for document in REGISTRY.readings[key].documents for text in document.held}
    assert held - demands == set()


@pytest.mark.parametrize("key", REGISTRY.readings)
def test_a_document_is_read_once(key):
    documents = [(item.path, item.function) for item in REGISTRY.readings[key].documents]
    assert len(documents) == len(set(documents))
    assert all(path.startswith("csrc/") for path, _ in documents)


def test_contradicted_statements_are_deviations():
    for key in REGISTRY.readings:
        reasons = {text for item in REGISTRY.readings[key].documents for text in item.aside}
        if any(text.startswith("Contradicted") for text in reasons):
            assert REGISTRY.operators[key].deviations, key
