"""From imported commands to the tree of one recipe: roles, nodes and what they share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from ascend_recipes.errors import ExitCode, Finding, RecipeError
from ascend_recipes.findings import finding
from ascend_recipes.registry.load import Registry, load_registry
from ascend_recipes.rendering.imported import ImportedCommand, Unmapped
from ascend_recipes.rendering.kinds import section_default
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.serving import RoleName, RoleSpec

Tree = dict[str, Json]

_OPEN = ("extra_args", "env", "runtime.additional_config")
"""Sections whose keys are names of others, dots and all."""
_BY_ROLE = tuple(
    name for name in RoleSpec.model_fields if name not in ("nodes", "instances", "transfer")
)
"""Sections that a role may change."""
_SPLIT: tuple[RoleName, ...] = ("prefill", "decode")


@dataclass(frozen=True, kw_only=True)
class ImportedRecipe:
    """A recipe made of commands."""

    tree: Tree
    site: Mapping[str, Json]
    assumed: Mapping[str, str]
    unmapped: tuple[Unmapped, ...]
    findings: tuple[Finding, ...]


@dataclass
class _Role:
    """The commands of one role: its leader speaks for all of its processes."""

    leader: ImportedCommand
    tree: Tree
    instances: int = 1
    findings: list[Finding] = field(default_factory=list)


def recipe_tree(
    commands: Sequence[ImportedCommand],
    *,
    name: str = "imported",
    hardware: str = "a3",
    about: str = "imported from a command",
    sources: Sequence[str] = ("a command",),
    version: str | None = None,
    registry: Registry | None = None,
) -> ImportedRecipe:
    """Put the commands of one deployment together.

    Raises:
        RecipeError: the commands are about different models (exit code 2).
    """
    rows = registry or load_registry()
    _check_models(commands)
    roles = {role: _role(commands, role) for role in _roles(commands)}
    findings: list[Finding] = [item for command in commands for item in command.findings]
    first = next(iter(roles.values())) if len(roles) == 1 else roles["prefill"]
    tree: Tree = {
        "schema_version": 1,
        "name": name,
        "about": about,
        "source": list(sources),
        "hardware": hardware,
        "device": {"kind": "npu"},
        "scale": {"kind": "real"},
        "runtime": {"kind": "vllm_ascend"},
        **first.tree,
    }
    pinned: Tree = {"version": version} if version else {}
    tree["runtime"] = {"kind": "vllm_ascend", **pinned, **_mapping(first.tree.get("runtime"))}
    if "serve" not in roles:
        dies = rows.hardware[hardware].dies_per_node
        tree["roles"] = _split(tree, roles, dies, findings)
        tree.pop("nodes", None)
    leaders = [item.leader for item in roles.values()]
    return ImportedRecipe(
        tree=tree,
        site=_site(leaders),
        assumed={path: why for item in leaders for path, why in item.assumed.items()},
        unmapped=tuple(dict.fromkeys(item for command in commands for item in command.unmapped)),
        findings=tuple(dict.fromkeys(findings)),
    )


def nested(overrides: Mapping[str, Json]) -> Tree:
    """Dotted paths as a tree; names in open sections are kept whole."""
    tree: Tree = {}
    for path, value in overrides.items():
        opened = next((name for name in _OPEN if path.startswith(f"{name}.")), None)
        keys = [*opened.split("."), path[len(opened) + 1 :]] if opened else path.split(".")
        node: Tree = tree
        for key in keys[:-1]:
            inner = node.setdefault(key, {})
            assert isinstance(inner, dict)
            node = inner
        node[keys[-1]] = value
    return tree


def _check_models(commands: Sequence[ImportedCommand]) -> None:
    models = sorted(
        {str(item.overrides["model"]) for item in commands if "model" in item.overrides}
    )
    if len(models) > 1:
        raise RecipeError((finding("import.several_models", models=models),), ExitCode.USAGE)


def _roles(commands: Sequence[ImportedCommand]) -> tuple[RoleName, ...]:
    found = {item.role for item in commands}
    return ("serve",) if found == {"serve"} else _SPLIT


def _role(commands: Sequence[ImportedCommand], role: RoleName) -> _Role:
    """The first process that leads speaks for the role; further leaders are instances."""
    own = [item for item in commands if item.role == role]
    if not own:
        return _missing(commands, role)
    leaders = [item for item in own if not item.follows] or own[:1]
    at = f"roles.{role}.transfer"
    distinct = {str(item.overrides.get(at)): item for item in leaders}
    leader = leaders[0]
    tree = nested({path: value for path, value in leader.overrides.items() if path != at})
    return _Role(leader, tree, len(distinct) if role != "serve" else 1)


def _missing(commands: Sequence[ImportedCommand], role: RoleName) -> _Role:
    """A side that no command shows: like the other one, in the sizes that the connector states."""
    other = next(item for item in commands if item.role in _SPLIT)
    tree = nested(
        {path: value for path, value in other.overrides.items() if "transfer" not in path}
    )
    if sizes := other.peers.get(role):
        parallel = _mapping(tree.get("parallel"))
        tree["parallel"] = {**parallel, "tp": sizes["tp_size"], "dp": sizes["dp_size"]}
    if role == "prefill":
        tree["scheduler"] = {
            key: value
            for key, value in _mapping(tree.get("scheduler")).items()
            if key != "recompute"
        }
    return _Role(other, tree)


def _split(tree: Tree, roles: Mapping[RoleName, _Role], dies: int, findings: list[Finding]) -> Tree:
    """The `roles` section; what both sides share stays in the common part."""
    prefill, decode = (roles[role].tree for role in _SPLIT)
    shared: Tree = {}
    entries: dict[RoleName, Tree] = {"prefill": {}, "decode": {}}
    for section in _BY_ROLE:
        mine, theirs = _mapping(prefill.get(section)), _mapping(decode.get(section))
        if section == "env":
            shared[section] = {k: v for k, v in mine.items() if theirs.get(k) == v}
            for role, values in (("prefill", mine), ("decode", theirs)):
                own = {k: v for k, v in values.items() if k not in _mapping(shared[section])}
                if own:
                    entries["prefill" if role == "prefill" else "decode"][section] = own
        elif changed := _changes(section, mine, theirs):
            entries["decode"][section] = changed
    if "env" in shared:
        tree["env"] = shared["env"]
    findings.extend(_disagreements(prefill, decode))
    transfers = _transfers(roles)
    for role in _SPLIT:
        entry = entries[role]
        entry["transfer"] = transfers[role]
        if roles[role].instances > 1:
            entry["instances"] = roles[role].instances
        parallel = _mapping(roles[role].tree.get("parallel"))
        entry["nodes"] = roles[role].tree.get("nodes") or _fewest_nodes(parallel, dies)
    return {role: entries[role] for role in _SPLIT}


def _transfers(roles: Mapping[RoleName, _Role]) -> dict[RoleName, Tree]:
    """Both ends of the transfer; a number that nobody states is the first that is free.

    Where a command states none, vLLM draws one at random (vllm/config/kv_transfer.py).
    """
    specs: dict[RoleName, Tree] = {
        role: {**_mapping(roles[role].leader.overrides.get(f"roles.{role}.transfer"))}
        for role in _SPLIT
    }
    for role, other in zip(_SPLIT, reversed(_SPLIT), strict=True):
        mine, theirs = specs[role], specs[other]
        mine.setdefault("connector", theirs.get("connector", ""))
        taken, free = theirs.get("engine_id"), 0
        if isinstance(taken, int) and roles[role].instances > taken:
            free = taken + roles[other].instances
        mine.setdefault("engine_id", free)
    return specs


def _changes(section: str, mine: Tree, theirs: Tree) -> Tree:
    """What decode states beside prefill's values; a value that it lacks is the schema's own."""
    if mine.get("kind") != theirs.get("kind"):
        return theirs
    changed = {key: value for key, value in theirs.items() if mine.get(key) != value}
    for key in mine:
        if key not in theirs:
            changed[key] = section_default(section, theirs.get("kind"), key)
    return {key: value for key, value in changed.items() if mine.get(key) != value}


def _disagreements(prefill: Tree, decode: Tree) -> Iterator[Finding]:
    """Values of sections that a recipe states once for both roles."""
    for section in ("serving", "checkpoint", "quant", "multimodal", "extra_args", "runtime"):
        mine, theirs = _mapping(prefill.get(section)), _mapping(decode.get(section))
        for key in sorted({*mine, *theirs}):
            path = f"{section}.{key}"
            if mine.get(key) != theirs.get(key) and path not in ("serving.host", "serving.port"):
                yield finding(
                    "import.roles_differ",
                    at=path,
                    path=path,
                    first=str(mine.get(key)),
                    second=str(theirs.get(key)),
                )


def _fewest_nodes(parallel: Tree, dies: int) -> int:
    """Nodes that hold the role's dies, where no command says how many there are."""
    sizes = [parallel.get(name, 1) for name in ("tp", "dp", "pp")]
    world = 1
    for size in sizes:
        world *= size if isinstance(size, int) else 1
    return -(-world // dies)


def _site(leaders: Iterable[ImportedCommand]) -> Tree:
    site: Tree = {}
    for item in leaders:
        for path, value in item.site.items():
            site.setdefault(path, value)
    return site


def _mapping(value: Json | BaseModel) -> Tree:
    return value if isinstance(value, dict) else {}
