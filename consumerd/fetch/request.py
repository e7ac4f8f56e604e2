# SPDX-License-Identifier: Apache-2.0
"""Says a plan in the words of a Fetch version.

Pure. Fields that a version lacks keep their defaults, so that nothing is claimed that the broker would not hear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from consumerd.fetch.cursor import Key
from consumerd.fetch.planner import Ask, FetchPlan
from consumerd.fetch.ports import FetchSettings
from consumerd.fetch.session import FetchSession
from consumerd.wire.modern.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)

RESPONSE_LIMIT_SINCE: Final = 3
"""KIP-74: the request limits the whole response."""
ISOLATION_SINCE: Final = 4
SESSIONS_SINCE: Final = 7


def write_request(
    version: int, plan: FetchPlan, session: FetchSession, *, settings: FetchSettings, wait_ms: int
) -> FetchRequest:
    """Return the request; where the version has sessions, ``session`` moves on to what the request says."""
    isolation = READ_COMMITTED if settings.read_committed else READ_UNCOMMITTED
    if version < RESPONSE_LIMIT_SINCE:
        return FetchRequest(max_wait_ms=wait_ms, min_bytes=settings.min_bytes, topics=_by_topic(plan.asks.values()))
    if version < SESSIONS_SINCE:
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=plan.max_bytes,
            isolation_level=isolation if version >= ISOLATION_SINCE else READ_UNCOMMITTED,
            topics=_by_topic(plan.asks.values()),
        )
    step = session.plan(plan.asks, plan.news)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=settings.min_bytes,
        max_bytes=plan.max_bytes,
        isolation_level=isolation,
        session_id=step.session_id,
        session_epoch=step.epoch,
        topics=_by_topic(step.asks),
        forgotten_topics=_forgotten(step.forgotten),
    )


def _by_topic(asks: Iterable[Ask]) -> tuple[FetchTopic, ...]:
    """Group by topic; topics in the order of their first partition."""
    topics: dict[str, list[FetchPartition]] = {}
    for ask in asks:
        topic, number = ask.cursor.key
        line = FetchPartition(partition=number, fetch_offset=ask.offset, partition_max_bytes=ask.max_bytes)
        lines = topics.get(topic)
        if lines is None:
            topics[topic] = [line]
        else:
            lines.append(line)
    return tuple(FetchTopic(topic=topic, partitions=tuple(lines)) for topic, lines in topics.items())


def _forgotten(keys: Iterable[Key]) -> tuple[ForgottenTopic, ...]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, number in keys:
        topics[topic].append(number)
    return tuple(ForgottenTopic(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items())
