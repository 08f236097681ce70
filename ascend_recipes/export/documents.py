"""YAML of the targets that are made of it."""

from typing import Any

import yaml

_WIDTH = 1000
"""Lines are never folded: commands are meant to be searched for."""


class _Dumper(yaml.SafeDumper):
    """Scripts stand as blocks of lines."""

    def ignore_aliases(self, _data: object) -> bool:
        """Everything is written out where it stands."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def yaml_text(*documents: dict[str, Any]) -> str:
    """Documents in the order of their keys, set apart by `---`."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH
    )
