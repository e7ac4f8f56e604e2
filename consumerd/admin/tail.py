# SPDX-License-Identifier: Apache-2.0
"""Records of topics for ``consumerd tail``, read without joining a group and without committing anything.

Each partition has a task (:mod:`consumerd.admin.tail_partition`). It looks up the log's range, finds the start and end
of the records to print, and reads them by the daemon's code for fetching (:mod:`consumerd.fetch`). So leaders that
move, large messages and invalid responses are handled as in the daemon. Memory is bounded: a partition is fetched again
only when the output has taken records. If a partition cannot be read, the operator is told, and the tasks of the other
partitions go on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from consumerd.access.opening import open_cluster
from consumerd.admin.inspection import follow_topics
from consumerd.admin.tail_notes import WaitingNotes
from consumerd.admin.tail_partition import PartitionTail, TailOutcome, TailSource
from consumerd.admin.tail_range import TailRequest
from consumerd.aio.clock import monotonic
from consumerd.aio.tasks import alongside, unless
from consumerd.aio.timeouts import timeout
from consumerd.client.fetch_protocols import choose_fetch_protocol
from consumerd.client.opening import ClusterAccess, open_access
from consumerd.config.inspection import InspectionSettings
from consumerd.errors import ConfigError, CorruptMessageError
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import GapReason, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.telemetry.wording import counted, join_shown
from consumerd.wire.records import RecordBatch

_COMMAND: Final = "consumerd-tail"
_SESSION_TIMEOUT_MS: Final = 10_000
_BUDGET_BYTES: Final = 64 << 20
"""Memory for records on their way, unless the settings allow less. One message may exceed it."""
_PARTITION_BYTES: Final = 1 << 20
"""Usual size of one partition's part of a response: most uses need a few records."""
_RESPONSE_PART: Final = 8
"""A response has at most this part (an eighth) of the memory."""
_SHOWN_NAMES: Final = 5


