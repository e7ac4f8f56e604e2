# SPDX-License-Identifier: Apache-2.0
"""Incarnations of topics: their text, and what can be said of two of them."""

from __future__ import annotations

import uuid

import pytest

from consumerd.model import UNKNOWN_INCARNATION, Incarnation

BY_ID = Incarnation.of_topic_id(uuid.UUID(int=7))
OTHER_ID = Incarnation.of_topic_id(uuid.UUID(int=8))


@pytest.mark.parametrize(
    "incarnation",
    [
        Incarnation(7),
        Incarnation(2**63 - 1, 12),
        BY_ID,
        BY_ID.truncated(3),
        Incarnation(0, topic_id="_" * 22),
        Incarnation(0, topic_id="1" * 22),
        UNKNOWN_INCARNATION,
    ],
    ids=str,
)
def test_text_tells_the_same_incarnation(incarnation: Incarnation) -> None:
    """It stands in files, tables and on command lines."""
    assert incarnation == Incarnation.parse(str(incarnation))
    assert incarnation.truncated(0) == Incarnation.parse_topic(incarnation.topic_text)


@pytest.mark.parametrize(
    "text", ["", "x", "-7", "7.", "7.x", ".1", "7.1.1", "1" * 20, "a" * 21, "a" * 23, "a" * 22 + "."]
)
def test_other_texts_are_refused(text: str) -> None:
    """A topic id has 22 characters, a czxid at most 19 digits."""
    with pytest.raises(ValueError, match="incarnation"):
        Incarnation.parse(text)


def test_kinds_are_not_compared() -> None:
    """Only two czxids tell which topic is the later one."""
    assert Incarnation(9).is_later_topic(Incarnation(7, 2)) is True
    assert Incarnation(7).is_later_topic(Incarnation(9)) is False
    assert Incarnation(7, 1).is_later_topic(Incarnation(7)) is False
    assert BY_ID.truncated(2).is_later_topic(BY_ID) is False
    assert BY_ID.is_later_topic(OTHER_ID) is None
    assert BY_ID.is_later_topic(Incarnation(7)) is None
    assert Incarnation(7).is_later_topic(BY_ID) is None


def test_same_topic_has_the_same_id() -> None:
    """However often its logs were truncated."""
    assert BY_ID.is_same_topic(BY_ID.truncated(2))
    assert not BY_ID.is_same_topic(OTHER_ID)
    assert not BY_ID.is_same_topic(Incarnation(0))
