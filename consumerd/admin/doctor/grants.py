# SPDX-License-Identifier: Apache-2.0
"""Check of our identity and our rights at the brokers, for ``consumerd doctor``.

The brokers are asked as a member would ask them: each for a connection, and the leader of one partition of each topic
for the ends of its log and a fetch at its end. Nothing is changed, and no record is read that could be large.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.access.principal import Principal
from consumerd.admin.doctor.findings import join_few
from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.client.opening import ClusterAccess, make_simple_consumer
from consumerd.client.remedies import READ, advise_right, explain_unknown
from consumerd.cluster.view import Broker, ClusterView
from consumerd.errors import AuthenticationFailed, BrokerError, ConnectionLost, ConsumerdError
from consumerd.landing.findings import Finding, Severity
from consumerd.model import Generation, TopicPartition
from consumerd.net.pool import Purpose
from consumerd.wire.errorcodes import ErrorCode, broker_error

_FETCH_BYTES: Final = 1
"""Size limit of the fetch that tries the right; a broker sends at most one record batch more than that."""
_RECORD_BYTES: Final = 1 << 20
_PATIENCE_S: Final = 5.0
"""Time limit of the fetches, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantFacts:
    """Refusals of brokers.

    Attributes:
        identity: Reason why brokers refuse our identity, by broker.
        unreadable: Topics that we may describe and not read.
        undescribed: Topics that we may not describe.
        unknown: Topics that ZooKeeper has, and a broker calls unknown: deleted, or hidden from us.
    """

    identity: Mapping[str, str] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    undescribed: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


async def read_grants(access: ClusterAccess, topics: Collection[str], *, timeout_s: float) -> GrantFacts:
    """Try our identity, and our rights on existing topics.

    What is not answered in time counts as allowed.

    Args:
        topics: Topics that exist.
        timeout_s: Time limit, in seconds.
    """
    if access.generation is Generation.LEGACY:
        return GrantFacts()  # brokers of Kafka 0.6 and 0.7 know neither
    try:
        async with timeout(timeout_s):
            access.directory.follow(topics)
            view = await access.directory.refresh("doctor")
            brokers = sorted(view.brokers.values(), key=lambda one: one.id)
            refusals = await map_bounded(brokers, lambda one: _find_refusal(access, one))
            identity = {str(broker): reason for broker, reason in refusals.items() if reason}
            if identity:
                return GrantFacts(identity=identity)
            return await _try_topics(access, view, topics)
    except TimeoutError:
        return GrantFacts()


async def _find_refusal(access: ClusterAccess, broker: Broker) -> str:
    """Return why a broker refuses our identity; empty if it does not."""
    try:
        await access.pool.get(broker, Purpose.CONTROL)
    except AuthenticationFailed as error:
        return str(error)
    except ConnectionLost:
        pass
    return ""


async def _try_topics(access: ClusterAccess, view: ClusterView, topics: Collection[str]) -> GrantFacts:
    errors: dict[str, ConsumerdError] = {}
    tried: dict[str, TopicPartition] = {}
    for topic in topics:
        known = view.topics.get(topic)
        if known is not None and known.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            errors[topic] = broker_error(known.error, "Metadata")
        elif known is not None and known.partitions:
            partitions = [TopicPartition(topic, key) for key in sorted(known.partitions)]
            # Metadata of brokers before 1.0 hides a topic that we may not describe, and its leaders with it. The lookup
            # finds them in ZooKeeper.
            tried[topic] = next((one for one in partitions if view.find_leader(one) is not None), partitions[0])
    found = await access.ranges.find_or_explain(tried.values(), timeout_s=_PATIENCE_S)
    errors |= {one.topic: error for one, error in found.failures.items()}
    consumer = make_simple_consumer(access, max_message_bytes=_RECORD_BYTES, timeout_s=_PATIENCE_S)
    ends = {one: log.latest for one, log in found.ranges.items()}
    fetched = await consumer.multifetch(ends, max_bytes=_FETCH_BYTES) if ends else None
    refused = {} if fetched is None else {one.topic: error for one, error in fetched.errors.items()}
    return GrantFacts(
        undescribed=_find_code(errors, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        unknown=_find_code(errors, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        unreadable=_find_code(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    )


def _find_code(errors: Mapping[str, ConsumerdError], code: int) -> frozenset[str]:
    """Return the topics with this error code, also if it caused a time-out."""
    return frozenset(
        topic
        for topic, error in errors.items()
        if any(isinstance(one, BrokerError) and one.code == code for one in (error, error.__cause__))
    )


def check_grants(facts: GrantFacts, principal: Principal) -> Iterator[Finding]:
    """Yield the refusals as problems, each with the command that mends it.

    Args:
        principal: Our identity at brokers.
    """
    for reason, brokers in _group_by_reason(facts.identity).items():
        yield Finding(
            severity=Severity.CRITICAL,
            kind="identity-refused",
            where=join_few(f"broker {one}" for one in brokers),
            detail=f"brokers refuse {principal}: {reason}",
            advice="by the table of refusals in docs/security.md",
        )
    for topics, kind, detail in (
        (facts.undescribed, "topic-not-described", "brokers answer error 29 to Metadata or ListOffsets"),
        (facts.unreadable, "topic-not-read", "brokers let us describe the topic, and answer error 29 to Fetch"),
    ):
        for topic in sorted(topics):
            yield Finding(
                severity=Severity.CRITICAL,
                kind=kind,
                where=topic,
                detail=detail,
                advice=advise_right(READ, topic, principal),
            )
    for topic in sorted(facts.unknown):
        yield Finding(
            severity=Severity.WARNING,
            kind="topic-unknown-to-brokers",
            where=topic,
            detail="ZooKeeper has the topic, and a broker answers error 3 (unknown topic)",
            advice=explain_unknown(topic, principal, right=READ),
        )


def _group_by_reason(identity: Mapping[str, str]) -> Mapping[str, list[str]]:
    """Return the brokers by reason, without the address with which each reason begins."""
    brokers: dict[str, list[str]] = {}
    for broker, reason in identity.items():
        brokers.setdefault(reason.partition(": ")[2] or reason, []).append(broker)
    return brokers
