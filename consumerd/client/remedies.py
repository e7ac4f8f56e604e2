# SPDX-License-Identifier: Apache-2.0
"""Advice for error codes of brokers, in texts of the producer and of commands.

Sources: Kafka protocol guide (codes 3, 7, 19, 20, 29); the operations of Kafka's authorizer, in its documentation.
"""

from __future__ import annotations

from typing import Final

from consumerd.access.principal import OUR_PRINCIPAL, Principal, Resource
from consumerd.cluster.view import ClusterView
from consumerd.errors import BrokerError, ConsumerdError
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode, broker_error

DESCRIBE: Final = "Describe"
"""Right on a topic to see its partitions and offsets."""
STORAGE_OFFLINE: Final = "a log directory of the broker is offline: see its log and its disks"
"""Advice for code 56."""
READ: Final = "Read"
"""Right on a topic to fetch its records; it implies :data:`DESCRIBE`."""
DENIED_RETRY_S: Final = 1.0
"""Longest pause, in seconds, before a request is repeated that was refused for lack of a right.

Brokers apply an ACL within about a second.
"""
_DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def advise_right(right: str, topic: str, principal: Principal = OUR_PRINCIPAL) -> str:
    """Return the advice for a topic that we are not allowed to use (code 29).

    Args:
        right: Operation to allow in an ACL, such as ``Read``.
    """
    return principal.advise(right, Resource.TOPIC, topic)


def advise_write(failure: ConsumerdError | None, topic: str, principal: Principal = OUR_PRINCIPAL) -> str | None:
    """Return the advice for a failed Produce request; None for an error without advice."""
    match failure.code if isinstance(failure, BrokerError) else None:
        case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return advise_right("Write", topic, principal)
        case ErrorCode.NOT_ENOUGH_REPLICAS:
            return (
                f"fewer replicas are in sync than min.insync.replicas of {topic} asks for, so nothing was appended: "
                "start the brokers of its replicas"
            )
        case ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            return (
                f"fewer replicas are in sync than min.insync.replicas of {topic} asks for: the leader has appended "
                "the records, and each further try appends them again; start the brokers of its replicas"
            )
        case ErrorCode.KAFKA_STORAGE_ERROR:
            return STORAGE_OFFLINE
        case ErrorCode.REQUEST_TIMED_OUT:
            return (
                f"replicas of {topic} have not followed in time: the leader has appended the records, and each further "
                "try appends them again; look at the brokers of its replicas"
            )
    return None


def explain_unknown(topic: str, principal: Principal = OUR_PRINCIPAL, *, right: str = DESCRIBE) -> str:
    """Return the meaning of code 3 for a partition that should exist, with advice.

    Brokers of 0.10 answer it for topics that we may not describe, too; those of 1.1 answer code 29 then.

    Args:
        right: Right that the caller needs: :data:`DESCRIBE`, or :data:`READ`, which implies it.
    """
    return (
        "the topic was deleted, or its partition is being moved (it goes on if the topic is there again), or the "
        f"broker is older than 1.0 and hides it from us: {advise_right(right, topic, principal)}"
    )


def explain_no_leader(
    partition: TopicPartition, view: ClusterView, principal: Principal = OUR_PRINCIPAL, *, right: str = DESCRIBE
) -> str:
    """Explain that the cluster's view has no leader of a partition, with advice.

    Args:
        right: As for :func:`explain_unknown`.
    """
    topic = view.topics.get(partition.topic)
    if topic is not None and topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        # without the right, Metadata names no leaders
        advice = advise_right(right, partition.topic, principal)
        return f"brokers answer TOPIC_AUTHORIZATION_FAILED (29) to Metadata: {advice}"
    if view.find_partition(partition) is not None:
        return "the partition has no leader: are the brokers of its replicas up?"
    if partition.is_legacy:
        return "the cluster has no such partition"
    return f"the cluster has no such partition: {explain_unknown(partition.topic, principal, right=right)}"


def advise_lookup(
    failure: ConsumerdError, topic: str, principal: Principal = OUR_PRINCIPAL, *, right: str = DESCRIBE
) -> ConsumerdError:
    """Return the error of a ListOffsets request, with advice for the operator.

    Args:
        right: As for :func:`explain_unknown`.
    """
    if not isinstance(failure, BrokerError):
        return failure
    match failure.code:
        case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return broker_error(failure.code, failure.context, advise_right(right, topic, principal))
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return broker_error(failure.code, failure.context, explain_unknown(topic, principal, right=right))
    return failure


def is_denied(failure: BaseException) -> bool:
    """Return True if lack of a right is the error, or its cause."""
    causes = (failure, failure.__cause__)
    return any(isinstance(one, BrokerError) and one.code in _DENIED for one in causes)
