# SPDX-License-Identifier: Apache-2.0
"""One partition's encoded records, cut into requests. Pure.

A request holds a *run*: consecutive records of one partition. A run ends when it has ``records`` records, or when one
more line would exceed ``size`` bytes. So its end depends on the records alone, not on the batches in which they were
fetched. Only :meth:`Outbox.cut`, when the time of a run is over or memory is short, ends one earlier.

Example, with 500 records a run: batches with offsets 0-299 and 300-699 are added. The run 0-499 is ready, 500-699 is
open. When the run 0-499 was accepted, the acknowledged position is 500. After a crash, the next owner begins at a
committed position, where a run began, and cuts the same runs again.

Idempotency key
    ``<cluster>/<topic>/<incarnation>/<partition>/<first>-<last>``: the coordinates of the run's first and last record.
    The incarnation is in it because a topic that was deleted and made again has other records at the same offsets. A
    record's coordinate is its offset; records that share an offset (Kafka 0.7) have their number behind it, ``1011.3``.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from consumerd.model import Incarnation, TopicPartition

_LINE_BYTES: Final = 72
"""Memory that a line takes beside its text: the object, its place in the list, three numbers."""


def _int64() -> array[int]:
    return array("q")


@dataclass(slots=True, kw_only=True, eq=False)
class RecordRun:
    """Consecutive records of one partition, encoded.

    Attributes:
        lines: each record as JSON, without a line end.
        offsets: each record's offset.
        indexes: each record's number among those that share its offset; 0 for most.
        ends: the position that is reached when the record and all before it are safe.
        tries: number of requests in which the run was sent.
        accepted: True when the endpoint has accepted the run.
    """

    lines: list[bytes] = field(default_factory=list)
    offsets: array[int] = field(default_factory=_int64)
    indexes: array[int] = field(default_factory=_int64)
    ends: array[int] = field(default_factory=_int64)
    size: int = 0
    tries: int = 0
    accepted: bool = False

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def end(self) -> int:
        """The position that is reached when the run is safe."""
        return self.ends[-1]

    @property
    def held_bytes(self) -> int:
        """Memory that the run takes, in bytes."""
        return self.size + _LINE_BYTES * len(self.lines)

    def add(self, line: bytes, offset: int, index: int, end: int) -> None:
        """Add a record at the end."""
        self.lines.append(line)
        self.offsets.append(offset)
        self.indexes.append(index)
        self.ends.append(end)
        self.size += len(line) + 1

    def slice(self, begin: int, end: int) -> RecordRun:
        """Return the records ``[begin, end)`` as a run of their own."""
        lines = self.lines[begin:end]
        return RecordRun(
            lines=lines,
            offsets=self.offsets[begin:end],
            indexes=self.indexes[begin:end],
            ends=self.ends[begin:end],
            size=sum(map(len, lines)) + len(lines),
        )

    def describe(self) -> str:
        """Return the first and the last record as ``100-149``."""
        return f"{self._coordinate(0)}-{self._coordinate(-1)}"

    def _coordinate(self, row: int) -> str:
        index = self.indexes[row]
        return f"{self.offsets[row]}.{index}" if index else str(self.offsets[row])


def make_key_prefix(cluster_id: str, partition: TopicPartition, incarnation: Incarnation) -> str:
    """Return what the idempotency keys of a partition have in common.

    The names of topics of Kafka 0.6 and 0.7 may have any character, so they are percent-encoded.
    """
    parts = (cluster_id, partition.topic, str(incarnation), str(partition.partition))
    return "".join(f"{quote(part, safe='')}/" for part in parts)


class Outbox:
    """Records of one partition that are not accepted yet, and the acknowledged position.

    Args:
        records: Most records of a run.
        size: Most bytes of a run, line ends included; a longer record is a run by itself.
        position: Offset of the first record.
    """

    def __init__(self, *, records: int, size: int, position: int) -> None:
        self._records = records
        self._size = size
        self._ready: deque[RecordRun] = deque()
        self._open = RecordRun()
        self._held = 0
        self.acknowledged = position
        """Offset after the last record that is safe, with all before it."""
        self.opened_at: float | None = None
        """Time at which the first record of the open run was added; None without an open run."""

    @property
    def held_bytes(self) -> int:
        """Memory that all records take, in bytes."""
        return self._held + self._open.held_bytes

    @property
    def is_empty(self) -> bool:
        """True if every record that was added is accepted."""
        return not self._ready and not self._open.lines

    @property
    def has_ready(self) -> bool:
        """True if a run is complete and not accepted yet."""
        return bool(self._ready)

    def add(
        self, lines: Sequence[bytes], offsets: Sequence[int], indexes: Sequence[int], ends: Sequence[int], now: float
    ) -> None:
        """Add records, and end each run that is full.

        Args:
            lines: Each record as JSON, without a line end.
            offsets: Each record's offset.
            indexes: Each record's number among those that share its offset.
            ends: The position that is reached when the record and all before it are safe.
            now: Time, for :attr:`opened_at`.
        """
        for line, offset, index, end in zip(lines, offsets, indexes, ends, strict=True):
            if self._open.lines and self._open.size + len(line) + 1 > self._size:
                self.cut()
            if not self._open.lines:
                self.opened_at = now
            self._open.add(line, offset, index, end)
            if len(self._open) >= self._records or self._open.size >= self._size:
                self.cut()

    def reach(self, position: int) -> None:
        """Note that no record follows below ``position``: there are gaps, or nothing."""
        if self._open.lines:
            self._open.ends[-1] = position
        elif self._ready:
            self._ready[-1].ends[-1] = position
        else:
            self.acknowledged = position

    def cut(self) -> None:
        """End the open run, so that it is sent as it is."""
        if self._open.lines:
            self._ready.append(self._open)
            self._held += self._open.held_bytes
        self._open, self.opened_at = RecordRun(), None

    def next_runs(self, count: int) -> list[RecordRun]:
        """Return up to ``count`` of the first ready runs, without those that are accepted already."""
        return [run for run, _ in zip(self._ready, range(count), strict=False) if not run.accepted]

    def settle(self) -> None:
        """Move the acknowledged position over accepted runs, up to the first one that is not."""
        while self._ready and self._ready[0].accepted:
            run = self._ready.popleft()
            self._held -= run.held_bytes
            self.acknowledged = run.end

    def halve(self, run: RecordRun) -> None:
        """Replace a run by its two halves."""
        at = self._ready.index(run)
        middle = len(run) // 2
        del self._ready[at]
        self._ready.insert(at, run.slice(middle, len(run)))
        self._ready.insert(at, run.slice(0, middle))
