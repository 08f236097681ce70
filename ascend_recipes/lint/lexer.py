"""Splits shell text into words and operators that know where they stand.

The standard library's `shlex` knows neither lines nor variables nor here-documents; `bashlex` is
GPL and gives up at the first placeholder of a documentation page; tree-sitter is compiled. What
a linter needs of the shell's grammar (POSIX 1003.1, 2.2-2.6, and the arrays, `$'…'` and `<<<` of
bash) is small enough to own. Nothing here raises: text that a shell would refuse becomes tokens
and a `Problem`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

_BLANKS = re.compile(r"(?:[ \t\r\f\v]|\\\n)+")
_COMMENT = re.compile(r"[^\n]*")
_PLAIN = re.compile(r"[^\s\"'\\$`;&|<>()]+")
_QUOTED = re.compile(r'[^"\\$`]+')
_OPERATOR = re.compile(r"&&|\|\||;;|<<<|<<-?|&>>|&>|>>|>&|<&|>\||<>|[;&|()<>]")
_PLACEHOLDER = re.compile(r"<[\w\u4e00-\u9fff][\w .\-/|:\u4e00-\u9fff]{0,60}>(?![(&])")
"""`<model path>`, which documents write and a shell would take for a redirection."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_SIMPLE = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_BRACED = re.compile(
    r"\$\{([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(\[[^\]\n]*\])?(:?[-=+?]|[:#%/^,@][^}]?)?"
)
_ARRAY_START = re.compile(r"[A-Za-z_]\w*\+?=$")
_LINE_END = re.compile(r"[^\n]*\n?")
_NESTING_LIMIT = 40


class Kind(Enum):
    """What a token is."""

    WORD = "word"
    OPERATOR = "operator"
    NEWLINE = "newline"
    ARRAY = "array"
    """`NAME=(…)`: `parts` is the name with its sign, `items` the words inside."""
    HERE_DOCUMENT = "here-document"
    """Comes after the line that announced it: `begin` and `end` are those of the body."""


class PartKind(Enum):
    """What a part of a word is."""

    TEXT = "text"
    VARIABLE = "variable"
    UNKNOWN = "unknown"
    """What only a run would know: command substitution, arithmetic, a placeholder."""


@dataclass(frozen=True)
class Part:
    """A run of characters of a word; `text` of TEXT stands in the source as it is."""

    kind: PartKind
    begin: int
    text: str
    """TEXT: the characters. VARIABLE: its name. UNKNOWN: what was written."""
    quoted: bool = False
    operation: str = ""
    """Of VARIABLE: empty, or `:-` and the like, `[@]` for all of an array, `?` if not followed."""
    default: tuple[Part, ...] = ()
    written: str = ""
    """Of VARIABLE: as it was written."""


@dataclass(frozen=True)
class Token:
    """One token; offsets are those of the text that was split."""

    kind: Kind
    begin: int
    end: int
    parts: tuple[Part, ...] = ()
    items: tuple[Token, ...] = ()
    text: str = ""
    """Of OPERATOR: itself. Of HERE_DOCUMENT: `quoted` if variables stay as they are."""


@dataclass(frozen=True)
class Problem:
    """Something that a shell would refuse."""

    begin: int
    what: str


