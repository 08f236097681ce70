"""Checks on recorded machines: a good one is quiet, and each fault is found where it is."""

import json

import pytest

from ascend_recipes.cli.pipeline import planned_launch
from ascend_recipes.doctor.host import Plugin, Ran
from ascend_recipes.doctor.probe import State
from ascend_recipes.errors import Severity
from ascend_recipes.schema.site import SiteSpec
from tests.doctor.rig import GB, MACHINES, PLUGINS, findings, machine, report

BROKEN = Ran(255, (MACHINES / "broken.txt").read_text())
OTHER = Plugin("vllm.platform_plugins", "fast", "fast-npu")
TABLE = "/etc/hccl.json"
DRIVER = "usr/local/Ascend/driver/version.info"
TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
    "   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n"
)
"""Somebody listens on 8000."""


def test_a_good_machine_is_quiet(tmp_path):
    checks = report(machine(tmp_path))
    assert findings(checks) == {}
    states = {id: check.state for id, check in checks.items()}
    absent = {id for id, state in states.items() if state is State.ABSENT}
    assert absent == {"triton", "addresses", "ports", "proxies", "checkpoint", "recipe"}
    assert set(states.values()) == {State.OK, State.ABSENT}
    assert checks["npus"].value == "16 x Ascend910 (npu-smi 26.0.rc2)"
    assert checks["npu_health"].value == "16 OK"
    assert checks["driver"].value == "26.0.rc2, firmware 7.8.0.5.216"
    assert checks["cann"].value.startswith("9.1.0 (")
    assert checks["vllm_ascend"].value == "0.27.1rc1"
    assert checks["interfaces"].value == "eth0, lo"


FAULTS = [
    # what is changed, the check that says so, the finding, how bad
    ({"smi": BROKEN}, "npus", "doctor.npu_smi_failed", "error"),
    (
        {"smi": None, "files": {"dev/davinci0": "", "dev/davinci_manager": ""}},
        "npus",
        "doctor.no_npu_smi",
        "warn",
    ),
    ({"smi": "310p"}, "npu_health", "doctor.unhealthy", "error"),
    ({"smi": "a2"}, "npu_health", "doctor.unhealthy", "warn"),
    ({"smi": "a2"}, "npu_memory", "doctor.memory_taken", "warn"),
    (
        {"smi": None, "files": {DRIVER: None, "dev/davinci0": ""}},
        "driver",
        "doctor.no_driver",
        "warn",
    ),
    ({"environ": {"ASCEND_HOME_PATH": None}}, "cann", "doctor.cann_not_sourced", "error"),
    ({"environ": {"ASCEND_HOME_PATH": "/opt/gone"}}, "cann", "doctor.cann_gone", "error"),
    ({"environ": {"ATB_HOME_PATH": None}}, "nnal", "doctor.nnal_not_sourced", "warn"),
    ({"environ": {"ATB_HOME_PATH": "/opt/gone"}}, "nnal", "doctor.nnal_gone", "error"),
    ({"versions": {"torch": "2.9.0"}}, "torch", "env.matrix", "warn"),
    ({"versions": {"torch": "2.9.0"}}, "torch_npu", "env.torch_pair", "error"),
    ({"versions": {"vllm": "0.26.0"}}, "vllm", "env.matrix", "warn"),
    ({"versions": {"transformers": "5.5.4"}}, "transformers", "env.matrix", "warn"),
    ({"versions": {"python": "3.13.1"}}, "python", "env.matrix", "warn"),
    ({"versions": {"cann": "8.5.1"}}, "cann", "env.matrix", "warn"),
    ({"versions": {"triton": "3.9.0"}}, "triton", "env.two_tritons", "warn"),
    ({"plugins": (*PLUGINS, OTHER)}, "plugins", "doctor.platforms_clash", "error"),
    (
        {"plugins": (*PLUGINS, Plugin("vllm.general_plugins", "ascend_model", "fork"))},
        "plugins",
        "doctor.plugin_twice",
        "warn",
    ),
    (
        {"environ": {"VLLM_PLUGINS": "ascend,asend_model"}},
        "plugins",
        "doctor.plugin_unknown",
        "warn",
    ),
    ({"limits": {"nofile": 1024}}, "limits", "doctor.open_files", "warn"),
    ({"space": {"/dev/shm": 64 * 10**6}}, "shared_memory", "doctor.shared_memory", "warn"),
    ({"space": {"/root/ascend/log": GB}}, "disk", "doctor.disk", "warn"),
    ({"environ": {"HCCL_BUFFSIZ": "200"}}, "variables", "env.unknown", "warn"),
    (
        {"environ": {"HCCL_INTRA_PCIE_ENABLE": "1", "HCCL_INTRA_ROCE_ENABLE": "1"}},
        "variables",
        "doctor.hccl_links",
        "error",
    ),
    ({"environ": {"HCCL_INTRA_ROCE_ENABLE": "0"}}, "variables", "doctor.hccl_links", "warn"),
    (
        {"environ": {"HCCL_CONNECT_TIMEOUT": "1800", "HCCL_EXEC_TIMEOUT": "200"}},
        "variables",
        "doctor.hccl_timeouts",
        "warn",
    ),
    ({"environ": {"HCCL_WHITELIST_DISABLE": "0"}}, "variables", "doctor.hccl_allowed", "error"),
    ({"environ": {"RANK_TABLE_FILE": TABLE}}, "variables", "doctor.rank_table_broken", "error"),
    (
        {"environ": {"RANK_TABLE_FILE": TABLE}, "files": {"etc/hccl.json": "{}"}},
        "variables",
        "doctor.rank_table",
        "warn",
    ),
    ({"environ": {"HCCL_SOCKET_IFNAME": "enp"}}, "interfaces", "doctor.no_interface", "error"),
    ({"environ": {"HCCL_SOCKET_IFNAME": "=eth"}}, "interfaces", "doctor.no_interface", "error"),
    ({"environ": {"HCCL_SOCKET_IFNAME": "^eth,lo"}}, "interfaces", "doctor.no_interface", "error"),
    ({"environ": {"GLOO_SOCKET_IFNAME": "eth"}}, "interfaces", "doctor.no_interface", "error"),
    ({"environ": {"HCCL_IF_IP": "10.9.9.9"}}, "interfaces", "doctor.foreign_address", "error"),
    ({"environ": {"HTTPS_PROXY": "http://u:secret@proxy:3128"}}, "proxies", "doctor.proxy", "warn"),
]


