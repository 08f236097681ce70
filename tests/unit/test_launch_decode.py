"""Logs of failed starts, and what people are told about them."""

import pytest

from ascend_recipes.launch.decode import decode_failure, find_death_notice
from ascend_recipes.launch.stages import LogWatcher

CORE = "(EngineCore pid=12) ERROR 11-30 01:12:55 [core.py:1510] "
API_SERVER_TRACEBACK = """\
Traceback (most recent call last):
  File "x.py", line 1, in <module>
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def decoded(tmp_path, text, returncode=1):
    log = tmp_path / "vllm.log"
    log.write_text(text, encoding="utf-8")
    return decode_failure(log, returncode)


def traceback_of(error, prefix=CORE):
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):"]
    lines += ['  File "core.py", line 3, in run', "    boot()", "    ^^^^^^", error]
    return "\n".join(prefix + line for line in lines) + "\n" + API_SERVER_TRACEBACK


def test_root_cause_wins_over_its_wrapper(tmp_path):
    finding = decoded(tmp_path, traceback_of("some.module.OperatorRefused: x is not contiguous"))
    assert finding.id == "launch.failed"
    assert "OperatorRefused: x is not contiguous" in finding.message
    assert "vllm.log" in finding.fix


def test_our_own_findings_keep_their_id(tmp_path):
    line = "ascend_recipes.errors.RecipeError: registry.unknown_key: hooks has no 'nope'"
    finding = decoded(tmp_path, traceback_of(line))
    assert (finding.id, finding.message) == ("registry.unknown_key", "hooks has no 'nope'")


def test_our_own_findings_are_told_in_chinese_too(tmp_path):
    line = (
        "ascend_recipes.errors.RecipeError: registry.unknown_key: hooks has no 'nope'; it has a, b"
    )
    found = decoded(tmp_path, traceback_of(line))
    assert found.message == "hooks has no 'nope'; it has a, b"
    assert found.message_zh == "hooks 中没有 'nope'；可选：a, b"


def test_validation_errors_come_with_their_detail(tmp_path):
    error = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig"
    text = f"Traceback (most recent call last):\n  File\n{error}\n  Value error, heads 24 by 5\n"
    assert "heads 24 by 5" in decoded(tmp_path, text).message


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (
            "ERROR 11-30 01:00:00 [__init__.py:60] Failed to load plugin ascend_recipes",
            "log.plugin_failed",
        ),
        ("OSError: [Errno 98] Address already in use", "log.port_in_use"),
        ("RuntimeError: error code is 207005, alloc sq failed", "log.streams_exhausted"),
        ("EL0009 stream resource", "log.stream_resources"),
        ("EI0006: socket timeout", "log.hccl_link_timeout"),
        ("EZ1001 socVersion does not support opType", "log.soc_version"),
        ("tiling failed in dispatch", "log.dispatch_window"),
        ("Available KV cache memory: -3.2 GiB", "log.cache_memory_negative"),
        (
            "ValueError: x is larger than the maximum number of tokens that can be stored",
            "log.cache_too_small",
        ),
        ("torch.OutOfMemoryError: NPU out of memory", "log.out_of_device_memory"),
        ("RuntimeError: Failed to infer device type", "log.no_platform"),
    ],
)
def test_known_causes(tmp_path, line, id):
    finding = decoded(tmp_path, line + "\n" + API_SERVER_TRACEBACK)
    assert finding.id == id
    assert finding.fix
    assert "Engine core initialization failed" not in finding.message


def test_a_cause_wins_over_what_follows_and_names_its_log(tmp_path):
    text = "EI0002: Notify register times out\nEI0006: Getting socket times out\n"
    finding = decoded(tmp_path, text + API_SERVER_TRACEBACK)
    assert finding.id == "log.hccl_link_timeout"
    assert finding.fix == (
        f"env.HCCL_CONNECT_TIMEOUT=<more>; ascend-run doctor --log {tmp_path / 'vllm.log'}"
    )
    assert "<更大>；ascend-run doctor" in finding.fix_zh


def test_what_only_follows_is_no_cause(tmp_path):
    finding = decoded(tmp_path, "EI0002: Notify register times out\nbye\n")
    assert finding.id == "launch.failed"
    assert finding.fix == f"ascend-run doctor --log {tmp_path / 'vllm.log'}"


def test_silent_end_is_said_to_be_silent(tmp_path):
    assert "without a word" in decoded(tmp_path, "", -9).message
    assert "-9" in decoded(tmp_path, "", -9).message
    assert "last words were: bye" in decoded(tmp_path, "hello\nbye\n").message
    assert "hangs" in decode_failure(tmp_path / "absent.log", None).message


def test_death_notice(tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(f"{CORE}Worker proc VllmWorker-1 died unexpectedly (exit code: -9), stop\n")
    assert (
        find_death_notice(log) == "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), stop"
    )
    log.write_text("all is well\n")
    assert find_death_notice(log) is None


class Recorder:
    """Listener that keeps what it is told."""

    def __init__(self):
        self.events = []

    def begin(self, stage):
        self.events.append(stage)

    def detail(self, text):
        self.events.append(f"  {text}")

    def end(self):
        self.events.append("end")

    def abandon(self):
        self.events.append("abandon")


def test_stages_follow_the_log_as_it_grows(tmp_path):
    log, recorder = tmp_path / "vllm.log", Recorder()
    log.write_text("")
    watcher = LogWatcher(log, recorder)
    for text in (
        "INFO Starting to load model /m...\n",
        "Loading safetensors checkpoint shards:  50% Completed\rLoading safetensors checkpoint",
        " shards: 100% Completed\nINFO Model loading took 1.0 GiB memory and 2.0 seconds\n",
        "INFO GPU KV cache size: 1,024 tokens, Maximum concurrency\n",
        "INFO init engine (profile, create kv cache, warmup model) took 3 s\n",
    ):
        with log.open("a") as stream:
            stream.write(text)
        watcher.poll()
    assert watcher.stage == "ready"
    assert recorder.events == [
        "load",
        "  model /m",
        "  weights 50 %",
        "  weights 100 %",
        "cache",
        "  cache of 1,024 tokens",
        "ready",
    ]
