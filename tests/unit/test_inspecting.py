"""explain, show, diff, schema, completion, init and check --all: for people and for programs."""

import json
import shutil
import subprocess

import pytest

from ascend_recipes.cli.checking import Verdict, check_all, names_to_check
from ascend_recipes.cli.main import main
from ascend_recipes.commands.completion import SCRIPTS
from ascend_recipes.commands.init import starter_recipe
from ascend_recipes.compose import recipe_names
from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.paths import data_root
from ascend_recipes.registry.load import load_registry

RECIPE = "recipe=deepseek_v4_a3"
REGISTRY = load_registry()


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs a command line in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def document(run):
    """Runs a command line with --json and reads its document."""

    def call(*words: str) -> dict:
        code, out, _ = run(*words, "--json")
        tree = json.loads(out)
        assert tree["exit_code"] == code
        return tree

    return call


def test_explain_shows_value_layers_and_reason(run):
    code, out, _ = run("explain", "engine.max_num_seqs", RECIPE, "scheduler.max_num_seqs=7")
    assert code == 0
    assert "engine.max_num_seqs = 7" in out
    assert "command line <- recipes/recipe/deepseek_v4_a3.yaml:" in out


def test_explain_without_a_key_covers_the_plan(document):
    values = document("explain", RECIPE)["values"]
    assert {item["part"] for item in values} == {"plan"}
    assert len(values) > 60
    assert all(item["layers"] and item["because"] for item in values)


def test_explain_takes_the_end_of_a_path(document):
    (value,) = document("explain", "compressor", RECIPE)["values"]
    assert value["key"] == "operations.compressor"
    keys = [item["key"] for item in document("explain", "max_num_seqs", RECIPE)["values"]]
    assert keys == ["engine.max_num_seqs", "scheduler.max_num_seqs"]


def test_explain_proposes_a_key_that_it_explains(run, document):
    (item,) = document("explain", "max_num_sekvs", RECIPE)["findings"]
    assert item["id"] == "explain.unknown_key"
    assert item["fix"] == f"ascend-run explain engine.max_num_seqs {RECIPE}"
    assert run(*item["fix"].split()[1:])[0] == ExitCode.OK


def test_explain_takes_one_key(document):
    tree = document("explain", "engine", "server", RECIPE)
    assert tree["exit_code"] == ExitCode.USAGE
    assert tree["findings"][0]["id"] == "usage.too_many_words"


def test_show_tells_hardware_layout_sources_and_what_runs(run, document):
    code, out, _ = run("show", "deepseek_v4_a3_pd")
    assert code == 0
    for text in ("role decode", "role prefill", "16 dies (8 cards)", "DeepSeek-V4-Flash.md"):
        assert text in out
    tree = document("show", RECIPE)
    assert tree["facts"]["runs on"].startswith(("planned only", "native runtime"))
    assert tree["sources"]


def test_show_prints_the_reasons_for_what_rules_warn_about(document):
    tree = document("show", "qwen3_5_27b_w8a8_310p")
    assert tree["exceptions"][0].startswith("graph.off_stride: ")


def test_diff_lists_what_differs_and_only_that(document):
    tree = document("diff", "deepseek_v4_a3", "deepseek_v4_a3_dspark")
    keys = {item["key"] for item in tree["differences"]}
    assert {"drafter.kind", "features.attention.context_parallel"} <= keys
    assert "engine.max_model_len" not in keys
    only = next(i for i in tree["differences"] if i["key"] == "features.attention.context_parallel")
    assert only == {"key": "features.attention.context_parallel", "right": True}


def test_diff_of_a_recipe_with_itself_is_empty(document):
    assert document("diff", "qwen3_5_27b_a2", "qwen3_5_27b_a2")["differences"] == []


def test_diff_applies_overrides_to_both(document):
    tree = document("diff", "qwen3_5_27b_w8a8_a2", "qwen3_5_27b_w8a8_a3", "serving.port=9")
    assert "server.port" not in {item["key"] for item in tree["differences"]}


@pytest.mark.parametrize("names", [(), ("deepseek_v4_a3",), ("a", "b", "c")])
def test_diff_takes_two_names(document, names):
    tree = document("diff", *names)
    assert tree["exit_code"] == ExitCode.USAGE
    assert tree["findings"][0]["id"] == "usage.diff_names"


