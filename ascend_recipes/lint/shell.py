"""Reads shell scripts: follows variables and finds the commands that start vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ascend_recipes.errors import Finding, Source
from ascend_recipes.findings import finding
from ascend_recipes.lint.command import Export, Reading, ServeCommand, Word, unresolved_names
from ascend_recipes.lint.launchers import MENTIONS_SERVER, Launch, find_launch
from ascend_recipes.lint.lexer import Kind, Lexer, PartKind, Problem, Token
from ascend_recipes.lint.source import SourceText, joined
from ascend_recipes.lint.variables import Value, Variables, expand, expand_tail

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_OPENS = frozenset({"if", "while", "until", "for", "case", "select"})
_CLOSES = frozenset({"fi", "done", "esac"})
_LEADING = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "time", "{", "$"})
"""Words in front of a command: the shell's own, and the prompt of a transcript."""
_REDIRECTIONS = frozenset({"<", ">", ">>", ">|", "<>", "&>", "&>>", ">&", "<&", "<<<"})
_STRAY_FLAG = re.compile(r"--?[A-Za-z]")
_NESTING_LIMIT = 8


@dataclass
class _Statement:
    """The words of one simple command."""

    words: list[Token] = field(default_factory=list)
    targets: list[Token] = field(default_factory=list)
    """Files that its output goes to."""
    announced: int = 0
    """Here-documents that its line announced."""
    here_documents: list[Token] = field(default_factory=list)


@dataclass(frozen=True)
class _Tail:
    """Where a command ended, and how."""

    end: int
    blank: bool
    """Whether its last backslash is followed by a blank, so that it continues nothing."""
    told: bool = False