@pytest.mark.parametrize(("change", "check", "id", "severity"), FAULTS)
def test_a_fault_is_found(tmp_path, change, check, id, severity):
    checks = report(machine(tmp_path, **change))
    found = findings(checks)
    assert found[check, id].severity == severity
    assert checks[check].state is (State.ERROR if severity == "error" else State.WARNING)
    assert found[check, id].message_zh


FINE = [
    {"environ": {"HCCL_SOCKET_IFNAME": "et"}},
    {"environ": {"HCCL_SOCKET_IFNAME": "=eth0,eth9"}},
    {"environ": {"HCCL_SOCKET_IFNAME": "^lo"}},
    {"environ": {"HCCL_SOCKET_IFNAME": "^=lo"}},
    {"environ": {"TP_SOCKET_IFNAME": "eth0"}},
    {"environ": {"HCCL_IF_IP": "10.0.0.1"}},
    {"environ": {"HCCL_INTRA_PCIE_ENABLE": "1", "HCCL_INTRA_ROCE_ENABLE": "0"}},
    {"environ": {"HCCL_INTRA_ROCE_ENABLE": "1"}},
    {"environ": {"HCCL_CONNECT_TIMEOUT": "120", "HCCL_EXEC_TIMEOUT": "0"}},
    {"environ": {"HCCL_WHITELIST_DISABLE": "1"}},
    {"environ": {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "localhost,127.0.0.1"}},
    {"environ": {"https_proxy": "http://p:1", "no_proxy": "*"}},
    {"plugins": (*PLUGINS, OTHER), "environ": {"VLLM_PLUGINS": "ascend,ascend_model"}},
    {"limits": {"nofile": 65535, "memlock": 8192}},
    {"files": {DRIVER: None}},
    {
        "smi": None,
        "versions": {"driver": None, "devices": None},
        "environ": {"ASCEND_HOME_PATH": None, "ATB_HOME_PATH": None},
    },
]


@pytest.mark.parametrize("change", FINE)
def test_what_is_fine_stays_quiet(tmp_path, change):
    assert findings(report(machine(tmp_path, **change))) == {}


