# SPDX-License-Identifier: Apache-2.0
"""The Java consumer's own assignments, computed here bit for bit.

Pure. Every member computes the assignment for itself from the same registry. A member that computes another
assignment claims partitions of other members, or waits for partitions for ever.

Sources: ``PartitionAssignor.scala`` of 0.8.2 to 1.1,
``ZkUtils.scala`` (``getConsumersPerTopic``), ``CoreUtils.circularIterator``; ``TopicAndPartition.toString``, which is
``[t,p]`` through 0.11 and ``t-p`` from 1.0 (KAFKA-5822), so members before and after compute different round robins.

- Threads are sorted as Java sorts strings, by UTF-16 code units: ``c-10`` comes before ``c-2``.
- ``range``: for each topic, contiguous chunks of its partitions in numerical order; the first threads get one more.
  Example: 5 partitions and threads a, b: a gets 0, 1, 2, and b gets 3, 4.
- ``roundrobin``: all partitions, sorted by the hash code of their name as a signed number, are dealt to all threads in
  turn; a thread that does not subscribe to the topic loses its turn. Through 0.10.1 members refused this if they
  differed in topics or streams (KAFKA-2434): :func:`find_objection`.

Two partitions can have the same hash code if their topics' names collide, as ``Aa`` and ``BB`` do. Java members deal
these in the order of a Scala hash map, which depends on the order in which ZooKeeper listed the members; here they are
dealt by name.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.group.identity import thread_ids
from consumerd.model import ConsumerId, PartitionKey, Partitions, ThreadId, TopicPartition
from consumerd.wire.checksum import java_hash


class Strategy(enum.Enum):
    """An assignor, by the name it has in the settings."""

    RANGE = "range"
    ROUNDROBIN_0_8 = "roundrobin-0.8"
    """``roundrobin`` as members of 0.8.2 to 0.11 compute it."""
    ROUNDROBIN_1_0 = "roundrobin-1.0"
    """``roundrobin`` as members of 1.0 and 1.1 compute it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of the group, with the number of its streams (threads) for each topic."""

    consumer: ConsumerId
    streams: Mapping[str, int]


Assignment = Mapping[TopicPartition, ThreadId]


def assign(strategy: Strategy, members: Iterable[Member], partitions: Partitions) -> Assignment:
    """Return the thread that consumes each partition; topics without subscribers are left out.

    Args:
        members: All members of the group, with their topics and streams.
        partitions: The partitions of each topic, by topic name.
    """
    return _ASSIGNORS[strategy](threads_by_topic(members, partitions), partitions)


def threads_by_topic(
    members: Iterable[Member], topics: Container[str] | None = None
) -> Mapping[str, tuple[ThreadId, ...]]:
    """Return the threads that subscribe to each topic, sorted as Java sorts strings.

    The order is that of UTF-16 code units, so ``c-10`` comes before ``c-2``.

    Args:
        topics: Restricts the result to these topics; None for all.
    """
    found: dict[str, list[ThreadId]] = {}
    for member in members:
        for topic, count in member.streams.items():
            if topics is None or topic in topics:
                found.setdefault(topic, []).extend(thread_ids(member.consumer, count))
    return {topic: tuple(sorted(threads, key=java_order)) for topic, threads in found.items()}


def assign_range(threads: Mapping[str, Sequence[ThreadId]], partitions: Partitions) -> Assignment:
    """Assign contiguous chunks of each topic's partitions; the first threads get one more.

    Example: a topic with 5 partitions and the threads a, b. a gets 0, 1, 2, and b gets 3, 4.
    """
    assignment: dict[TopicPartition, ThreadId] = {}
    for topic, subscribed in threads.items():
        keys = sorted(partitions.get(topic, ()))
        share, extra = divmod(len(keys), len(subscribed))
        for position, thread in enumerate(subscribed):
            start = share * position + min(position, extra)
            for key in keys[start : start + share + (position < extra)]:
                assignment[TopicPartition(topic, key)] = thread
    return assignment


def assign_roundrobin_0_8(threads: Mapping[str, Sequence[ThreadId]], partitions: Partitions) -> Assignment:
    """Assign partitions to threads in turn, in the order of the hash code of ``[t,p]``.

    The hash code is that of Java's strings, compared as a signed number. Java members through 0.11 compute this order.
    """
    return _deal(threads, partitions, lambda topic, key: f"[{topic},{key}]")


def assign_roundrobin_1_0(threads: Mapping[str, Sequence[ThreadId]], partitions: Partitions) -> Assignment:
    """Assign partitions to threads in turn, in the order of the hash code of ``t-p``.

    The hash code is that of Java's strings, compared as a signed number. Java members from 1.0 on compute this order.
    """
    return _deal(threads, partitions, lambda topic, key: f"{topic}-{key}")


def find_objection(members: Iterable[Member]) -> str | None:
    """Return the reason why members of 0.8.2 to 0.10.1 refuse ``roundrobin``, or None.

    They refuse it if members differ in their topics or numbers of streams (KAFKA-2434).
    """
    threads = threads_by_topic(members)
    distinct = sorted(threads.items())
    for (topic, subscribed), (other, others) in itertools.pairwise(distinct):
        if set(subscribed) != set(others):
            return f"topics {topic!r} and {other!r} do not have the same members with the same number of streams"
    return None


def java_order(text: str) -> bytes:
    """Return a sort key that orders as ``String.compareTo`` does: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def _deal(
    threads: Mapping[str, Sequence[ThreadId]], partitions: Partitions, name: Callable[[str, PartitionKey], str]
) -> Assignment:
    everyone = sorted({thread for subscribed in threads.values() for thread in subscribed}, key=java_order)
    subscribed_to = {topic: frozenset(subscribed) for topic, subscribed in threads.items()}
    hashed = sorted(
        (java_hash(name(topic, key)), TopicPartition(topic, key))
        for topic in threads
        for key in partitions.get(topic, ())
    )
    turn = itertools.cycle(everyone)
    # each topic here has a subscriber, so the search for the next subscribed thread ends
    return {
        partition: next(thread for thread in turn if thread in subscribed_to[partition.topic])
        for _, partition in hashed
    }


_ASSIGNORS: Final[Mapping[Strategy, Callable[[Mapping[str, Sequence[ThreadId]], Partitions], Assignment]]] = {
    Strategy.RANGE: assign_range,
    Strategy.ROUNDROBIN_0_8: assign_roundrobin_0_8,
    Strategy.ROUNDROBIN_1_0: assign_roundrobin_1_0,
}
