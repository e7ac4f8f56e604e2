# SPDX-License-Identifier: Apache-2.0
"""What the answers of a coordinator mean for a member, and what members exchange."""

from __future__ import annotations

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.principal import OUR_PRINCIPAL
from consumerd.errors import ConnectionLost, ConsumerdError, RemoteProtocolError, UnsupportedVersion
from consumerd.group.classic.events import Refusal
from consumerd.group.classic.payloads import decode_partitions, decode_topics, encode_partitions, encode_topics
from consumerd.group.classic.refusals import REFUSALS, explain, find_refusal
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode, broker_error
from consumerd.wire.modern.consumer_protocol import (
    AssignedTopic,
    Assignment,
    ConsumerSubscription,
    encode_assignment,
    encode_subscription,
)


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (14, Refusal.UNAVAILABLE),
        (15, Refusal.UNAVAILABLE),
        (16, Refusal.UNAVAILABLE),
        (22, Refusal.FENCED),
        (23, Refusal.REFUSED),
        (24, Refusal.REFUSED),
        (25, Refusal.UNKNOWN_MEMBER),
        (26, Refusal.REFUSED),
        (27, Refusal.REBALANCE),
        (30, Refusal.REFUSED),
        (81, Refusal.REFUSED),
        (-1, Refusal.UNAVAILABLE),
        (999, Refusal.UNAVAILABLE),
    ],
)
def test_each_code_means_one_thing(code: int, refusal: Refusal) -> None:
    """A code that nobody knows is tried again: a member that gives up is worse."""
    error = broker_error(code, "JoinGroup")

    assert find_refusal(error) is refusal
    assert ErrorCode(code).name in explain(error, "g", OUR_PRINCIPAL)


def test_a_lost_connection_is_tried_again_and_an_old_broker_is_told() -> None:
    """Nothing else comes without a code."""
    old = UnsupportedVersion("JoinGroup: none in common")

    assert find_refusal(ConnectionLost("gone")) is Refusal.UNAVAILABLE
    assert find_refusal(old) is Refusal.REFUSED
    assert "group.membership: zookeeper" in explain(old, "g", OUR_PRINCIPAL)
    assert explain(ConsumerdError("plain"), "g", OUR_PRINCIPAL) == "plain"


def test_every_refusal_says_what_to_change() -> None:
    """It is what the status page shows as the reason."""
    refused = [broker_error(code, "JoinGroup") for code, (refusal, _) in REFUSALS.items() if refusal is Refusal.REFUSED]

    assert [one.code for one in refused if explain(one, "g", OUR_PRINCIPAL) == str(one)] == []


def test_a_group_that_may_not_be_read_is_told_with_the_command() -> None:
    """Code 30 of JoinGroup."""
    principal = ClusterAddress(zookeeper="zk1:2181", client_id="c").principal

    told = explain(broker_error(ErrorCode.GROUP_AUTHORIZATION_FAILED, "JoinGroup"), "lake", principal)

    assert "allow `Read` on `Group:lake` for User:ANONYMOUS" in told
    assert told.endswith("--allow-principal User:ANONYMOUS --operation Read --group lake`")


def test_topics_and_partitions_are_exchanged() -> None:
    """As every client of the standard protocol reads them; user data is ignored."""
    partitions = {TopicPartition.modern("t", 1), TopicPartition.modern("t", 0), TopicPartition.modern("u", 7)}
    newer = encode_subscription(ConsumerSubscription(version=3, topics=("t",), user_data=b"x")) + b"\0\0\0\0"

    assert decode_topics(encode_topics({"u", "t"})) == {"t", "u"}
    assert decode_topics(newer) == {"t"}
    assert decode_partitions(encode_partitions(partitions)) == partitions
    assert decode_partitions(b"") == frozenset()


def test_partitions_that_cannot_be_are_refused() -> None:
    """Numbers of another client's leader are not trusted."""
    with pytest.raises(RemoteProtocolError, match="below 0"):
        decode_partitions(encode_assignment(Assignment(topics=(AssignedTopic(topic="t", partitions=(-1,)),))))