def test_remedies_can_be_typed(tmp_path):
    change = {"environ": {"ASCEND_HOME_PATH": None, "HTTPS_PROXY": "http://p:1", "no_proxy": "a"}}
    found = findings(report(machine(tmp_path, **change, plugins=(*PLUGINS, OTHER))))
    assert found["cann", "doctor.cann_not_sourced"].fix == (
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
    )
    assert found["proxies", "doctor.proxy"].fix == "export no_proxy=a,127.0.0.1,localhost"
    assert found["plugins", "doctor.platforms_clash"].fix == "export VLLM_PLUGINS=fast"


def test_a_password_of_a_proxy_is_not_shown(tmp_path):
    host = machine(tmp_path, environ={"HTTPS_PROXY": "http://user:secret@proxy:3128"})
    text = json.dumps([check.to_json() for check in report(host).values()])
    assert "proxy:3128" in text
    assert "secret" not in text


def test_a_probe_that_fails_leaves_the_others_alone(tmp_path):
    whole = report(machine(tmp_path))
    host = machine(tmp_path, environ={"RANK_TABLE_FILE": TABLE})

    def broken(_):
        raise OSError("the disk is gone")

    object.__setattr__(host, "space", broken)
    checks = report(host)
    failed = {id for (id, name) in findings(checks) if name == "doctor.probe_failed"}
    assert "shared_memory" in failed
    assert "the disk is gone" in findings(checks)["disk", "doctor.probe_failed"].message
    assert list(checks) == list(whole)
    assert checks["npu_health"].state is State.OK


def test_a_site_without_a_recipe(tmp_path):
    site = SiteSpec(node_addresses=("10.0.0.9", "10.0.0.1"), network_interface="eth7")
    checks = report(machine(tmp_path), named_site=site)
    assert checks["addresses"].value == "1"
    assert findings(checks)["interfaces", "doctor.no_interface"].at == "site.network_interface"
    away = report(machine(tmp_path, addresses=()), named_site=site)
    assert ("addresses", "cluster.not_a_node") in findings(away)


# --- with a recipe ------------------------------------------------------------------------------
def recipe(words):
    """A recipe as the command has it: planned, and as it was typed."""
    return {"planned": planned_launch(words, ()), "words": tuple(words)}


@pytest.fixture(scope="module")
def flash():
    return recipe(("recipe=deepseek_v4_a3", "runtime=vllm_ascend"))


def errors(checks):
    return {key for key, item in findings(checks).items() if item.severity is Severity.ERROR}


def test_a_recipe_on_its_machine_lacks_its_weights_only(tmp_path, flash):
    checks = report(machine(tmp_path), **flash)
    assert errors(checks) == {("checkpoint", "checkpoint.missing")}
    assert checks["ports"].value.startswith("8000 ")
    assert checks["recipe"].value == "deepseek_v4_a3"


