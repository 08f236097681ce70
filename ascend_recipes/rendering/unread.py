"""Keys at the top of `--additional-config` that a version of vllm-ascend never looks at.

The top is read by name and nobody checks the rest (ascend_config.py:52-327 at 182b75ea): such a key
changes nothing, so that a recipe means the same without it. Blocks below may refuse what they do
not know; what stands in them is left to the rules.
"""

import json
import shlex

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.schema.base import Json
from ascend_recipes.words import fit_for_hydra

_NEVER_READ = frozenset({"config.unknown_key", "config.dead_key", "config.later_key"})


def unread_key(name: str, value: Json, version: str) -> Finding | None:
    """What is said of a key that has no effect where it stands; none for all others.

    The fix sets it where the version reads it, if it does: a decision, because that has an effect.
    """
    # The tables take longer to read than everything else here.
    from ascend_recipes.surface.keys import key_verdict
    from ascend_recipes.surface.load import load_surface

    verdict = key_verdict(load_surface(version), name, value)
    if verdict is None or verdict.id not in _NEVER_READ or verdict.severity is not None:
        return None
    places = [f"runtime.additional_config.{item}" for item in verdict.names]
    words = [f"{place}={json.dumps(value, ensure_ascii=False)}" for place in places]
    return finding(
        "import.unread_key",
        at=f"runtime.additional_config.{name}",
        fix=" ".join(shlex.quote(fit_for_hydra(word)) for word in words),
        name=name,
        version=version,
    )
