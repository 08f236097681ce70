"""The text of `ascend-run --help`, generated from the tables that the parser uses."""

from collections.abc import Iterable

from ascend_recipes.cli.arguments import COMMANDS, FLAGS
from ascend_recipes.errors import ExitCode

_HEAD = """\
ascend-run: serve large language models with vLLM on Ascend NPUs, from recipes

usage: ascend-run [COMMAND] recipe=NAME [key=value …] [flags]

  ascend-run list
  ascend-run plan recipe=NAME parallel.tp=4
  ascend-run generate recipe=NAME device=emulated scale=tiny --prompt "你好"
"""

_OVERRIDES = """\
overrides (Hydra's grammar; JSON values may be pasted as they are):
  graph=none                  another preset of a section
  scheduler.max_num_seqs=64   one value
  scheduler={"max_num_seqs":64,"max_model_len":32768}
                              several values of a section
  -m parallel.tp=2,4          every value in turn, with plan or check
"""

_MEANINGS = {
    ExitCode.OK: "all is well",
    ExitCode.INTERNAL: "an error of our own",
    ExitCode.USAGE: "a word, flag, recipe or key that does not exist",
    ExitCode.FINDINGS: "the configuration is wrong (or, with --strict, doubtful)",
    ExitCode.ENVIRONMENT: "this machine lacks something: a device, a checkpoint, a free port",
    ExitCode.LAUNCH: "vLLM did not start, or did not stay up",
    ExitCode.INTERRUPTED: "interrupted",
}


def help_text() -> str:
    """Commands, flags, override grammar and exit codes."""
    sections = [
        _HEAD,
        "commands:\n" + _table((name, summary) for name, summary in COMMANDS.items()),
        "flags:\n"
        + _table((_flag_head(*flag.names, value=flag.value), flag.summary) for flag in FLAGS),
        _OVERRIDES,
        "exit codes:\n" + _table((str(int(code)), text) for code, text in _MEANINGS.items()),
    ]
    return "\n".join(sections).rstrip()


def _flag_head(*names: str, value: str) -> str:
    return ", ".join(names) + (f" {value}" if value else "")


def _table(rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    width = max(len(head) for head, _ in rows)
    return "".join(f"  {head:<{width}}  {text}\n" for head, text in rows)
