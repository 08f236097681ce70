"""What one runtime version takes from its user, and the judgement of names against it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from ascend_recipes.errors import ExitCode, Finding
from ascend_recipes.findings import recipe_error
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.surface import ArchitectureRow, FlagRow, KeyRow, ResetRow, VariableRow
from ascend_recipes.surface import tables
from ascend_recipes.surface.tables import History, RowT
from ascend_recipes.surface.verdict import UNSET, Unset, Verdict


@dataclass(frozen=True)
class Surface:
    """Flags, keys, variables and architectures of one runtime version; tables load when asked."""

    version: str
    """Version of the runtime: of vllm-ascend, or of vLLM where vllm-ascend has no part in it."""
    vllm: str
    vllm_ascend: str | None

    @cached_property
    def flags(self) -> History[FlagRow]:
        """Flags of `vllm serve`; fields of JSON flags are `--compilation-config.mode`."""
        return History(tables.releases()["vllm"], self.vllm, tables.flag_rows())

    @cached_property
    def config_keys(self) -> History[KeyRow]:
        """Dotted keys of `--additional-config`; empty without vllm-ascend."""
        return self._own(tables.key_rows())

    @cached_property
    def variables(self) -> History[VariableRow]:
        """Variables that vllm-ascend reads; empty without it."""
        return self._own(tables.variable_rows("vllm_ascend"))

    @cached_property
    def vllm_variables(self) -> History[VariableRow]:
        """Variables that vLLM reads."""
        rows = tables.variable_rows("vllm")
        return History(tables.releases()["vllm"], self.vllm, rows)

    @cached_property
    def models(self) -> History[ArchitectureRow]:
        """Architectures that vLLM registers."""
        rows = tables.architecture_rows("vllm")
        return History(tables.releases()["vllm"], self.vllm, rows)

    @cached_property
    def own_models(self) -> History[ArchitectureRow]:
        """Architectures that vllm-ascend registers itself; empty without it."""
        return self._own(tables.architecture_rows("vllm_ascend"))

    @cached_property
    def resets(self) -> History[ResetRow]:
        """Fields of vLLM's configuration that vllm-ascend overwrites; empty without it."""
        return self._own(tables.reset_rows())

    def judge_flag(self, name: str, value: Json | Unset = UNSET) -> Finding | None:
        """Judge a flag, `--max-num-seqs`, also in its other spellings, with its value if known.

        The fix of the finding names what to write instead; it is empty where nothing takes over.
        """
        from ascend_recipes.surface.flags import flag_verdict

        return _finding(flag_verdict(self, name, value))

    def judge_key(self, name: str, value: Json | Unset = UNSET) -> Finding | None:
        """Judge a dotted key of `--additional-config`, with its value if known."""
        from ascend_recipes.surface.keys import key_verdict

        return _finding(key_verdict(self, name, value))

    def judge_variable(self, name: str) -> Finding | None:
        """Judge an environment variable."""
        from ascend_recipes.surface.variables import variable_verdict

        return _finding(variable_verdict(self, name))

    def _own(self, rows: Mapping[str, Sequence[RowT]]) -> History[RowT]:
        order = tables.releases()["vllm_ascend"]
        if self.vllm_ascend is None:
            return History(order, order[-1], {})
        return History(order, self.vllm_ascend, rows)


@cache
def load_surface(version: str) -> Surface:
    """The surface of a runtime version.

    Args:
        version: A version of `registry/runtimes/vllm_ascend.yaml`, or a release of vLLM, which is
            vLLM without vllm-ascend.

    Raises:
        RecipeError: nothing is recorded of that version; exit code 2.
    """
    pairs = load_registry().runtimes["vllm_ascend"].vllm
    if version in pairs:
        return Surface(version, pairs[version], version)
    if version in tables.releases()["vllm"]:
        return Surface(version, version, None)
    known = [*pairs, *tables.releases()["vllm"]]
    exit_code = ExitCode.USAGE
    raise recipe_error("version.unrecorded", exit_code=exit_code, version=version, options=known)


def _finding(verdict: Verdict | None) -> Finding | None:
    return None if verdict is None else verdict.finding(fix=" ".join(verdict.names))
