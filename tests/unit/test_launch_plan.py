"""From a plan to an argument vector, an environment, a run folder; receipts against the plan."""

import json
import shlex
import socket

import pytest

from ascend_recipes.errors import ExitCode, RecipeError, Severity
from ascend_recipes.launch.arguments import DRAIN_SECONDS, serve_arguments
from ascend_recipes.launch.audit import audit_receipts, await_receipts, world_size
from ascend_recipes.launch.environment import child_environment, without_secrets
from ascend_recipes.launch.folder import create_run_folder, pasteable
from ascend_recipes.launch.preflight import check_machine, num_npus
from ascend_recipes.paths import PLAN_VARIABLE
from ascend_recipes.receipts import load_receipts, write_receipt
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.plan import load_plan

TINY = ("device=emulated", "scale=tiny")


@pytest.fixture(scope="module")
def tiny(plan):
    return plan(*TINY)


# --- argument vector ------------------------------------------------------------------------------


def test_arguments_say_what_the_plan_says(tiny):
    words = serve_arguments(tiny.plan)
    assert words[:2] == ["serve", tiny.plan.model.checkpoint]
    assert "--tensor-parallel-size=1" in words
    assert "--enable-prefix-caching" in words
    assert "--no-trust-remote-code" in words
    assert f"--shutdown-timeout={DRAIN_SECONDS}" in words
    config = words[words.index("--compilation-config") + 1]
    assert json.loads(config) == tiny.plan.engine["compilation_config"]


def test_plan_overrules_the_launchers_own_defaults(plan):
    words = serve_arguments(plan(*TINY, "extra_args.shutdown_timeout=5").plan)
    assert [word for word in words if word.startswith("--shutdown-timeout")] == [
        "--shutdown-timeout=5"
    ]


# --- environment ----------------------------------------------------------------------------------


def test_environment_names_the_plan_and_keeps_the_shell(tiny, tmp_path):
    outer = {
        "HOME": "/h",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_PLUGINS": "other",
        PLAN_VARIABLE: "/another/run/plan.json",
    }
    inner = child_environment(tiny.plan, tmp_path / "plan.json", outer)
    assert inner["HOME"] == "/h"
    assert inner["VLLM_PLUGINS"] == "ascend_recipes"
    assert inner[PLAN_VARIABLE] == str(tmp_path / "plan.json")
    assert "VLLM_TARGET_DEVICE" not in inner


def test_another_runtime_does_not_see_a_plan(tiny, tmp_path):
    runtime = tiny.plan.runtime.model_copy(update={"name": "vllm_ascend"})
    foreign = tiny.plan.model_copy(update={"runtime": runtime})
    inner = child_environment(foreign, tmp_path / "plan.json", {PLAN_VARIABLE: "/old"})
    assert PLAN_VARIABLE not in inner


def test_secrets_are_masked():
    shown = without_secrets(
        {
            "HF_TOKEN": "hf_abc",
            "VLLM_API_KEY": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "DB_PASSWORD": "p",
            "https_proxy": "http://me:word@proxy:80",
            "HOME": "/h",
        }
    )
    assert shown["HOME"] == "/h"
    assert shown["https_proxy"] == "http://***@proxy:80"
    text = json.dumps(shown)
    for secret in ("hf_abc", '"k"', '"s"', '"p"', "word"):
        assert secret not in text


# --- run folder -----------------------------------------------------------------------------------


