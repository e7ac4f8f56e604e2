# SPDX-License-Identifier: Apache-2.0
"""What the script asks of a client: one small adapter a client implements what that client has."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

Headers = tuple[tuple[str, bytes | None], ...]
Answer = Any
"""Plain data, as JSON has it."""

PATIENCE_S = 30
"""What a client may take for a call."""


class NotOffered(Exception):
    """The client has no such thing."""


class Part(enum.Enum):
    """What not every client can write."""

    NULLS = "null keys and values"
    EMPTY = "empty keys and values that are not null"
    HEADERS = "headers"
    NULL_HEADERS = "headers with null as their value"
    TIMES = "times of one's own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is written. ``timestamp_ms`` None: the client's own time."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None

    def without(self, lacking: frozenset[Part]) -> Record | None:
        """Return what a client can write of it; None: nothing."""
        if Part.NULLS in lacking and None in (self.key, self.value):
            return None
        if Part.EMPTY in lacking and b"" in (self.key, self.value):
            return None
        headers = [one for one in self.headers if one[1] is not None or Part.NULL_HEADERS not in lacking]
        return replace(
            self,
            headers=() if Part.HEADERS in lacking else tuple(headers),
            timestamp_ms=None if Part.TIMES in lacking else self.timestamp_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a client shows of a record. None as time or headers: it shows none."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: Headers | None = None


class Member(Protocol):
    """A member of a group, driven from a thread of its own."""

    def poll(self) -> list[int]:
        """Take part in the group for a moment; return the numbers read, which are the records' values."""

    def assigned(self) -> set[int]:
        """Return the partitions that it has now."""

    def commit(self) -> None:
        """Commit what was read, unless the client does so by itself alone, at a rebalance and when it leaves."""

    def close(self) -> None:
        """Leave the group."""


class ForeignClient:
    """A client on one cluster. What an adapter does not implement the client does not have."""

    name: str = ""
    lacks: frozenset[Part] = frozenset()

    def close(self) -> None:
        """Let go of everything. Idempotent."""

    def produce(self, topic: str, codec: str, records: Sequence[Record], acks: str = "all") -> list[int] | None:
        """Write to partition 0 and wait for all acknowledgements; return the offsets, if it tells them.

        ``acks``: "all", "1" or "0", where nothing is acknowledged, and offsets say nothing.
        """
        raise NotOffered

    def read(self, counts: Mapping[str, int]) -> dict[str, list[Row]]:
        """Return so many records of each topic's partition 0, from its beginning."""
        raise NotOffered

    def offsets(self, topic: str) -> list[int]:
        """Return the first and the next offset of partition 0."""
        raise NotOffered

    def offsets_at(self, topic: str, times_ms: Sequence[int]) -> list[list[int] | None]:
        """Return, for each time, offset and time (if it tells it) of the first record of that time or later."""
        raise NotOffered

    def first_after_reset(self, topic: str, offset: int) -> int:
        """Read from an offset that is not there, told to begin at the earliest then; return the first record's."""
        raise NotOffered

    def metadata(self, topic: str) -> Answer:
        """Return brokers (id and host) and the topic's partitions (number, leader, replicas, those in sync)."""
        raise NotOffered

    def join(self, group: str, topic: str, name: str) -> Member:
        """Become a member that begins at the earliest record; ``name`` is its client id."""
        raise NotOffered

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """Return the positions that a group has committed."""
        raise NotOffered

    def describe(self, group: str, topic: str) -> Answer:
        """Return the group's state and its members."""
        raise NotOffered

    def groups(self) -> list[str]:
        """Return the names of all groups."""
        raise NotOffered

    def produce_idempotently(self, topic: str, records: Sequence[Record]) -> list[int]:
        """Write as a producer with an id; return the offsets."""
        raise NotOffered

    def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic by a request to the broker."""
        raise NotOffered


def describe_group(state: str, protocol: str, members: Sequence[tuple[str, str, Sequence[int]]]) -> Answer:
    """Return a group as an answer: ``members`` are (client id, host, partitions)."""
    return {
        "state": state.title().replace("_", ""),
        "protocol": protocol,
        "members": sorted([name, host.removeprefix("/"), sorted(partitions)] for name, host, partitions in members),
    }