@dataclass
class Lexer:
    """Splits one text; `problems` is complete after the tokens are exhausted."""

    text: str
    at: int = 0
    problems: list[Problem] = field(default_factory=list)
    _parts: list[Part] = field(default_factory=list)
    _pending: list[tuple[str, bool, bool]] = field(default_factory=list)
    """Here-documents whose bodies begin at the next line: delimiter, strips tabs, quoted."""
    _depth: int = 0

    def tokens(self) -> Iterator[Token]:
        """Every token of the text, in order."""
        while (token := self._next()) is not None:
            yield token
            if token.kind is Kind.NEWLINE and self._pending:
                yield from self._bodies()

    def _next(self) -> Token | None:
        text = self.text
        while self.at < len(text):
            if blanks := _BLANKS.match(text, self.at):
                self.at = blanks.end()
                continue
            begin, sign = self.at, text[self.at]
            if sign == "#":
                self._skip(_COMMENT)
                continue
            if sign == "\n":
                self.at += 1
                return Token(Kind.NEWLINE, begin, self.at)
            if self._starts_operator():
                return self._operator(begin)
            if (word := self._word()) is not None:
                return word
        return None

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return found.group()

    def _starts_operator(self) -> bool:
        if self.text[self.at] not in ";&|()<>":
            return False
        return self.text[self.at] != "<" or not _PLACEHOLDER.match(self.text, self.at)

    def _operator(self, begin: int) -> Token:
        text = self._skip(_OPERATOR)
        if text in ("<", ">") and self.text.startswith("(", self.at):
            self._balanced(self.at, ")")
            part = Part(PartKind.UNKNOWN, begin, self.text[begin : self.at])
            return Token(Kind.WORD, begin, self.at, (part,))
        if text in ("<<", "<<-"):
            self._announce(text == "<<-")
        return Token(Kind.OPERATOR, begin, self.at, text=text)

    def _announce(self, strips_tabs: bool) -> None:
        """Note a here-document; its delimiter is a word that is not expanded."""
        if blanks := _BLANKS.match(self.text, self.at):
            self.at = blanks.end()
        begin = self.at
        word = self._word() if self.at < len(self.text) else None
        if word is None:
            return
        delimiter = "".join(part.written or part.text for part in word.parts)
        quoted = any(sign in self.text[begin : self.at] for sign in "'\"\\")
        self._pending.append((delimiter, strips_tabs, quoted))

    def _bodies(self) -> Iterator[Token]:
        for delimiter, strips_tabs, quoted in self._pending:
            begin = self.at
            while self.at < len(self.text):
                line_begin = self.at
                line = self._skip(_LINE_END).rstrip("\n")
                if (line.lstrip("\t") if strips_tabs else line) == delimiter:
                    yield self._body(begin, line_begin, quoted)
                    break
            else:
                self.problems.append(Problem(begin, f"the here-document never meets {delimiter}"))
                yield self._body(begin, self.at, quoted)
        self._pending.clear()

    def _body(self, begin: int, end: int, quoted: bool) -> Token:
        return Token(Kind.HERE_DOCUMENT, begin, end, text="quoted" if quoted else "")

    def _word(self) -> Token | None:
        begin, self._parts = self.at, []
        while self.at < len(self.text):
            sign = self.text[self.at]
            if plain := _PLAIN.match(self.text, self.at):
                self._add_text(self.at, plain.group())
                self.at = plain.end()
            elif sign == "(" and self._assigns_array():
                return self._array(begin)
            elif sign == "<" and (placeholder := _PLACEHOLDER.match(self.text, self.at)):
                self._parts.append(Part(PartKind.UNKNOWN, self.at, placeholder.group()))
                self.at = placeholder.end()
            elif not self._special(sign):
                break
        if self.at == begin:
            self.at += 1
            return None
        return Token(Kind.WORD, begin, self.at, tuple(self._parts))

    def _special(self, sign: str) -> bool:
        """Read a quote, an escape or an expansion; False where the word ends."""
        if sign == "\\":
            self._escape()
        elif sign == "'":
            self._single_quoted()
        elif sign == '"':
            self.at += 1
            self._double_quoted(self.at - 1)
        elif sign == "$":
            self._dollar(quoted=False)
        elif sign == "`":
            self._backquoted(quoted=False)
        else:
            return False
        return True

    def _add_text(self, begin: int, text: str, *, quoted: bool = False) -> None:
        self._parts.append(Part(PartKind.TEXT, begin, text, quoted))

    def _escape(self) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following != "\n":
            self._add_text(self.at + 1 if following else self.at, following or "\\", quoted=True)
        self.at = min(self.at + 2, len(self.text))

    def _single_quoted(self) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self._unterminated(self.at, "the quote ' never ends")
            return
        self._add_text(self.at + 1, self.text[self.at + 1 : end], quoted=True)
        self.at = end + 1

    def _unterminated(self, begin: int, what: str) -> None:
        """Give the rest of the line to the word, so that later lines are still read."""
        self.problems.append(Problem(begin, what))
        end = self.text.find("\n", begin)
        self.at = len(self.text) if end < 0 else end
        self._add_text(begin, self.text[begin : self.at], quoted=True)

    def _double_quoted(self, begin: int) -> None:
        """Read up to the closing quote; the opening one stands at `begin`."""
        parts = len(self._parts)
        self._add_text(self.at, "", quoted=True)
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == '"':
                self.at += 1
                return
            if run := _QUOTED.match(self.text, self.at):
                self._add_text(self.at, run.group(), quoted=True)
                self.at = run.end()
            elif sign == "\\":
                self._escape_in_quotes()
            elif sign == "$":
                self._dollar(quoted=True)
            else:
                self._backquoted(quoted=True)
        del self._parts[parts:]
        self._unterminated(begin, 'the quote " never ends')

    def _escape_in_quotes(self) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following in ("$", "`", '"', "\\"):
            self._add_text(self.at + 1, following, quoted=True)
        elif following != "\n":
            self._add_text(self.at, "\\", quoted=True)
            self.at -= 1
        self.at = min(self.at + 2, len(self.text))

    def _backquoted(self, *, quoted: bool) -> None:
        end = self.at + 1
        while 0 <= end < len(self.text) and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            self._unterminated(self.at, "the quote ` never ends")
            return
        self._add_unknown(self.at, end + 1, quoted=quoted)

    def _add_unknown(self, begin: int, end: int, *, quoted: bool) -> None:
        self._parts.append(Part(PartKind.UNKNOWN, begin, self.text[begin:end], quoted))
        self.at = end

    def _dollar(self, *, quoted: bool) -> None:
        begin = self.at
        if self.text.startswith("${", begin):
            self._braced(quoted=quoted)
        elif self.text.startswith("$(", begin):
            self._balanced(begin + 1, ")")
            self._add_unknown(begin, self.at, quoted=quoted)
        elif simple := _SIMPLE.match(self.text, begin):
            self.at = simple.end()
            name = simple.group(1)
            operation = "[@]" if name in "@*" else ""
            part = Part(PartKind.VARIABLE, begin, name, quoted, operation, (), simple.group())
            self._parts.append(part)
        elif not quoted and self.text.startswith("$'", begin):
            self._ansi_quoted()
        elif not quoted and self.text.startswith('$"', begin):
            self.at += 2
            self._double_quoted(begin + 1)
        else:
            self._add_text(begin, "$", quoted=quoted)
            self.at += 1

    def _ansi_quoted(self) -> None:
        end = self.at + 2
        while end < len(self.text) and self.text[end] != "'":
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            self._unterminated(self.at, "the quote $' never ends")
            return
        escapes = {"n": "\n", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
        offset, written = self.at + 2, self.text[self.at + 2 : end]
        for piece in re.finditer(r"\\(.)|[^\\]+", written, re.DOTALL):
            text = escapes.get(piece.group(1), piece.group()) if piece.group(1) else piece.group()
            self._add_text(offset + piece.start(), text, quoted=True)
        self.at = end + 1

    def _braced(self, *, quoted: bool) -> None:
        begin = self.at
        opening = _BRACED.match(self.text, begin)
        end = self._balanced(begin + 1, "}")
        if opening is None or opening.end() > end or self._depth > _NESTING_LIMIT:
            self._add_unknown(begin, end, quoted=quoted)
            return
        prefix, name, index, operation = opening.groups()
        written = self.text[begin:end]
        default: tuple[Part, ...] = ()
        kind = _operation(prefix, index, operation)
        if kind in (":-", "-", ":=", "="):
            default = self._default(opening.end(), end - 1)
        elif operation is None and opening.end() != end - 1:
            kind = "?"
        self.at = end
        self._parts.append(Part(PartKind.VARIABLE, begin, name, quoted, kind, default, written))

    def _default(self, begin: int, end: int) -> tuple[Part, ...]:
        """Parts of the word after `:-`, in which quotes and variables count as anywhere."""
        inner = Lexer(self.text[:end], begin, _depth=self._depth + 1)
        while inner.at < end:
            sign = inner.text[inner.at]
            if plain := _PLAIN.match(inner.text, inner.at):
                inner._add_text(inner.at, plain.group())
                inner.at = plain.end()
            elif not inner._special(sign):
                inner._add_text(inner.at, sign)
                inner.at += 1
        return tuple(inner._parts)

    def _balanced(self, opening: int, closing: str) -> int:
        """Move past the bracket that closes the one at `opening`, over quotes and nested ones."""
        opened, depth, at = self.text[opening], 0, opening
        while at < len(self.text):
            sign = self.text[at]
            if sign == "\\":
                at += 1
            elif sign in "'\"" and (end := self._quote_end(at)) > 0:
                at = end
            elif sign == opened:
                depth += 1
            elif sign == closing:
                depth -= 1
                if depth == 0:
                    self.at = at + 1
                    return self.at
            at += 1
        self.problems.append(Problem(opening, f"the bracket {opened} is never closed"))
        end = self.text.find("\n", opening)
        self.at = len(self.text) if end < 0 else end
        return self.at

    def _quote_end(self, begin: int) -> int:
        end = begin + 1
        while end < len(self.text) and self.text[end] != self.text[begin]:
            end += 2 if self.text[end] == "\\" and self.text[begin] == '"' else 1
        return end if end < len(self.text) else 0

    def _assigns_array(self) -> bool:
        written = "".join(part.text for part in self._parts)
        return len(self._parts) == 1 and _ARRAY_START.match(written) is not None

    def _array(self, begin: int) -> Token:
        parts = tuple(self._parts)
        self.at += 1
        items: list[Token] = []
        while (token := self._next()) is not None:
            if token.kind is Kind.OPERATOR and token.text == ")":
                break
            if token.kind is Kind.WORD:
                items.append(token)
        else:
            self.problems.append(Problem(begin, "the array is never closed"))
        return Token(Kind.ARRAY, begin, self.at, parts, tuple(items))


def _operation(prefix: str, index: str | None, operation: str | None) -> str:
    """`:-` and its like, `[@]`, empty for a plain value, and `?` for what is not followed."""
    if prefix or (index and index not in ("[@]", "[*]")):
        return "?"
    if index:
        return "[@]" if operation is None else "?"
    if operation is None or operation in (":-", "-", ":=", "=", ":?", "?"):
        return "" if operation in (None, ":?", "?") else operation
    return "?"
