"""The one way into a log: appends and flushes in threads, in order for each partition, and whoever waits is told.

A log is synchronous and takes one writer at a time. Whoever appends (Produce, the offset manager) does so through
:class:`Appender`, so that the event loop never waits for a disk, what is appended to one partition is in the order of the
calls, and long polls hear of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from consumerd.model import TopicPartition

if TYPE_CHECKING:
    from consumerd.embedded.log.partition_log import Appended, PartitionLog

T = TypeVar("T")


class Appender:
    """Changes logs, one change of a partition at a time."""

    async def append(
        self, partition: TopicPartition, log: PartitionLog, record_set: bytes | memoryview, *, flush: bool = False
    ) -> Appended:
        """Append, and flush where ``flush`` asks for it or the log's settings do. Raises what ``PartitionLog.append`` does.

        Unbounded but by the disk. Cancelled, the append takes place nevertheless, or not at all.
        """
        raise NotImplementedError

    async def run(self, partition: TopicPartition, work: Callable[[], T]) -> T:
        """Do other work on a partition's log (retention, compaction, closing) in its turn, in a thread."""
        raise NotImplementedError

    def subscribe(self, appended: Callable[[TopicPartition, int], None]) -> Callable[[], None]:
        """Call back, on the loop, with each partition that has grown and by how many bytes; return what ends it."""
        raise NotImplementedError
