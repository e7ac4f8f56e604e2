# SPDX-License-Identifier: Apache-2.0
"""Why a partition cannot be fetched, in words that say what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from consumerd.errors import BrokerError, ConsumerdError
from consumerd.model import TopicPartition
from consumerd.net.pool import PooledBroker
from consumerd.wire.errorcodes import ErrorCode

_MEANINGS: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker failed for a reason that its own log names",
    ErrorCode.CORRUPT_MESSAGE: "the broker finds its log damaged at the position: check the log segment on its disk "
    "(`kafka-run-class kafka.tools.DumpLogSegments`), and whether another replica is whole",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the broker does not have the partition: was the topic deleted, or is it being "
    "moved? It goes on if the topic is there again",
    ErrorCode.LEADER_NOT_AVAILABLE: "no leader is elected: are the brokers of its replicas up?",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the broker does not lead the partition, though the cluster's metadata names it: do "
    "the controller and this broker agree with ZooKeeper?",
    ErrorCode.REPLICA_NOT_AVAILABLE: "the broker has no replica of the partition: are the brokers of its replicas up?",
    ErrorCode.KAFKA_STORAGE_ERROR: "a log directory of the broker is offline: see its log and its disks",
    ErrorCode.UNSUPPORTED_VERSION: "the topic's message format needs a newer fetch than the broker takes from us",
}


def _name(broker: PooledBroker) -> str:
    return f"broker {broker.id} at {broker.address}"


def explain_error(error: BrokerError, partition: TopicPartition, broker: PooledBroker, *, identity: str) -> str:
    """Explain an error code of Fetch."""
    if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        meaning = f"allow `Read` on `Topic:{partition.topic}` for {identity}"
    else:
        meaning = _MEANINGS.get(error.code, "see the broker's log")
    return f"{_name(broker)} answers {error.name} ({error.code}) to a fetch: {meaning}"


def explain_no_leader(*, known: bool) -> str:
    """Explain why nobody can be asked; ``known``: whether the cluster has the partition at all."""
    if known:
        return "the partition has no leader: are the brokers of its replicas up?"
    return "the cluster has no such partition, or does not let us see it: was its topic deleted?"


def explain_broker(broker: PooledBroker, error: ConsumerdError) -> str:
    """Explain a broker that refuses, closes or does not answer."""
    return f"{_name(broker)} cannot be fetched from: {error}; is it running, and reachable from here?"


def explain_silence(broker: PooledBroker) -> str:
    """Explain a broker that owes an answer."""
    return f"{_name(broker)} has not answered a fetch yet; does it hang, or the network?"


def explain_unconfirmed(offset: int) -> str:
    """Explain a position that is out of range by Fetch and not by ListOffsets."""
    return f"offset {offset} is out of range, says its leader, and ListOffsets does not confirm it"
