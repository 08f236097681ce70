"""Reads the command line into an `Invocation`, without knowing any recipe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ascend_recipes.errors import ExitCode, RecipeError
from ascend_recipes.findings import LANGUAGES, recipe_error
from ascend_recipes.suggest import closest, did_you_mean
from ascend_recipes.words import is_override

COMMANDS = {
    "serve": "start an OpenAI-compatible server (the default)",
    "generate": "answer the given prompts once and end",
    "plan": "print what would be started, and why",
    "check": "report findings only",
    "list": "list the recipes",
    "status": "what runs on this machine: status [RUN]",
    "logs": "the last lines of a run's logs: logs [RUN] [PROCESS…]",
    "stop": "end a run, in the reverse order of its start: stop [RUN]",
    "show": "describe a recipe: show NAME",
    "explain": "where a value, flag or variable comes from, and why: explain [KEY]",
    "diff": "what two recipes plan differently: diff A B",
    "export": "files that start a deployment without us: export recipe=… --target shell|k8s|…",
    "doctor": "what this machine lacks, or what a log means: doctor [recipe=…] [--log FILE]",
    "fix": "the smallest change that the rules accept: fix [NAME] recipe=… [--write]",
    "import": "a recipe from scripts with vllm serve: import PATH…",
    "init": "write a starter recipe: init [NAME] model=… hardware=…",
    "lint": "judge vllm serve commands in scripts, pages and manifests: lint PATH…",
    "schema": "the JSON Schema of recipe files, presets or rows: schema [NAME]",
    "completion": "completion for a shell: bash, zsh, fish",
    "transpose": "the same deployment on other machines: transpose [NAME] recipe=… --to HARDWARE",
    "ops": "who performs each operation, what a step costs, and what loads here: ops [recipe=…]",
    "patches": "what we rely on in vLLM: check, list, show KEY, diff OLD NEW",
}
_WITH_ARGUMENTS = frozenset(
    {
        "completion",
        "diff",
        "explain",
        "fix",
        "import",
        "init",
        "lint",
        "logs",
        "patches",
        "schema",
        "show",
        "status",
        "stop",
        "transpose",
    }
)
"""Commands that take bare words."""

CFG_KINDS = ("job", "hydra", "all")
TARGETS = ("ours", "vllm-ascend")
EXPORT_TARGETS = ("shell", "compose", "k8s", "slurm", "argv")
FORMATS = ("human", "json", "sarif")
INFO_KINDS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One call of `ascend-run`."""

    command: str = "serve"
    words: tuple[str, ...] = ()
    """Override words as typed, `recipe=…` among them."""
    prompts: tuple[str, ...] = ()
    """Free text, exactly as typed."""
    max_tokens: int = 64
    config_dirs: tuple[Path, ...] = ()
    nodes: tuple[int, ...] = ()
    """Nodes of a deployment that this machine is; empty finds out."""
    json: bool = False
    strict: bool = False
    every_recipe: bool = False
    format: str = "human"
    """How `lint` prints: one of `FORMATS`."""
    runtime_version: str = ""
    """Version that `lint` judges for; empty for the newest of vllm-ascend."""
    write: bool = False
    """Save what `fix` or `transpose` proposes."""
    hardware: str = ""
    """Generation of machines that `transpose` goes to."""
    quiet: bool = False
    multirun: bool = False
    help: bool = False
    version: bool = False
    cfg: str = ""
    """Which of Hydra's configurations to print: one of `CFG_KINDS`, or empty."""
    arguments: tuple[str, ...] = ()
    """Further plain words, of `patches` only."""
    vllm: str = ""
    """Version or place of the vLLM that `patches` reads; empty for the installed one."""
    targets: str = "ours"
    """Whose use of vLLM `patches` looks at: one of `TARGETS`."""
    lang: str = ""
    """Language of findings: one of `LANGUAGES`; empty to ask the environment."""
    output: str = ""
    """File that `import` writes; empty for stdout."""
    target: str = ""
    """What `export` writes: one of `EXPORT_TARGETS`."""
    out: str = ""
    """Folder that `export` writes to; empty for stdout."""
    placeholders: bool = False
    """Leave what the site does not name to variables."""
    force: bool = False
    """Replace files of others too."""
    installed: str = ""
    """File of what a machine has, or `here`, that `check` and `plan` hold against the recipe."""
    log: str = ""
    """Log that `doctor` decodes, `-` for stdin; empty to look at the machine."""
    info: str = ""
    """Which of Hydra's reports to print: one of `INFO_KINDS`, or empty."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag of the command line and what it does to the invocation."""

    names: tuple[str, ...]
    summary: str
    apply: Callable[[Invocation, str], Invocation]
    value: str = ""
    """Name of the value in the help text; empty for a switch."""
    choices: tuple[str, ...] = ()
    default: str | None = None
    """Value taken when the next word is not one of `choices`."""


