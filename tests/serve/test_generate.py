"""`ascend-run generate` on the tiny model, as a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import conforming
from tests.serve.launcher import TINY, environment

pytestmark = [pytest.mark.serve, pytest.mark.vllm]

PROMPTS = ("你好，世界", "Hello, world", "it's", "a=b", '{"a":1}', "${x}", "🙂", "two\nlines")


OF_SERVERS = "extra_args.default_chat_template_kwargs={enable_thinking: false}"
"""An argument that an engine without a server has no use for, and does not stop at."""


@pytest.fixture(scope="module")
def generated():
    flags = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    code = "import sys; from ascend_recipes.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "generate",
            *TINY,
            OF_SERVERS,
            "--json",
            "--max-tokens",
            "6",
            *flags,
        ],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "compose" in done.stderr
    return conforming(done.stdout)


def test_prompts_arrive_unchanged(generated):
    assert tuple(item["prompt"] for item in generated["outputs"]) == PROMPTS
    # The tiny tokenizer knows bytes only, so that a changed prompt changes its length or ids.
    for item in generated["outputs"]:
        assert len(item["prompt_token_ids"]) == len(item["prompt"].encode())
    assert len({tuple(item["prompt_token_ids"]) for item in generated["outputs"]}) == len(PROMPTS)


def test_every_prompt_is_answered(generated):
    for item in generated["outputs"]:
        assert 1 <= len(item["token_ids"]) <= 6
        assert item["finish_reason"] in ("length", "stop")


def test_document_says_what_ran(generated):
    assert {"compose", "plan", "load", "cache", "generate"} <= set(generated["stages"])
    assert {item["digest"] for item in generated["receipts"]} == {generated["digest"]}
    (worker,) = [item for item in generated["receipts"] if item["effective"]]
    assert all(count > 0 for count in worker["calls"].values())
    assert generated["findings"] == []
    assert (Path(generated["run_folder"]) / "prompts.json").is_file()