def test_run_folder_holds_everything_about_the_start(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_RECIPES_CACHE", str(tmp_path))
    monkeypatch.setenv("MY_TOKEN", "hush")
    folder = create_run_folder(tiny, ["recipe=qwen3_5_27b_a2", *TINY])
    assert folder.path.parent == tmp_path / "runs"
    assert load_plan(folder.plan) == tiny.plan
    files = {path.name for path in folder.path.iterdir()}
    assert {"plan.json", "reasons.json", "env.json", "words.json", "receipts"} <= files
    assert "hush" not in (folder.path / "env.json").read_text()
    line = pasteable(folder, tiny.plan.env, serve_arguments(tiny.plan))
    assert f"{PLAN_VARIABLE}={folder.plan}" in shlex.split(line)
    assert "vllm serve" in line


def test_unwritable_cache_is_an_environment_finding(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASCEND_RECIPES_CACHE", str(tmp_path / "file"))
    with pytest.raises(RecipeError) as caught:
        create_run_folder(tiny, [])
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "ASCEND_RECIPES_CACHE" in caught.value.findings[0].fix


# --- preflight ------------------------------------------------------------------------------------


def refusal(plan, *, serving=False):
    with pytest.raises(RecipeError) as caught:
        check_machine(plan, serving=serving)
    return {item.id: item for item in caught.value.findings}, caught.value.exit_code


@pytest.fixture
def npu_plan(plan, tmp_path):
    return lambda *words: (
        plan("accept_unverified=true", f"site.weight_roots=[{tmp_path}]", *words).plan
    )


def test_npu_plan_without_npu(npu_plan, monkeypatch):
    findings, code = refusal(npu_plan())
    assert code is ExitCode.ENVIRONMENT
    assert "device=emulated scale=tiny" in findings["environment.no_npu"].fix


def test_too_few_npus(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"davinci{number}").touch()
    (tmp_path / "davinci_manager").touch()
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    assert num_npus(tmp_path) == 3
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0, 2,7")
    assert num_npus(tmp_path) == 2
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    assert num_npus(tmp_path) == 0


def test_missing_checkpoint(npu_plan, tmp_path):
    plan = npu_plan()
    findings, code = refusal(plan)
    assert code is ExitCode.ENVIRONMENT
    assert str(tmp_path) in findings["checkpoint.missing"].message
    assert "does not exist" in findings["checkpoint.missing"].message
    assert "site.weight_roots" in findings["checkpoint.missing"].fix


@pytest.mark.parametrize(
    ("config", "id"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "checkpoint.architecture"),
        ({}, "checkpoint.architecture"),
        ([], "checkpoint.unreadable"),
    ],
)
def test_checkpoint_of_another_model(npu_plan, tmp_path, config, id):
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = npu_plan(f"checkpoint.path={tmp_path}")
    findings, _ = refusal(plan)
    assert id in findings
    if config:
        assert "LlamaForCausalLM" in findings[id].message
        assert plan.model.architecture in findings[id].message


def test_wrong_checkpoint_alone_is_a_finding_not_the_environment(tiny, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["Other"]}')
    model = tiny.plan.model.model_copy(update={"checkpoint": str(tmp_path)})
    plan = tiny.plan.model_copy(update={"model": model.model_copy(update={"tiny_seed": None})})
    assert refusal(plan)[1] is ExitCode.FINDINGS


def test_port_in_use_names_a_free_one(plan):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = plan(*TINY, f"serving.port={port}").plan
        findings, code = refusal(busy, serving=True)
        check_machine(busy, serving=False)
    assert code is ExitCode.ENVIRONMENT
    finding = findings["environment.port_in_use"]
    assert finding.fix.startswith("serving.port=")
    assert finding.fix != f"serving.port={port}"
    check_machine(busy, serving=True)


def test_another_vllm_version(tiny):
    runtime = tiny.plan.runtime.model_copy(update={"vllm": "0.1.0"})
    findings, code = refusal(tiny.plan.model_copy(update={"runtime": runtime}))
    assert code is ExitCode.ENVIRONMENT
    assert "0.1.0" in findings["environment.vllm_version"].message


def test_many_nodes_are_refused_before_anybody_fills_in_a_site(plan):
    pair = plan("recipe=deepseek_v4_a3_pd", "accept_unverified=true").blockers
    assert [item.id for item in pair] == ["runtime.one_node", "runtime.replicated_experts"]
    assert "prefill x 1, decode x 1" in pair[0].message
    assert pair[0].fix == "ascend-run recipe=deepseek_v4_a3_pd runtime=vllm_ascend"
    tiny = ("recipe=deepseek_v4_pro_a3_2n", "device=emulated", "scale=tiny")
    (two,) = plan(*tiny).blockers
    assert (two.id, two.fix) == ("runtime.one_node", "nodes=1")
    assert not plan(*tiny, two.fix).blockers


# --- receipts -------------------------------------------------------------------------------------


@pytest.fixture
def receipt(receipt_of_core):
    return receipt_of_core


def audited(tiny, *receipts):
    return {item.id: item for item in audit_receipts(tiny.plan, receipts, load_registry())}


def test_faithful_receipt_gives_no_finding(tiny, receipt):
    assert audited(tiny, receipt) == {}


def test_no_receipt_names_who_is_missing(tiny, receipt):
    messages = [item.message for item in audit_receipts(tiny.plan, (), load_registry())]
    assert any("engine core" in message for message in messages)
    assert any("rank 0" in message for message in messages)
    early = receipt.model_copy(update={"effective": None, "rank": None})
    assert "rank 0" in audited(tiny, early)["receipt.missing"].message


def test_every_rank_must_report(plan, receipt):
    two = plan("device=emulated", "scale=tiny", "parallel.tp=2")
    assert world_size(two.plan) == 2
    worker = receipt.model_copy(update={"digest": two.plan.digest, "phase": "worker"})
    findings = audit_receipts(two.plan, (worker,), load_registry())
    missing = [item.message for item in findings if item.id == "receipt.missing"]
    assert len(missing) == 2
    assert any("rank 1" in message for message in missing)


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"digest": "0" * 16}, "receipt.digest"),
        ({"platform": "vllm.platforms.cpu:CpuPlatform"}, "receipt.platform"),
        ({"hooks": ()}, "receipt.hook"),
        ({"bindings": {}}, "receipt.bindings"),
    ],
)
def test_foreign_receipt_is_an_error(tiny, receipt, change, id):
    finding = audited(tiny, receipt.model_copy(update=change))[id]
    assert finding.severity is Severity.ERROR


