"""Findings about commands: each fires where it should, at its line, and stays silent elsewhere."""

import pytest

from ascend_recipes.errors import Severity
from ascend_recipes.lint.files import read_text
from ascend_recipes.lint.judge import Report, judge_reading, lint_paths
from ascend_recipes.surface.load import load_surface

MODEL = "Eco-Tech/Qwen3.5-27B-w8a8-mtp"
GOOD = (
    f"vllm serve {MODEL} --quantization ascend --tensor-parallel-size 2 --max-model-len 8192 "
    "--max-num-seqs 16 --max-num-batched-tokens 4096"
)


def lint(text, version="main-2026-08", suffix=".sh"):
    reading = read_text("run.sh", text, suffix)
    return judge_reading("run.sh", reading, load_surface(version), [])


def ids(text, version="main-2026-08", suffix=".sh"):
    return {item.id for item in lint(text, version, suffix)}


def places(text, id, version="main-2026-08"):
    return [item.source.line for item in lint(text, version) if item.id == id]


@pytest.mark.parametrize("version", ["0.23.0", "0.26.0rc1", "main-2026-08", "0.32.0"])
def test_a_plain_command_has_no_finding(version):
    assert lint(GOOD, version) == []


# Cases from public issues that are about command lines, with the severity that they support.
CASES = {
    # vllm-ascend issue of a second --compilation-config that replaced the first (G18).
    "G18": (
        f"vllm serve {MODEL} --tensor-parallel-size 2 --max-model-len 8192 --max-num-seqs 128 \\\n"
        "  --max-num-batched-tokens 8192 --quantization ascend \\\n"
        '  --speculative-config \'{"method": "qwen3_5_mtp", "num_speculative_tokens": 3}\' \\\n'
        '  --compilation-config \'{"cudagraph_mode": "FULL_DECODE_ONLY"}\' \\\n'
        "  --compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4, 8, 16, 32, 64]}'\n",
        "main-2026-08",
        "cli.duplicate_flag",
        5,
        Severity.WARNING,
    ),
    "V09": (
        f"{GOOD} \\\n --additional-config '{{\"fuse_muls_add\": true}}'",
        "main-2026-08",
        "config.unknown_key",
        2,
        Severity.ERROR,
    ),
    "V10": (
        f"{GOOD} \\\n --additional-config '{{\"enable_sparse_c8\": true}}'",
        "main-2026-08",
        "config.renamed_key",
        2,
        Severity.ERROR,
    ),
    "V19": (
        f"export VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE=1\n{GOOD}",
        "main-2026-08",
        "env.dead",
        1,
        Severity.WARNING,
    ),
    "R01": (
        f"{GOOD} \\\n --enable-dbo",
        "main-2026-08",
        "cli.reset",
        2,
        Severity.WARNING,
    ),
    "R02": (
        f"{GOOD} \\\n --calculate-kv-scales",
        "main-2026-08",
        "cli.reset",
        2,
        Severity.WARNING,
    ),
    "E14": (
        f'{GOOD} \\\n --additional-config \'{{"layer_sharding": ["o_proj"]}}\'',
        "main-2026-08",
        "config.dead_key",
        2,
        Severity.ERROR,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_public_cases(case):
    text, version, id, line, least = CASES[case]
    found = [item for item in lint(text, version) if item.id == id]
    assert [item.source.line for item in found] == [line]
    assert found[0].severity is least or found[0].severity is Severity.ERROR


@pytest.mark.parametrize(
    ("flags", "id"),
    [
        ("--max-num-seq 4 --max-num-seqz 4", "cli.unknown_flag"),
        ("--task reward", "cli.unknown_flag"),
        ("--swap-space 4", "cli.dead_flag"),
        ("--kv-cache-dtype fp77", "cli.wrong_value"),
        ("--block-size large", "cli.wrong_type"),
        ("--compilation-config.no_such_field 1", "cli.unknown_flag"),
        ("--compilation-config '{\"no_such_field\": 1}'", "cli.unknown_flag"),
        ('--additional-config \'{"eplb_config": {"no_such": 1}}\'', "config.unknown_key"),
        ("--additional-config.no_such 1", "config.unknown_key"),
        ("--enable-expert-parallel True", "lint.stray_value"),
        ("-- stray", "lint.stray_word"),
    ],
)
def test_names_and_values(flags, id):
    assert id in ids(f"{GOOD} {flags}")


@pytest.mark.parametrize(
    "flags",
    [
        "--enable-log-request",  # the parser completes what begins one flag only
        "--block_size=128",
        "--port DEFAULT_PORT",
        "--port <port>",
        "--port $PORT",
        '--lora-modules \'{"name": "a", "path": "/b"}\'',
        "--lora-modules a=/b c=/d",
        "--no-enable-prefix-caching",
        '--hf-overrides \'{"anything": {"goes": 1}}\'',
        "-O3",
        "--api-key $KEY",
        "--middleware a.B --middleware c.D",
    ],
)
def test_legal_forms_are_left_alone(flags):
    assert ids(f"{GOOD} {flags}") == set()


@pytest.mark.parametrize(
    ("value", "line", "remedy"),
    [
        ("'{\"a\": 1,}'", 2, "comma"),
        ('\'{"a": 1,\n"b": 2,\n}\'', 4, "comma"),
        ("'{\"a\": True}'", 2, "true, false or null"),
        ("\"{'a': 1}\"", 2, "double quotes"),
        ("'{\"a\": 1'", 2, "add }"),
        ("'{\"a\": 1}}'", 2, "take away }"),
        ('\'{"a": 1 "b": 2}\'', 2, "comma between"),
        ('\'{"a": 1, \\\n"b": 2}\'', 2, "backslash"),
        ("'{\"a\": 1 # why\n}'", 2, "comment"),
        ("'{\"a\": ...}'", 2, "dots"),
        ("'{" + '"a": {' * 5000 + "'", 2, ""),
    ],
)
def test_broken_json_is_found_at_its_line_with_a_remedy(value, line, remedy):
    found = [
        item
        for item in lint(f"{GOOD} \\\n --additional-config {value}")
        if item.id == "lint.broken_json"
    ]
    assert [item.source.line for item in found] == [line]
    assert remedy in found[0].fix


@pytest.mark.parametrize(
    "value",
    [
        "'{\"kv_port\": '$PORT', \"kv_role\": \"'$ROLE'\"}'",
        '"{\\"kv_port\\": \\"$PORT\\"}"',
        '"{\\"devices\\": [$A, $B]}"',
        "'{}'",
    ],
)
def test_json_with_unknown_parts_is_no_broken_json(value):
    assert "lint.broken_json" not in ids(f"{GOOD} --kv-transfer-config {value}")


def test_keys_are_judged_although_a_part_of_the_json_is_unknown():
    text = f"{GOOD} --additional-config '{{\"fuse_muls_add\": true, \"refresh\": '$R'}}'"
    assert ids(text) == {"config.unknown_key"}


def test_repetitions_say_what_is_lost():
    (found,) = lint(f"{GOOD} --dtype float16 --dtype bfloat16")
    assert (found.id, found.at) == ("cli.duplicate_flag", "--dtype")
    assert "float16" in found.message
    (same,) = lint(f"{GOOD} --dtype bfloat16 --dtype=bfloat16")
    assert (same.id, same.severity) == ("cli.same_flag_twice", Severity.INFO)


@pytest.mark.parametrize(
    ("first", "second", "lost"),
    [
        ("-tp 4", "", "4"),
        ("--compilation-config '{\"mode\": 3}'", "--compilation-config.backend eager", "mode"),
        ("--compilation-config.mode 3", "--compilation-config.mode 2", "3"),
        ("--async-scheduling", "--no-async-scheduling", "on"),
    ],
)
def test_one_flag_in_two_spellings_is_given_twice(first, second, lost):
    text = GOOD.replace("--tensor-parallel-size", f"{first} {second} --tensor-parallel-size")
    (found,) = [item for item in lint(text) if item.id == "cli.duplicate_flag"]
    assert found.message.endswith(f"lost is {lost}")


def test_two_keys_of_one_flag_in_dotted_form_are_no_repetition():
    text = f"{GOOD} --additional-config.refresh true --additional-config.weight_nz_mode 1"
    assert "cli.duplicate_flag" not in ids(text)


SPECULATIVE = '--speculative-config \'{"method": "qwen3_5_mtp", "num_speculative_tokens": 3}\''
GRAPHS = (
    '--compilation-config \'{"cudagraph_mode": "FULL_DECODE_ONLY",\n "cudagraph_capture_sizes":'
)


def test_rules_judge_commands_at_the_line_of_the_value():
    text = f"{GOOD} {SPECULATIVE} \\\n {GRAPHS} [3, 64]}}'"
    (found,) = [item for item in lint(text) if item.id == "graph.spec_multiple"]
    assert found.source.line == 3
    assert found.severity is Severity.WARNING
    assert found.fix.startswith('--compilation-config \'{"cudagraph_capture_sizes": [4')


@pytest.mark.parametrize("model", ["/data/anything", "$MODEL", "<model path>"])
def test_rules_that_need_no_model_judge_unknown_models_too(model):
    text = f"{GOOD} {SPECULATIVE} {GRAPHS} [3, 64]}}'".replace(MODEL, model)
    assert "graph.spec_multiple" in ids(text)


def test_what_a_variable_holds_is_not_assumed():
    sizes = f"{GRAPHS} [4, 8, 16]}}'"
    assert "graph.off_stride" in ids(f"{GOOD.replace('-seqs 16', '-seqs 32')} {sizes}")
    assert "graph.off_stride" not in ids(f"{GOOD.replace('-seqs 16', '-seqs $N')} {sizes}")
    assert "graph.spec_multiple" in ids(
        f"{GOOD.replace('-seqs 16', '-seqs $N')} {SPECULATIVE} {GRAPHS} [3, 4, 8]}}'"
    )


def test_open_flags_keep_the_rules_silent_but_not_the_names():
    text = f"{GOOD} {SPECULATIVE} {GRAPHS} [3, 64]}}' --swap-space 4 $MORE"
    assert ids(text) == {"cli.dead_flag"}


def test_variables_are_judged_once_wherever_they_are_exported(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "e: &e {VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE: '1'}\n"
        "s:\n- {envs: *e, run: vllm serve m}\n- {envs: *e, run: vllm serve n}\n"
    )
    report = lint_paths([tmp_path], "main-2026-08")
    assert [(item.id, item.source.line) for item in report.findings] == [("env.dead", 1)]


def test_versions_differ():
    text = f"{GOOD} --additional-config '{{\"enable_flashcomm1\": true}}'"
    assert "config.renamed_key" not in ids(text, "0.23.0")
    assert "config.renamed_key" in ids(text, "main-2026-08")


def test_reports_tell_their_worst_severity():
    report = Report("x")
    assert report.worst is None
    report.findings = lint(f"{GOOD} --dtype a --dtype b")
    assert report.worst is Severity.ERROR


def decoding(seqs, *flags, mode='{"cudagraph_mode": "FULL_DECODE_ONLY"}'):
    """A command of a public case (G01) that lists no capture sizes."""
    words = [
        "vllm serve Qwen/Qwen3.5-27B --tensor-parallel-size 4 --max-model-len 32768",
        f"--max-num-seqs {seqs}",
        *([f"--compilation-config '{mode}'"] if mode else []),
        *flags,
    ]
    return " \\\n  ".join(words) + "\n"


def test_a_ladder_that_follows_from_the_requests_is_judged():
    """It ends at the last of 1, 2, 4 and the multiples of 8 below the requests."""
    for seqs in range(1, 101):
        rungs = {1, 2, 4, *range(8, 101, 8)}
        found = places(decoding(seqs), "graph.off_stride")
        assert found == ([] if seqs in rungs else [3]), seqs


MTP = '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\''


@pytest.mark.parametrize(
    "command",
    [
        decoding(12, mode=""),
        decoding("$SEQS"),
        decoding(
            12, mode='{"cudagraph_mode": "FULL_DECODE_ONLY", "max_cudagraph_capture_size": 12}'
        ),
        decoding(12, "--max-cudagraph-capture-size 16"),
        decoding(12, "--enforce-eager"),
        decoding(12, '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 1}\''),
        decoding(8, MTP),
        # Twenty-four tokens a step hold eight whole requests, which have a graph.
        decoding(10, MTP, "--max-num-batched-tokens 26"),
    ],
)
def test_a_ladder_that_does_not_follow_is_left_alone(command):
    assert "graph.off_stride" not in ids(command)


def test_drafts_count_in_the_ladder():
    # Thirty tokens, and the last rung of whole requests below is 24.
    (found,) = [item for item in lint(decoding(10, MTP)) if item.id == "graph.off_stride"]
    assert "25 to 30" in found.message


@pytest.mark.parametrize("key", ["enable_sparse_li_c8", "enable_sparse_sfa_c8"])
def test_a_model_that_nobody_knows_may_have_any_attention(key):
    """Idle without an index, needed with one: which of them a private path holds is not known."""
    flags = f"--max-model-len 8192 --additional-config '{{\"{key}\": true}}'"
    assert "config.sparse_idle" not in ids(f"vllm serve /models/mine {flags}")
    assert "config.sparse_idle" in ids(f"vllm serve Qwen/Qwen3.5-27B {flags}")


def test_a_model_that_a_row_knows_is_judged_by_its_row():
    """Heads of Qwen3.5-27B divide by 3, its layers of linear attention do not."""
    command = "vllm serve {} --tensor-parallel-size 3 --max-model-len 8192"
    for known in ("Qwen/Qwen3.5-27B", MODEL, "/data/Qwen3.5-27B-w8a8"):
        assert "parallel.heads_not_divisible" in ids(command.format(known))
    assert "parallel.heads_not_divisible" not in ids(command.format("/data/mine"))


@pytest.mark.parametrize(
    ("command", "id"),
    [
        # Only the beginning of the name is known: what its weights are is a guess.
        ("vllm serve /data/DeepSeek-V4-Flash-test-w4a8 --tensor-parallel-size 8", "quant."),
        # The configuration is changed: so may be the context that it admits.
        (
            "vllm serve Qwen/Qwen3.5-27B --tensor-parallel-size 4 --max-model-len 1010000 "
            '--hf-overrides \'{"text_config": {"rope_parameters": {"factor": 4.0}}}\'',
            "scheduler.context_too_long",
        ),
    ],
)
def test_a_name_supports_no_more_than_it_says(command, id):
    assert not [name for name in ids(command) if name.startswith(id)]


def test_what_the_name_says_is_judged():
    command = "vllm serve Qwen/Qwen3.5-27B --tensor-parallel-size 4 --max-model-len 1010000"
    assert "scheduler.context_too_long" in ids(command)


TABS = """\
=== "A2 series"

    ```bash
    {0} --port 1
    ```

Two machines of A3 are needed.

```bash
{0} --port 2
```
"""


def test_a_tab_ends_with_its_indentation():
    """Sixteen dies of two machines: too many for A2, and enough for the text behind the tab."""
    command = f"{GOOD} --data-parallel-size 16 --data-parallel-size-local 8"
    found = lint(TABS.format(command), suffix=".md")
    lines = [item.source.line for item in found if item.id == "parallel.world_exceeds_nodes"]
    assert lines == [4]
