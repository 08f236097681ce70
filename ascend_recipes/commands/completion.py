"""`completion`: what can follow on the command line, and the scripts that ask for it.

The shell functions call `ascend-run completion --words …`, so that they know the recipes and
presets of this installation; the lists come from file names alone, without parsing any of them.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ascend_recipes.compose import search_roots
from ascend_recipes.errors import ExitCode
from ascend_recipes.findings import recipe_error

_BASH = """\
_ascend_run() {
  local IFS=$'\\n'
  COMPREPLY=($(ascend-run completion words "${COMP_WORDS[COMP_CWORD]}" 2>/dev/null))
  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -F _ascend_run ascend-run
"""
_ZSH = """\
#compdef ascend-run
_ascend_run() {
  local -a found
  found=("${(@f)$(ascend-run completion words "$words[CURRENT]" 2>/dev/null)}")
  compadd -Q -S '' -- $found
}
compdef _ascend_run ascend-run
"""
_FISH = """\
complete -c ascend-run -f -a '(ascend-run completion words (commandline -ct) 2>/dev/null)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion_script(shell: str) -> str:
    """The script that a shell sources.

    Raises:
        RecipeError: no script for that shell (exit code 2).
    """
    if shell not in SCRIPTS:
        raise recipe_error(
            "completion.unknown_shell",
            fix="ascend-run completion bash",
            exit_code=ExitCode.USAGE,
            shell=shell,
            options=SCRIPTS,
        )
    return SCRIPTS[shell]


def complete_word(
    prefix: str, *, commands: Iterable[str], flags: Iterable[str], config_dirs: Sequence[Path] = ()
) -> tuple[str, ...]:
    """Words that begin with `prefix`: commands, flags, `recipe=NAME`, presets, section fields."""
    key, equals, _ = prefix.partition("=")
    if prefix.startswith("-"):
        found = list(flags)
    elif equals:
        found = [f"{key}={option}" for option in _options(key, config_dirs)]
    elif "." in prefix:
        section = prefix.partition(".")[0]
        found = [f"{section}.{name}=" for name in _section_fields(section)]
    else:
        groups = (f"{name}=" for name in _groups(config_dirs))
        found = [*commands, *groups]
    return tuple(sorted({word for word in found if word.startswith(prefix)}))


def _groups(config_dirs: Sequence[Path]) -> set[str]:
    return {path.parent.name for root in search_roots(config_dirs) for path in _presets(root)}


def _options(group: str, config_dirs: Sequence[Path]) -> set[str]:
    return {
        path.stem
        for root in search_roots(config_dirs)
        for path in _presets(root)
        if path.parent.name == group
    }


def _presets(root: Path) -> Iterable[Path]:
    return root.glob("*/*.yaml")


def _section_fields(section: str) -> set[str]:
    from ascend_recipes.schema.recipe import Recipe
    from ascend_recipes.validate import section_models

    if section not in Recipe.model_fields:
        return set()
    return {name for model in section_models(section) for name in model.model_fields}
