"""Arguments merge, odd values survive, and versions get their own keys."""

import json

import pytest

from ascend_recipes.errors import RecipeError
from ascend_recipes.rendering.arguments import Arguments
from ascend_recipes.rendering.importing import import_command
from ascend_recipes.rendering.words import read_words
from tests.conftest import plan_of
from tests.rendering.atoms import atoms

ASCEND = "runtime=vllm_ascend"


def first(*words: str) -> dict[str, object]:
    command = plan_of(*words, ASCEND).commands[0]
    return atoms(command.argv, command.env)


def test_json_arguments_merge_leaf_by_leaf():
    arguments = Arguments()
    arguments.put("--x.a.b", 1, "one")
    arguments.put("--x", {"a": {"c": 2}, "d": [3]}, "two")
    assert arguments.words() == ("--x", '{"a": {"b": 1, "c": 2}, "d": [3]}')
    assert arguments.reasons["--x.a.b"] == "one"
    assert arguments.reasons["--x.a.c"] == "two"
    assert arguments.clashes == []


def test_a_differing_leaf_is_a_clash_and_keeps_the_first():
    arguments = Arguments()
    arguments.put("--x.a", 1, "one")
    arguments.put("--x", {"a": 2}, "two")
    (clash,) = arguments.clashes
    assert (clash.target, clash.first, clash.second, clash.values) == (
        "--x.a",
        "one",
        "two",
        (1, 2),
    )
    assert arguments.flags == {"--x": {"a": 1}}


@pytest.mark.parametrize(
    ("version", "target"),
    [
        ("0.23.0", "--additional-config.recompute_scheduler_enable"),
        ("0.26.0rc1", "--additional-config.scheduler_config.recompute_scheduler_enable"),
        ("main-2026-08", "--additional-config.scheduler_config.recompute_scheduler_enable"),
    ],
)
def test_a_moved_key_stands_where_the_version_reads_it(version: str, target: str):
    words = ("recipe=deepseek_v4_a3_pd", ASCEND, f"runtime.version={version}")
    decode = next(item for item in plan_of(*words).commands if item.role == "decode")
    found = atoms(decode.argv, decode.env)
    assert [key for key in found if "recompute" in key] == [target]
    assert decode.reasons[target] == "roles.decode.scheduler.recompute"


@pytest.mark.parametrize(("version", "stated"), [("0.26.0rc1", True), ("main-2026-08", False)])
def test_context_parallel_brings_what_its_version_needs(version: str, stated: bool):
    found = first("recipe=deepseek_v4_a2", f"runtime.version={version}")
    assert found["--additional-config.enable_dsa_cp"] is True
    assert ("--additional-config.enable_flashcomm1" in found) == stated


def test_data_parallel_over_nodes_has_one_leader():
    leader, follower = plan_of("recipe=glm_5_2_w4a8_a3_2n", ASCEND).commands
    assert leader.port == 8000
    assert follower.port is None
    assert "--headless" in follower.argv
    assert "--host" not in follower.argv
    found = atoms(follower.argv, follower.env)
    assert found["--data-parallel-size-local"] == "2"
    assert found["--data-parallel-start-rank"] == "2"
    assert found["--data-parallel-address"] == "NODE_0_ADDRESS"


SHARED = ("recipe=deepseek_v4_pro_a3_2n", "parallel.dp=1", "parallel.pp=2")
"""One replica over two nodes: a pipeline stage on each."""


def test_nodes_that_share_a_replica_have_ranks_and_one_master():
    """As vllm-ascend documents it: user_guide/feature_guide/pipeline_parallel.md:81-100."""
    site = "site.node_addresses=[198.51.100.1,198.51.100.2]"
    leader, follower = plan_of(*SHARED, ASCEND, site, "site.port_base=20000").commands
    ours, theirs = (atoms(item.argv, item.env) for item in (leader, follower))
    documented = {
        "--distributed-executor-backend": "mp",
        "--tensor-parallel-size": "16",
        "--pipeline-parallel-size": "2",
        "--nnodes": "2",
        "--master-addr": "198.51.100.1",
        "--master-port": "20300",
    }
    for found in (ours, theirs):
        assert documented.items() <= found.items()
        assert not [name for name in found if name.startswith("--data-parallel")]
    assert (ours["--node-rank"], theirs["--node-rank"]) == ("0", "1")
    assert (leader.port, follower.port) == (8000, None)
    assert theirs["--headless"] is True
    assert "--headless" not in ours
    # Nothing else differs but where they are and who answers.
    names = {name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}
    assert names == {"--node-rank", "--headless", "--host", "--port", "$HCCL_IF_IP"}


