"""The hooks run through pre-commit itself, in a repository that is thrown away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GOOD = "vllm serve Qwen/Qwen3.5-27B --max-num-seqs 8\n"
BAD = "vllm serve Qwen/Qwen3.5-27B --max-num-seqs 8 --swap-space 4\n"
RECIPE = """\
# @package _global_
defaults: [qwen3_5_27b_a2]
scheduler: {{max_num_seqs: {seqs}}}
"""


def git(folder, *words):
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """A repository with our hooks, run by the program that is installed: nothing is downloaded."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    for hook in hooks:
        hook["language"] = "system"
        if hook["id"] == "ascend-check":
            hook["args"] = ["--config-dir", "deploy"]
    config = {"repos": [{"repo": "local", "hooks": hooks}]}
    (tmp_path / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "start.sh").write_text(GOOD)
    (tmp_path / "notes.txt").write_text(BAD)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    return tmp_path


def run(repository, hook):
    """Exit status and output of one hook over every file."""
    git(repository, "add", ".")
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", hook, "--all-files", "--verbose"],
        cwd=repository,
        capture_output=True,
        text=True,
        env=os.environ
        | {
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "PRE_COMMIT_HOME": str(repository / ".cache"),
            "OMP_NUM_THREADS": "1",
        },
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_lint_is_given_scripts_pages_and_manifests(repository):
    code, told = run(repository, "ascend-lint")
    assert code == 0, told
    # The configuration itself is YAML; a text file is nobody's script.
    assert "2 file(s), 1 server command(s)" in told
    (repository / "page.md").write_text(f"```bash\n{BAD}```\n")
    code, told = run(repository, "ascend-lint")
    assert code == 1
    assert "exit code: 3" in told
    assert "page.md:2" in told
    assert "cli.dead_flag" in told


def test_check_judges_the_recipes_of_the_folder(repository):
    recipe = repository / "deploy" / "recipe" / "ours.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(RECIPE.format(seqs=16))
    code, told = run(repository, "ascend-check")
    assert code == 0, told
    recipe.write_text(RECIPE.format(seqs=0))
    code, told = run(repository, "ascend-check")
    assert code == 1
    assert "ours" in told
    assert "scheduler.max_num_seqs" in told
