"""The recorder of documented commands, on a repository made for it."""

import json
import subprocess

import pytest

from ascend_recipes.documented.recording import recorded_again

PAGE = """\
# A model

```shell
export HCCL_BUFFSIZE=512
export HCCL_IF_IP=10.0.0.1
vllm serve somebody/model \\
    --port 8000 \\
    --max-num-seqs 16 --no-enable-prefix-caching \\
    --kv-transfer-config '{"kv_connector_extra_config": {"connectors": [{"kv_connector": "A"}]}}' \\
    --compilation-config '{"cudagraph_capture_sizes": [1, 2]}'
```
"""


@pytest.fixture
def repository(tmp_path):
    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        done = ["git", *who, "-C", str(tmp_path), *words]
        return subprocess.run(done, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    git("add", "page.md")
    git("commit", "--quiet", "--message", "page")
    return tmp_path, git("rev-parse", "HEAD")


def row(commit: str, line: int) -> str:
    fields = {"deployment": "d", "role": "serve", "version": "0.23.0", "file": "page.md"}
    return json.dumps([{**fields, "commit": commit, "line": line, "arguments": {"--gone": 1}}])


def test_arguments_are_those_of_the_document(repository):
    folder, commit = repository
    text = recorded_again(row(commit, 6), folder)
    (read,) = json.loads(text)
    assert read["arguments"] == {
        "$HCCL_BUFFSIZE": "512",
        "--compilation-config.cudagraph_capture_sizes": [1, 2],
        "--enable-prefix-caching": False,
        "--kv-transfer-config.kv_connector_extra_config.connectors.0.kv_connector": "A",
        "--max-num-seqs": 16,
    }
    assert recorded_again(text, folder) == text


def test_a_line_without_a_command_is_refused(repository):
    folder, commit = repository
    with pytest.raises(ValueError, match=r"page\.md: no command begins at line 7; commands: 6"):
        recorded_again(row(commit, 7), folder)
