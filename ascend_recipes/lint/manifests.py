"""Reads Compose files, Kubernetes manifests and CI files: YAML that holds server commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ascend_recipes.errors import Finding, Source
from ascend_recipes.findings import finding, phrase
from ascend_recipes.lint.command import Export, Reading, ServeCommand, Word, unresolved_names
from ascend_recipes.lint.launchers import MENTIONS_SERVER, Launch, find_launch, normalise
from ascend_recipes.lint.scalars import Manifest, entries, scalars
from ascend_recipes.lint.shell import ShellReader
from ascend_recipes.lint.source import SourceText
from ascend_recipes.lint.variables import Value, Variables

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ENVIRONMENTS = ("envs", "env", "environment")
_FLAG_LISTS = ("server_cmd", "server_cmd_template")
"""Keys of vllm-ascend's test configurations: arguments after `vllm serve MODEL`."""
_FLAG_LISTS_OF_LISTS = ("epd_server_cmds",)
_CONTAINER_KEYS = ("entrypoint", "command", "args")
_DEEPEST = 100


def read_yaml(file: str, source: SourceText) -> Reading:
    """Everything that a YAML text holds; a text that is no YAML is a finding."""
    reader = _Reader(file, Manifest(source))
    try:
        for document in yaml.compose_all(source.text, Loader=_LOADER):
            reader.root = entries(document)
            reader.visit(document, 0)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reader.findings.append(reader.complaint(error))
    return Reading(tuple(reader.commands), tuple(reader.exports), tuple(reader.findings))


