# SPDX-License-Identifier: Apache-2.0
r"""Java's regular expressions, matched in bounded time.

Pure. Members of a group must agree on the topics that an expression matches, so an expression is read token by token as
``java.util.regex.Pattern`` reads it. What Java refuses is refused, and so is what cannot be evaluated in bounded time
or is not supported here: back references, atomic groups, possessive repetitions of more than one character, ``\p{..}``,
intersections and unions of character classes. ``\w``, ``\d`` and ignoring case are limited to ASCII, Java's default.

Any member may register any expression, and it is evaluated on the event loop that keeps our session alive. A
backtracking engine takes hours for ``(a+)+b``, so names are matched by automata instead:

- The expression becomes a graph of steps (:class:`_Graph`): a character, a choice, an assertion, a look-around.
- A name is read from its end to its beginning. At each place, the set of steps from which the rest of the name matches
  follows from the set one place further on. In this direction, a look-ahead is decided before anything depends on it.
- Sets are computed once and cached, so that most names cost one dictionary look-up per character.

Example: ``a(?!b).*`` and the name ``ac``. At the end ``.*`` matches. Before ``c``, ``.*`` matches and ``b`` does not,
so the look-ahead holds. Before ``a``, the whole expression matches.

The work of computing sets is counted (:data:`MOST_WORK`), for all names of an expression together, so that all
consumerd members refuse the same expressions.

Sources: the documentation of ``java.util.regex.Pattern``; what Java matches is recorded in
``tests/vectors/java-regex``.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

MOST_STEPS: Final = 20_000
"""Largest number of steps of one expression, repetitions expanded; a white list of 500 topic names has about 15,000."""
MOST_WORK: Final = 250_000
"""Steps visited while one expression is applied to all names of a cluster: about a tenth of a second."""
MOST_DEPTH: Final = 100
"""Largest nesting of groups."""

_ALPHABET: Final = tuple(map(chr, range(128)))
_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SAME_ESCAPES: Final = frozenset("dDwWsStnrfa")
"""Escapes by a letter that stand for one character and mean the same to Python in ASCII mode."""
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{(?P<least>[0-9]{1,9})(?P<range>,(?P<most>[0-9]{1,9})?)?\})(?P<mode>[+?]?)")
_GROUP: Final = re.compile(
    r"\((?:\?(?:(?P<kind>[:=!>]|<[=!])|<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>|(?P<flags>[a-zA-Z-]+)(?P<end>[:)])))?"
)
_FLAGS: Final = re.compile(r"[ims]+|[ims]*-[ims]+")
_HEX: Final = {"x": 2, "u": 4}


class UnsupportedPattern(ValueError):
    """Not a Java expression, or not supported here; the message says what to change."""


class _Kind(enum.Enum):
    """The condition of a step, apart from the steps that follow it."""

    CHARACTER = enum.auto()
    CHOICE = enum.auto()
    """Any of the following steps."""
    START = enum.auto()
    END = enum.auto()
    BOUNDARY = enum.auto()
    NO_BOUNDARY = enum.auto()
    AHEAD = enum.auto()
    NOT_AHEAD = enum.auto()
    BEHIND = enum.auto()
    NOT_BEHIND = enum.auto()


# -- syntax


@dataclass(frozen=True, slots=True)
class _Characters:
    """One of these characters; with ``others``, also any character beyond ASCII."""

    among: frozenset[str]
    others: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Syntax, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[_Syntax, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A repetition; ``most`` is None without an upper bound."""

    part: _Syntax
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Assertion:
    """A zero-width condition; for look-arounds, ``part`` is the expression looked for."""

    kind: _Kind
    part: _Syntax | None = None


@functools.lru_cache(maxsize=1024)
def _find_characters(pattern: str, *, ignore_case: bool) -> _Characters:
    """Return the characters that a one-character Python expression matches. Raises re.error."""
    compiled = re.compile(pattern, re.ASCII | (re.IGNORECASE if ignore_case else 0))
    # characters beyond ASCII need not be told apart: none is in a topic's name
    return _Characters(frozenset(filter(compiled.fullmatch, _ALPHABET)), others=compiled.fullmatch("\x80") is not None)


