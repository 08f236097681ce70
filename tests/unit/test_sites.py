"""Site files: where they are found, what they may say, and what a deployment misses in them."""

import pytest

from ascend_recipes.errors import RecipeError
from tests.conftest import plan_of

TWO_NODES = ("recipe=deepseek_v4_pro_a3_2n", "runtime=vllm_ascend")
LAB = """\
network_interface: eth0
node_addresses: [10.0.0.1, 10.0.0.2]
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The project's and the user's folder of sites, both empty; names that a shell would quote."""
    project, config = tmp_path / "pro ject'é", tmp_path / "config"
    for folder in (project / "site", config / "ascend_recipes" / "site"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    return project / "site", config / "ascend_recipes" / "site"


def blockers(planned):
    return {item.id: item for item in planned.blockers}


def refused(*words):
    with pytest.raises(RecipeError) as caught:
        plan_of(*words)
    return {item.id: item for item in caught.value.findings}


@pytest.mark.parametrize("place", [0, 1], ids=["project", "user"])
def test_site_is_found_by_its_name(places, place):
    (places[place] / f"lab{place}.yaml").write_text(LAB)
    planned = plan_of(*TWO_NODES, f"site=lab{place}")
    site = planned.resolved.recipe.site
    assert (site.name, site.network_interface) == (f"lab{place}", "eth0")
    assert not {key for key in blockers(planned) if key.startswith("site.")}


def test_project_comes_before_the_user(places):
    (places[0] / "both.yaml").write_text(LAB)
    (places[1] / "both.yaml").write_text(LAB.replace("eth0", "eth9"))
    assert plan_of(*TWO_NODES, "site=both").resolved.recipe.site.network_interface == "eth0"


def test_only_the_site_folder_of_a_place_counts(places):
    (places[0] / "lone.yaml").write_text(LAB)
    graph = places[0].parent / "graph"
    graph.mkdir()
    (graph / "own.yaml").write_text("kind: none\n")
    assert "compose.unknown_preset" in refused(*TWO_NODES, "site=lone", "graph=own")


def test_unknown_site_names_both_files(places):
    (places[1] / "lab.yaml").write_text(LAB)
    finding = refused(*TWO_NODES, "site=lap")["site.unknown"]
    assert str(places[0] / "lap.yaml") in finding.message
    assert str(places[1] / "lap.yaml") in finding.message
    assert finding.fix == "site=lab"


def test_missing_values_name_key_and_file(places):
    (places[0] / "bare.yaml").write_text("node_addresses: [10.0.0.1]\n")
    found = blockers(plan_of(*TWO_NODES, "site=bare"))
    addresses, interface = found["site.too_few_addresses"], found["site.no_interface"]
    assert addresses.at == "site.node_addresses"
    assert addresses.fix == "site.node_addresses=[10.0.0.1,<node 1>]"
    assert "site/bare.yaml" in addresses.why
    assert str(addresses.source) == "site/bare.yaml:1"
    assert interface.at == "site.network_interface"


def test_fix_of_addresses_works_when_filled_in(places):
    (places[0] / "fixed.yaml").write_text("node_addresses: [10.0.0.1]\n")
    words = ("site.node_addresses=[10.0.0.1,10.0.0.2]", "site.network_interface=eth0")
    assert "site.too_few_addresses" in blockers(plan_of(*TWO_NODES, "site=fixed"))
    assert not {k for k in blockers(plan_of(*TWO_NODES, "site=fixed", *words)) if "site." in k}


def test_one_node_needs_no_network():
    found = blockers(plan_of("recipe=deepseek_v4_a3", "runtime=vllm_ascend"))
    assert not {key for key in found if key.startswith("site.")}


@pytest.mark.parametrize(
    ("ids", "id"),
    [("[0,1,1]", "site.repeated_device"), ("[0,1,2]", "site.too_few_devices"), ("[]", None)],
)
def test_devices(ids, id):
    found = blockers(plan_of("recipe=deepseek_v4_a3", f"site.device_ids={ids}"))
    assert {key for key in found if key.startswith("site.")} >= ({id} if id else set())
    if id:
        again = blockers(plan_of("recipe=deepseek_v4_a3", f"site.device_ids={ids}", found[id].fix))
        assert id not in again


SOURCE = "site.sources.deepseek_v4_flash.w8a8"


def test_checkpoint_from_modelscope():
    words = (f"{SOURCE}={{modelscope: org/flash, revision: v1}}", "site.proxy=http://proxy:3128")
    plan = plan_of("recipe=deepseek_v4_a3", *words).plan
    assert plan.engine["model"] == plan.model.checkpoint == "org/flash"
    assert plan.engine["revision"] == "v1"
    assert plan.env["VLLM_USE_MODELSCOPE"] == "True"
    assert plan.env["HTTPS_PROXY"] == "http://proxy:3128"


def test_checkpoint_in_a_folder_needs_no_proxy():
    words = (f"{SOURCE}={{path: /data/flash}}", "site.proxy=http://proxy:3128")
    plan = plan_of("recipe=deepseek_v4_a3", *words).plan
    assert plan.engine["model"] == "/data/flash"
    assert not {"revision"} & set(plan.engine)
    assert not {"VLLM_USE_MODELSCOPE", "HTTPS_PROXY"} & set(plan.env)


def test_path_of_the_recipe_wins():
    words = (f"{SOURCE}={{hub: org/flash}}", "checkpoint.path=/mine")
    assert plan_of("recipe=deepseek_v4_a3", *words).plan.engine["model"] == "/mine"


@pytest.mark.parametrize(
    "word",
    [
        f"{SOURCE}={{hub: a/b, path: /c}}",
        f"{SOURCE}={{path: /c, revision: v1}}",
        f"{SOURCE}={{revision: v1}}",
        "site.proxy='http://me:secret@proxy:3128'",
        "site.node_addresses=[0.0.0.0]",
        "site.weight_roots=[]",
        "site.secrets={HF_TOKEN: hf_abc}",
    ],
)
def test_nonsense_is_refused(word):
    assert "schema.value" in refused("recipe=deepseek_v4_a3", word)
