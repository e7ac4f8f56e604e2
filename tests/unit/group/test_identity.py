# SPDX-License-Identifier: Apache-2.0
"""Names of members and threads."""

from __future__ import annotations

import re
from random import Random

import pytest

from consumerd.errors import ConfigError
from consumerd.group.identity import MemberIdentity, find_host, thread_ids, validate_name, validate_topic
from consumerd.model import ConsumerId


def make_id(identity: MemberIdentity, *, lingering: bool = False, seed: int = 0) -> str:
    return identity.make_id(now_ms=1795256818659, random_bits=Random(seed).getrandbits, lingering=lingering)


def test_a_generated_id_has_the_form_of_the_java_consumers() -> None:
    """Tools and people tell members by it: group, host, ms, eight hex digits."""
    identity = MemberIdentity(group="lake", host="box-1.example")
    assert re.fullmatch(r"lake_box-1\.example-1795256818659-[0-9a-f]{8}", make_id(identity))
    assert make_id(identity, seed=1) != make_id(identity, seed=2)


def test_a_configured_id_is_kept_unless_its_old_node_lingers() -> None:
    """A node of our own past is another session's, and would be waited for in vain."""
    identity = MemberIdentity(group="lake", host="box", consumer_id="r1")
    assert make_id(identity) == "lake_r1"
    assert re.fullmatch(r"lake_r1-[0-9a-f]{8}", make_id(identity, lingering=True))


def test_a_host_name_never_becomes_a_path() -> None:
    """A slash in the id would be a parent node that nobody makes."""
    assert "/" not in make_id(MemberIdentity(group="g", host="a/b"))


@pytest.mark.parametrize(
    ("consumer", "host"),
    [
        ("lake_box-1.example-1795256818659-0a1b2c3d", "box-1.example"),
        ("lake_box-1795256818659-a1b", "box"),
        ("lake_r1", None),
        ("lake_r1-0a1b2c3d", None),
        ("lake_", None),
        ("other_box-1795256818659-0a1b2c3d", "other_box"),
    ],
)
def test_the_host_is_read_from_a_generated_id(consumer: str, host: str | None) -> None:
    """A registration has no host of its own. Java leaves out leading zeros of the last part."""
    assert host == find_host("lake", ConsumerId(consumer))


@pytest.mark.parametrize("name", ["lake", "a.b_c-9", "A"])
def test_legal_names_pass(name: str) -> None:
    """What Java's Config.validateChars accepts."""
    assert validate_name("group.id", name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a,b", "a\n"])
def test_illegal_names_are_refused_with_their_key(name: str) -> None:
    """The person has to know which key to change."""
    with pytest.raises(ConfigError, match=r"^group\.id: "):
        validate_name("group.id", name)


def test_identity_checks_both_of_its_names() -> None:
    """A bad id would fail at the first registration, long after the start."""
    with pytest.raises(ConfigError, match=r"group\.id"):
        MemberIdentity(group="a b", host="h")
    with pytest.raises(ConfigError, match=r"group\.consumer_id"):
        MemberIdentity(group="g", host="h", consumer_id="a/b")


@pytest.mark.parametrize("topic", ["", "..", "a/b", "web.*", "x" * 250])
def test_illegal_topics_are_refused(topic: str) -> None:
    """An expression among the topics is a mistake that would wait for a topic for ever."""
    with pytest.raises(ConfigError, match="topics"):
        validate_topic("subscriptions.topics", topic)


def test_threads_are_numbered_from_zero() -> None:
    """What owner nodes hold."""
    assert thread_ids(ConsumerId("g_c"), 3) == ("g_c-0", "g_c-1", "g_c-2")
