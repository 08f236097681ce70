"""What we render for documented deployments is what their documents say, or there is a reason."""

from functools import cache

import pytest

from ascend_recipes.documented.arguments import flat_arguments, one_spelling, value_text
from ascend_recipes.documented.compare import (
    Comparison,
    compare,
    rendering_words,
    stale_notes,
)
from ascend_recipes.documented.facts import documented_commands, documented_notes
from ascend_recipes.documented.reasons import Difference, explanation
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.documented import DocumentedCommand
from ascend_recipes.schema.rows import Deployment
from tests.conftest import plan_of
from tests.rendering.atoms import atoms

ROWS = load_registry().deployments
DEPLOYMENTS = {
    (key, item.id): item for key in ROWS for item in ROWS[key].deployments if item.recipe
}
COMMANDS = [(key, command) for key in ROWS for command in documented_commands(key)]
IDS = [f"{command.deployment}.{command.role}" for _, command in COMMANDS]


@cache
def comparison(number: int) -> Comparison:
    return compared(*COMMANDS[number])


def compared(row: str, command: DocumentedCommand) -> Comparison:
    return compare(row, command, DEPLOYMENTS[row, command.deployment], plan_of)


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=IDS)
def test_every_difference_has_a_reason(number: int):
    assert comparison(number).unexplained == ()


def test_no_reason_has_outlived_its_differences():
    assert list(stale_notes(map(comparison, range(len(COMMANDS))))) == []


def test_a_reason_without_differences_is_noticed():
    notes = documented_notes()
    said = set(stale_notes([]))
    assert {f"defaults.{name}" for name in notes.defaults} <= said
    for reason in notes.reasons:
        names = (*reason.deployments, *(pattern.name for pattern in reason.arguments))
        assert {f"reasons.{reason.id}: {name}" for name in names} <= said


def test_every_deployment_has_its_commands_or_says_why_not():
    recorded: dict[str, set[str]] = {}
    for _, command in COMMANDS:
        recorded.setdefault(command.deployment, set()).add(command.role)
    served = {id: set(item.roles) for (_, id), item in DEPLOYMENTS.items()}
    assert recorded == {id: roles for id, roles in served.items() if id in recorded}
    assert set(served) - set(recorded) == set(documented_notes().without_command)
    assert len(IDS) == len(set(IDS))


def test_most_arguments_are_equal():
    found = list(map(comparison, range(len(COMMANDS))))
    equal = sum(len(item.equal) for item in found)
    assert len(COMMANDS) > 130
    assert equal > 3500
    assert sum(len(item.differences) for item in found) < 0.45 * equal


@pytest.mark.parametrize(("row", "command"), COMMANDS[::7], ids=IDS[::7])
def test_our_side_is_what_the_command_says(row: str, command: DocumentedCommand):
    words = rendering_words(DEPLOYMENTS[row, command.deployment], command.version)
    rendered = next(item for item in plan_of(*words).commands if item.role == command.role)
    read = flat_arguments(rendered.argv, rendered.env)
    plain = {
        name: value
        for name, value in atoms(rendered.argv, rendered.env).items()
        if name != "MODEL" and ".connectors" not in name
    }
    for name, value in plain.items():
        said = list(map(value_text, value)) if isinstance(value, list) else value_text(value)
        ours = read[name]
        assert said == (list(map(value_text, ours)) if isinstance(ours, list) else value_text(ours))
    assert {name for name in read if ".connectors." not in name} == set(plain)


FLASH = next(pair for pair in COMMANDS if pair[1].deployment == "flash_a3")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--max-num-seqs", 63),
        ("--max-num-seqs", None),
        ("--additional-config.multistream_overlap_shared_expert", False),
        ("--compilation-config.cudagraph_capture_sizes", [2, 4]),
        ("$HCCL_BUFFSIZE", "1023"),
        ("--enable-lora", True),
        ("--seed", 1024),
    ],
)
def test_a_planted_difference_is_not_explained(name: str, value):
    row, command = FLASH
    arguments = {key: item for key, item in command.arguments.items() if key != name}
    if value is not None:
        arguments[name] = value
    found = compared(row, command.model_copy(update={"arguments": arguments})).unexplained
    assert [item.name for item in found] == [name]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("--pipeline-parallel-size", "1", "default"),
        ("--additional-config.ascend_compilation_config.fuse_muls_add", True, "default"),
        ("--additional-config.no_such_key", 1, "unread"),
        ("--additional-config.fuse_muls_add", True, "unread"),
        ("$VLLM_RPC_TIMEOUT", "1", "unread"),
        ("--swap-space", 4, "unread"),
        ("--pipeline-parallel-size", "$9", "open"),
        ("--pipeline-parallel-size", "<SIZE>", "open"),
        ("--pipeline-parallel-size", "2", None),
    ],
)
def test_reasons_that_the_tables_give(name: str, value, reason: str | None):
    item = Difference("x", "serve", "main-2026-08", name, documented=value, ours=None)
    deployment = Deployment(id="x", where="here", recipe="deepseek_v4_a3")
    found = explanation(item, deployment)
    assert (found.id if found else None) == reason


def test_one_argument_has_one_spelling():
    view = plan_of("recipe=deepseek_v4_a3", "runtime=vllm_ascend").resolved
    key, variable = "--additional-config.enable_fused_mc2", "$VLLM_ASCEND_ENABLE_FUSED_MC2"
    method = "--speculative-config.method"
    assert one_spelling({variable: "1", method: "deepseek_mtp"}, view) == {key: 1, method: "mtp"}
    assert one_spelling({variable: "1", key: 1}, view) == {key: 1}
    assert one_spelling({variable: "0", key: 1}, view) == {key: 1, variable: "0"}
    assert one_spelling({"--max-num-seqs": "1k", "--none": 1}, view) == {
        "--max-num-seqs": 1000,
        "--none": 1,
    }