def test_schema_prints_json_for_people_and_programs(run, document):
    code, out, _ = run("schema", "graph")
    assert code == 0
    assert "capture_sizes" in json.dumps(json.loads(out))
    tree = document("schema")
    assert tree["name"] == "recipe"
    assert "models" in tree["names"]
    assert tree["schema"]["properties"]["scheduler"]


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_completion_script_is_accepted_by_its_shell(run, tmp_path, shell):
    code, out, _ = run("completion", shell)
    assert code == 0
    assert "ascend-run completion words" in out
    program = shutil.which(shell)
    if program and shell != "fish":
        path = tmp_path / "script"
        path.write_text(out)
        assert subprocess.run([program, "-n", str(path)], check=False).returncode == 0


@pytest.mark.parametrize(
    ("prefix", "word"),
    [
        ("", "explain"),
        ("exp", "explain"),
        ("recipe=kimi", "recipe=kimi_k3_w4a8_a3_4n"),
        ("graph=", "graph=full_decode"),
        ("dra", "drafter="),
        ("parallel.d", "parallel.dp="),
        ("graph.cap", "graph.capture_sizes="),
        ("--js", "--json"),
    ],
)
def test_completion_knows_what_may_follow(run, prefix, word):
    code, out, _ = run("completion", "words", prefix)
    assert code == 0
    assert word in out.splitlines()
    assert all(line.startswith(prefix) for line in out.splitlines())


def test_completion_of_nonsense_is_empty_and_of_an_unknown_shell_a_mistake(run, document):
    assert run("completion", "words", "zzz") == (0, "", "")
    assert document("completion", "tcsh")["findings"][0]["id"] == "completion.unknown_shell"


UNSERVED = [
    (model, "310p")
    for model in ("deepseek_v4_flash", "deepseek_v4_pro", "glm_5", "glm_5_1", "glm_5_2", "kimi_k3")
]
PAIRS = [(model, machine) for model in REGISTRY.models for machine in REGISTRY.hardware]


@pytest.mark.parametrize(("model", "hardware"), [pair for pair in PAIRS if pair not in UNSERVED])
def test_starter_recipe_plans_without_findings(tmp_path, findings, model, hardware):
    (tmp_path / "recipe").mkdir()
    text = starter_recipe(REGISTRY, model=model, hardware=hardware)
    (tmp_path / "recipe" / "starter.yaml").write_text(text)
    assert findings("recipe=starter", config_dirs=(tmp_path,)) == ()


@pytest.mark.parametrize(("model", "hardware"), UNSERVED)
def test_starter_recipe_says_what_a_combination_lacks(model, hardware):
    with pytest.raises(RecipeError) as caught:
        starter_recipe(REGISTRY, model=model, hardware=hardware)
    assert caught.value.findings[0].id in ("init.no_backend", "init.no_checkpoint")


def test_init_writes_a_new_file_and_never_over_one(run, document, tmp_path):
    words = ("init", "mine", "model=qwen3_6_27b", "hardware=a3")
    code, out, err = run(*words)
    assert code == 0
    assert "wrote" in out
    assert "recipe=mine" in err
    assert (tmp_path / "recipe" / "mine.yaml").is_file()
    assert document(*words)["findings"][0]["id"] == "init.exists"
    plan = document("plan", "recipe=mine", "--config-dir", str(tmp_path))
    assert plan["plan"]["model"]["key"] == "qwen3_6_27b"


def test_folder_that_is_a_checkout_of_ours_has_no_second_rows(document):
    words = ("plan", RECIPE, "--config-dir", str(data_root()))
    assert document(*words)["exit_code"] == ExitCode.OK


def test_init_without_a_name_prints_the_recipe(run, tmp_path):
    code, out, _ = run("init", "model=kimi_k3", "hardware=a3")
    assert code == 0
    assert out.startswith("# @package _global_\n")
    assert not (tmp_path / "recipe").exists()