@dataclass
class ShellReader:
    """Reads one script; `variables` is changed as the script goes on."""

    file: str
    source: SourceText
    variables: Variables = field(default_factory=Variables)
    heading: str = ""
    depth: int = 0
    """Scripts around this one: a here-document or an argument of `bash -c`."""
    commands: list[ServeCommand] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _conditions: int = 0
    _tail: _Tail | None = None
    """Set after a command that stray flags on the next line may belong to."""
    _problems: list[Problem] = field(default_factory=list)

    def read(self) -> Reading:
        """Everything that the script holds."""
        lexer = Lexer(self.source.text)
        self._problems = lexer.problems
        for statement in _statements(lexer):
            self._run(statement)
        self._report_hidden_commands()
        return Reading(tuple(self.commands), tuple(self.exports), tuple(self.findings))

    def words(self) -> list[Word]:
        """The words of a text that is one command, over all its lines."""
        tokens = (token for token in Lexer(self.source.text).tokens() if token.kind is Kind.WORD)
        return [
            word for token in tokens for word in expand(token, self.source, self.variables.values)
        ]

    def _run(self, statement: _Statement) -> None:
        words = self._without_keywords(statement.words)
        if words:
            assigned, rest = self._assignments(words)
            if not rest:
                for name, word in assigned:
                    self.variables.assign(name, word, conditional=self._conditions > 0)
            else:
                self._command(rest, dict(assigned))
        for body in statement.here_documents:
            self._here_document(body, statement)

    def _without_keywords(self, words: list[Token]) -> list[Token]:
        while words:
            text = _literal(words[0])
            if text in _OPENS:
                self._conditions += 1
            elif text in _CLOSES:
                self._conditions -= 1
            if text in ("for", "select", "read", "getopts"):
                for word in words[1:2] if text != "read" else words[1:]:
                    if (name := _literal(word)) and name.isidentifier():
                        self.variables.values[name] = None
                return []
            if text not in _LEADING:
                return [] if text in (*_OPENS, *_CLOSES, "function", "}") else words
            words = words[1:]
        return words

    def _assignments(self, words: list[Token]) -> tuple[list[tuple[str, Value]], list[Token]]:
        """Leading `NAME=value` words, and the words after them."""
        assigned: list[tuple[str, Value]] = []
        for index, token in enumerate(words):
            if (pair := self._assignment(token)) is None:
                return assigned, words[index:]
            assigned.append(pair)
        return assigned, []

    def _assignment(self, token: Token) -> tuple[str, Value] | None:
        first = token.parts[0] if token.parts else None
        if first is None or first.kind is not PartKind.TEXT or first.quoted:
            return None
        sign = _ASSIGNMENT.match(first.text)
        if sign is None:
            return None
        name, adds = sign.groups()
        if token.kind is Kind.ARRAY:
            value = tuple(
                word
                for item in token.items
                for word in expand(item, self.source, self.variables.values)
            )
            before = self.variables.values.get(name, ()) if adds else ()
            return name, None if before is None else (*before, *value)
        word = expand_tail(token, first.begin + sign.end(), self.source, self.variables.values)
        return name, None if adds else (word,)

    def _command(self, tokens: list[Token], assigned: Mapping[str, Value]) -> None:
        words = [
            word for token in tokens for word in expand(token, self.source, self.variables.values)
        ]
        if not words:
            return
        name = words[0].text
        if name in _DECLARES:
            self._declare(
                tokens[1:],
                exports=name == "export" or any(word.text == "-x" for word in words[1:2]),
            )
        elif name == "unset":
            for word in words[1:]:
                self.variables.unset(word.text)
        elif (launch := find_launch(words)) is not None:
            self._launch(launch, tokens, assigned)
            return
        elif self._tail is not None and _STRAY_FLAG.match(name):
            self._take_tail(words, tokens)
            return
        self._tail = None

    def _launch(self, launch: Launch, tokens: list[Token], assigned: Mapping[str, Value]) -> None:
        own = {name: value[0] for name, value in assigned.items() if value}
        env = {**self.variables.exported, **own, **launch.env}
        if launch.script is not None:
            self._nested(launch.script.source, env)
            return
        argv = [word for word in launch.argv if word.text.strip() or not word.text]
        problems = [
            item for item in self._problems if tokens[0].begin <= item.begin < tokens[-1].end
        ]
        command = ServeCommand(
            file=self.file,
            line=launch.line,
            argv=tuple(argv),
            env=env,
            unresolved=unresolved_names(argv),
            heading=self.heading,
            findings=tuple(self._complaint(item) for item in problems),
        )
        self.commands.append(command)
        self._tail = None if problems else _Tail(tokens[-1].end, len(argv) < len(launch.argv))

    def _take_tail(self, words: list[Word], tokens: list[Token]) -> None:
        """Add flags that a broken continuation cut off: they are what the author meant."""
        assert self._tail is not None
        between = self.source.text[self._tail.end : tokens[0].begin]
        before = self.commands.pop()
        argv = (*before.argv, *(word for word in words if word.text.strip() or not word.text))
        source = Source(origin=self.file, line=words[0].line)
        word, line = words[0].text, self.source.place(self._tail.end).line
        if self._tail.blank:
            complaint = finding("lint.cut_by_blank", source=source, word=word, line=line)
        elif "#" in between:
            complaint = finding("lint.cut_by_comment", source=source, word=word, line=line)
        else:
            complaint = finding("lint.cut_by_line", source=source, word=word, line=line)
        findings = before.findings if self._tail.told else (*before.findings, complaint)
        self.commands.append(
            replace(before, argv=argv, unresolved=unresolved_names(argv), findings=findings)
        )
        self._tail = _Tail(tokens[-1].end, len(argv) < len(before.argv) + len(words), told=True)

    def _complaint(self, problem: Problem) -> Finding:
        source = Source(origin=self.file, line=self.source.place(problem.begin).line)
        return finding("lint.broken_text", source=source, what=problem.what)

    def _declare(self, tokens: Iterable[Token], *, exports: bool) -> None:
        for token in tokens:
            pair = self._assignment(token)
            name = pair[0] if pair is not None else _literal(token)
            if not name or not name.isidentifier():
                continue
            if pair is not None:
                self.variables.assign(name, pair[1], conditional=self._conditions > 0)
            if exports:
                word = expand_tail(token, token.begin, self.source, self.variables.values)
                self.variables.export(name, word)
                value = self.variables.exported[name]
                self.exports.append(Export(name=name, value=value if pair else word))

    def _nested(self, source: SourceText, env: Mapping[str, Word] | None = None) -> None:
        """Read a script inside this one: an argument of `bash -c`, or a here-document."""
        if self.depth >= _NESTING_LIMIT:
            return
        variables = self.variables.copy()
        variables.exported.update(env or {})
        self._absorb(
            ShellReader(
                file=self.file,
                source=source,
                variables=variables,
                heading=self.heading,
                depth=self.depth + 1,
            ).read()
        )

    def _absorb(self, reading: Reading) -> None:
        self.commands.extend(reading.commands)
        self.exports.extend(reading.exports)
        self.findings.extend(reading.findings)
        self._tail = None

    def _here_document(self, body: Token, statement: _Statement) -> None:
        source = self.source.slice(body.begin, body.end)
        if not MENTIONS_SERVER.search(source.text):
            return
        target = " ".join(part.text for token in statement.targets for part in token.parts)
        words = [_literal(token) or "" for token in statement.words]
        if any(word.startswith("python") for word in words) or ".py" in target:
            return
        if ".yaml" in target or ".yml" in target or source.text.startswith("apiVersion:"):
            from ascend_recipes.lint.manifests import read_yaml

            self._absorb(read_yaml(self.file, source))
        elif body.text == "quoted":
            reader = ShellReader(self.file, source, heading=self.heading, depth=self.depth + 1)
            self._absorb(reader.read() if self.depth < _NESTING_LIMIT else Reading())
        else:
            self._nested(_without_escapes(source))

    def _report_hidden_commands(self) -> None:
        """Say so where an unterminated quote hides the rest of a command from everybody."""
        for problem in self._problems:
            line_end = self.source.text.find("\n", problem.begin)
            hidden = self.source.text[problem.begin : max(line_end, problem.begin)]
            if MENTIONS_SERVER.search(hidden):
                self.findings.append(self._complaint(problem))