def test_nodes_that_share_a_replica_come_back_from_their_commands():
    commands = plan_of(*SHARED, ASCEND).commands
    read = [import_command(item.argv, item.env, version="main-2026-08") for item in commands]
    assert [item.overrides["nodes"] for item in read] == [2, 2]
    assert all("extra_args.distributed_executor_backend" not in item.overrides for item in read)


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (("parallel.tp=2", "parallel.pp=4", "nodes=3"), {"rendering.nodes_share"}),
        (("parallel.tp=2", "parallel.pp=4", "nodes=2"), set()),
        (("parallel.tp=4", "parallel.dp=3", "nodes=2"), {"rendering.nodes_uneven"}),
    ],
)
def test_a_replica_divides_over_its_nodes(words: tuple[str, ...], ids: set[str]):
    try:
        found = plan_of("recipe=qwen3_5_27b_w8a8_a2", ASCEND, *words).findings
    except RecipeError as error:
        found = error.findings
    assert {item.id for item in found if item.id.startswith("rendering.")} == ids


def test_every_rank_of_a_split_deployment_is_a_process():
    commands = plan_of("recipe=deepseek_v4_a3_pd", ASCEND).commands
    assert [(item.role, item.rank) for item in commands] == [
        *(("prefill", rank) for rank in range(4)),
        *(("decode", rank) for rank in range(16)),
    ]
    assert commands[1].env["ASCEND_RT_VISIBLE_DEVICES"] == "4,5,6,7"
    config = json.loads(commands[0].argv[commands[0].argv.index("--kv-transfer-config") + 1])
    assert config["kv_role"] == "kv_producer"
    assert config["kv_connector_extra_config"]["decode"] == {"dp_size": 16, "tp_size": 1}


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (("extra_args.max_num_seqs=3",), "rendering.stated_twice"),
        (("extra_args.api_key=secret-value",), "rendering.secret"),
        (("nodes=3",), "rendering.nodes_uneven"),
        (("parallel.sequence=true",), "version.not_offered"),
    ],
)
def test_what_cannot_be_told_is_a_finding(words: tuple[str, ...], id: str):
    with pytest.raises(RecipeError) as caught:
        plan_of("recipe=deepseek_v4_a3", ASCEND, *words)
    assert id in {item.id for item in caught.value.findings}
    assert "secret-value" not in str(caught.value)


def test_words_are_read_as_vllm_reads_them():
    text = (
        "vllm|serve|M|-tp|8|--max_num_seqs=3|--compilation-config.cudagraph_mode|FULL|-O3|"
        "--no-enable-prefix-caching|--cudagraph-capture-sizes|1|2|--seed|-1|--port|1|--port|2|--x={bad"
    )
    read = read_words(text.split("|"))
    assert read.model == "M"
    assert read.flags == {
        "--tensor-parallel-size": "8",
        "--max-num-seqs": "3",
        "--compilation-config": {"cudagraph_mode": "FULL"},
        "--optimization-level": "3",
        "--enable-prefix-caching": False,
        "--cudagraph-capture-sizes": ["1", "2"],
        "--seed": "-1",
        "--port": "2",
        "--x": "{bad",
    }
    assert read.repeated == ("--port",)
    assert [flag for flag, _ in read.unreadable] == ["--x"]


def test_import_keeps_what_has_no_field_and_hides_secrets():
    argv = [
        "vllm",
        "serve",
        "/w/DeepSeek-V4-Flash-w8a8-mtp",
        "--max-logprobs",
        "5",
        "--api-key",
        "abc",
    ]
    argv += ["--additional-config", '{"enable_dsa_cp": true, "refresh": true}']
    read = import_command(argv, {"HF_TOKEN": "xyz", "HCCL_BUFFSIZE": "7"})
    assert read.overrides["model"] == "deepseek_v4_flash"
    assert read.overrides["checkpoint.variant"] == "w8a8"
    assert read.site["weight_roots"] == ["/w"]
    assert read.overrides["attention.context_parallel"] is True
    assert read.overrides["runtime.additional_config.refresh"] is True
    assert read.overrides["extra_args.max_logprobs"] == 5
    assert read.overrides["env.HCCL_BUFFSIZE"] == "7"
    assert {item.target for item in read.unmapped} == {"--api-key", "$HF_TOKEN"}
    assert "abc" not in str(read)
    assert "xyz" not in str(read)
