# SPDX-License-Identifier: Apache-2.0
r"""Our matching of Java's expressions against Python's backtracking engine, where both mean the same; and its bounds."""

from __future__ import annotations

import contextlib
import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.group.java_regex import MOST_WORK, UnsupportedPattern, compile_java
from consumerd.group.subscription import INTERNAL_TOPICS, plan_streams
from consumerd.zk.znodes import MemberRegistration, Pattern

NAMES = [
    "a", "b", "ab", "ba", "aa", "bb", "aab", "aba", "abb", "bab", "a-b", "a.b", "b.a", "A", "aB", "a1", "1-2", "ab.ab",
    "aaaa", "abab", "-", "_a", "b-", "b_b.a",
]  # fmt: skip

_atoms = st.sampled_from(
    ["a", "b", ".", "-", r"\.", "[ab]", "[^a]", r"\w", r"\d", r"\W", "1", "A", "^", "$", r"\b", r"\B", r"\A", "[a-b.]"]
)
_quantifiers = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}", "*?", "+?", "{1,3}?"])
_possessive = st.sampled_from(["a", "[ab]", r"\w", "."]).flatmap(
    lambda atom: st.sampled_from(["*+", "++", "?+", "{1,2}+", "{2}+"]).map(lambda quantifier: atom + quantifier)
)
_behind = st.sampled_from(["(?<=a)", "(?<!a)", "(?<=ab|bb)", r"(?<!\.)", "(?<=[ab]{2})", "(?<!b-)"])


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    grouped = st.builds("{}{}{}".format, st.sampled_from(["(", "(?:", "(?i:", "(?=", "(?!"]), inner, st.just(")"))
    repeated = st.builds("(?:{}){}".format, inner, _quantifiers)
    joined = st.lists(inner, min_size=1, max_size=3)
    return grouped | repeated | joined.map("".join) | joined.map("|".join)


expressions = st.recursive(_atoms | _possessive | _behind, _grow, max_leaves=8)


@settings(max_examples=500)
@given(expressions)
def test_every_expression_matches_what_a_backtracking_engine_matches(expression: str) -> None:
    """Two engines that share nothing but the meaning: look-arounds, repetitions of what may be empty, case, places."""
    expected = re.compile(expression, re.ASCII)
    found = compile_java(expression).match_names(NAMES)
    assert found == {name for name in NAMES if expected.fullmatch(name)}


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+b",
        "(a*)*b",
        "(a|aa)+b",
        "(a|a?)+b",
        "(.*a){12}b",
        "(.*)*(.*)*(.*)*b",
        ".*.*.*.*.*.*.*.*b",
        "((a{0,200}){0,200})b",
        "(?!(a+)+b)(a+)+b",
        "((?=(a|aa)+b)a)+b",
        "(?<=a{1,100})b",
    ],
)
def test_no_expression_takes_longer_than_its_bound(expression: str) -> None:
    """Backtracking takes 2 to the 249th steps for some of these; here each is decided, or refused, within a fixed count.

    The count is asserted by the matcher itself: what it does beyond is an UnsupportedPattern.
    """
    names = ["a" * length for length in range(200, 250)]
    with contextlib.suppress(UnsupportedPattern):
        assert compile_java(expression).match_names(names) == frozenset()


def test_work_beyond_the_bound_is_refused() -> None:
    """Names whose every suffix is a set of its own: what is looked up for most expressions is computed anew here."""
    random = Random(1)
    names = ["".join(random.choices("ab", k=249)) for _ in range(2_000)]
    with pytest.raises(UnsupportedPattern, match="too much work"):
        compile_java("(?!" + "|".join(f"(.*a.{{{n}}}b)" for n in range(40)) + ").*").match_names(names)


def test_what_teams_use_stays_far_below_the_bound() -> None:
    """Ten thousand topics, and a white list of five hundred names: refusing that would leave their partitions unowned."""
    names = frozenset(f"team-{number % 40}.{kind}.v{number}" for number in range(3_400) for kind in ("a", "b", "dlq"))
    assert len(names) > 10_000
    usual = {
        r"team-1[.].*": 255,
        r"(?!.*[.]dlq[.].*).*": 6_800,
        r"[a-z0-9-]+([.][a-z0-9]+)*": 10_200,
        r"(?!(?:.*dlq.*)$)(?:team-7[.].*|team-8[.].*)": 340,
        "|".join(re.escape(name) for name in sorted(names)[:500]): 500,
        r".*(?<!9)": 9_180,
    }
    assert {text: len(compile_java(text).match_names(names)) for text in usual} == usual


@pytest.mark.parametrize("text", ["(a+)+b", "((a{0,60}){0,60}){0,4}b", "(?!(.*a){9})(.*b){9}"])
def test_whether_an_expression_is_refused_does_not_depend_on_the_order_of_names(text: str) -> None:
    """Members that list topics in another order must refuse the same expressions."""
    names = [("ab" * 40)[: 10 + number] + "a" * number for number in range(40)]

    def match(ordered: list[str]) -> frozenset[str] | None:
        try:
            return compile_java(text).match_names(ordered)
        except UnsupportedPattern:
            return None

    assert match(names) == match(names[::-1])
    assert MOST_WORK > 0


@given(expressions)
def test_a_black_list_takes_what_the_white_list_of_its_expression_leaves(expression: str) -> None:
    """``Blacklist.isTopicAllowed`` is the contrary of ``Whitelist.isTopicAllowed``, but for internal topics."""
    registered = {
        kind: MemberRegistration(pattern=kind, subscription={expression: 3}, timestamp_ms=1)
        for kind in (Pattern.WHITE_LIST, Pattern.BLACK_LIST)
    }
    try:
        taken, left = (plan_streams(one, [*NAMES, *INTERNAL_TOPICS]) for one in registered.values())
    except UnsupportedPattern:
        return  # the text is rewritten before it is read, as Java does, and may be none then
    assert taken.keys() | left.keys() == set(NAMES)
    assert not taken.keys() & left.keys()
    assert {*taken.values(), *left.values()} == {3}