def _statements(lexer: Lexer) -> Iterator[_Statement]:
    """Simple commands, each with the here-documents that its line announced."""
    held: list[_Statement] = []
    current, redirection, line_ended = _Statement(), "", False
    for token in lexer.tokens():
        if token.kind is Kind.HERE_DOCUMENT:
            _give_body(held, token)
            continue
        if line_ended:
            yield from held
            held, line_ended = [], False
        if token.kind in (Kind.WORD, Kind.ARRAY):
            if not redirection:
                current.words.append(token)
            elif ">" in redirection:
                current.targets.append(token)
            redirection = ""
        elif token.text in _REDIRECTIONS:
            _drop_descriptor(current, token)
            redirection = token.text
        elif token.text in ("<<", "<<-"):
            current.announced += 1
        else:
            held.append(current)
            current, redirection, line_ended = _Statement(), "", token.kind is Kind.NEWLINE
    yield from (*held, current)


def _give_body(held: list[_Statement], body: Token) -> None:
    """Hand a here-document to the first statement of the line that still waits for one."""
    for statement in held:
        if statement.announced > len(statement.here_documents):
            statement.here_documents.append(body)
            return


def _drop_descriptor(statement: _Statement, redirection: Token) -> None:
    """`2>` is one sign, although the lexer reads a word and an operator."""
    last = statement.words[-1] if statement.words else None
    if last is not None and last.end == redirection.begin and (_literal(last) or "").isdigit():
        statement.words.pop()


def _literal(token: Token) -> str | None:
    """Text of a word that is written plainly; none if quotes or variables take part."""
    if token.kind is not Kind.WORD or len(token.parts) != 1:
        return None
    part = token.parts[0]
    return part.text if part.kind is PartKind.TEXT and not part.quoted else None


def _without_escapes(source: SourceText) -> SourceText:
    """Body of a here-document as the inner shell sees it, without the outer one's escapes."""
    pieces = []
    begin = 0
    for escape in re.finditer(r"\\(?=[$`\\])", source.text):
        pieces.append(source.slice(begin, escape.start()))
        begin = escape.end()
    pieces.append(source.slice(begin, len(source.text)))
    return joined(pieces)
