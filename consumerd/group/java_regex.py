# SPDX-License-Identifier: Apache-2.0
"""Java's regular expressions, matched in bounded time.

Pure. Members of a group must agree on the topics that an expression matches. Any member may register any expression,
and it is evaluated on the event loop that keeps our session alive. A backtracking engine takes hours for ``(a+)+b``, so
names are matched by automata instead:

- The expression is parsed (:mod:`consumerd.group.java_syntax`) and becomes a graph of steps
  (:mod:`consumerd.group.java_graph`): a character, a choice, an assertion, a look-around.
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

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from consumerd.group.java_graph import Step, StepGraph, find_lengths
from consumerd.group.java_syntax import JavaParser, StepKind, UnsupportedPattern, quote

__all__ = ["MOST_WORK", "JavaPattern", "UnsupportedPattern", "compile_java"]

MOST_WORK: Final = 250_000
"""Largest number of steps visited to apply one expression to all topic names: about 0.1 s."""

_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


@dataclass(frozen=True, slots=True)
class _Place:
    """A position in a name; ``behind`` are the look-behinds that hold there."""

    at_start: bool
    at_end: bool
    boundary: bool
    behind: frozenset[int]


class JavaPattern:
    """A compiled Java regular expression, which matches whole topic names."""

    def __init__(self, expression: str, graph: StepGraph) -> None:
        self._expression = expression
        self._graph = graph

    def match_names(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that match as a whole.

        Raises UnsupportedPattern if matching all of them takes more than :data:`MOST_WORK` steps.
        """
        run = _Run(self._expression, self._graph)
        return frozenset(name for name in sorted(names) if run.matches(name))


_AT_END: Final = _Place(at_start=False, at_end=True, boundary=False, behind=frozenset())
_INSIDE: Final = _Place(at_start=False, at_end=False, boundary=False, behind=frozenset())
_AT_START: Final = _Place(at_start=True, at_end=False, boundary=False, behind=frozenset())


class _Run:
    """A matcher of one expression: an automaton whose states are sets of steps.

    A state is computed when it is first needed. Without word boundaries and look-behinds, the next state depends only
    on the state and the character, so it is cached by both. Other expressions are rare, and take more time per
    character.
    """

    def __init__(self, expression: str, graph: StepGraph) -> None:
        self._expression = expression
        self._graph = graph
        self.work = 0
        self._uses_words = any(step.kind in {StepKind.BOUNDARY, StepKind.NO_BOUNDARY} for step in graph.steps)
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
                if step.kind is StepKind.CHARACTER and _has(step, char):
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
            number for number in holding if any(steps[b].kind is StepKind.CHARACTER for b in steps[number].before)
        )
        return kept, self._graph.start in holding

    def _holds(self, number: int, place: _Place, holding: set[int]) -> bool:
        step = self._graph.steps[number]
        match step.kind:
            case StepKind.CHARACTER:
                return False  # it may hold one place further to the left
            case StepKind.CHOICE:
                return True
            case StepKind.START:
                return place.at_start
            case StepKind.END:
                return place.at_end
            case StepKind.BOUNDARY:
                return place.boundary
            case StepKind.NO_BOUNDARY:
                return not place.boundary
            case StepKind.AHEAD | StepKind.NOT_AHEAD:
                return (step.inner in holding) is (step.kind is StepKind.AHEAD)
            case StepKind.BEHIND | StepKind.NOT_BEHIND:
                return (number in place.behind) is (step.kind is StepKind.BEHIND)

    def _look_behind(self, name: str) -> list[frozenset[int]]:
        """Return, for each place of a name, the look-behinds whose match ends there."""
        ending: list[set[int]] = [set() for _ in range(len(name) + 1)]
        for (step, graph), inner in zip(self._graph.behinds, self._behind_runs, strict=True):
            least, most = find_lengths(graph.syntax)
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
                f"{quote(self._expression)}: too much work to match; write it without nested choices"
            )


def _has(step: Step, char: str) -> bool:
    assert step.characters is not None  # set for every CHARACTER step
    return char in step.characters.among if char.isascii() else step.characters.others


def compile_java(expression: str) -> JavaPattern:
    """Return a compiled Java regular expression. Raises UnsupportedPattern only."""
    return JavaPattern(expression, StepGraph(expression, JavaParser(expression).parse()))