@asynccontextmanager
async def open_tail(
    settings: InspectionSettings, request: TailRequest, *, read_committed: bool
) -> AsyncIterator[TailSource]:
    """Connect for ``consumerd tail``, and run a fetcher while the block runs.

    Raises ConfigError (also for topics and partitions that do not exist), CoordinationError, UnsupportedGeneration, and
    TimeoutError after the request's ``patience_s``.

    Args:
        read_committed: True to leave out records of aborted and open transactions.
    """
    address = settings.cluster.locate(client_id=_COMMAND, session_timeout_ms=_SESSION_TIMEOUT_MS)
    fetch = settings.fetch
    budget_bytes = min(fetch.memory_budget_bytes, _BUDGET_BYTES)
    partition_bytes = min(fetch.max_partition_bytes, _PARTITION_BYTES)
    response_bytes = max(partition_bytes, min(fetch.max_response_bytes, budget_bytes // _RESPONSE_PART))
    async with (
        open_cluster(
            address, wait_s=request.patience_s, max_answer_bytes=max(fetch.max_message_bytes, response_bytes)
        ) as cluster,
        open_access(cluster, read_committed=read_committed, consumes=True) as access,
    ):
        async with timeout(request.patience_s):
            partitions = await _find_partitions(access, request)
        fetcher = Fetcher(
            settings=FetchSettings(
                max_partition_bytes=partition_bytes,
                max_message_bytes=fetch.max_message_bytes,
                max_response_bytes=response_bytes,
                max_wait_ms=fetch.max_wait_ms,
                read_committed=read_committed,
                request_timeout_s=address.request_timeout_s,
                principal=address.principal,
                native_slice_bytes=partition_bytes,
            ),
            budget=MemoryBudget(budget_bytes),
            leaders=access.directory,
            protocol=choose_fetch_protocol(access.layout.generation, access.pool),
            log_ranges=access.ranges,
            hooks=Hooks(),
            now=monotonic,
            random=random.random,
        )
        async with alongside(fetcher.run(), name="fetch"):
            yield TailSource(
                partitions=partitions,
                directory=access.directory,
                ranges=access.ranges,
                fetcher=fetcher,
                principal=address.principal,
            )


async def _find_partitions(access: ClusterAccess, request: TailRequest) -> list[TopicPartition]:
    topics = await follow_topics(access, request.topics)
    view = access.directory.view
    found = []
    for topic in topics:
        keys = sorted(view.topics[topic].partitions)
        if absent := sorted(request.partitions.difference(key.number for key in keys)):
            raise ConfigError(
                f"{topic} has no partition {', '.join(map(str, absent))}; it has {join_shown(keys, _SHOWN_NAMES)}"
            )
        found += [
            TopicPartition(topic, key) for key in keys if not request.partitions or key.number in request.partitions
        ]
    return found


class Tail:
    """Prints records of partitions, which are read at the same time, each in offset order.

    Args:
        source: Partitions, and the clients that read them.
        request: Range of the records to print.
        outcome: Counts and failures, kept up to date while :meth:`run` runs, also if that is cancelled.
        write: Prints the records of a batch, and returns when the output has taken them. Calls may overlap. Raises
            OSError, CorruptMessageError for unreadable headers.
        tell: Prints a line for the operator.
    """

    def __init__(
        self,
        source: TailSource,
        request: TailRequest,
        outcome: TailOutcome,
        *,
        write: Callable[[RecordBatch], Awaitable[None]],
        tell: Callable[[str], None],
    ) -> None:
        self._source = source
        self._request = request
        self._outcome = outcome
        self._write = write
        self._tell = tell
        self._left = request.count
        """Records still to be shown, less those that are being printed; None without a limit."""
        self._printing = 0
        self._full = asyncio.Event()
        self._is_coarse_told = False

    async def run(self) -> None:
        """Print records until the end of the range, or until ``count`` records are printed.

        Runs without a time limit with ``follow``, and while the output takes nothing. Raises the OSError of ``write``.
        """
        waiting = WaitingNotes(self._tell)
        readers = [
            PartitionTail(
                one, self._source, self._request, self._outcome, output=self, tell=self._tell, waiting=waiting
            )
            for one in self._source.partitions
        ]
        try:
            await unless(self._full, self._read_all(readers))
        finally:
            for reader in readers:
                reader.notes.tell_untold()
        is_told = self._outcome.failures or self._outcome.damaged or all(one.is_empty for one in readers)
        if not self._outcome.shown and not is_told:
            logs = [f"{one.partition} [{one.log.earliest}, {one.log.latest})" for one in readers if one.log is not None]
            self._tell(f"no record in the range; the logs are: {join_shown(logs, _SHOWN_NAMES)}")

    async def _read_all(self, readers: Sequence[PartitionTail]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for reader in readers:
                    tasks.create_task(reader.run(), name=f"tail {reader.partition}")
                await self._tell_empty(readers)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # all are of the one output

    async def _tell_empty(self, readers: Sequence[PartitionTail]) -> None:
        """Tell which topics have no records, once all ranges are known."""
        for reader in readers:
            await reader.located.wait()
        for topic in dict.fromkeys(reader.partition.topic for reader in readers):
            of_topic = [reader for reader in readers if reader.partition.topic == topic]
            if all(reader.is_empty for reader in of_topic):
                waiting = "; waiting for records" if self._request.follow else ""
                self._tell(f"{topic} is empty: {counted(len(of_topic), 'partition')} without a record{waiting}")

    # -- TailOutput

    @property
    def is_busy(self) -> bool:
        """True while records are being printed."""
        return self._printing > 0

    async def show(self, batch: RecordBatch) -> RecordBatch:
        """Print a batch as far as the request's ``count`` allows; return the printed part."""
        if self._left is not None and len(batch) > self._left:
            batch = batch.first_rows(self._left)
        if len(batch):
            self._printing += 1
            try:
                await self._print(batch)
            finally:
                self._printing -= 1
        # a batch of another partition, which was counted before this one, may be printed still
        if self._left == 0 and not self._printing:
            self._full.set()
        return batch

    async def _print(self, batch: RecordBatch) -> None:
        """Print a batch, but for records with unreadable headers."""
        while len(batch):
            self._take(len(batch))
            try:
                await self._write(batch)
            except CorruptMessageError as error:
                self._take(-len(batch))
                row = batch.find_unreadable()
                if row is None:
                    raise
                self._outcome.damaged += 1
                self._tell(f"{batch.partition}: offset {batch.offsets[row]}: left out: {error}")
                batch = batch.without(row, GapReason.CORRUPT)
            else:
                self._outcome.shown += len(batch)
                return

    def _take(self, records: int) -> None:
        if self._left is not None:
            self._left -= records

    def note_coarse_time(self) -> None:
        """Tell the operator, once, that a broker (before 0.10.1) finds times only by log segment.

        Records before the requested time may then be printed.
        """
        if not self._is_coarse_told:
            self._is_coarse_told = True
            self._tell(
                "a broker before 0.10.1 knows one time for each log segment: what it finds for a time is the beginning "
                "of "
                "a segment, which is before the exact offset or at it"
            )