_Syntax = _Characters | _Sequence | _Choice | _Repeat | _Assertion


class _Parser:
    """One pass over an expression; ``_at`` is the position of the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ignore_case = False
        self._depth = 0
        self._behind = 0
        """Number of open look-behinds."""
        self._names: set[str] = set()

    def parse(self) -> _Syntax:
        syntax = self._choice()
        if self._at < len(self._text):
            raise self._refuse("a parenthesis that closes nothing")
        return syntax

    def _refuse(self, what: str, instead: str = "") -> UnsupportedPattern:
        hint = f"; {instead}" if instead else ""
        return UnsupportedPattern(f"{_quote(self._text)}: {what} at character {self._at}{hint}")

    def _choice(self) -> _Syntax:
        """Read alternatives up to a closing parenthesis or the end.

        Flags at their start apply up to there.
        """
        outer = self._ignore_case
        self._flags_at_start()
        options: list[_Syntax] = []
        parts: list[_Syntax] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                options.append(_Sequence(tuple(parts)))
                parts = []
            else:
                parts.append(self._repeated())
        self._ignore_case = outer
        last = _Sequence(tuple(parts))
        return _Choice((*options, last)) if options else last

    def _repeated(self) -> _Syntax:
        if self._text[self._at] in "*+?{":
            return self._quantify(_Sequence(()), nothing=True)
        part = self._atom()
        if self._at < len(self._text) and self._text[self._at] in "*+?{":
            return self._quantify(part, nothing=False)
        return part

    def _quantify(self, part: _Syntax, *, nothing: bool) -> _Syntax:
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
        repeat = _Repeat(part, least, most)
        if match["mode"] != "+" or least == most:
            return repeat  # greedy or reluctant makes no difference when the whole name must match
        if not isinstance(part, _Characters):
            raise self._refuse("a possessive repetition of more than one character")
        # possessive: it stops at its largest count, or where another character follows
        stop = _Assertion(_Kind.NOT_AHEAD, part)
        if most is None:
            return _Sequence((repeat, stop))
        return _Choice((_Repeat(part, most, most), _Sequence((_Repeat(part, least, most - 1), stop))))

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

    def _atom(self) -> _Syntax:
        char = self._text[self._at]
        if char == "(":
            return self._group()
        if char == "\\":
            return self._escape()
        if char == "[":
            return self._class()
        if char in "^$":
            return self._place(_Kind.START if char == "^" else _Kind.END)
        self._at += 1
        # . matches all but line ends, and a name has none
        return _Characters(frozenset(_ALPHABET), others=True) if char == "." else self._literal(char)

    def _place(self, kind: _Kind, length: int = 1) -> _Syntax:
        if self._behind:
            raise self._refuse("a place within a look-behind")
        self._at += length
        return _Assertion(kind)

    def _literal(self, char: str) -> _Characters:
        return self._characters(re.escape(char))

    def _characters(self, pattern: str) -> _Characters:
        """Return the characters of a one-character Python expression.

        Classes and escapes are written alike in Java and Python.
        """
        try:
            return _find_characters(pattern, ignore_case=self._ignore_case)
        except re.error as error:
            raise self._refuse(f"a character class that is none ({error})") from error

    def _group(self) -> _Syntax:
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
        looking = {"=": _Kind.AHEAD, "!": _Kind.NOT_AHEAD, "<=": _Kind.BEHIND, "<!": _Kind.NOT_BEHIND}.get(
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
        self._behind += looking in {_Kind.BEHIND, _Kind.NOT_BEHIND}
        inner = self._choice()
        self._behind -= looking in {_Kind.BEHIND, _Kind.NOT_BEHIND}
        self._ignore_case = outer
        self._depth -= 1
        if self._at >= len(self._text):
            raise self._refuse("a group is not closed")
        self._at += 1
        return inner if looking is None else _Assertion(looking, inner)

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

    def _escape(self) -> _Syntax:
        char = self._text[self._at + 1 : self._at + 2]
        if char and char in "AzZbB":
            # in Java, \Z and $ also match before a final line end, which no name has
            kind = {"A": _Kind.START, "b": _Kind.BOUNDARY, "B": _Kind.NO_BOUNDARY}.get(char, _Kind.END)
            return self._place(kind, 2)
        if char == "Q":
            end = self._text.find("\\E", self._at + 2)
            quoted = self._text[self._at + 2 :] if end < 0 else self._text[self._at + 2 : end]
            self._at = len(self._text) if end < 0 else end + 2
            return self._quoted(quoted)
        if char and char in "123456789k":
            raise self._refuse("a back reference")
        return self._characters(self._one_character())

    def _quoted(self, text: str) -> _Syntax:
        parts: list[_Syntax] = [self._literal(char) for char in text]
        if len(parts) > 1 and self._text[self._at : self._at + 1] in set("*+?{"):
            return _Sequence((*parts[:-1], self._quantify(parts[-1], nothing=False)))  # only the last one is repeated
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

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

    def _class(self) -> _Syntax:
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


# -- the graph


@dataclass(slots=True)
class _Step:
    """One step of the graph; it holds if its condition does and its successor holds.

    Look-arounds begin at ``inner``, and their own steps have a ``level`` one higher.
    """

    kind: _Kind
    level: int
    characters: _Characters | None = None
    before: list[int] = field(default_factory=list)
    """Predecessors: steps that this one follows, or choices that contain it."""
    inner: int = -1


def _find_lengths(syntax: _Syntax) -> tuple[int, int]:
    """Return the smallest and largest number of characters of a match."""
    match syntax:
        case _Characters():
            return 1, 1
        case _Sequence(parts):
            lengths = [_find_lengths(part) for part in parts]
            return sum(least for least, _ in lengths), sum(most for _, most in lengths)
        case _Choice(options):
            lengths = [_find_lengths(option) for option in options]
            return min(least for least, _ in lengths), max(most for _, most in lengths)
        case _Repeat(part, fewest, most_often):
            assert most_often is not None  # refused within a look-behind
            least, most = _find_lengths(part)
            return least * fewest, most * most_often
        case _Assertion():
            return 0, 0


class _Graph:
    """The steps of an expression, built from its end to its beginning."""

    def __init__(self, text: str, syntax: _Syntax) -> None:
        self._text = text
        self._syntax = syntax
        self.steps: list[_Step] = []
        self.behinds: list[tuple[int, _Graph]] = []
        """Look-behinds: the step, and the graph of the expression to be found before it."""
        self.inner_ends: list[int] = []
        """The ends of look-aheads: steps that hold anywhere."""
        self.end = self._add(_Kind.CHOICE, 0)
        self.start = self._build(syntax, self.end, 0)
        self.levels = max(step.level for step in self.steps)

    def find_lengths(self) -> tuple[int, int]:
        """Return the shortest and longest match of this graph, that of a look-behind."""
        return _find_lengths(self._syntax)

    def _add(self, kind: _Kind, level: int, *after: int) -> int:
        if len(self.steps) >= MOST_STEPS:
            raise UnsupportedPattern(f"{_quote(self._text)}: too large, more than {MOST_STEPS} steps")
        number = len(self.steps)
        self.steps.append(_Step(kind, level))
        for one in after:
            self.steps[one].before.append(number)
        return number

    def _build(self, syntax: _Syntax, after: int, level: int) -> int:
        """Add the steps of ``syntax`` before ``after``, and return the first of them."""
        match syntax:
            case _Characters():
                number = self._add(_Kind.CHARACTER, level, after)
                self.steps[number].characters = syntax
                return number
            case _Sequence(parts):
                for part in reversed(parts):
                    after = self._build(part, after, level)
                return after
            case _Choice(options):
                return self._add(_Kind.CHOICE, level, *[self._build(option, after, level) for option in options])
            case _Repeat(part, least, most):
                return self._repeat(part, least, most, after, level)
            case _Assertion(kind, None):
                return self._add(kind, level, after)
            case _Assertion(kind, part):
                assert part is not None  # the case above
                return self._look(kind, part, after, level)

    def _repeat(self, part: _Syntax, least: int, most: int | None, after: int, level: int) -> int:
        if most is None:
            loop = self._add(_Kind.CHOICE, level, after)
            first = self._build(part, loop, level)
            self.steps[first].before.append(loop)
            after = loop
        else:
            end = after
            for _ in range(most - least):
                after = self._add(_Kind.CHOICE, level, self._build(part, after, level), end)
        for _ in range(least):
            before = self._build(part, after, level)
            if before == after:
                break  # repeating an empty expression changes nothing
            after = before
        return after

    def _look(self, kind: _Kind, part: _Syntax, after: int, level: int) -> int:
        number = self._add(kind, level, after)
        if kind in {_Kind.BEHIND, _Kind.NOT_BEHIND}:
            self.behinds.append((number, _Graph(self._text, part)))
        else:
            end = self._add(_Kind.CHOICE, level + 1)
            self.inner_ends.append(end)
            self.steps[number].inner = self._build(part, end, level + 1)
        return number


@dataclass(frozen=True, slots=True)
class _Place:
    """A position in a name; ``behind`` are the look-behinds that hold there."""

    at_start: bool
    at_end: bool
    boundary: bool
    behind: frozenset[int]


class JavaPattern:
    """A compiled expression."""

    def __init__(self, expression: str, graph: _Graph) -> None:
        self._expression = expression
        self._graph = graph

    def fullmatch(self, name: str) -> bool:
        """Return True if the expression matches the whole name.

        Raises UnsupportedPattern if that takes too much work.
        """
        return name in self.match_names((name,))

    def match_names(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that match.

        Raises UnsupportedPattern if they take more than MOST_WORK together.
        """
        run = _Run(self._expression, self._graph)
        return frozenset(name for name in sorted(names) if run.matches(name))


