# SPDX-License-Identifier: Apache-2.0
"""Writes one partition's chain of files, for one claim.

Used by every sink that lands files. ``chain_succession`` begins and seals chains, ``files`` writes one file, and
``landing.publish`` links it to its name.

Publishing
    A file is opened with the first batch, filled, and published when it is large enough, ``roll_ms`` after its first
    batch, or when the pipeline flushes::

        finish (write, fsync the file and its metadata) -> claim.confirm() -> link -> fsync the folder -> acknowledge

    ``claim.confirm()`` runs on the event loop, and the link in a thread, so the claim may be lost in between. That is
    harmless: the link fails if another writer has taken the name (``landing.publish``).

Positions
    ``_chain.end``     the chain's end, which is also the name of the next file.
    ``_acknowledged``  the position that may be committed. It is above the chain's end only if the start was: then the
                       gap between the two is recorded in the next file.
    ``_next``          the offset at which the next batch must start.

    Example: the chain ends at 100. After batches up to 180 and 250, ``_chain.end`` and ``_acknowledged`` are 100, and
    ``_next`` is 250. Publishing gives the file ``00000000000000000100.parquet``, and all three are 250.

Failures
    If a step fails, the file is discarded, and ``_next`` goes back to ``_acknowledged``: 100 in the example. The writer
    is then *stale*. It reads the chain's end from disk before it continues, because a link whose outcome is unknown may
    have succeeded; the end is then 250.

    If an await is cancelled, its step may still be running in a thread. Dooming the file at once prevents a link that
    has not begun. One that has begun is found when the chain's end is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NoReturn, TypeVar

from consumerd.aio.timeouts import timeout
from consumerd.errors import (
    ConfigError,
    CorruptMessageError,
    LocalProtocolError,
    PermanentSinkError,
    RetriableSinkError,
    SinkError,
)
from consumerd.landing.chain import SEALED, FileSummary
from consumerd.landing.failures import describe_failure
from consumerd.landing.publish import Chain, Outcome
from consumerd.model import Claim, Gap, GapReason
from consumerd.sinks.base import Start
from consumerd.sinks.chain_store import ChainStore, Held
from consumerd.sinks.chain_succession import ChainSuccession, expect_chain
from consumerd.sinks.confirming import confirm_claim
from consumerd.sinks.files import OpenFile
from consumerd.wire.records import RecordBatch

T = TypeVar("T")

CLEAN_UP_S: Final = 5.0
"""Longest time, in seconds, that :meth:`ChainWriter.abandon` takes."""


class ChainWriter:
    """Lands the records of one partition in a chain of files, under one claim.

    Each file of a chain begins at the offset where the one before ends. Implements ``base.PartitionWriter``, which
    describes the methods.
    """

    def __init__(self, store: ChainStore, claim: Claim) -> None:
        self._store = store
        self._claim = claim
        self._chains = ChainSuccession(store, claim)
        self._chain: Chain | None = None
        self._former: Chain | None = None
        """Newest chain of the claimed topic, if a newer one is of another topic of this name."""
        self._acknowledged = 0
        self._next = 0
        self._skipped = GapReason.CONSUMED_ELSEWHERE
        self._missing_until = 0
        self._file: OpenFile | None = None
        self._summary = FileSummary(0)
        self._finished = False
        self._opened_at = 0.0
        self._stale = False
        self._failure: RetriableSinkError | None = None
        self._trash: list[OpenFile] = []
        # the pipeline's calls do not overlap, but a spill, which another partition's writer requests, may come between
        self._turn = asyncio.Lock()

    # -- the port

    @property
    def resume_position(self) -> int | None:
        """Offset after the partition's last landed file; None without files.

        Files of a deleted topic with the same name do not count.
        """
        chain = self._find_current()
        return None if chain is None else chain.end

    @property
    def request_id(self) -> str | None:
        """Id of the operator's request that began the newest chain; None without one.

        ``consumerd offsets set`` makes such a request, to move the partition's position.
        """
        chain = self._find_current()
        return None if chain is None else chain.record.request_id

    @property
    def truncation(self) -> int:
        """Number of the log's truncations (unclean leader elections) when the newest chain was begun.

        0 without a chain.
        """
        chain = self._find_current()
        return 0 if chain is None else chain.record.incarnation.truncation

    @property
    def has_earlier_topic(self) -> bool:
        """True if the newest chain of files is of another topic of this name."""
        return self._chain is not None and not self._chains.is_current(self._chain)

    async def recover(self) -> None:
        """Find the partition's newest chain of files; remove unpublished files of former owners.

        A former owner is a process that has held the partition before and died, or lost it. Raises SinkError,
        ConfigError, IncarnationChanged.
        """
        self._chain = await self._do("find the chain", self._chains.look)
        if self._chain is None:
            return
        is_later = self._chain.record.incarnation.is_later_topic(self._claim.incarnation)
        if is_later:
            await self._refuse_later(self._chain)
        if is_later is None:  # topic ids do not tell: the claimed topic may have files below
            self._former = await self._do("find the topic's chain", self._chains.look_back)

    async def _refuse_later(self, chain: Chain) -> NoReturn:
        """Raise the error for a chain of a later incarnation than the claim's."""
        # if the topic was re-created after the claim, this raises IncarnationChanged; else ZooKeeper has lost data, and
        # claiming again would not help
        await confirm_claim(self._claim)
        raise PermanentSinkError(
            f"{chain.folder} is of incarnation {chain.record.incarnation} of the topic, which is later than "
            f"{self._claim.incarnation}, the one there is: ZooKeeper has lost its data, or the path is another "
            "cluster's; give the sink a new path"
        )

    async def find_missing(self, position: int) -> Gap | None:
        """Return the range of offsets below ``position`` that had landed and whose files are gone.

        None if there are none. Example: ZooKeeper says that the partition had landed up to 200, and the last file on
        disk ends at 150. For position 180 this is 150 to 179. Raises CoordinationError.
        """
        landed, chain = await self._store.root.find_landed_end(self._claim.partition), self._find_current()
        if landed is None or not landed.incarnation.is_same_topic(self._claim.incarnation):
            return None
        number, end = (0, landed.origin) if chain is None else (chain.number, chain.end)
        missing = landed.find_missing(chain=number, end=end)
        if missing is None or missing.start >= position:
            return None
        return replace(missing, end=min(missing.end, position))

    async def start(self, start: Start) -> None:
        """Set the position of the first record to write.

        Begins a chain of files if there is none, if ``start.new_chain`` is set, or if the log was truncated. Raises
        PermanentSinkError for a position below the end of a chain that the start continues; RetriableSinkError if a
        step failed, or another writer has changed the chain on which the start was based. The pipeline then opens a new
        writer.
        """
        async with self._turn:
            if self._file is not None or self._stale:
                self._drop()
                await self._refresh()
            chain = self._chain
            if chain is None or not self._chains.goes_on(chain, start):
                chain = await self._chains.begin(chain, start)
            elif start.position < chain.end and not start.new_chain:
                raise PermanentSinkError(
                    f"{self._claim.partition}: cannot start at {start.position}, below {chain.end}, "
                    f"the end of {chain.folder}"
                )
            self._chain = chain
            self._acknowledged = self._next = max(start.position, chain.end)
            self._skipped = _gap_reason(start.reason)
            self._missing_until = start.missing_until
            told_once = self._skipped is not GapReason.CONSUMED_ELSEWHERE or self._missing_until > chain.end
            if self._next > chain.end and told_once:
                # publish an empty file with the gap now: the start's position is not committed yet, and a committed
                # position must be the end of a chain
                await self._publish(self._open_file())

    async def write(self, batch: RecordBatch) -> int:
        """Add a batch to the open file; publish the file if it is large enough.

        Returns the acknowledged position: the offset after the last published record. Raises the errors of
        ``base.PartitionWriter.write``.
        """
        async with self._store.room_to_encode(batch), self._turn:
            await self._settle()
            if batch.next_offset < self._acknowledged or batch.start > self._next:
                raise RetriableSinkError(
                    f"{self._claim.partition}: got records up to {batch.next_offset}, from {batch.start} on; "
                    f"those from {self._next} on are wanted",
                    resume_position=self._next,
                )
            if batch.next_offset > self._next:
                await self._append(batch)
        return self._acknowledged

    async def flush(self) -> int:
        """Publish the open file, if there is one; return the offset after its records.

        Raises the errors of ``base.PartitionWriter.write``.
        """
        async with self._turn:
            if self._failure is not None:
                raise self._take_failure()
            if self._file is not None:
                await self._publish(self._file)
            return self._acknowledged

    def deadline(self) -> float | None:
        """Return the time by which :meth:`flush` must be called; None without an open file.

        It is ``roll_ms`` after the first batch of the open, or just failed, file, on the clock ``SinkContext.now``.
        """
        return None if self._file is None and self._failure is None else self._opened_at + self._store.roll_s

    async def abandon(self) -> None:
        """Drop the open file and its records. Takes at most ``CLEAN_UP_S`` seconds.

        Parts of the file that could not be removed in that time are removed at the partition's next claim.
        """
        self._drop()
        try:
            async with timeout(CLEAN_UP_S):
                await self._empty_trash()
        except (TimeoutError, LocalProtocolError):  # LocalProtocolError: the sink is closed
            return

    # -- calls of the store

    @property
    def busy(self) -> bool:
        """True while a call of this writer runs or waits for a paused claim."""
        return self._turn.locked()

    async def spill(self) -> bool:
        """Write the records held in memory to the open file; return False after a failure.

        The writer's next call raises the failure. If this call is cancelled, the write continues, and later steps of
        the file wait for it.
        """
        async with self._turn:
            if self._file is None or self._finished:
                return True
            try:
                await self._store.threads.run(self._file.spill)
            except OSError as error:
                self._failure = self._give_up(error, "write the file")
            self._charge()
            return self._failure is None

    # -- file

    async def _settle(self) -> None:
        """Finish earlier calls: raise a kept failure, refresh a stale position, publish a finished file."""
        if self._failure is not None:
            raise self._take_failure()
        if self._stale:
            await self._refresh()
        if self._file is not None and self._finished:
            await self._publish(self._file)

    async def _append(self, batch: RecordBatch) -> None:
        file = self._file or self._open_file()
        rest = batch.slice_from(self._next)
        try:
            await self._do("write the file", lambda: file.append(rest))
        except (PermanentSinkError, CorruptMessageError) as error:
            if isinstance(error, PermanentSinkError) and error.refused is not None:
                error.refused += len(batch) - len(rest)  # as a row of the whole batch
            if self._next == self._acknowledged:
                # an empty file at 100 would get the name of the next file, which also begins at 100
                self._drop()
            raise
        self._summary.add(rest)
        self._next = batch.next_offset
        self._charge()
        if file.size >= self._store.roll_bytes:
            await self._publish(file)
        elif self._store.is_overgrown(file.kept_bytes):
            await self._publish(file)
            self._store.report_overgrown()

    def _open_file(self) -> OpenFile:
        chain = self._get_chain()
        self._summary = FileSummary(chain.end)
        missing_end = min(max(chain.end, self._missing_until), self._acknowledged)
        if missing_end > chain.end:
            self._summary.pass_over(Gap(chain.end, missing_end, GapReason.MISSING_FILE))
        if self._acknowledged > missing_end:
            self._summary.pass_over(Gap(missing_end, self._acknowledged, self._skipped))
        self._file = self._store.open_file(chain, self._claim.partition)
        self._finished = False
        self._opened_at = self._store.now()
        return self._file

    async def _publish(self, file: OpenFile) -> None:
        chain = self._get_chain()
        if not self._finished:
            metadata = self._store.describe(chain, self._claim.partition, self._summary, file)
            await self._do("finish the file", lambda: self._store.finish(file, metadata))
            self._finished = True
            self._charge()
        await confirm_claim(self._claim)
        outcome = await self._do("publish the file", lambda: self._store.publish(file))
        if outcome is Outcome.TAKEN:
            await self._yield_to_other()
        self._file = None
        self._move_end(self._next)
        self._charge()
        self._store.report_published(chain, self._summary, file)
        await self._store.note_landed_end(self._get_chain(), self._claim.partition)

    async def _yield_to_other(self) -> NoReturn:
        """Drop our file, because its name is taken or its hidden file was removed.

        If the partition is still ours, the pipeline continues after the other writer's files. Raises
        RetriableSinkError, OwnershipLost, IncarnationChanged.
        """
        position = self._get_chain().end
        self._drop()
        try:
            await confirm_claim(self._claim)
            await self._refresh()
        except RetriableSinkError as error:
            raise RetriableSinkError(str(error), resume_position=self._acknowledged) from error
        raise RetriableSinkError(
            f"{self._claim.partition}: another writer has taken position {position}; going on from "
            f"{self._acknowledged}",
            resume_position=self._acknowledged,
        )

    async def _refresh(self) -> None:
        """Read the chain's end again, after a step whose outcome is unknown.

        If the chain has been sealed, the writer continues with the next chain, or begins it. It raises instead if that
        chain was begun for a topic re-creation, a truncation or an operator's request (``ChainSuccession.check_line``).
        """
        await self._empty_trash()
        found, known = await self._do("find the chain", self._chains.look), self._get_chain()
        expect_chain(known, found, self._claim)
        assert found is not None
        self._chains.check_line(known, found)
        if found.sealed:
            found = await self._chains.begin(found, Start(position=found.end, reason=SEALED))
            self._chains.check_line(known, found)
        self._chain = found
        self._move_end(found.end)
        self._stale = False

    def _move_end(self, end: int) -> None:
        self._chain = replace(self._get_chain(), end=end)
        self._acknowledged = max(self._acknowledged, end)
        self._next = max(self._next, self._acknowledged)

    # -- failures

    async def _do(self, doing: str, work: Callable[[], T]) -> T:
        """Run a step in a thread; drop the open file after a failure or cancellation."""
        try:
            return await self._store.threads.run(work)
        except (SinkError, ConfigError, CorruptMessageError):
            raise
        except OSError as error:
            raise self._give_up(error, doing) from error
        except BaseException:
            self._drop()
            raise

    def _give_up(self, error: OSError, doing: str) -> RetriableSinkError:
        resume_position = None if self._file is None else self._acknowledged
        self._drop()
        what = f"{doing} of {self._claim.partition}"
        if self._chain is not None:
            what += f" at position {self._chain.end}"
        message = describe_failure(error, what, self._store.path)
        return RetriableSinkError(message, resume_position=resume_position)

    def _drop(self) -> None:
        """Drop the open file and its records: ``_next`` goes back to ``_acknowledged``."""
        if self._file is not None:
            self._file.doom()
            self._trash.append(self._file)
            self._file = None
            self._stale = True
        self._next = self._acknowledged
        self._charge()

    async def _empty_trash(self) -> None:
        while self._trash:
            await self._store.threads.run(self._trash[-1].discard)
            self._trash.pop()
            self._charge()

    def _take_failure(self) -> RetriableSinkError:
        failure, self._failure = self._failure, None
        assert failure is not None
        return failure

    def _charge(self) -> None:
        self._store.note_filling(self, filling=self._file is not None)
        trash = sum(file.held_bytes for file in self._trash)
        if self._file is None:
            self._store.charge(self, Held(trash, trash))
        else:
            self._store.charge(self, Held(self._file.held_bytes + trash, self._file.kept_bytes + trash))

    def _find_current(self) -> Chain | None:
        return self._chain if self._chain is not None and self._chains.is_current(self._chain) else self._former

    def _get_chain(self) -> Chain:
        assert self._chain is not None, "start comes before write"
        return self._chain


def _gap_reason(reason: str) -> GapReason:
    try:
        return GapReason(reason)
    except ValueError:
        return GapReason.CONSUMED_ELSEWHERE
