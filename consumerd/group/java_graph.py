# SPDX-License-Identifier: Apache-2.0
"""Graphs of steps: a parsed expression in the form in which it is matched.

Pure. A step is a character, a choice, an assertion or a look-around, and knows the steps that precede it: names are
matched from their end to their beginning (:mod:`consumerd.group.java_regex`). Repetitions are expanded, so the number
of steps is limited.

Example: ``ab{2}`` has four steps. They are added from the last to the first: the end, ``b``, ``b``, and ``a``, which is
the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from consumerd.group.java_syntax import (
    Alternation,
    Assertion,
    CharacterSet,
    Concatenation,
    Repetition,
    StepKind,
    Syntax,
    UnsupportedPattern,
    quote,
)

MOST_STEPS: Final = 20_000
"""Largest number of steps of one expression, repetitions expanded; a white list of 500 topic names has about 15,000."""


@dataclass(slots=True)
class Step:
    """One step of the graph: a condition at a position in a topic name.

    From a position, the rest of the name matches a step if the step's own condition is fulfilled there, and the rest
    after it matches the following step. ``before`` has the steps that precede this one. A look-around begins at the
    step with index ``inner``; the steps within it have a ``level`` one higher.
    """

    kind: StepKind
    level: int
    characters: CharacterSet | None = None
    before: list[int] = field(default_factory=list)
    """Indexes of the steps that precede this one, or of choices that contain it."""
    inner: int = -1


def find_lengths(syntax: Syntax) -> tuple[int, int]:
    """Return the smallest and largest number of characters that an expression can match.

    The expression is the inside of a look-behind, so it has no unlimited repetition.
    """
    match syntax:
        case CharacterSet():
            return 1, 1
        case Concatenation(parts):
            lengths = [find_lengths(part) for part in parts]
            return sum(least for least, _ in lengths), sum(most for _, most in lengths)
        case Alternation(options):
            lengths = [find_lengths(option) for option in options]
            return min(least for least, _ in lengths), max(most for _, most in lengths)
        case Repetition(part, fewest, most_often):
            assert most_often is not None  # refused within a look-behind
            least, most = find_lengths(part)
            return least * fewest, most * most_often
        case Assertion():
            return 0, 0


class StepGraph:
    """The steps of one regular expression, built from its end to its beginning."""

    def __init__(self, text: str, syntax: Syntax) -> None:
        self._text = text
        self.syntax: Final = syntax
        self.steps: list[Step] = []
        self.behinds: list[tuple[int, StepGraph]] = []
        """Look-behinds: the step, and the graph of the expression to be found before it."""
        self.inner_ends: list[int] = []
        """The ends of look-aheads: steps that hold anywhere."""
        self.end = self._add(StepKind.CHOICE, 0)
        self.start = self._build(syntax, self.end, 0)
        self.levels = max(step.level for step in self.steps)

    def _add(self, kind: StepKind, level: int, *after: int) -> int:
        if len(self.steps) >= MOST_STEPS:
            raise UnsupportedPattern(f"{quote(self._text)}: too large, more than {MOST_STEPS} steps")
        number = len(self.steps)
        self.steps.append(Step(kind, level))
        for one in after:
            self.steps[one].before.append(number)
        return number

    def _build(self, syntax: Syntax, after: int, level: int) -> int:
        """Add the steps of ``syntax`` before ``after``, and return the first of them."""
        match syntax:
            case CharacterSet():
                number = self._add(StepKind.CHARACTER, level, after)
                self.steps[number].characters = syntax
                return number
            case Concatenation(parts):
                for part in reversed(parts):
                    after = self._build(part, after, level)
                return after
            case Alternation(options):
                return self._add(StepKind.CHOICE, level, *[self._build(option, after, level) for option in options])
            case Repetition(part, least, most):
                return self._repeat(part, least, most, after, level)
            case Assertion(kind, None):
                return self._add(kind, level, after)
            case Assertion(kind, part):
                assert part is not None  # the case above
                return self._look(kind, part, after, level)

    def _repeat(self, part: Syntax, least: int, most: int | None, after: int, level: int) -> int:
        if most is None:
            loop = self._add(StepKind.CHOICE, level, after)
            first = self._build(part, loop, level)
            self.steps[first].before.append(loop)
            after = loop
        else:
            end = after
            for _ in range(most - least):
                after = self._add(StepKind.CHOICE, level, self._build(part, after, level), end)
        for _ in range(least):
            before = self._build(part, after, level)
            if before == after:
                break  # repeating an empty expression changes nothing
            after = before
        return after

    def _look(self, kind: StepKind, part: Syntax, after: int, level: int) -> int:
        number = self._add(kind, level, after)
        if kind in {StepKind.BEHIND, StepKind.NOT_BEHIND}:
            self.behinds.append((number, StepGraph(self._text, part)))
        else:
            end = self._add(StepKind.CHOICE, level + 1)
            self.inner_ends.append(end)
            self.steps[number].inner = self._build(part, end, level + 1)
        return number