@pytest.mark.parametrize(
    ("words", "id"),
    [
        ((), "usage.init_missing"),
        (("model=kimi_k3",), "usage.init_missing"),
        (("model=kimi_k3", "hardware=a3", "parallel.tp=2"), "usage.init_word"),
        (("model=kimi_k2", "hardware=a3"), "registry.unknown_key"),
    ],
)
def test_init_refuses_what_it_cannot_use(document, words, id):
    tree = document("init", *words)
    assert tree["exit_code"] == ExitCode.USAGE
    assert tree["findings"][0]["id"] == id


def test_check_all_covers_every_recipe_in_parallel_and_alone(document):
    tree = document("check", "--all")
    assert [item["recipe"] for item in tree["recipes"]] == [item.name for item in recipe_names()]
    assert all(item["digest"] and not item["findings"] for item in tree["recipes"])


def test_check_all_with_a_folder_checks_the_recipes_in_it(document, tmp_path):
    place = ["--config-dir", str(tmp_path)]
    (tmp_path / "recipe").mkdir()
    # A folder without recipes brings presets or rows: then every recipe is meant.
    assert names_to_check((tmp_path,)) == [item.name for item in recipe_names()]
    (tmp_path / "recipe" / "ours.yaml").write_text(
        "# @package _global_\ndefaults: [glm_5_w4a8_a2]\n"
    )
    tree = document("check", "--all", *place)
    assert [item["recipe"] for item in tree["recipes"]] == ["ours"]


def test_broken_file_hides_no_other_recipe(document, run, tmp_path):
    (tmp_path / "recipe").mkdir()
    text = "# @package _global_\ndefaults: [glm_5_w4a8_a2]\n"
    (tmp_path / "recipe" / "ours.yaml").write_text(text)
    (tmp_path / "recipe" / "broken.yaml").write_text("a: [\n")
    place = ["--config-dir", str(tmp_path)]
    tree = document("check", "--all", *place)
    found = {item["recipe"]: [x["id"] for x in item["findings"]] for item in tree["recipes"]}
    assert found == {"broken": ["file.invalid_yaml"], "ours": []}
    code, out, _ = run("list", *place)
    assert code == 0
    assert "broken.yaml is no YAML" in out


def test_check_all_reports_refusals(tmp_path):
    verdicts = check_all(("parallel.tp=7",), (), workers=2)
    # Roles of a disaggregated recipe may have numbers of their own.
    assert all(item.refused or item.recipe.endswith("_pd") for item in verdicts)
    assert sum(item.refused for item in verdicts) > 60
    found = {finding.id for item in verdicts for finding in item.findings}
    assert "parallel.heads_not_divisible" in found


def warned_recipes(tree):
    return {
        item["recipe"]
        for item in tree["recipes"]
        if any(found["severity"] == "warn" for found in item["findings"])
    }


def test_check_all_counts_warnings_and_says_how_to_read_them(capsys, document):
    tree = document("check", "--all", "runtime=vllm_ascend")
    warned = warned_recipes(tree)
    assert tree["ok"]
    assert warned
    assert main(["check", "--all", "runtime=vllm_ascend", "--strict"]) == ExitCode.FINDINGS
    said = capsys.readouterr()
    rows = {line.split()[0]: line for line in said.out.splitlines() if not line.startswith(" ")}
    assert {name for name, line in rows.items() if " warned " in line} == warned
    ids = [
        found["id"]
        for item in tree["recipes"]
        for found in item["findings"]
        if found["severity"] == "warn"
    ]
    assert f"0 refused, {len(warned)} with {len(ids)} warnings" in said.err
    assert all(f"{id} {ids.count(id)}" in said.err for id in ids)
    assert "ascend-run check recipe=NAME runtime=vllm_ascend tells more" in said.err


def test_remarks_do_not_fail_a_strict_check(monkeypatch, capsys):
    remark = finding("moe.a2_mc2", ranks=1, each=2, least=3, most=4)
    noted = Verdict("one", "0123", (remark,))
    monkeypatch.setattr("ascend_recipes.cli.checking.check_all", lambda *_: [noted])
    assert main(["check", "--all", "--strict", "--lang", "zh"]) == ExitCode.OK
    said = capsys.readouterr()
    assert "noted" in said.out
    assert remark.message_zh in said.out
    assert "拒绝 0 个，0 个有警告" in said.err


def test_all_goes_with_check_only(document):
    assert document("plan", "--all", RECIPE)["findings"][0]["id"] == "usage.all_without_check"