def test_prefixes_kept_otherwise_than_planned_are_told(plan, receipt):
    """What the recipe asks of vLLM is compared with what vLLM's cache manager goes by."""
    made = plan("recipe=deepseek_v4_a3", "device=emulated", "scale=tiny").plan
    assert made.engine["prefix_cache_retention_interval"] == 4096
    for actual in (4096, 0, None):
        effective = receipt.effective.model_copy(update={"prefix_retention": actual})
        worker = receipt.model_copy(update={"effective": effective})
        found = {item.id: item for item in audit_receipts(made, (worker,), load_registry())}
        assert ("effective.prefix_retention" in found) == (actual != 4096)
        if actual == 0:
            message = found["effective.prefix_retention"].message
            assert message == "vLLM keeps prefixes at the interval 0, the plan says 4096"


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"block_size": 16}, "effective.block_size"),
        ({"graph_mode": "NONE"}, "effective.graph_mode"),
        ({"capture_sizes": (1,)}, "effective.capture_sizes"),
        ({"prefix_caching": False}, "effective.prefix_caching"),
        ({"state_cache_mode": "none"}, "effective.state_mode"),
        ({"attention_backends": ("vllm:FlashAttention",)}, "effective.attention_backends"),
    ],
)
def test_changed_value_is_a_warning_with_both_values(tiny, receipt, change, id):
    effective = receipt.effective.model_copy(update=change)
    found = audited(tiny, receipt.model_copy(update={"effective": effective}))
    assert set(found) == {id}
    assert found[id].severity is Severity.WARNING
    assert "the plan says" in found[id].message


def test_waiting_ends_with_the_last_receipt_or_the_deadline(tiny, receipt, tmp_path):
    assert await_receipts(tiny.plan, tmp_path, seconds=0.2) == ()
    write_receipt(tmp_path, receipt)
    assert await_receipts(tiny.plan, tmp_path, seconds=30.0) == (receipt,)
    assert load_receipts(tmp_path) == (receipt,)