_AT_END: Final = _Place(at_start=False, at_end=True, boundary=False, behind=frozenset())
_INSIDE: Final = _Place(at_start=False, at_end=False, boundary=False, behind=frozenset())
_AT_START: Final = _Place(at_start=True, at_end=False, boundary=False, behind=frozenset())


class _Run:
    """A matcher of one expression, with the sets of steps that it has computed.

    Without word boundaries and look-behinds, sets are numbered, and the next set depends only on the character. Other
    expressions are rare, and take more time per character.
    """

    def __init__(self, expression: str, graph: _Graph) -> None:
        self._expression = expression
        self._graph = graph
        self.work = 0
        self._uses_words = any(step.kind in {_Kind.BOUNDARY, _Kind.NO_BOUNDARY} for step in graph.steps)
        self._by_character = not self._uses_words and not graph.behinds
        self._sets: list[frozenset[int]] = []
        self._numbers: dict[frozenset[int], int] = {}
        self._moves: list[dict[str, int]] = []
        """The number of the next set, by set and character."""
        self._verdicts: dict[tuple[int, str], bool] = {}
        """The result for a name, by set and first character of the name."""
        self._placed: dict[tuple[frozenset[int], str, _Place], tuple[frozenset[int], bool]] = {}
        self._behind_known: dict[tuple[int, str], bool] = {}
        self._behind_runs = [_Run(expression, inner) for _, inner in graph.behinds]
        self._last = self._number(self._go_back(frozenset(), "", _AT_END)[0]) if self._by_character else -1

    def matches(self, name: str) -> bool:
        if not self._by_character or not name:
            return self._match_by_place(name)
        moves, number = self._moves, self._last
        for char in name[:0:-1]:
            following = moves[number].get(char)
            number = self._move(number, char) if following is None else following
        verdict = self._verdicts.get((number, name[0]))
        if verdict is None:
            verdict = self._verdicts[number, name[0]] = self._go_back(self._sets[number], name[0], _AT_START)[1]
        return verdict

    def _number(self, known: frozenset[int]) -> int:
        number = self._numbers.setdefault(known, len(self._sets))
        if number == len(self._sets):
            self._sets.append(known)
            self._moves.append({})
        return number

    def _move(self, number: int, char: str) -> int:
        before = self._number(self._go_back(self._sets[number], char, _INSIDE)[0])
        self._moves[number][char] = before
        return before

    def _match_by_place(self, name: str) -> bool:
        behind = self._look_behind(name)
        known: frozenset[int] = frozenset()
        matched = False
        for at in range(len(name), -1, -1):
            char = name[at] if at < len(name) else ""
            words = (at > 0 and name[at - 1] in _WORD) != (char in _WORD if char else False)
            place = _Place(
                at_start=at == 0, at_end=at == len(name), boundary=self._uses_words and words, behind=behind[at]
            )
            found = self._placed.get((known, char, place))
            if found is None:
                found = self._placed[known, char, place] = self._go_back(known, char, place)
            known, matched = found
        return matched

    def _go_back(self, known: frozenset[int], char: str, place: _Place) -> tuple[frozenset[int], bool]:
        """Return the steps that hold before ``char``, and whether the first step does.

        ``known`` are the steps that hold after it. Only steps that follow a character are kept: others do not matter
        one place to the left.
        """
        self._count()
        steps = self._graph.steps
        holding: set[int] = set()
        waiting: list[list[int]] = [[] for _ in range(self._graph.levels + 1)]
        for number in known:
            for before in steps[number].before:
                self._count()
                step = steps[before]
                if step.kind is _Kind.CHARACTER and _has(step, char):
                    waiting[step.level].append(before)
        for number in self._graph.inner_ends:
            waiting[steps[number].level].append(number)
        if place.at_end:
            waiting[0].append(self._graph.end)
        # inner look-aheads first: steps of outer levels depend on them
        for level in range(self._graph.levels, -1, -1):
            while waiting[level]:
                number = waiting[level].pop()
                if number in holding:
                    continue
                holding.add(number)
                for before in steps[number].before:
                    self._count()
                    if self._holds(before, place, holding):
                        waiting[level].append(before)
        kept = frozenset(
            number for number in holding if any(steps[b].kind is _Kind.CHARACTER for b in steps[number].before)
        )
        return kept, self._graph.start in holding

    def _holds(self, number: int, place: _Place, holding: set[int]) -> bool:
        step = self._graph.steps[number]
        match step.kind:
            case _Kind.CHARACTER:
                return False  # it may hold one place further to the left
            case _Kind.CHOICE:
                return True
            case _Kind.START:
                return place.at_start
            case _Kind.END:
                return place.at_end
            case _Kind.BOUNDARY:
                return place.boundary
            case _Kind.NO_BOUNDARY:
                return not place.boundary
            case _Kind.AHEAD | _Kind.NOT_AHEAD:
                return (step.inner in holding) is (step.kind is _Kind.AHEAD)
            case _Kind.BEHIND | _Kind.NOT_BEHIND:
                return (number in place.behind) is (step.kind is _Kind.BEHIND)

    def _look_behind(self, name: str) -> list[frozenset[int]]:
        """Return, for each place of a name, the look-behinds whose match ends there."""
        ending: list[set[int]] = [set() for _ in range(len(name) + 1)]
        for (step, graph), inner in zip(self._graph.behinds, self._behind_runs, strict=True):
            least, most = graph.find_lengths()
            for end in range(least, len(name) + 1):
                for start in range(max(0, end - most), end - least + 1):
                    if self._matches_behind(step, inner, name[start:end]):
                        ending[end].add(step)
        return [frozenset(one) for one in ending]

    def _matches_behind(self, step: int, inner: _Run, text: str) -> bool:
        found = self._behind_known.get((step, text))
        if found is None:
            self._count(len(text) + 1)
            found = self._behind_known[step, text] = inner.matches(text)
        return found

    def _count(self, work: int = 1) -> None:
        self.work += work
        if self.work > MOST_WORK:
            raise UnsupportedPattern(
                f"{_quote(self._expression)}: too much work to match; write it without nested choices"
            )


def _has(step: _Step, char: str) -> bool:
    assert step.characters is not None  # set for every CHARACTER step
    return char in step.characters.among if char.isascii() else step.characters.others


def _quote(expression: str) -> str:
    return repr(expression if len(expression) <= 200 else f"{expression[:200]}...")


def compile_java(expression: str) -> JavaPattern:
    """Compile a Java expression. Raises UnsupportedPattern only."""
    return JavaPattern(expression, _Graph(expression, _Parser(expression).parse()))
