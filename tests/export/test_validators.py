"""Every target is read by a tool of its own, which refuses planted faults."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import check_jsonschema
import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.export.deployments import (
    DISAGGREGATED,
    MANY_RANKS,
    ONE_NODE,
    TWO_NODES,
    manifests,
    of_kind,
    scripts,
    texts,
)

KUBERNETES = "1.37"
HUB = "site.sources={qwen3_5_27b:{w8a8:{modelscope:lab/q}}}"
ADDRESSES_OF_16 = f"site.node_addresses=[{','.join(f'10.0.1.{n}' for n in range(16))}]"
CASES = {
    ONE_NODE: (),
    TWO_NODES: (),
    DISAGGREGATED: (),
    MANY_RANKS: (),
    "qwen3_5_27b_w8a8_310p": (),
    "qwen3_5_27b_w8a8_a3": (HUB, "site.secrets={HF_TOKEN: env}", "site.weights_claim=weights"),
    "qwen3_5_397b_a17b_w4a4_mxfp4_a5": (),
    "kimi_k3_w4a8_a3_16n_pd": (ADDRESSES_OF_16, "runtime.version=main-2026-08"),
    "kimi_k3_w4a8_a3_4n": ("runtime.version=main-2026-08",),
}
cases = pytest.mark.parametrize(("recipe", "words"), CASES.items(), ids=list(CASES))


def shellcheck(files: dict[str, str], folder: Path) -> str:
    """What shellcheck complains of; nothing for good scripts."""
    paths = []
    for number, (name, text) in enumerate(files.items()):
        paths.append(folder / f"{number}-{Path(name).name}")
        paths[-1].write_text(text)
    tool = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([tool, *paths], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def compose_errors(tree: dict) -> list[str]:
    """What the schema of the Compose specification refuses."""
    folder = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [error.message for error in validator.iter_errors(tree)]


def check_object(item: dict) -> None:
    """Raise where the API of Kubernetes, or of LeaderWorkerSet, refuses an object."""
    if item["kind"] != "LeaderWorkerSet":
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
        return
    schema = json.loads((Path(__file__).parent / "leader_worker_set.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(item)
    group = item["spec"]["leaderWorkerTemplate"]
    for key in ("leaderTemplate", "workerTemplate"):
        if key in group:
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": group[key]}
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@cases
@pytest.mark.parametrize("target", ["shell", "compose", "k8s", "slurm"])
def test_shellcheck_finds_nothing(recipe, words, target, tmp_path):
    assert shellcheck(scripts(recipe, target, *words), tmp_path) == ""


def test_shellcheck_finds_a_planted_fault(tmp_path):
    (name, text), *_ = scripts(ONE_NODE, "shell").items()
    broken = text.replace('[ -f "${file}" ]', "[ -f ${fileb} ]")
    assert broken != text
    assert "SC2154" in shellcheck({name: broken}, tmp_path)


@cases
def test_compose_files_follow_the_specification(recipe, words):
    found = {
        name: text for name, text in texts(recipe, "compose", *words).items() if ".yaml" in name
    }
    assert found
    assert {name: compose_errors(yaml.safe_load(text)) for name, text in found.items()} == {
        name: [] for name in found
    }


@pytest.mark.parametrize("change", [{"shm_sice": "1gb"}, {"devices": 3}, {"depends_on": {"a": {}}}])
def test_compose_specification_refuses_a_planted_fault(change):
    tree = yaml.safe_load(texts(ONE_NODE, "compose")["node0-serve.yaml"])
    tree["services"]["serve"] |= change
    assert compose_errors(tree)


@cases
def test_manifests_follow_the_api(recipe, words):
    objects = manifests(recipe, *words)
    for item in objects:
        check_object(item)
    assert {item["kind"] for item in objects} >= {"ConfigMap", "Service"}


def test_the_api_refuses_planted_faults():
    (deployment,) = of_kind(manifests(ONE_NODE), "Deployment").values()
    container = ("spec", "template", "spec", "containers", 0)
    for path, value in (
        ((*container, "imagePullPolice"), "Always"),
        ((*container, "ports", 0, "containerPort"), "8000"),
        ((*container, "readinessProbe", "httpGet", "port"), None),
        (("spec", "replicas"), "1"),
    ):
        assert refused(deployment, path, value), path


def test_leader_worker_set_refuses_planted_faults():
    (group,) = of_kind(manifests(TWO_NODES), "LeaderWorkerSet").values()
    template = ("spec", "leaderWorkerTemplate")
    for path, value in (
        ((*template, "restartPolicy"), "Always"),
        ((*template, "size"), 0),
        ((*template, "sizes"), 2),
        (("spec", "startupPolicy"), "Now"),
        ((*template, "workerTemplate", "spec", "hostNetwork"), "yes"),
        ((*template, "leaderTemplate", "spec", "containers", 0, "names"), "x"),
    ):
        assert refused(group, path, value), path


def refused(item: dict, path: tuple, value: object) -> bool:
    check_object(item)
    broken = copy.deepcopy(item)
    owner = broken
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    try:
        check_object(broken)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError):
        return True
    return False
