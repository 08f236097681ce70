"""`--cfg` and `--info`: handed to Hydra's own renderer."""

import logging
from collections.abc import Collection

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from ascend_recipes.cli.arguments import Invocation
from ascend_recipes.compose import PRIMARY, search_roots
from ascend_recipes.words import fit_for_hydra, split_override


def render_with_hydra(invocation: Invocation) -> None:
    """Let Hydra print the composed configuration, or how it came to be, on stdout."""
    roots = search_roots(invocation.config_dirs)
    groups = {path.parent.name for root in roots for path in root.glob("*/*.yaml")}
    words = [_forced(fit_for_hydra(word), groups) for word in invocation.words]
    if len(roots) > 1:
        words.append(f"hydra.searchpath=[{','.join(f'file://{root}' for root in roots[1:])}]")
    with initialize_config_dir(config_dir=str(roots[0]), version_base="1.3"):
        renderer = GlobalHydra.instance().hydra
        assert renderer is not None
        if invocation.cfg:
            renderer.show_cfg(PRIMARY, words, invocation.cfg, package=None, resolve=False)
        else:
            # Hydra prints its reports through its log, which composing has silenced.
            # A reader that leaves early is no error.
            logging.raiseExceptions = False
            logging.getLogger("hydra").setLevel(logging.DEBUG)
            renderer.show_info(invocation.info, PRIMARY, words)


def _forced(word: str, groups: Collection[str]) -> str:
    """Let a value create its key, as the real composition does: the schema knows the keys."""
    key, value = split_override(word)
    is_preset = key in groups and value is not None and not value.startswith("{")
    if word.startswith("~") or value is None or is_preset:
        return word
    return f"++{word.lstrip('+')}"
