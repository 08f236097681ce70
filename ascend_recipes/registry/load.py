"""Reads `registry/` and `ops/` into tables, one row at a time and only when asked."""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from ascend_recipes.errors import ExitCode, Finding, RecipeError, Source
from ascend_recipes.findings import finding
from ascend_recipes.paths import data_root, display_path
from ascend_recipes.schema.base import Spec
from ascend_recipes.schema.collectives import CollectivesRow
from ascend_recipes.schema.complaints import complaint
from ascend_recipes.schema.hook import HookRow
from ascend_recipes.schema.log_message import LogMessagesRow
from ascend_recipes.schema.operation import OperationContract
from ascend_recipes.schema.operator import OperatorRow
from ascend_recipes.schema.patch import PatchRow, PeerPatchRow, UpgradeNotesRow, VersionRow
from ascend_recipes.schema.reading import ReadingRow
from ascend_recipes.schema.rows import (
    BackendRow,
    DeploymentsRow,
    FindingsRow,
    HardwareRow,
    ModelRow,
    ProviderRow,
    QuantizationRow,
    RuntimeRow,
)
from ascend_recipes.schema.stack import StackRow
from ascend_recipes.yaml_files import leaf_lines, load_yaml

RowT = TypeVar("RowT", bound=Spec)

ENTRY_POINT_GROUP = "ascend_recipes.registry"
"""Other packages add rows by an entry point whose value is a package with the same folders."""


class Table(Mapping[str, RowT], Generic[RowT]):
    """Rows of one type; a key is the stem of its file, and files are parsed when first read."""

    def __init__(self, name: str, row_type: type[RowT], files: dict[str, Path]) -> None:
        self.name = name
        self._row_type = row_type
        self._files = files
        self._rows: dict[str, RowT] = {}

    def __getitem__(self, key: str) -> RowT:
        if key not in self._rows:
            self._rows[key] = self._load(key)
        return self._rows[key]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, key: object) -> bool:
        return key in self._files

    def file(self, key: str) -> Path:
        """File that holds the row.

        Raises:
            RecipeError: no such row.
        """
        if key not in self._files:
            raise unknown_key(self.name, key, list(self))
        return self._files[key]

    def source(self, key: str, *field: str) -> Source:
        """File and line of a field of the row, or of its beginning."""
        path = self.file(key)
        line = leaf_lines(path).get(field, 1) if field else 1
        return Source(origin=display_path(path), line=line)

    def _load(self, key: str) -> RowT:
        path = self.file(key)
        try:
            return self._row_type.model_validate_json(json.dumps(load_yaml(path)))
        except ValidationError as error:
            raise RecipeError(tuple(_row_findings(path, error))) from None


class ModelTable(Table[ModelRow]):
    """Models; a `config.json` in `registry/configs/NAME.json` is a row too, without more facts."""

    def __init__(self, files: dict[str, Path], backends: Table[BackendRow]) -> None:
        super().__init__("models", ModelRow, files)
        self._backends = backends

    def _load(self, key: str) -> ModelRow:
        path = self.file(key)
        if path.suffix != ".json":
            return super()._load(key)
        from ascend_recipes.registry.foreign import read_foreign

        return read_foreign(path, [k for row in self._backends.values() for k in row.layer_kinds])


@dataclass(frozen=True)
class Registry:
    """All tables."""

    models: Table[ModelRow]
    hardware: Table[HardwareRow]
    backends: Table[BackendRow]
    quantization: Table[QuantizationRow]
    runtimes: Table[RuntimeRow]
    stacks: Table[StackRow]
    collectives: Table[CollectivesRow]
    deployments: Table[DeploymentsRow]
    findings: Table[FindingsRow]
    log_messages: Table[LogMessagesRow]
    providers: Table[ProviderRow]
    hooks: Table[HookRow]
    patches: Table[PatchRow]
    peer_patches: Table[PeerPatchRow]
    vllm_versions: Table[VersionRow]
    upgrade_notes: Table[UpgradeNotesRow]
    operations: Table[OperationContract]
    operators: Table[OperatorRow]
    readings: Table[ReadingRow]

    def tables(self) -> tuple[Table[Spec], ...]:
        """Every table, in a fixed order."""
        return tuple(vars(self).values())