@pytest.mark.parametrize(
    ("change", "check", "id"),
    [
        ({"smi": "a2"}, "npus", "image.machine"),
        ({"smi": "a2"}, "npus", "doctor.too_few_dies"),
        ({"smi": "a2"}, "npu_memory", "doctor.memory_taken"),
        ({"smi": None}, "npus", "doctor.too_few_dies"),
        ({"environ": {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2"}}, "npus", "doctor.too_few_dies"),
        ({"versions": {"torch_npu": None}}, "torch_npu", "doctor.no_package"),
        ({"versions": {"vllm_ascend": None}}, "vllm_ascend", "doctor.no_package"),
        ({"files": {"proc/net/tcp": TCP}}, "ports", "doctor.port_taken"),
    ],
)
def test_what_keeps_a_recipe_from_its_machine(tmp_path, flash, change, check, id):
    checks = report(machine(tmp_path, **change), **flash)
    assert (check, id) in errors(checks)


def test_numbers_of_a_recipe_stand_in_the_findings(tmp_path, flash):
    host = machine(tmp_path, environ={"ASCEND_RT_VISIBLE_DEVICES": "0,1,2"})
    said = findings(report(host, **flash))["npus", "doctor.too_few_dies"].message
    assert all(number in said for number in ("takes 16 dies", "3 may be used", "16 are there"))
    busy = findings(report(machine(tmp_path, files={"proc/net/tcp": TCP}), **flash))
    assert busy["ports", "doctor.port_taken"].fix == "serving.port=8001"


def test_a_missing_package_comes_with_its_version(tmp_path, flash):
    versions = {"torch_npu": None, "vllm_ascend": None}
    found = findings(report(machine(tmp_path, versions=versions), **flash))
    npu, ascend = (found[part, "doctor.no_package"].fix for part in ("torch_npu", "vllm_ascend"))
    assert npu == 'pip install "torch-npu==2.10.0.post4"'
    assert ascend == 'pip install "vllm-ascend==0.27.1rc1"'


def test_versions_that_differ_from_the_recipes_stand_at_their_part(tmp_path, flash):
    checks = report(machine(tmp_path, versions={"triton_ascend": "3.2.0"}), **flash)
    assert ("triton_ascend", "env.matrix") in findings(checks)
    assert ("recipe", "env.matrix") not in findings(checks)


def test_a_recipe_that_wants_more_of_the_machine(tmp_path):
    words = ("recipe=deepseek_v4_a3", "runtime=vllm_ascend", "requires.free_disk_gb=900")
    planned = recipe((*words, 'requires.driver=">=27"'))
    found = findings(report(machine(tmp_path), **planned))
    assert ("disk", "env.disk") in found
    assert ("driver", "env.requires") in found


def test_an_emulated_recipe_wants_no_npu(tmp_path):
    planned = recipe(("recipe=deepseek_v4_a3", "device=emulated", "scale=tiny"))
    bare = {"ASCEND_HOME_PATH": None, "ATB_HOME_PATH": None}
    host = machine(tmp_path, smi=None, environ=bare, versions={"torch_npu": None, "driver": None})
    checks = report(host, **planned)
    assert not {"npus", "driver", "cann", "torch_npu"} & {check for check, _ in findings(checks)}


def test_roles_that_transfer_caches_want_locked_memory(tmp_path):
    site = "site.node_addresses=[10.0.0.1,10.0.0.2]"
    words = ("recipe=qwen3_5_27b_w8a8_a3_2n_pd", "runtime=vllm_ascend", site)
    planned = recipe((*words, "site.network_interface=eth0"))
    host = machine(tmp_path, limits={"memlock": 65536})
    checks = report(host, **planned, nodes=(0,))
    assert ("limits", "doctor.locked_memory") in findings(checks)
    assert checks["addresses"].value == "0"
    # The launcher looks for its node itself where none is named.
    lost = report(host, **planned)
    assert ("addresses", "cluster.not_a_node") in findings(lost)


@pytest.mark.parametrize(("reserved", "told"), [("0", True), ("200000", False)])
def test_a_pool_in_host_memory_wants_large_pages(tmp_path, reserved, told):
    pool = 'roles.serve.transfer={"connector":"AscendStoreConnector"}'
    planned = recipe(("recipe=qwen3_5_27b_a2", "runtime=vllm_ascend", pool))
    files = {"proc/sys/vm/nr_hugepages": f"{reserved}\n"}
    found = findings(report(machine(tmp_path, smi="a2", files=files), **planned))
    assert (("large_pages", "doctor.large_pages") in found) is told
    if told:
        fix = found["large_pages", "doctor.large_pages"].fix
        assert fix == "sysctl -w vm.nr_hugepages=200000"


def test_a_chip_that_no_row_knows(tmp_path):
    table = (MACHINES / "a2.txt").read_text().replace("910B3", "999X1")
    checks = report(machine(tmp_path, smi=Ran(0, table)))
    assert "999X1" in findings(checks)["npus", "doctor.chip_unknown"].message


def test_ports_that_the_recipe_itself_would_bind_twice(tmp_path):
    site = "site.node_addresses=[10.0.0.1,10.0.0.2]"
    words = ("recipe=qwen3_5_27b_w8a8_a3_2n_pd", "runtime=vllm_ascend", site)
    words = (*words, "site.network_interface=eth0", "site.port_base=8000")
    planned = recipe(words)
    checks = report(machine(tmp_path), **planned, nodes=(0,))
    assert ("ports", "cluster.port_clash") in findings(checks)


def test_a_fix_is_tried_on_the_machine(tmp_path):
    """Another generation has other dies a node: what is offered brings its nodes."""
    planned = recipe(("recipe=deepseek_v4_a3_pd", "runtime=vllm_ascend"))
    found = findings(report(machine(tmp_path, smi="a2"), **planned))
    (item,) = {item for (_, id), item in found.items() if id == "image.machine"}
    assert item.fix == "hardware=a2 roles.decode.nodes=2 roles.prefill.nodes=2"