@dataclass
class _Reader:
    file: str
    manifest: Manifest
    root: Mapping[str, Node] = field(default_factory=dict)
    commands: list[ServeCommand] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    """Nodes that are read: an anchor is one node, however often it is used."""

    def complaint(self, error: Exception) -> Finding:
        """What is wrong with the file."""
        mark = getattr(error, "problem_mark", None)
        offset = self.manifest.offset(mark.line, mark.column) if mark else 0
        source = Source(origin=self.file, line=self.manifest.source.place(offset).line)
        problem = getattr(error, "problem", None) or phrase("lint.too_deep")
        return finding("lint.broken_yaml", source=source, problem=problem)

    def visit(self, node: Node | None, depth: int) -> None:
        """Read a node and what is in it."""
        if node is None or id(node) in self._seen or depth > _DEEPEST:
            return
        self._seen.add(id(node))
        if isinstance(node, MappingNode):
            self._mapping(node, depth)
        elif isinstance(node, SequenceNode):
            self._sequence(node, depth)

    def _mapping(self, node: MappingNode, depth: int) -> None:
        values = entries(node)
        env = self._environment(values)
        done = self._test_case(values, env) or self._container(values, env)
        for key, value in values.items():
            if key in done or key in _ENVIRONMENTS:
                continue
            if isinstance(value, ScalarNode):
                self._script(value, env)
            else:
                self.visit(value, depth + 1)

    def _sequence(self, node: SequenceNode, depth: int) -> None:
        words = [self.manifest.word(item, {}) for item in scalars(node)]
        if words and (launch := find_launch(words)) is not None:
            self._launch(launch, {})
            return
        for item in node.value:
            if isinstance(item, ScalarNode):
                self._script(item, {})
            else:
                self.visit(item, depth + 1)

    def _script(self, node: ScalarNode, env: Mapping[str, Word]) -> None:
        """A scalar that holds a script, under whatever key."""
        if MENTIONS_SERVER.search(node.value) and id(node) not in self._seen:
            self._seen.add(id(node))
            self._shell(self.manifest.text(node), env)

    def _shell(self, source: SourceText, env: Mapping[str, Word]) -> None:
        values: dict[str, Value] = {name: (word,) for name, word in env.items() if not word.is_open}
        variables = Variables({**values}, dict(env))
        reading = ShellReader(self.file, source, variables).read()
        self.commands.extend(reading.commands)
        self.exports.extend(reading.exports)
        self.findings.extend(reading.findings)

    def _environment(self, values: Mapping[str, Node]) -> dict[str, Word]:
        """Variables of a mapping's `env` (name and value pairs, `A=B` texts, or a mapping)."""
        env: dict[str, Word] = {}
        for key in _ENVIRONMENTS:
            node = values.get(key)
            for name, value in entries(node).items():
                if isinstance(value, ScalarNode):
                    env[name] = self.manifest.word(value, {})
            for item in node.value if isinstance(node, SequenceNode) else ():
                pair = entries(item)
                name_node, value_node = pair.get("name"), pair.get("value")
                if isinstance(name_node, ScalarNode) and isinstance(value_node, ScalarNode):
                    env[name_node.value] = self.manifest.word(value_node, {})
                elif isinstance(item, ScalarNode) and "=" in item.value:
                    word = self.manifest.word(item, {})
                    name = item.value.partition("=")[0]
                    env[name] = word.tail(len(name) + 1)
        return env

    def _test_case(self, values: Mapping[str, Node], env: Mapping[str, Word]) -> set[str]:
        """One case of vllm-ascend's test configurations; the keys that were read."""
        model = values.get("model", self.root.get("model"))
        known = self._template_variables(values, env)
        done: set[str] = set()
        for key in _FLAG_LISTS:
            node = values.get(key)
            if node is None:
                continue
            words = self._arguments(node, known)
            words += self._arguments(values.get("server_cmd_extra"), known)
            if words and (launch := find_launch(words)) is not None:
                self._launch(launch, env)
            elif words and words[0].text.startswith("-"):
                head = [self.manifest.word(model, known)] if isinstance(model, ScalarNode) else []
                self._emit(normalise(self.manifest.place(node), [*head, *words]), env)
            else:
                continue
            done |= {key, "server_cmd_extra"}
        for key in _FLAG_LISTS_OF_LISTS:
            node = values.get(key)
            for item in node.value if isinstance(node, SequenceNode) else ():
                words = self._arguments(item, known)
                self._emit(normalise(self.manifest.place(item), words), env)
                done.add(key)
        return done

    def _template_variables(
        self, values: Mapping[str, Node], env: Mapping[str, Word]
    ) -> dict[str, Value]:
        """`${TP_SIZE}` is `tp_size` of the entry in `config` with the same node index."""
        known: dict[str, Value] = {name: (word,) for name, word in env.items() if not word.is_open}
        index = values.get("node_index")
        config = self.root.get("config")
        for item in config.value if isinstance(config, SequenceNode) else ():
            facts = entries(item)
            own = facts.get("node_index")
            if not isinstance(own, ScalarNode) or not isinstance(index, ScalarNode):
                continue
            if own.value == index.value:
                for name, value in facts.items():
                    if isinstance(value, ScalarNode):
                        word = self.manifest.word(value, {})
                        known[name.upper()] = None if word.is_open else (word,)
        return known

    def _arguments(self, node: Node | None, known: Mapping[str, Value]) -> list[Word]:
        """Arguments from a list of scalars, or from a text that is split without a shell."""
        if isinstance(node, ScalarNode):
            return ShellReader(self.file, self.manifest.text(node), Variables(dict(known))).words()
        return [self.manifest.word(item, known) for item in scalars(node)]

    def _container(self, values: Mapping[str, Node], env: Mapping[str, Word]) -> set[str]:
        """A service of Compose or a container of Kubernetes; the keys that were read."""
        known: dict[str, Value] = {name: (word,) for name, word in env.items()}
        lists = [key for key in _CONTAINER_KEYS if isinstance(values.get(key), SequenceNode)]
        words: list[Word] = []
        for key in _CONTAINER_KEYS if lists else ():
            words += self._arguments(values.get(key), known)
        if not words:
            return set()
        image = values.get("image")
        launch = find_launch(words)
        if launch is not None:
            self._launch(launch, env)
        elif words[0].text.startswith("--") and "vllm" in getattr(image, "value", ""):
            self._emit(normalise(words[0].place(), words), env)
        else:
            return set()
        return set(_CONTAINER_KEYS)

    def _launch(self, launch: Launch, env: Mapping[str, Word]) -> None:
        if launch.script is not None:
            self._shell(launch.script.source, {**env, **launch.env})
        else:
            self._emit(launch.argv, {**env, **launch.env})

    def _emit(self, argv: Sequence[Word], env: Mapping[str, Word]) -> None:
        command = ServeCommand(
            file=self.file,
            line=argv[0].line,
            argv=tuple(argv),
            env=dict(env),
            unresolved=unresolved_names(argv),
        )
        self.commands.append(command)