@cache
def load_registry(config_dirs: tuple[Path, ...] = ()) -> Registry:
    """Build the tables: the shipped folders first, those of installed packages, then a user's.

    Args:
        config_dirs: folders that may hold `registry/` with rows, as `--config-dir` names them.
    """
    # A checkout of ours is a user's folder too, as after `init` in it: its rows are no second ones.
    own = data_root().resolve()
    others = (path for path in config_dirs if path.resolve() != own)
    roots = [data_root(), *_extension_roots(), *others]

    def rows(folder: str, row_type: type[RowT]) -> Table[RowT]:
        return Table(folder, row_type, _row_files([root / "registry" / folder for root in roots]))

    backends = rows("backends", BackendRow)
    return Registry(
        models=ModelTable(_model_files(roots), backends),
        hardware=rows("hardware", HardwareRow),
        backends=backends,
        quantization=rows("quantization", QuantizationRow),
        runtimes=rows("runtimes", RuntimeRow),
        stacks=rows("stacks", StackRow),
        collectives=rows("collectives", CollectivesRow),
        deployments=rows("deployments", DeploymentsRow),
        findings=rows("findings", FindingsRow),
        log_messages=rows("log_messages", LogMessagesRow),
        providers=rows("providers", ProviderRow),
        hooks=rows("hooks", HookRow),
        patches=rows("patches", PatchRow),
        peer_patches=rows("peer_patches", PeerPatchRow),
        vllm_versions=rows("vllm_versions", VersionRow),
        upgrade_notes=rows("upgrade_notes", UpgradeNotesRow),
        operations=Table("operations", OperationContract, _operation_files(roots)),
        operators=rows("operators", OperatorRow),
        readings=rows("readings", ReadingRow),
    )


def unknown_key(table: str, key: str, options: list[str]) -> RecipeError:
    """Error for a key that a table lacks, with the closest one and all of them."""
    close = difflib.get_close_matches(key, options, n=1)
    unknown = finding(
        "registry.unknown_key",
        fix=None if close else "",
        suggestion=close[0] if close else "",
        table=table,
        key=key,
        options=sorted(options) or "-",
    )
    return RecipeError((unknown,), ExitCode.USAGE)


def _extension_roots() -> list[Path]:
    roots: list[Path] = []
    for point in entry_points(group=ENTRY_POINT_GROUP):
        package = point.load()
        roots.extend(Path(folder) for folder in package.__path__)
    return roots


def _row_files(folders: list[Path]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")):
            _add_file(files, path)
    return files


def _model_files(roots: list[Path]) -> dict[str, Path]:
    files = _row_files([root / "registry" / "models" for root in roots])
    for root in roots:
        for path in sorted((root / "registry" / "configs").glob("*.json")):
            _add_file(files, path)
    return files


def _operation_files(roots: list[Path]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for root in roots:
        for path in sorted((root / "ops").glob("*/*.yaml")):
            _add_file(files, path)
    return files


def _add_file(files: dict[str, Path], path: Path) -> None:
    if path.stem in files:
        twice = finding(
            "registry.duplicate_key",
            file=display_path(path),
            other=display_path(files[path.stem]),
        )
        raise RecipeError((twice,))
    files[path.stem] = path


def _row_findings(path: Path, error: ValidationError) -> Iterator[Finding]:
    lines = leaf_lines(path)
    for item in error.errors():
        keys = tuple(str(part) for part in item["loc"] if not isinstance(part, int))
        line = next((lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in lines), 1)
        yield finding(
            "registry.invalid_row",
            source=Source(origin=display_path(path), line=line),
            field=".".join(map(str, item["loc"])),
            said=complaint(item),
        )