def _add_prompt(invocation: Invocation, text: str) -> Invocation:
    return replace(invocation, prompts=(*invocation.prompts, text))


def _add_config_dir(invocation: Invocation, text: str) -> Invocation:
    folder = Path(text).expanduser()
    if not folder.is_dir():
        fix = "--config-dir DIR"
        raise recipe_error("usage.config_dir", exit_code=ExitCode.USAGE, fix=fix, folder=text)
    return replace(invocation, config_dirs=(*invocation.config_dirs, folder.resolve()))


def _set_max_tokens(invocation: Invocation, text: str) -> Invocation:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise _not_a_number("--max-tokens", text, fix="--max-tokens 64")
    return replace(invocation, max_tokens=int(text))


def _not_a_number(name: str, text: str, *, fix: str) -> RecipeError:
    exit_code = ExitCode.USAGE
    return recipe_error("usage.not_a_number", exit_code=exit_code, fix=fix, name=name, text=text)


def _set_format(invocation: Invocation, text: str) -> Invocation:
    return replace(invocation, format=text, json=invocation.json or text == "json")


def _add_node(invocation: Invocation, text: str) -> Invocation:
    if not (text.isascii() and text.isdigit()):
        raise _not_a_number("--node", text, fix="--node 0")
    return replace(invocation, nodes=(*invocation.nodes, int(text)))


