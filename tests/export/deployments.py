"""Deployments that the tests export, and readers of what comes out."""

import shlex
from functools import cache

import yaml

from ascend_recipes.export.targets import Export, export_deployment
from ascend_recipes.plan import PlannedLaunch
from tests.conftest import plan_of

VERSION = "0.23.0"
COMMAND = "ascend-run export …"

ONE_NODE = "qwen3_5_27b_w8a8_a2"
TWO_NODES = "deepseek_v4_pro_a3_2n"
DISAGGREGATED = "qwen3_5_397b_a17b_w8a8_a3_2n_pd"
MANY_RANKS = "glm_5_1_w8a8_a3_4n_pd"
"""Four machines with several processes each, behind a router that is a package of its own."""

ADDRESSES = "site.node_addresses=[10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4]"
SITED = (ADDRESSES, "site.network_interface=eth0")

TARGETS = ("shell", "compose", "k8s", "slurm", "argv")


@cache
def planned(recipe: str, *words: str) -> PlannedLaunch:
    return plan_of(
        f"recipe={recipe}", "runtime=vllm_ascend", f"runtime.version={VERSION}", *SITED, *words
    )


@cache
def exported(recipe: str, target: str, *words: str) -> Export:
    return export_deployment(planned(recipe, *words), target, command=COMMAND)


def texts(recipe: str, target: str, *words: str) -> dict[str, str]:
    """Files by their name."""
    return {item.name: item.text for item in exported(recipe, target, *words).files}


def manifests(recipe: str, *words: str) -> list[dict]:
    return list(yaml.safe_load_all(texts(recipe, "k8s", *words)["manifests.yaml"]))


def of_kind(objects: list[dict], kind: str) -> dict[str, dict]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def services(recipe: str, file: str, *words: str) -> dict[str, dict]:
    return yaml.safe_load(texts(recipe, "compose", *words)[file])["services"]


def scripts(recipe: str, target: str, *words: str) -> dict[str, str]:
    """Every bash text of an export, those inside manifests too."""
    found = {
        name: text
        for name, text in texts(recipe, target, *words).items()
        if name.endswith((".sh", ".sbatch"))
    }
    if target == "k8s":
        for name, item in of_kind(manifests(recipe, *words), "ConfigMap").items():
            found |= {
                f"{name}/{file}": text
                for file, text in item["data"].items()
                if file.endswith(".sh")
            }
    return found


def words_of(line: str) -> list[str]:
    return shlex.split(line)
