# SPDX-License-Identifier: Apache-2.0
"""The writer behind every sink that lands files: one chain, one partition, one claim.

Life of a file: opened with the first batch that moves the position, filled, and rolled when it is large enough, when
``roll_ms`` have passed since its first batch, or when the pipeline flushes. Publishing is always

    finish (write, fsync the file and its metadata) -> ``claim.confirm()`` -> link -> fsync the folder -> acknowledge

The claim is asked on the loop, the link happens in a thread, and any time may pass in between; ``publish`` tells why
that is harmless. When an await is cancelled, its step may still be running: the file is doomed at once, which stops a
link that has not begun, and whether one that had begun went through is seen when the chain's end is read again.

Positions: ``_chain.end`` is the name of the next file; ``_acknowledged`` is what may be committed, above the former only
while offsets that somebody else has consumed wait to be recorded; ``_next`` is where the next batch must start.
A failed file takes everything back to ``_acknowledged`` and leaves the writer *stale*: it reads the chain's end again
before it goes on, since a link that failed to report may have happened.
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


class ChainWriter:
    """See the module's docstring, and ``sinks.base.PartitionWriter`` for what each call promises."""

    def __init__(self, store: ChainStore, claim: Claim) -> None:
        self._store = store
        self._claim = claim
        self._chains = ChainSuccession(store, claim)
        self._chain: Chain | None = None
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
        # calls of the pipeline come one by one; a spill, asked for by another partition's writer, comes in between
        self._turn = asyncio.Lock()

    # -- the port

    @property
    def resume_position(self) -> int | None:
        """The chain's end; None if there is none for this incarnation of the topic."""
        chain = self._find_current()
        return None if chain is None else chain.end

    @property
    def request_id(self) -> str | None:
        """See PartitionWriter."""
        chain = self._find_current()
        return None if chain is None else chain.record.request_id

    @property
    def truncation(self) -> int:
        """See RecallingWriter."""
        chain = self._find_current()
        return 0 if chain is None else chain.record.incarnation.truncation

    async def recover(self) -> None:
        """Find the partition's chain and remove what others left half done. Raises SinkError, ConfigError,
        IncarnationChanged.
        """
        self._chain = await self._do("find the chain", self._chains.look)
        if self._chain is not None and self._chain.record.incarnation.czxid > self._claim.incarnation.czxid:
            await self._refuse_later(self._chain)

    async def _refuse_later(self, chain: Chain) -> NoReturn:
        """The chain is of a later incarnation than the claim: either the topic was made again since the claim, or
        ZooKeeper does not remember making that topic, and claiming again would change nothing.
        """
        await confirm_claim(self._claim)
        raise PermanentSinkError(
            f"{chain.folder} is of incarnation {chain.record.incarnation} of the topic, which is later than "
            f"{self._claim.incarnation}, the one there is: ZooKeeper has lost its data, or the path is another "
            "cluster's; give the sink a new path"
        )

    async def find_missing(self, position: int) -> Gap | None:
        """See RecallingWriter. What is missing of a partition without any chain begins at the origin of the one it had."""
        landed, chain = await self._store.find_landed_end(self._claim.partition), self._find_current()
        if landed is None or landed.incarnation.czxid != self._claim.incarnation.czxid:
            return None
        number, end = (0, landed.origin) if chain is None else (chain.number, chain.end)
        missing = landed.find_missing(chain=number, end=end)
        if missing is None or missing.start >= position:
            return None
        return replace(missing, end=min(missing.end, position))

    async def start(self, start: Start) -> None:
        """See PartitionWriter; begins the chain if there is none for this incarnation, or if a new one is asked for.

        Raises PermanentSinkError for a position below the chain's end, RetriableSinkError besides when another writer was
        at work meanwhile: what the start was decided upon is no longer so, and a new writer is to be opened.
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
                    f"{self._claim.partition}: cannot start at {start.position}, below {chain.end}, the end of {chain.folder}"
                )
            self._chain = chain
            self._acknowledged = self._next = max(start.position, chain.end)
            self._skipped = _gap_reason(start.reason)
            self._missing_until = start.missing_until
            told_once = self._skipped is not GapReason.CONSUMED_ELSEWHERE or self._missing_until > chain.end
            if self._next > chain.end and told_once:
                # nobody has committed that position yet, and what is committed is to be some chain's end
                await self._publish(self._open_file())

    async def write(self, batch: RecordBatch) -> int:
        """See PartitionWriter; acknowledges when the batch made the file large enough."""
        async with self._store.room_to_encode(batch), self._turn:
            await self._settle()
            if batch.next_offset < self._acknowledged or batch.start > self._next:
                raise RetriableSinkError(
                    f"{self._claim.partition}: got records up to {batch.next_offset}, from {batch.start} on; those from "
                    f"{self._next} on are wanted",
                    resume_position=self._next,
                )
            if batch.next_offset > self._next:
                await self._append(batch)
        return self._acknowledged

    async def flush(self) -> int:
        """See PartitionWriter; publishes what there is."""
        async with self._turn:
            if self._failure is not None:
                raise self._take_failure()
            if self._file is not None:
                await self._publish(self._file)
            return self._acknowledged

    def deadline(self) -> float | None:
        """See PartitionWriter: ``roll_ms`` after the first batch of the open file, or of one whose failure is untold."""
        return None if self._file is None and self._failure is None else self._opened_at + self._store.roll_s

    async def abandon(self) -> None:
        """See PartitionWriter. Bounded; what cannot be removed in time is left to the next claim."""
        self._drop()
        try:
            async with timeout(CLEAN_UP_S):
                await self._empty_trash()
        except (TimeoutError, LocalProtocolError):  # the latter: the sink is closed
            return

    # -- what the store asks

    @property
    def busy(self) -> bool:
        """See BufferingWriter."""
        return self._turn.locked()

    async def spill(self) -> bool:
        """See BufferingWriter. A failure is kept for this writer's own pipeline. To cancel it is safe: the file does
        its steps in order, whether somebody waits for them or not.
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
        """Bring to an end what an earlier call left: a failure to tell, a stale position, a finished file."""
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
                error.refused += len(batch) - len(rest)  # rows count in the batch that was given
            if self._next == self._acknowledged:
                self._drop()  # nothing was taken yet: a file that ends where it begins would be in its own way
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
        """Somebody else's file has the name, or our hidden one was removed: drop ours, and go on behind what is there
        if the partition is still ours.
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
        """Read the chain's end again, after something whose outcome is unknown.

        Where a seal stands in place of the next file, this chain is over. The writer then goes on in the chain behind
        the seal, and begins that one if nobody has. It ends instead where ``ChainSuccession.check_line`` raises: the
        topic was made again, or the chain was begun for a truncation or a request.
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
        """Do a step in a thread. When it fails, or its outcome is not awaited, the open file is given up."""
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
        """Give up the open file and what it held: the position goes back to what is acknowledged."""
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
        return self._chain if self._chain is not None and self._chains.is_current(self._chain) else None

    def _get_chain(self) -> Chain:
        assert self._chain is not None, "start comes before write"
        return self._chain


def _gap_reason(reason: str) -> GapReason:
    try:
        return GapReason(reason)
    except ValueError:
        return GapReason.CONSUMED_ELSEWHERE
