# SPDX-License-Identifier: Apache-2.0
r"""Parser of Java's regular expressions.

Pure. An expression is read token by token as ``java.util.regex.Pattern`` reads it. Expressions that Java refuses are
refused, and so are those that cannot be evaluated in bounded time or are not supported here: back references, atomic
groups, possessive repetitions of more than one character, ``\p{..}``, intersections and unions of character classes.
``\w``, ``\d`` and ignoring case are limited to ASCII, Java's default.

Example: ``a(?!b).*`` is a ``Concatenation`` of the character ``a``, an ``Assertion`` that no ``b`` follows, and a
``Repetition`` of any character, without an upper bound.

Source: the documentation of ``java.util.regex.Pattern``.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass
from typing import Final

MOST_DEPTH: Final = 100
"""Largest nesting of groups in a regular expression."""

_ALPHABET: Final = tuple(map(chr, range(128)))
_SAME_ESCAPES: Final = frozenset("dDwWsStnrfa")
"""Escapes by a letter that stand for one character and mean the same to Python in ASCII mode."""
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{(?P<least>[0-9]{1,9})(?P<range>,(?P<most>[0-9]{1,9})?)?\})(?P<mode>[+?]?)")
_GROUP: Final = re.compile(
    r"\((?:\?(?:(?P<kind>[:=!>]|<[=!])|<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>|(?P<flags>[a-zA-Z-]+)(?P<end>[:)])))?"
)
_FLAGS: Final = re.compile(r"[ims]+|[ims]*-[ims]+")
_HEX: Final = {"x": 2, "u": 4}


class UnsupportedPattern(ValueError):
    """An expression that is no Java expression, or is not supported here.

    The message says what to change.
    """


class StepKind(enum.Enum):
    """Condition that one step of an expression checks in a topic name.

    Look-arounds are ``AHEAD`` and ``BEHIND``; boundaries are those of words.
    """

    CHARACTER = enum.auto()
    CHOICE = enum.auto()
    """One of several steps has to hold, as in ``a|b``."""
    START = enum.auto()
    END = enum.auto()
    BOUNDARY = enum.auto()
    NO_BOUNDARY = enum.auto()
    AHEAD = enum.auto()
    NOT_AHEAD = enum.auto()
    BEHIND = enum.auto()
    NOT_BEHIND = enum.auto()


def quote(expression: str) -> str:
    """Return an expression in quotes for an error message, cut to 200 characters."""
    return repr(expression if len(expression) <= 200 else f"{expression[:200]}...")


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """A set of characters that one step of an expression accepts.

    Attributes:
        among: the ASCII characters in the set.
        others: True if all characters beyond ASCII are in the set, too.
    """

    among: frozenset[str]
    others: bool


@dataclass(frozen=True, slots=True)
class Concatenation:
    """Parts of a regular expression that match one after the other."""

    parts: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """Alternatives of a regular expression, as in ``a|b``: one of them matches."""

    options: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """A repeated part of a regular expression; ``most`` is None without an upper bound."""

    part: Syntax
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Assertion:
    """A condition of a regular expression that takes no characters, such as ``$`` or ``(?=b)``.

    ``part`` is the expression of a look-around, None for other conditions.
    """

    kind: StepKind
    part: Syntax | None = None


@functools.lru_cache(maxsize=1024)
def _find_characters(pattern: str, *, ignore_case: bool) -> CharacterSet:
    """Return the characters that a one-character Python expression matches. Raises re.error."""
    compiled = re.compile(pattern, re.ASCII | (re.IGNORECASE if ignore_case else 0))
    # characters beyond ASCII need not be told apart: none is in a topic's name
    return CharacterSet(frozenset(filter(compiled.fullmatch, _ALPHABET)), others=compiled.fullmatch("\x80") is not None)


Syntax = CharacterSet | Concatenation | Alternation | Repetition | Assertion


class JavaParser:
    """Parser of one regular expression, to be used once.

    ``_at`` is the position of the next token.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ignore_case = False
        self._depth = 0
        self._behind = 0
        """Number of open look-behinds."""
        self._names: set[str] = set()

    def parse(self) -> Syntax:
        """Parse the expression. Raises UnsupportedPattern only."""
        syntax = self._choice()
        if self._at < len(self._text):
            raise self._refuse("a parenthesis that closes nothing")
        return syntax

    def _refuse(self, what: str, instead: str = "") -> UnsupportedPattern:
        hint = f"; {instead}" if instead else ""
        return UnsupportedPattern(f"{quote(self._text)}: {what} at character {self._at}{hint}")

    def _choice(self) -> Syntax:
        """Read alternatives up to a closing parenthesis or the end.

        Flags at their start apply up to there.
        """
        outer = self._ignore_case
        self._flags_at_start()
        options: list[Syntax] = []
        parts: list[Syntax] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                options.append(Concatenation(tuple(parts)))
                parts = []
            else:
                parts.append(self._repeated())
        self._ignore_case = outer
        last = Concatenation(tuple(parts))
        return Alternation((*options, last)) if options else last

    def _repeated(self) -> Syntax:
        if self._text[self._at] in "*+?{":
            return self._quantify(Concatenation(()), nothing=True)
        part = self._atom()
        if self._at < len(self._text) and self._text[self._at] in "*+?{":
            return self._quantify(part, nothing=False)
        return part

    def _quantify(self, part: Syntax, *, nothing: bool) -> Syntax:
        match = _QUANTIFIER.match(self._text, self._at)
        if match is None:
            raise self._refuse(
                "'{' begins no repetition", "write a repetition as {n}, since Java rewrites ',' to '|', or escape it"
            )
        if nothing:
            raise self._refuse("a repetition of nothing")
        least, most = self._bounds(match)
        if self._behind and most is None:
            raise self._refuse("a look-behind without a largest length")
        self._at = match.end()
        if self._text[self._at : self._at + 1] in set("*+?{"):
            raise self._refuse("a repetition of a repetition", "put the inner one in a group")
        repeat = Repetition(part, least, most)
        if match["mode"] != "+" or least == most:
            return repeat  # greedy or reluctant makes no difference when the whole name must match
        if not isinstance(part, CharacterSet):
            raise self._refuse("a possessive repetition of more than one character")
        # possessive: it stops at its largest count, or where another character follows
        stop = Assertion(StepKind.NOT_AHEAD, part)
        if most is None:
            return Concatenation((repeat, stop))
        return Alternation((Repetition(part, most, most), Concatenation((Repetition(part, least, most - 1), stop))))

    def _bounds(self, match: re.Match[str]) -> tuple[int, int | None]:
        if match["least"] is None:
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[match[0][0]]
        least = int(match["least"])
        if match["range"] is None:
            return least, least
        most = None if match["most"] is None else int(match["most"])
        if most is not None and most < least:
            raise self._refuse("a repetition whose bounds are the wrong way round")
        return least, most

    def _atom(self) -> Syntax:
        char = self._text[self._at]
        if char == "(":
            return self._group()
        if char == "\\":
            return self._escape()
        if char == "[":
            return self._class()
        if char in "^$":
            return self._place(StepKind.START if char == "^" else StepKind.END)
        self._at += 1
        # . matches all but line ends, and a name has none
        return CharacterSet(frozenset(_ALPHABET), others=True) if char == "." else self._literal(char)

    def _place(self, kind: StepKind, length: int = 1) -> Syntax:
        if self._behind:
            raise self._refuse("a place within a look-behind")
        self._at += length
        return Assertion(kind)

    def _literal(self, char: str) -> CharacterSet:
        return self._characters(re.escape(char))

    def _characters(self, pattern: str) -> CharacterSet:
        """Return the characters of a one-character Python expression.

        Classes and escapes are written alike in Java and Python.
        """
        try:
            return _find_characters(pattern, ignore_case=self._ignore_case)
        except re.error as error:
            raise self._refuse(f"a character class that is none ({error})") from error

    def _group(self) -> Syntax:
        match = _GROUP.match(self._text, self._at)
        assert match is not None  # it matches a lone parenthesis
        if match[0] == "(" and self._text.startswith("(?", self._at):
            raise self._refuse("a kind of group that is not supported")
        if match["kind"] == ">":
            raise self._refuse("an atomic group", "write (?:...)")
        if match["flags"] is not None:
            if match["end"] == ")":
                raise self._refuse("flags in the middle of a group", "put them at its start, or write (?i:...)")
            if not _FLAGS.fullmatch(match["flags"]):
                raise self._refuse(f"flags {match['flags']!r}", "only i, m and s can be used")
        if match["name"] is not None:
            if match["name"] in self._names:
                raise self._refuse(f"a second group named {match['name']!r}")
            self._names.add(match["name"])
        looking = {"=": StepKind.AHEAD, "!": StepKind.NOT_AHEAD, "<=": StepKind.BEHIND, "<!": StepKind.NOT_BEHIND}.get(
            match["kind"] or ""
        )
        if looking is not None and self._behind:
            raise self._refuse("a look-around within a look-behind")
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise self._refuse(f"more than {MOST_DEPTH} groups within each other")
        outer, self._at = self._ignore_case, match.end()
        if match["flags"] is not None:
            self._set_flags(match["flags"])
        self._behind += looking in {StepKind.BEHIND, StepKind.NOT_BEHIND}
        inner = self._choice()
        self._behind -= looking in {StepKind.BEHIND, StepKind.NOT_BEHIND}
        self._ignore_case = outer
        self._depth -= 1
        if self._at >= len(self._text):
            raise self._refuse("a group is not closed")
        self._at += 1
        return inner if looking is None else Assertion(looking, inner)

    def _flags_at_start(self) -> None:
        """Apply flags such as ``(?i)`` at the start of a group to all of it."""
        while (match := _GROUP.match(self._text, self._at)) and match["flags"] is not None and match["end"] == ")":
            if not _FLAGS.fullmatch(match["flags"]):
                raise self._refuse(f"flags {match['flags']!r}", "only i, m and s can be used")
            self._at = match.end()
            self._set_flags(match["flags"])

    def _set_flags(self, flags: str) -> None:
        on, _, off = flags.partition("-")
        self._ignore_case = (self._ignore_case or "i" in on) and "i" not in off

    def _escape(self) -> Syntax:
        char = self._text[self._at + 1 : self._at + 2]
        if char and char in "AzZbB":
            # in Java, \Z and $ also match before a final line end, which no name has
            kind = {"A": StepKind.START, "b": StepKind.BOUNDARY, "B": StepKind.NO_BOUNDARY}.get(char, StepKind.END)
            return self._place(kind, 2)
        if char == "Q":
            end = self._text.find("\\E", self._at + 2)
            quoted = self._text[self._at + 2 :] if end < 0 else self._text[self._at + 2 : end]
            self._at = len(self._text) if end < 0 else end + 2
            return self._quoted(quoted)
        if char and char in "123456789k":
            raise self._refuse("a back reference")
        return self._characters(self._one_character())

    def _quoted(self, text: str) -> Syntax:
        parts: list[Syntax] = [self._literal(char) for char in text]
        if len(parts) > 1 and self._text[self._at : self._at + 1] in set("*+?{"):
            return Concatenation(
                (*parts[:-1], self._quantify(parts[-1], nothing=False))
            )  # only the last one is repeated
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _one_character(self) -> str:
        """Read an escape for one character, inside a class or not; return Python's."""
        text, start = self._text, self._at
        if start + 1 >= len(text):
            raise self._refuse("a backslash at the end")
        char = text[start + 1]
        if char in _HEX:
            digits = text[start + 2 : start + 2 + _HEX[char]]
            if len(digits) < _HEX[char] or not re.fullmatch("[0-9a-fA-F]+", digits):
                raise self._refuse(f"\\{char} needs {_HEX[char]} hexadecimal digits")
            self._at += 2 + _HEX[char]
            return re.escape(chr(int(digits, 16)))
        if char.isascii() and char.isalnum() and char not in _SAME_ESCAPES:
            raise self._refuse(f"\\{char}", "spell it out as a character class such as [a-z]")
        self._at += 2
        return f"\\{char}" if char in _SAME_ESCAPES else re.escape(char)

    def _class(self) -> Syntax:
        text, out = self._text, ["["]
        self._at += 1
        if text.startswith("^", self._at):
            self._at += 1
            out.append("^")
        if text.startswith("]", self._at):
            raise self._refuse("']' at the start of a character class", r"escape it as \]")
        while True:
            if self._at >= len(text):
                raise self._refuse("a character class is not closed")
            char = text[self._at]
            if char == "]":
                self._at += 1
                out.append("]")
                return self._characters("".join(out))
            if char == "[":
                raise self._refuse("a class within a class", r"write one class, or escape it as \[")
            if text.startswith("&&", self._at):
                raise self._refuse("an intersection of classes", "write the characters out")
            if text.startswith("--", self._at):
                raise self._refuse("'--' in a character class", r"escape it as \-")
            if char == "\\":
                out.append(self._one_character())
                continue
            self._at += 1
            out.append(char if char == "-" else re.escape(char))
