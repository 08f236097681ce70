"""What stands in the files, target by target."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import RecipeError
from ascend_recipes.export.image import find_image, image_findings
from ascend_recipes.export.layout import slug_of
from ascend_recipes.export.places import MARKER
from ascend_recipes.export.targets import export_deployment
from ascend_recipes.export.words import Variable, Word
from ascend_recipes.launch.members import name_members
from tests.conftest import plan_of
from tests.export.deployments import (
    COMMAND,
    DISAGGREGATED,
    MANY_RANKS,
    ONE_NODE,
    SITED,
    TARGETS,
    TWO_NODES,
    VERSION,
    exported,
    manifests,
    of_kind,
    planned,
    scripts,
    services,
    texts,
)

A3 = "qwen3_5_27b_w8a8_a3"
ROUTED = ("roles.decode.scheduler.recompute=false",)
"""What vllm-router can route."""


@pytest.mark.parametrize(
    ("recipe", "version", "tag"),
    [
        # vllm-ascend docs/source/installation.md at v0.23.0: one suffix a generation.
        ("qwen3_5_27b_w8a8_a2", "0.23.0", "v0.23.0"),
        ("qwen3_5_27b_w8a8_a3", "0.23.0", "v0.23.0-a3"),
        ("qwen3_5_27b_w8a8_310p", "0.23.0", "v0.23.0-310p"),
        ("qwen3_5_397b_a17b_w4a4_mxfp4_a5", "0.23.0", "v0.23.0-a5"),
        ("qwen3_5_27b_w8a8_a3", "0.26.0rc1", "v0.26.0rc1-a3"),
        ("qwen3_5_27b_w8a8_a2", "main-2026-08", "nightly-main"),
    ],
)
def test_image_of_hardware_and_version(recipe, version, tag):
    resolved = planned(recipe, f"runtime.version={version}").resolved
    assert find_image(resolved) == f"quay.io/ascend/vllm-ascend:{tag}"


def test_the_sites_image_comes_first():
    image = "registry.example/vllm@sha256:00"
    words = (f"site.image='{image}'", "runtime.version=main-2026-08")
    assert services(ONE_NODE, "node0-serve.yaml", *words)["serve"]["image"] == image
    assert ids(exported(ONE_NODE, "compose", *words)) == []


def test_a_moving_image_is_a_warning_where_an_image_is_named():
    words = ("runtime.version=main-2026-08",)
    assert ids(exported(ONE_NODE, "k8s", *words)) == ["export.moving_image"]
    assert ids(exported(ONE_NODE, "shell", *words)) == []


def test_hardware_without_container_facts_is_refused_where_they_are_needed():
    plan = planned(ONE_NODE)
    bare_row = plan.resolved.hardware.model_copy(update={"container": None})
    other = replace(plan, resolved=replace(plan.resolved, hardware=bare_row))
    with pytest.raises(RecipeError) as refused:
        export_deployment(other, "compose", command=COMMAND)
    assert [item.id for item in refused.value.findings] == ["export.no_container"]
    assert export_deployment(other, "shell", command=COMMAND).files


def test_no_image_is_an_error_where_one_is_needed():
    plan = planned(ONE_NODE)
    resolved = replace(plan.resolved, runtime_version="0.99.0")
    assert [item.id for item in image_findings(resolved)] == ["export.no_image"]


def ids(export) -> list[str]:
    return [item.id for item in export.findings if item.id.startswith("export.")]


def test_compose_gives_a_container_its_dies_and_the_driver():
    service = services(ONE_NODE, "node0-serve.yaml", "site.device_ids=[4,5]")["serve"]
    assert service["devices"] == [
        f"/dev/{name}:/dev/{name}"
        for name in ("davinci4", "davinci5", "davinci_manager", "devmm_svm", "hisi_hdc")
    ]
    mounted = {item["target"]: item for item in service["volumes"]}
    # vllm-ascend docs/source/installation.md:366-371 at 182b75ea, and the folder of the weights.
    assert set(mounted) == {
        "/usr/local/dcmi",
        "/usr/local/Ascend/driver/tools/hccn_tool",
        "/usr/local/bin/npu-smi",
        "/usr/local/Ascend/driver/lib64",
        "/usr/local/Ascend/driver/version.info",
        "/etc/ascend_install.info",
        "/models",
        "/ascend_recipes/node0-serve.sh",
    }
    assert all(item["read_only"] for item in mounted.values())
    assert service["network_mode"] == "host"


def test_several_machines_see_the_network_of_the_dies():
    node = services(TWO_NODES, "node1-serve.yaml")["serve"]
    assert "/etc/hccn.conf" in {item["target"] for item in node["volumes"]}
    assert sum("davinci" in item for item in node["devices"]) == 16 + 1
    assert "healthcheck" not in node, "it has no API"
    leader = services(TWO_NODES, "node0-serve.yaml")["serve"]
    assert leader["healthcheck"]["test"][-1] == "http://127.0.0.1:8000/health"
    assert leader["healthcheck"]["start_period"] == "1800s"


def test_containers_count_their_dies_from_zero():
    words = ("site.device_ids=[8,9,10,11]", "parallel.tp=2", "parallel.dp=2")
    recipe = "qwen3_5_27b_w8a8_a3_2n_pd"
    shell = scripts(recipe, "shell", *words)["node1-decode.sh"]
    inside = scripts(recipe, "compose", *words)["node1-decode.sh"]
    assert re.findall(r"VISIBLE_DEVICES=(\S+)", shell) == ["8,9", "10,11"]
    assert re.findall(r"VISIBLE_DEVICES=(\S+)", inside) == ["0,1", "2,3"]
    devices = services(recipe, "node1-decode.yaml", *words)["decode"]["devices"]
    assert [item.partition(":")[0] for item in devices[:4]] == [
        f"/dev/davinci{number}" for number in (8, 9, 10, 11)
    ]


def test_router_waits_for_the_servers_of_its_node():
    first = services(MANY_RANKS, "node0-prefill.yaml")
    assert first["router"]["depends_on"] == {"prefill": {"condition": "service_healthy"}}
    assert "router" not in services(MANY_RANKS, "node1-prefill.yaml")
    assert first["prefill"]["healthcheck"]["test"][-2:] == [
        "http://10.0.0.1:8001/health",
        "http://10.0.0.1:8002/health",
    ]


def test_router_gets_every_server():
    script = scripts(MANY_RANKS, "shell", *ROUTED)["router.sh"]
    assert re.findall(r"--prefill (\S+)", script) == [
        f"http://10.0.0.{node}:{port}" for node in (1, 2) for port in (8001, 8002)
    ]
    assert re.findall(r"--decode (\S+)", script) == [
        f"http://10.0.0.{node}:{port}" for node in (3, 4) for port in range(8001, 8005)
    ]
    assert "exec vllm-router" in script


def test_router_that_is_called_back_binds_its_address():
    script = scripts(DISAGGREGATED, "shell")["router.sh"]
    settings = yaml.safe_load(re.search(r"settings='(.*)'", script)[1])
    assert settings == {
        "host": "10.0.0.1",
        "port": 8000,
        "address": "10.0.0.1",
        "prefill": [["10.0.0.1", 8001]],
        "decode": [["10.0.0.2", 8001]],
        "layerwise": True,
    }


@pytest.mark.parametrize("target", ["shell", "compose", "slurm", "k8s"])
def test_minimal_router_needs_python_alone(target, tmp_path):
    if target == "k8s":
        objects = manifests(DISAGGREGATED)
        name = f"{DISAGGREGATED.replace('_', '-')}-router"
        pod = of_kind(objects, "Deployment")[name]["spec"]["template"]["spec"]
        data = of_kind(objects, "ConfigMap")[name]["data"]
        items = pod["volumes"][0]["configMap"]["items"]
        found = {item["path"]: data[item["key"]] for item in items}
        assert len(found) == len(data)
    else:
        found = texts(DISAGGREGATED, target)
    for path, text in found.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            "from ascend_recipes.launch.router import server as s; print(s)",
        ],
        env={"PYTHONPATH": str(tmp_path / "router")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(tmp_path) in done.stdout, done.stderr
    assert ids(exported(DISAGGREGATED, target)) == []


def test_ray_is_told_where_the_recipe_asks_for_it():
    words = ("+extra_args.distributed_executor_backend=ray",)
    assert ids(exported(TWO_NODES, "argv", *words)) == ["export.ray"]
    assert ids(exported(TWO_NODES, "argv")) == []


def test_router_of_another_package_is_told():
    assert ids(exported(MANY_RANKS, "shell", *ROUTED)) == ["export.router_package"]
    assert ids(exported(DISAGGREGATED, "argv")) == ["export.router_package"]
    assert not any("/" in name for name in texts(MANY_RANKS, "shell", *ROUTED))


def test_one_machine_is_a_deployment():
    objects = manifests(ONE_NODE)
    (deployment,) = of_kind(objects, "Deployment").values()
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"huawei.com/Ascend910": "2"}
    assert "hostNetwork" not in pod
    assert (
        container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"]
        == 1800
    )
    (service,) = of_kind(objects, "Service").values()
    selector = service["spec"]["selector"].items()
    assert selector <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["port"] == 8000
    assert not of_kind(objects, "LeaderWorkerSet")


def test_machines_of_one_engine_are_a_group():
    objects = manifests(TWO_NODES)
    (group,) = of_kind(objects, "LeaderWorkerSet").values()
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    leader, worker = (template[key]["spec"] for key in ("leaderTemplate", "workerTemplate"))
    for pod in (leader, worker):
        assert pod["hostNetwork"] is True
        assert pod["containers"][0]["resources"]["limits"] == {"huawei.com/Ascend910": "16"}
        assert pod["containers"][0]["command"][-1] == "/ascend_recipes/node$(LWS_WORKER_INDEX).sh"
    assert "readinessProbe" in leader["containers"][0]
    assert "readinessProbe" not in worker["containers"][0]
    (data,) = (item["data"] for item in of_kind(objects, "ConfigMap").values())
    assert set(data) == {"node0.sh", "node1.sh"}
    (service,) = of_kind(objects, "Service").values()
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_pods_behind_the_router_have_names():
    objects = manifests(MANY_RANKS, *ROUTED)
    groups = of_kind(objects, "LeaderWorkerSet")
    slug = MANY_RANKS.replace("_", "-")
    assert {
        name: item["spec"]["leaderWorkerTemplate"]["size"] for name, item in groups.items()
    } == {
        f"{slug}-prefill-0": 2,
        f"{slug}-decode-0": 2,
    }
    router = of_kind(objects, "ConfigMap")[f"{slug}-router"]["data"]["router.sh"]
    name = f"{slug}-prefill-0"
    assert re.findall(r"--prefill (\S+)", router) == [
        f"http://{pod}.{name}:{port}"
        for pod in (f"{name}-0", f"{name}-0-1")
        for port in (8001, 8002)
    ]
    probe = groups[name]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    shell = probe["readinessProbe"]["exec"]["command"][2]
    assert shell.endswith("http://${POD_IP}:8001/health http://${POD_IP}:8002/health")
    service = of_kind(objects, "Service")[slug]
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "router"


def test_a_pod_alone_asks_nobody_for_its_address():
    words = ("parallel.tp=2", "parallel.dp=2")
    for recipe, variable in (
        ("qwen3_5_27b_w8a8_a3_2n_pd", "${POD_IP}"),
        (MANY_RANKS, "${LWS_LEADER_ADDRESS}"),
    ):
        found = scripts(recipe, "k8s", *(words if variable == "${POD_IP}" else ()))
        text = next(text for name, text in found.items() if "prefill" in name)
        assert set(re.findall(r'--data-parallel-address "(.*)"', text)) == {variable}


@pytest.mark.parametrize(
    ("recipe", "words", "resource"),
    [
        ("qwen3_5_397b_a17b_w4a4_mxfp4_a5", (), "huawei.com/npu"),
        ("qwen3_5_27b_w8a8_310p", (), "huawei.com/Ascend310P"),
        (A3, ("site.npu_resource=huawei.com/ascend-1980",), "huawei.com/ascend-1980"),
    ],
)
def test_resource_of_the_device_plugin(recipe, words, resource):
    (deployment,) = of_kind(manifests(recipe, *words), "Deployment").values()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert set(container["resources"]["limits"]) == {resource}


def test_weights_come_from_a_claim_or_the_machine():
    for words, source in (
        ((), {"hostPath": {"path": "/models", "type": "Directory"}}),
        (
            ("site.weights_claim=llm",),
            {"persistentVolumeClaim": {"claimName": "llm", "readOnly": True}},
        ),
    ):
        (deployment,) = of_kind(manifests(ONE_NODE, *words), "Deployment").values()
        volumes = deployment["spec"]["template"]["spec"]["volumes"]
        assert {"name": "weights-0", **source} in volumes


def test_downloads_are_kept():
    words = ("site.sources={qwen3_5_27b:{w8a8:{modelscope:lab/q}}}", "site.cache_folder=/data/c")
    service = services(ONE_NODE, "node0-serve.yaml", *words)["serve"]
    assert {"type": "bind", "source": "/data/c", "target": "/cache"} in service["volumes"]
    assert service["environment"]["MODELSCOPE_CACHE"] == "/cache/modelscope"
    assert "/models" not in {item["target"] for item in service["volumes"]}


@pytest.mark.parametrize("target", TARGETS)
def test_secrets_are_named_and_written_nowhere(target, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    found = texts(TWO_NODES, target, "site.secrets={HF_TOKEN: env}")
    assert not any("very_secret" in text for text in found.values())
    assert any("HF_TOKEN" in text for text in found.values())
    if target == "k8s":
        group = of_kind(manifests(TWO_NODES, "site.secrets={HF_TOKEN: env}"), "LeaderWorkerSet")
        template = next(iter(group.values()))["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        (env,) = [e for e in template["spec"]["containers"][0]["env"] if e["name"] == "HF_TOKEN"]
        assert env["valueFrom"]["secretKeyRef"]["key"] == "HF_TOKEN"


def bare(recipe: str, target: str, *words: str, placeholders: bool = False):
    plan = plan_of(f"recipe={recipe}", "runtime=vllm_ascend", f"runtime.version={VERSION}", *words)
    return export_deployment(plan, target, command=COMMAND, placeholders=placeholders)


@pytest.mark.parametrize("target", TARGETS)
def test_what_the_site_lacks_is_refused_as_a_launch_would(target):
    with pytest.raises(RecipeError) as refused:
        bare(TWO_NODES, target)
    missing = {item.id for item in refused.value.findings}
    chosen = {"site.too_few_addresses"} if target not in ("k8s", "slurm") else set()
    assert missing == {"site.no_interface"} | chosen


@pytest.mark.parametrize("target", TARGETS)
def test_placeholders_are_told(target):
    export = bare(TWO_NODES, target, placeholders=True)
    (told,) = [item for item in export.findings if item.id == "export.placeholders"]
    assert "NETWORK_INTERFACE" in told.message
    assert ("NODE_0_ADDRESS" in told.message) is (target not in ("k8s", "slurm"))
    text = "".join(item.text for item in export.files)
    assert "NODE_{}" not in text
    assert all(name in text for name in re.findall(r"NODE_\d_ADDRESS", told.message))


def test_ports_that_clash_are_refused():
    with pytest.raises(RecipeError) as refused:
        exported(MANY_RANKS, "shell", "roles.prefill.transfer.port=8001")
    assert {item.id for item in refused.value.findings} == {"cluster.port_clash"}


def test_the_native_runtime_is_refused_with_the_way_out():
    with pytest.raises(RecipeError) as refused:
        export_deployment(plan_of(f"recipe={ONE_NODE}"), "shell", command=COMMAND)
    (item,) = refused.value.findings
    assert (item.id, item.fix) == ("export.native", "runtime=vllm_ascend")


@pytest.mark.parametrize("target", TARGETS)
def test_files_say_where_they_come_from(target):
    digest = planned(TWO_NODES).plan.digest
    for name, text in texts(
        TWO_NODES,
        target,
    ).items():
        head = text[:1000]
        assert COMMAND in head, name
        assert digest in head, name
        assert TWO_NODES in head, name


def test_names_of_objects_stay_short():
    long, other = ("a" * 60 + end for end in ("_x", "_y"))
    assert slug_of("qwen3_5") == "qwen3-5"
    assert len(slug_of(long)) <= 40
    assert slug_of(long) != slug_of(other)


@settings(deadline=None, max_examples=40)
@given(st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=30))
def test_words_reach_the_program_as_they_are(text):
    told = Word.of(text).in_shell() + " " + Word.of(text, Variable("X")).in_shell()
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {told}"],
        env={"X": "$y"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == f"{text}\0{text}$y\0".encode()


def test_compose_takes_dollar_signs_literally():
    assert Word.of("a$b", Variable("X")).in_compose() == "a$$b${X}"


@pytest.mark.parametrize("recipe", [entry.name for entry in recipe_names()])
def test_every_recipe_can_be_exported(recipe):
    plan = plan_of(f"recipe={recipe}", "runtime=vllm_ascend", SITED[1])
    dies = plan.resolved.hardware.dies_per_node
    for target in ("k8s", "slurm"):
        export = export_deployment(plan, target, command=COMMAND)
        servers = [server for node in export.layout.nodes for server in node.servers]
        assert [item.name for item in servers] == [
            member.name for member in name_members(plan.commands)
        ]
        assert all(set(node.dies) <= set(range(dies)) for node in export.layout.nodes)
        for node in export.layout.nodes:
            used = [die for server in node.servers for die in server.dies]
            assert len(used) == len(set(used)), "no two processes share a die"
        text = export.files[0].text
        assert not MARKER.search(text)
        assert text.count("vllm serve") == len(servers)
        if target == "k8s":
            objects = list(yaml.safe_load_all(text))
            names = {(item["kind"], item["metadata"]["name"]) for item in objects}
            assert len(names) == len(objects)
            assert max(len(name) for _, name in names) <= 52
