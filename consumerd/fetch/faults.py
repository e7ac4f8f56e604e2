# SPDX-License-Identifier: Apache-2.0
"""Texts about partitions that cannot be fetched: the reason and the remedy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consumerd.access.principal import Principal
from consumerd.client.remedies import READ, STORAGE_OFFLINE, advise_right, explain_unknown
from consumerd.errors import BrokerError, ConsumerdError
from consumerd.model import TopicPartition
from consumerd.net.pool import PooledBroker
from consumerd.wire.errorcodes import ErrorCode

_MEANINGS: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker failed for a reason that its own log names",
    ErrorCode.CORRUPT_MESSAGE: "the broker finds its log damaged at the position: check the log segment on its disk "
    "(`kafka-run-class kafka.tools.DumpLogSegments`), and whether another replica is whole",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the broker does not have the partition: was its topic deleted?",
    ErrorCode.LEADER_NOT_AVAILABLE: "no leader is elected: are the brokers of its replicas up?",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the broker does not lead the partition, though the cluster's metadata names it: "
    "do the controller and this broker agree with ZooKeeper?",
    ErrorCode.REPLICA_NOT_AVAILABLE: "the broker has no replica of the partition: are the brokers of its replicas up?",
    ErrorCode.KAFKA_STORAGE_ERROR: STORAGE_OFFLINE,
    ErrorCode.UNSUPPORTED_VERSION: "the topic's message format needs a newer fetch than the broker takes from us",
}


def _name(broker: PooledBroker) -> str:
    return f"broker {broker.id} at {broker.address}"


def explain_error(error: BrokerError, partition: TopicPartition, broker: PooledBroker, *, principal: Principal) -> str:
    """Return a text for a Fetch error code: its meaning and the remedy.

    Args:
        error: The error with its code.
        partition: The partition that was fetched.
        broker: The broker that returned the error.
        principal: Our identity at brokers, which the text about a missing right names.
    """
    if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        meaning = advise_right(READ, partition.topic, principal)
    elif error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not partition.is_legacy:
        meaning = explain_unknown(partition.topic, principal, right=READ)
    else:
        meaning = _MEANINGS.get(error.code, "see the broker's log")
    return f"{_name(broker)} answers {error.name} ({error.code}) to a fetch: {meaning}"


def explain_broker(broker: PooledBroker, error: ConsumerdError) -> str:
    """Return a text about a broker whose connection failed with ``error``, and the remedy."""
    return f"{_name(broker)} cannot be fetched from: {error}; is it running, and reachable from here?"


def explain_silence(broker: PooledBroker) -> str:
    """Return a text about a broker whose response to a fetch is overdue."""
    return f"{_name(broker)} has not answered a fetch yet; does it hang, or the network?"


def explain_unconfirmed(offset: int) -> str:
    """Return a text about a position on which a broker's answers contradict each other.

    Fetch refuses ``offset`` as out of range; ListOffsets returns a range that contains it.
    """
    return f"offset {offset} is out of range, says its leader, and ListOffsets does not confirm it"
