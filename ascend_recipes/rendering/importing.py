"""Import: reads a command of vllm-ascend back into the choices of a recipe.

Whatever has a field goes there, through the table that rendering uses too. Engine flags without a
field become `extra_args`, keys of `--additional-config` become `runtime.additional_config`, and
variables stay variables, so that rendering the import gives the same arguments again.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.capture import stock_capture_sizes
from ascend_recipes.registry.load import Registry, load_registry
from ascend_recipes.rendering.derived import OVERRIDES, SPARSE_CACHE
from ascend_recipes.rendering.imported import ImportedCommand, Unmapped
from ascend_recipes.rendering.kinds import CACHES, has_field, rows_for
from ascend_recipes.rendering.peers import read_transfer
from ascend_recipes.rendering.recognize import Weights, folder_name, recognize_weights, weights_of
from ascend_recipes.rendering.table import ADDITIONAL, COMPILATION, SPECULATIVE, TRANSFER
from ascend_recipes.rendering.unread import unread_key
from ascend_recipes.rendering.words import ReadCommand, plain_value, read_words
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.rows import ModelRow
from ascend_recipes.schema.serving import RoleName

_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
_SECRET_FLAGS = ("--api-key", "--hf-token")
_UNRESOLVED = re.compile(r"\$\{?\w|\$\(|\{\{")

_SITE_FLAGS = (
    "--data-parallel-address",
    "--data-parallel-rpc-port",
    "--master-addr",
    "--master-port",
)
_ORDER_FLAGS = ("--data-parallel-rank", "--data-parallel-start-rank", "--node-rank")
_SITE_VARIABLES = frozenset(
    {
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "HCCL_SOCKET_IFNAME",
        "HCCL_IF_IP",
        "ASCEND_RT_VISIBLE_DEVICES",
        "VLLM_HOST_IP",
    }
)
_PEER_SIZES = {"--data-parallel-size": "dp_size", "--tensor-parallel-size": "tp_size"}
"""Flags whose values the connector's configuration repeats."""
_WILDCARDS = ("0.0.0.0", "::")
_MACHINE_VARIABLES = frozenset({"LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH"})

_NO_HYBRID_PREFIX = "0.23.0"
"""Last version whose vLLM caches no prefixes of hybrid models by itself (vllm/config/model.py)."""

VLLM_DEFAULTS: Mapping[str, Json] = {
    "scheduler.max_num_seqs": 256,
    "scheduler.max_num_batched_tokens": 2048,
    "cache.memory_fraction": 0.92,
    "cache.block_size": 128,
    "cache.prefix_caching": True,
}
"""Values of vLLM 0.23.0 to 0.27.1 and vllm-ascend where a command says nothing and the recipe must
(vllm/engine/arg_utils.py, vllm/config/cache.py, vllm_ascend/utils.py `refresh_block_size`)."""


def import_command(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    version: str = "",
    model: str = "",
    registry: Registry | None = None,
) -> ImportedCommand:
    """Read one command.

    Args:
        argv: `vllm serve MODEL --flag …` or `python -m …api_server --model MODEL …`.
        env: variables that are set for it.
        version: of vllm-ascend that it is meant for; the newest in `registry/runtimes` if empty.
        model: row in `registry/models`, where the command's own name tells none.
        registry: rows to recognize models by; none loads them.
    """
    rows = registry or load_registry()
    newest = rows.runtimes["vllm_ascend"].versions[-1]
    reader = _Importer(rows, version or newest, read_words(argv), named=model)
    reader.read(env)
    return reader.result()