FLAGS = (
    Flag(
        names=("--json",),
        summary="print one JSON document on stdout",
        apply=lambda invocation, _: replace(invocation, json=True),
    ),
    Flag(
        names=("--config-dir", "-cd"),
        summary="another folder with recipe/ and presets; repeatable",
        value="DIR",
        apply=_add_config_dir,
    ),
    Flag(
        names=("--prompt",),
        summary="text for generate, taken exactly as typed; repeatable",
        value="TEXT",
        apply=_add_prompt,
    ),
    Flag(
        names=("--max-tokens",),
        summary="longest answer of generate, in tokens (64)",
        value="N",
        apply=_set_max_tokens,
    ),
    Flag(
        names=("--node",),
        summary="for serve: which node of the deployment this machine is; repeatable",
        value="N",
        apply=_add_node,
    ),
    Flag(
        names=("--vllm",),
        summary="for patches: a vLLM version, folder, or REPOSITORY@REVISION",
        value="PLACE",
        apply=lambda invocation, text: replace(invocation, vllm=text),
    ),
    Flag(
        names=("--targets",),
        summary="for patches: whose use of vLLM: " + ", ".join(TARGETS),
        value="WHOSE",
        choices=TARGETS,
        apply=lambda invocation, text: replace(invocation, targets=text),
    ),
    Flag(
        names=("--lang",),
        summary="language of findings: " + ", ".join(LANGUAGES) + " (ASCEND_RECIPES_LANG)",
        value="LANG",
        choices=LANGUAGES,
        apply=lambda invocation, text: replace(invocation, lang=text),
    ),
    Flag(
        names=("--output", "-o"),
        summary="for import: file to write the recipe to",
        value="FILE",
        apply=lambda invocation, text: replace(invocation, output=text),
    ),
    Flag(
        names=("--format",),
        summary="for lint: " + ", ".join(FORMATS),
        value="FORM",
        choices=FORMATS,
        apply=_set_format,
    ),
    Flag(
        names=("--runtime-version",),
        summary="for lint: version of vllm-ascend, or release of vLLM",
        value="VERSION",
        apply=lambda invocation, text: replace(invocation, runtime_version=text),
    ),
    Flag(
        names=("--target",),
        summary="for export: " + ", ".join(EXPORT_TARGETS),
        value="FORM",
        choices=EXPORT_TARGETS,
        apply=lambda invocation, text: replace(invocation, target=text),
    ),
    Flag(
        names=("--out",),
        summary="for export: folder to write to, instead of printing",
        value="DIR",
        apply=lambda invocation, text: replace(invocation, out=text),
    ),
    Flag(
        names=("--placeholders",),
        summary="for export: leave addresses and interface that the site lacks to variables",
        apply=lambda invocation, _: replace(invocation, placeholders=True),
    ),
    Flag(
        names=("--force",),
        summary="for export: replace files that an export did not write",
        apply=lambda invocation, _: replace(invocation, force=True),
    ),
    Flag(
        names=("--multirun", "-m"),
        summary="plan or check every combination of comma lists",
        apply=lambda invocation, _: replace(invocation, multirun=True),
    ),
    Flag(
        names=("--all",),
        summary="check every recipe, over all cores",
        apply=lambda invocation, _: replace(invocation, every_recipe=True),
    ),
    Flag(
        names=("--write",),
        summary="fix, transpose: save the proposal as a recipe",
        apply=lambda invocation, _: replace(invocation, write=True),
    ),
    Flag(
        names=("--to",),
        summary="for transpose: the generation of machines, as recipes name it (a2, a3, …)",
        value="HARDWARE",
        apply=lambda invocation, text: replace(invocation, hardware=text),
    ),
    Flag(
        names=("--installed",),
        summary="for check, plan: versions of a machine, from a YAML or JSON file, or `here`",
        value="FILE",
        apply=lambda invocation, text: replace(invocation, installed=text),
    ),
    Flag(
        names=("--log",),
        summary="for doctor: decode a log, or stdin with -",
        value="FILE",
        apply=lambda invocation, text: replace(invocation, log=text),
    ),
    Flag(
        names=("--strict",),
        summary="warnings fail too",
        apply=lambda invocation, _: replace(invocation, strict=True),
    ),
    Flag(
        names=("--quiet", "-q"),
        summary="no progress",
        apply=lambda invocation, _: replace(invocation, quiet=True),
    ),
    Flag(
        names=("--cfg", "-c"),
        summary="print the composed configuration: " + ", ".join(CFG_KINDS),
        value="KIND",
        choices=CFG_KINDS,
        default="job",
        apply=lambda invocation, kind: replace(invocation, cfg=kind),
    ),
    Flag(
        names=("--info", "-i"),
        summary="print how Hydra composed it: " + ", ".join(INFO_KINDS),
        value="KIND",
        choices=INFO_KINDS,
        default="all",
        apply=lambda invocation, kind: replace(invocation, info=kind),
    ),
    Flag(
        names=("--help", "-h"),
        summary="this text",
        apply=lambda invocation, _: replace(invocation, help=True),
    ),
    Flag(
        names=("--version",),
        summary="print the version",
        apply=lambda invocation, _: replace(invocation, version=True),
    ),
)
_BY_NAME = {name: flag for flag in FLAGS for name in flag.names}


def parse_arguments(argv: Sequence[str]) -> Invocation:
    """Read the words of the command line.

    Raises:
        RecipeError: an unknown command or flag, or a flag without its value (exit code 2).
    """
    reader = _Reader(list(argv))
    while reader.rest:
        word = reader.rest.pop(0)
        if reader.completes() or reader.explains(word):
            reader.add_argument(word)
        elif word.startswith("-") and word != "-":
            reader.read_flag(word)
        elif is_override(word):
            reader.words.append(word)
        else:
            reader.read_command(word)
    invocation = replace(reader.invocation, words=tuple(reader.words))
    if invocation.every_recipe and invocation.command != "check":
        fix = "ascend-run check --all"
        raise recipe_error("usage.all_without_check", exit_code=ExitCode.USAGE, fix=fix)
    if invocation.log and invocation.command != "doctor":
        fix = "ascend-run doctor --log …"
        raise recipe_error("usage.log_without_doctor", exit_code=ExitCode.USAGE, fix=fix)
    return invocation


