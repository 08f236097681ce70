"""`deepseek_v4_a3` from its recipe as people use it: a chat, and a generation that tells drafts."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.serve.launcher import Launcher, environment

pytestmark = [pytest.mark.serve, pytest.mark.vllm]

WORDS = ("recipe=deepseek_v4_a3", "device=emulated", "scale=tiny")
MODEL = "deepseek_v4_flash"
PARSERS = ("tool-call-parser", "reasoning-parser")
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("server"), *WORDS)
    launcher.ready = launcher.wait_until_ready()
    yield launcher
    launcher.end()


def test_chat(server):
    tree = server.ready
    assert (tree["ok"], tree["model"]) == (True, MODEL)
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=120) as client:
        answers = [
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "你好，世界"}],
                max_tokens=NUM_TOKENS,
                temperature=0,
            )
            for _ in range(2)
        ]
    # The model's own chat template wraps the text: more tokens than its bytes.
    assert answers[0].usage.prompt_tokens > len("你好，世界".encode())
    assert answers[0].usage.completion_tokens == NUM_TOKENS
    # A model of random weights rarely ends its thinking: all it says may be reasoning.
    said = [answer.choices[0].message for answer in answers]
    texts = [message.content or getattr(message, "reasoning", None) for message in said]
    assert texts[0]
    assert texts[0] == texts[1]


TOOL = {
    "type": "function",
    "function": {
        "name": "weather_of_a_city",
        "description": "The weather of a city, now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def test_tools_reach_the_model(server):
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=120) as client:
        plain, armed = (
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Rain?"}],
                max_tokens=2,
                temperature=0,
                **more,
            )
            for more in ({}, {"tools": [TOOL], "tool_choice": "auto"})
        )
    described = len(json.dumps(TOOL["function"]).encode())
    assert armed.usage.prompt_tokens > plain.usage.prompt_tokens + described / 2


def test_server_has_the_parsers_of_the_family(server):
    argv = json.loads((Path(server.ready["run_folder"]) / "argv.json").read_text())
    wanted = {f"--{name}=deepseek_v4" for name in ("tokenizer-mode", *PARSERS)}
    assert wanted | {"--enable-auto-tool-choice"} <= set(argv)


def test_receipts_count_drafts(server):
    """Last: it ends the server."""
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    folder = Path(server.ready["run_folder"]) / "receipts"
    receipts = [json.loads(path.read_text()) for path in folder.iterdir()]
    (counted,) = [item["drafts"] for item in receipts if item["drafts"]]
    assert counted["proposed"] >= NUM_TOKENS
    assert counted["proposed"] > sum(counted["accepted"])


def test_generate_tells_how_many_drafts_were_accepted():
    code = "import sys; from ascend_recipes.cli.main import main; sys.exit(main())"
    options = ("--max-tokens", str(NUM_TOKENS), "--prompt", "你好，世界")
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", *WORDS, *options],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    match = re.search(r"drafts +(\d+) of (\d+) accepted \(\d+ %\)", done.stderr)
    assert match, done.stderr
    accepted, proposed = map(int, match.groups())
    assert 1 + accepted + proposed >= NUM_TOKENS
    assert accepted < proposed