@dataclass
class _Importer:
    registry: Registry
    version: str
    words: ReadCommand
    named: str = ""
    overrides: dict[str, Json] = field(default_factory=dict)
    site: dict[str, Json] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    unmapped: list[Unmapped] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    role: RoleName = "serve"
    peers: dict[RoleName, Mapping[str, int]] = field(default_factory=dict)
    weights: Weights | None = None

    @property
    def row(self) -> ModelRow | None:
        return self.registry.models[self.weights.model] if self.weights else None

    def read(self, env: Mapping[str, str]) -> None:
        self._judge_words()
        flags = dict(self.words.flags)
        transfer = flags.pop(TRANSFER, None)
        if isinstance(transfer, dict):
            self._read_transfer(transfer)
        self._read_model()
        self._read_kinds(flags)
        self._read_topology(flags)
        for flag, value in flags.items():
            self._read_flag(flag, value)
        for name, value in env.items():
            self._read_variable(name, value)
        self._place_behind_router()
        self._assume()

    def result(self) -> ImportedCommand:
        return ImportedCommand(
            role=self.role,
            overrides=self.overrides,
            site=self.site,
            assumed=self.assumed,
            unmapped=tuple(self.unmapped),
            findings=tuple(self.findings),
            peers=self.peers,
            follows=self._follows(),
        )

    def _judge_words(self) -> None:
        for flag in self.words.repeated:
            self.findings.append(finding("import.repeated_flag", flag=flag))
        for flag, reason in self.words.unreadable:
            self.findings.append(finding("import.bad_json", flag=flag, reason=reason))
        for word in self.words.stray:
            self.unmapped.append(Unmapped("", word, "belongs to no flag"))

    def _follows(self) -> bool:
        values = (self.words.flags.get(flag) for flag in _ORDER_FLAGS)
        later = any(value not in (None, "0", 0) for value in values)
        return later or self.words.flags.get("--headless") is True

    # The model.

    def _read_model(self) -> None:
        name = self.words.model or ""
        if self.named:
            self.weights = weights_of(self.named, name, self.registry)
        elif not name or _UNRESOLVED.search(name):
            self.findings.append(finding("import.model_unresolved", model=name))
            return
        else:
            self.weights = recognize_weights(name, self.registry)
        if self.weights is None:
            self.findings.append(finding("import.unknown_model", model=name))
            self.overrides["checkpoint.path"] = name
            return
        self.overrides["model"] = self.weights.model
        self.overrides["checkpoint.variant"] = self.weights.variant
        self._read_place(name, self.weights)

    def _read_place(self, name: str, weights: Weights) -> None:
        """Where the weights are: below a root, on a hub, or a folder of another name."""
        facts = self.registry.models[weights.model].checkpoints[weights.variant]
        parent, _, tail = name.rstrip("/").rpartition("/")
        if name in (facts.hub, facts.modelscope):
            kind = "hub" if name == facts.hub else "modelscope"
            self.site["sources"] = {weights.model: {weights.variant: {kind: name}}}
        elif tail == folder_name(facts, weights.model) and parent.startswith("/"):
            self.site["weight_roots"] = [parent]
        else:
            self.overrides["checkpoint.path"] = name

    def _read_kinds(self, flags: dict[str, Json]) -> None:
        """Kinds of sections, which decide where a field may stand."""
        row = self.row
        attention = row.attention_kinds[0] if row else "full"
        self.overrides["attention.kind"] = attention
        self.overrides["cache.kind"] = CACHES[attention]
        if row and self.weights:
            facts = row.checkpoints[self.weights.variant]
            self.overrides["quant.kind"] = "none" if facts.format == "bf16" else facts.format
            method = self.registry.quantization[facts.format].method
            if flags.get("--quantization") == method:
                flags.pop("--quantization", None)
        self.overrides["drafter.kind"] = self._drafter(flags)
        if flags.pop("--enforce-eager", None) is True:
            self.overrides["graph.kind"] = "none"
            self._leave_graphs(flags)
        self._read_row(flags)

    def _leave_graphs(self, flags: dict[str, Json]) -> None:
        """What an eager server is told of graphs: vLLM captures none, whatever it says."""
        told = flags.get(COMPILATION)
        if not isinstance(told, dict):
            return
        idle = {key: value for key, value in told.items() if key.startswith("cudagraph")}
        flags[COMPILATION] = {key: value for key, value in told.items() if key not in idle}
        for key, value in idle.items():
            self._leave(f"{COMPILATION}.{key}", value, "--enforce-eager captures no graphs")

    def _drafter(self, flags: Mapping[str, Json]) -> Json:
        config = flags.get(SPECULATIVE)
        if not isinstance(config, dict):
            return "none"
        for row in rows_for(f"{SPECULATIVE}.method", self.version):
            try:
                kind = row.codec.decode(config.get("method"))
            except ValueError:
                continue
            return kind if self.row is None or kind in self.row.drafters else "none"
        return "none"

    def _read_row(self, flags: dict[str, Json]) -> None:
        """Drop what the model's row says anyway."""
        row = self.row
        if row and row.tokenizer_mode and flags.get("--tokenizer-mode") == row.tokenizer_mode:
            del flags["--tokenizer-mode"]
        for flag, path in (
            ("--reasoning-parser", "reasoning_parser"),
            ("--tool-call-parser", "tool_call_parser"),
        ):
            if flag in flags and _is_name(flags[flag]):
                parser = flags.pop(flag)
                if row is None or getattr(row, path) != parser:
                    self.overrides[f"serving.{path}"] = parser
        parser = self.overrides.get("serving.tool_call_parser")
        if flags.pop("--enable-auto-tool-choice", None) is None and parser:
            self.overrides["serving.auto_tool_choice"] = False

    # Nodes and roles.

    def _read_transfer(self, transfer: Mapping[str, Json]) -> None:
        read = read_transfer(transfer)
        self.role, self.peers = read.role, read.peers
        if read.spec is not None:
            self.overrides[f"roles.{self.role}.transfer"] = read.spec
        if read.rest:
            self.overrides["extra_args.kv_transfer_config"] = read.rest

    def _read_topology(self, flags: dict[str, Json]) -> None:
        """Nodes from the flags of data parallelism; addresses and ports belong to the site."""
        sizes = [
            _whole(flags.get(name))
            for name in ("--data-parallel-size", "--data-parallel-size-local")
        ]
        total, local = sizes
        external = "--data-parallel-rank" in flags
        if total and local and not external and total > local:
            self.overrides["nodes"] = total // local
        if nodes := _whole(flags.get("--nnodes")):
            self.overrides["nodes"] = nodes
            if flags.get("--distributed-executor-backend") == "mp":
                del flags["--distributed-executor-backend"]
        for flag, key in _PEER_SIZES.items():
            if _is_unresolved(flags.get(flag)) and (peer := self.peers.get(self.role)):
                flags[flag] = peer[key]
        known = ("--data-parallel-size-local", "--headless", "--nnodes", *_ORDER_FLAGS)
        for name in (*known, *_SITE_FLAGS):
            if name in flags:
                self._note_site(name, flags.pop(name))

    def _note_site(self, name: str, value: Json) -> None:
        if name == "--data-parallel-address" and isinstance(value, str) and _is_plain(value):
            self.site["node_addresses"] = [value]

    def _place_behind_router(self) -> None:
        """With prefill and decode apart `serving.port` is the router's, below the processes'.

        A host that is one machine's own address belongs to the site.
        """
        port = self.overrides.get("serving.port")
        if self.role != "serve" and self.overrides.get("serving.host") not in _WILDCARDS:
            self.overrides.pop("serving.host", None)
        if self.role != "serve" and isinstance(port, int):
            self.overrides["serving.port"] = port - 1

    # Single arguments.

    def _read_flag(self, flag: str, value: Json) -> None:
        if flag in _SECRET_FLAGS:
            self._refuse_secret(flag)
        elif isinstance(value, dict):
            self._read_object(flag, value)
        elif _is_unresolved(value):
            self._leave(flag, value, "holds a variable that nothing sets")
        elif flag == "--mamba-cache-mode" and value in ("align", "none"):
            self.overrides["cache.state_mode"] = value
        elif flag == "--disable-hybrid-kv-cache-manager" and value is False and self._is_split():
            pass
        elif not self._map(flag, value):
            self._extra(flag.removeprefix("--").replace("-", "_"), plain_value(value))

    def _is_split(self) -> bool:
        return self.role != "serve" and self.overrides.get("cache.kind") != "paged"

    def _read_object(self, flag: str, tree: dict[str, Json]) -> None:
        if self._map(flag, tree):
            return
        rest = self._read_leaves(flag, tree)
        if not rest:
            return
        if flag == ADDITIONAL:
            for key, value in rest.items():
                self._read_key(key, value)
        else:
            self._extra(flag.removeprefix("--").replace("-", "_"), rest)

    def _read_key(self, key: str, value: Json) -> None:
        """A key of vllm-ascend's without a field; left out where nobody reads it."""
        known = self.version in self.registry.runtimes["vllm_ascend"].versions
        unread = unread_key(key, value, self.version) if known else None
        if unread is None:
            self.overrides[f"runtime.additional_config.{key}"] = value
        else:
            self._leave(
                f"{ADDITIONAL}.{key}", value, f"vllm-ascend {self.version} reads no such key"
            )
            self.findings.append(unread)

    def _read_leaves(self, target: str, tree: Mapping[str, Json]) -> dict[str, Json]:
        """Map every leaf that has a field; the rest of the object comes back."""
        rest: dict[str, Json] = {}
        for key, value in tree.items():
            inner = f"{target}.{key}"
            if self._map(inner, value):
                continue
            if isinstance(value, dict):
                if left := self._read_leaves(inner, value):
                    rest[key] = left
            else:
                rest[key] = value
        return rest

    def _map(self, target: str, value: Json) -> bool:
        """Put an argument into the field that the table names; whether there is one."""
        special = _SPECIAL.get(target)
        if special is not None:
            return special(self, value)
        for row in rows_for(target, self.version):
            if not has_field(row.path, self.overrides):
                continue
            try:
                decoded = row.codec.decode(value)
            except ValueError:
                continue
            if decoded is None:
                if self._implies(row.path):
                    return True
                continue
            if row.path == "drafter.kind" and decoded != self.overrides[row.path]:
                return False
            self.overrides[row.path] = decoded
            return True
        return False

    def _implies(self, path: str) -> bool:
        """Whether an argument that only accompanies a field has that field beside it."""
        companions = {
            "checkpoint.load_threads": "--model-loader-extra-config.num_threads",
            "attention.context_parallel": f"{ADDITIONAL}.enable_dsa_cp",
        }
        flag, _, key = companions[path].partition(".")
        tree = self.words.flags.get(flag)
        return isinstance(tree, dict) and bool(tree.get(key))

    def _read_variable(self, name: str, value: str) -> None:
        target = f"${name}"
        if _SECRET.search(name):
            self._refuse_secret(target)
        elif name in _SITE_VARIABLES:
            self._site_variable(name, value)
        elif name in _MACHINE_VARIABLES:
            self._leave(target, value, "belongs to the machine, not to the recipe")
        elif _is_unresolved(value):
            self._leave(target, value, "holds a variable that nothing sets")
        elif not self._map(target, value):
            self.overrides[f"env.{name}"] = value

    def _site_variable(self, name: str, value: str) -> None:
        if not _is_plain(value):
            return
        if name.endswith("SOCKET_IFNAME"):
            self.site["network_interface"] = value
        elif "--data-parallel-rank" in self.words.flags:
            return  # The dies of one rank follow from its number.
        elif name == "ASCEND_RT_VISIBLE_DEVICES" and re.fullmatch(r"\d+(,\d+)*", value):
            self.site["device_ids"] = [int(item) for item in value.split(",")]

    def _refuse_secret(self, target: str) -> None:
        self.unmapped.append(Unmapped(target, "***", "secrets come from the launching shell"))
        self.findings.append(finding("import.secret", target=target))

    def _leave(self, target: str, value: Json, reason: str) -> None:
        self.unmapped.append(Unmapped(target, str(value), reason))

    def _extra(self, name: str, value: Json) -> None:
        path = f"extra_args.{name}"
        present = self.overrides.get(path)
        if isinstance(present, dict) and isinstance(value, dict):
            value = {**present, **value}
        self.overrides[path] = value

    def _assume(self) -> None:
        """Values that a recipe must state and vLLM would choose by itself."""
        hybrid = self.overrides["cache.kind"] == "hybrid"
        for path, value in VLLM_DEFAULTS.items():
            self._suppose(path, value)
        if hybrid and self.version == _NO_HYBRID_PREFIX and "cache.prefix_caching" in self.assumed:
            self.overrides["cache.prefix_caching"] = False
        if self.row:
            longest = "longest context of the model"
            self._suppose("scheduler.max_model_len", self.row.max_model_len, longest)
        if hybrid:
            cached = self.overrides["cache.prefix_caching"]
            self._suppose("cache.state_mode", "align" if cached else "none")
        self._suppose("graph.kind", "full_and_piecewise")
        self._suppose_ladder()

    def _suppose_ladder(self) -> None:
        """Capture sizes that nobody lists: what the runtime would take, for the rules to judge."""
        compilation = self.words.flags.get("--compilation-config")
        stated = isinstance(compilation, dict) and "max_cudagraph_capture_size" in compilation
        stated |= "--max-cudagraph-capture-size" in self.words.flags
        seqs = _whole(self.overrides.get("scheduler.max_num_seqs"))
        step = _whole(self.overrides.get("scheduler.max_num_batched_tokens"))
        if self.overrides["graph.kind"] == "none" or stated or seqs is None or step is None:
            return
        drafts = _whole(self.overrides.get("drafter.num_draft_tokens")) or 0
        sizes: list[Json] = [*stock_capture_sizes(seqs, 1 + drafts, step)]
        if sizes:
            self._suppose("graph.capture_sizes", sizes, "ladder of vLLM")

    def _suppose(self, path: str, value: Json, why: str = "default of vLLM") -> None:
        if path not in self.overrides:
            self.overrides[path] = value
            self.assumed[path] = why

    # Arguments whose fields depend on others.

    def _sparse_cache(self, value: Json) -> bool:
        if not isinstance(value, bool) or self.overrides.get("attention.kind") != "sfa":
            return False
        self.overrides["cache.kv_dtype"] = "int8" if value else "model"
        return True

    def _index_share(self, value: Json) -> bool:
        tree = self.words.flags.get(OVERRIDES)
        share = isinstance(tree, dict) and tree.get("use_index_cache") is True
        layers = tree.get("index_topk_freq") if isinstance(tree, dict) else None
        fits = has_field("attention.index_share_layers", self.overrides)
        if not (value and share and isinstance(layers, int) and fits):
            return False
        self.overrides["attention.index_share_layers"] = layers
        return True

    def _draft_model(self, value: Json) -> bool:
        facts = self.row.drafters.get(str(self.overrides["drafter.kind"])) if self.row else None
        tail = str(value).rstrip("/").rpartition("/")[2]
        return bool(facts and facts.hub and facts.hub.rpartition("/")[2] == tail)


_SPECIAL: Mapping[str, Callable[[_Importer, Json], bool]] = {
    SPARSE_CACHE: _Importer._sparse_cache,
    f"{OVERRIDES}.use_index_cache": _Importer._index_share,
    f"{OVERRIDES}.index_topk_freq": _Importer._index_share,
    f"{SPECULATIVE}.model": _Importer._draft_model,
}


def _whole(value: Json) -> int | None:
    text = str(value)
    return int(text) if text.isdigit() else None


def _is_plain(value: str) -> bool:
    return not _UNRESOLVED.search(value)


def _is_unresolved(value: Json) -> bool:
    return isinstance(value, str) and not _is_plain(value)


def _is_name(value: Json) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[a-z0-9][a-z0-9_.]*", value))