@dataclass
class _Reader:
    rest: list[str]
    words: list[str] = field(default_factory=list)
    invocation: Invocation = Invocation()
    has_command: bool = False

    def completes(self) -> bool:
        """Whether the next word is one that a shell wants completed, whatever it looks like."""
        return self.invocation.command == "completion" and self.invocation.arguments == ("words",)

    def explains(self, word: str) -> bool:
        """Whether the word is a flag of somebody else's that shall be explained."""
        asked = self.invocation.command == "explain" and not self.invocation.arguments
        return asked and word.startswith("--") and word.partition("=")[0] not in _BY_NAME

    def add_argument(self, word: str) -> None:
        arguments = (*self.invocation.arguments, word)
        self.invocation = replace(self.invocation, arguments=arguments)

    def read_flag(self, word: str) -> None:
        name, equals, attached = word.partition("=")
        flag = _BY_NAME.get(name)
        if flag is None:
            raise _unknown_flag(word, self.rest)
        if not flag.value and equals:
            exit_code = ExitCode.USAGE
            raise recipe_error("usage.takes_no_value", exit_code=exit_code, fix=name, name=name)
        value = attached if equals else self._next_value(flag, name) if flag.value else ""
        if flag.choices and value not in flag.choices:
            fix = did_you_mean(value, flag.choices, template=f"{name} {{}}")
            raise _bad_choice(name, value, fix)
        self.invocation = flag.apply(self.invocation, value)

    def _next_value(self, flag: Flag, name: str) -> str:
        if flag.default is not None and (not self.rest or self.rest[0] not in flag.choices):
            return flag.default
        # A prompt may start with a dash or look like an override; only our own flags end it.
        if not self.rest or self.rest[0] in _BY_NAME:
            fix = f"{name}={flag.value}"
            raise recipe_error("usage.missing_value", exit_code=ExitCode.USAGE, fix=fix, name=name)
        return self.rest.pop(0)

    def read_command(self, word: str) -> None:
        if word in COMMANDS and not self.has_command:
            self.invocation = replace(self.invocation, command=word)
            self.has_command = True
            return
        if self.has_command and self.invocation.command in _WITH_ARGUMENTS:
            self.add_argument(word)
            return
        if self.has_command or self.words:
            raise recipe_error("usage.stray_word", exit_code=ExitCode.USAGE, word=word)
        close = did_you_mean(word, COMMANDS)
        raise recipe_error(
            "usage.unknown_command", exit_code=ExitCode.USAGE, word=word, close=close
        )


def _unknown_flag(word: str, rest: Sequence[str]) -> RecipeError:
    exit_code = ExitCode.USAGE
    name, equals, value = word.partition("=")
    if equals and "." in name:
        fix = f"{name.lstrip('-').replace('-', '_')}={value}"
        return recipe_error("usage.dashed_override", exit_code=exit_code, fix=fix, name=name)
    # Deferred: the table of vLLM's flags, for those who are used to them.
    from ascend_recipes.rendering.table import field_of

    if field := field_of(name.replace("--no-", "--", 1)):
        follows = not equals and bool(rest) and not rest[0].startswith("-")
        said = value if equals else rest[0] if follows and not is_override(rest[0]) else ""
        fix = f"{field}={said or str(not name.startswith('--no-')).lower()}"
        return recipe_error("usage.flag_of_vllm", exit_code=exit_code, fix=fix, name=name)
    known = [name for name in _BY_NAME if name.startswith("--")]
    fix = closest(name, known) or "ascend-run --help"
    return recipe_error("usage.unknown_flag", exit_code=exit_code, fix=fix, name=name)


def _bad_choice(name: str, value: str, fix: str) -> RecipeError:
    exit_code = ExitCode.USAGE
    return recipe_error("usage.bad_value", exit_code=exit_code, fix=fix, name=name, value=value)
