# SPDX-License-Identifier: Apache-2.0
"""Which of a partition's chains is the one to write to, and how the next one begins.

A chain ends for good by a seal, and begins by its record; both are names that only one writer can take. In order:

    seal chain n at its end  ->  publish ``_chain.json`` of chain n+1  ->  write there

each published as everything is: written, synced, the claim confirmed, linked, the folder synced. What may come between:

* The seal's name is taken by a data file: a stalled writer has published, and the chain's end has moved. The chains are
  looked at again. An operator's request says where to go on, whatever has landed, and so do a truncation that was found
  and a topic that was made again: the seal goes to the new end. Any other wish rested on the old end:
  whoever asked for it looks again (RetriableSinkError, and a new writer is opened).
* Its name is taken by another seal: the chain is over, which is all that was wanted.
* A crash after the seal: whoever claims the partition next finds a chain that is sealed and has no successor, and begins
  the one that it is told to begin, or, told nothing, one that goes on at the seal (reason ``sealed``).
* The record's name is taken: another writer has begun chain n+1. Whether it is joined: :meth:`ChainSuccession._joins`.

A writer that stalled anywhere in this and wakes up late finds each of its names taken, or its hidden file removed by the
claim that came after, or it does the very thing that whoever comes next would have to do: a seal without a successor is
such a thing. It can never add to a sealed chain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from consumerd.errors import IncarnationChanged, LocalProtocolError, OwnershipLost, RetriableSinkError
from consumerd.landing.chain import SEALED, ChainRecord, FileSummary
from consumerd.landing.failures import describe_failure
from consumerd.landing.publish import Chain, Outcome, sync_upwards
from consumerd.model import Claim, Incarnation
from consumerd.sinks.base import Start
from consumerd.sinks.chain_store import ChainStore
from consumerd.sinks.confirming import confirm_claim

T = TypeVar("T")

_ATTEMPTS: Final = 8


class ChainSuccession:
    """The chains of one partition, as the holder of one claim may change them."""

    def __init__(self, store: ChainStore, claim: Claim) -> None:
        self._store = store
        self._claim = claim

    def look(self) -> Chain | None:
        """Find the newest chain and remove what others left half done. Blocks; raises OSError, SinkError, ConfigError."""
        return self._store.find_chain(self._claim.partition)

    def is_current(self, chain: Chain) -> bool:
        """Tell whether a chain is of the topic as it was when it was claimed."""
        return chain.record.incarnation.czxid == self._claim.incarnation.czxid

    def goes_on(self, chain: Chain, start: Start) -> bool:
        """Tell whether a start that was decided upon with this chain as the newest one goes on in it."""
        if chain.sealed or not self._holds(chain, start):
            return False
        return not start.new_chain or _was_begun_for(chain, start)

    def _holds(self, chain: Chain, start: Start) -> bool:
        """Tell whether a chain's offsets mean the records that the log has there now."""
        return chain.record.incarnation == Incarnation(self._claim.incarnation.czxid, start.truncation)

    def check_line(self, known: Chain, found: Chain) -> None:
        """Return if a writer of ``known`` may go on in ``found``, which is the newest chain now.

        It may if ``found`` is that chain, or goes on behind its seal. Else the one who began it knew something that this
        writer does not: IncarnationChanged (the topic was made again), OwnershipLost (the log has lost its end, or an
        operator wants to go on elsewhere; what this writer has read and acknowledged says nothing about that chain, so
        its claim is of no use any more, even if it still stands: it is made anew, and starts where the chain ends).
        """
        if found.number == known.number:
            return
        if found.record.incarnation.czxid > known.record.incarnation.czxid:
            raise IncarnationChanged(
                f"{self._claim.partition}: {found.folder} is of the topic's incarnation {found.record.incarnation}, this "
                f"claim is of {self._claim.incarnation}"
            )
        if not found.record.continues(known.record):
            raise OwnershipLost(
                f"{self._claim.partition}: another writer has sealed {known.folder} and begun {found.folder} at "
                f"{found.record.origin} ({found.record.reason})"
            )

    async def begin(self, newest: Chain | None, start: Start) -> Chain:
        """Begin the next chain as ``start`` says, or join the one that another writer has begun.

        ``newest`` is the chain that the start was decided upon, None if there was none; it is not one that the start
        goes on in. Waits as long as the lease pauses. Raises OwnershipLost, IncarnationChanged, RetriableSinkError.
        """
        for _ in range(_ATTEMPTS):
            self._check_truncation(newest, start)
            if newest is None or newest.sealed or await self._seal(newest):
                begun = await self._publish_record(newest, start)
                if begun is not None:
                    return begun
            found = await self._do("find the chain", self.look)
            expect_chain(newest, found, self._claim)
            if found is not None and self._joins(newest, found, start):
                return found
            newest = found
        raise RetriableSinkError(f"{self._claim.partition}: others keep opening chains below {self._store.path}")

    def _check_truncation(self, newest: Chain | None, start: Start) -> None:
        """Raise RetriableSinkError if another writer has met a later end of the log: the start knows nothing of it."""
        if newest is not None and self.is_current(newest) and start.truncation < newest.record.incarnation.truncation:
            raise RetriableSinkError(
                f"{self._claim.partition}: {newest.folder} is of incarnation {newest.record.incarnation}, the start is of truncation "
                f"{start.truncation}; looking again"
            )

    def _joins(self, seen: Chain | None, found: Chain, start: Start) -> bool:
        """Decide, after a name was taken, whether to write to the newest chain; False: to begin the next one all the same.

        A chain that was begun for the same wish is joined, and so is one that ends no lower than where a plain start
        would begin (it wins, as it would at the next claim), or that goes on behind the seal that was seen. A wish that has
        an id, a truncation, and a topic made again, begin their chain whatever else has happened. Raises RetriableSinkError
        for any other wish that was decided upon something that is no longer so.
        """
        if not self.is_current(found):
            if found.record.incarnation.czxid > self._claim.incarnation.czxid:
                raise IncarnationChanged(f"{self._claim.partition}: {found.folder} is of a later incarnation")
            return False
        self._check_truncation(found, start)
        if not self._holds(found, start):
            return False
        if start.new_chain and start.request_id is not None:
            return not found.sealed and found.record.request_id == start.request_id
        if start.new_chain:
            if self.goes_on(found, start):
                return True
            if seen is not None and (seen.number, seen.end) == (found.number, found.end):
                return False
        elif found.end >= start.position or (seen is not None and found.record.continues(seen.record)):
            return not found.sealed
        raise RetriableSinkError(
            f"{self._claim.partition}: another writer was at work in {found.folder}, which ends at {found.end} now; "
            "looking again"
        )

    def _plan_record(self, newest: Chain | None, start: Start) -> ChainRecord:
        origin, reason, request_id = start.position, start.reason, start.request_id
        if newest is not None and self._holds(newest, start) and (not start.new_chain or _was_begun_for(newest, start)):
            origin, reason, request_id = newest.end, SEALED, newest.record.request_id
        return ChainRecord(
            origin=origin,
            incarnation=Incarnation(self._claim.incarnation.czxid, start.truncation),
            extension=self._store.format.extension,
            reason=reason,
            writer=self._store.writer_id,
            request_id=request_id,
            cluster=self._store.cluster_id,
        )

    async def _seal(self, chain: Chain) -> bool:
        """End a chain where it ends; False if that name is taken."""
        store = self._store
        file = store.open_file(chain, self._claim.partition)
        metadata = store.describe(chain, self._claim.partition, FileSummary(chain.end), file, sealed=True)
        try:
            await self._do("seal the chain", lambda: store.finish(file, metadata))
            await confirm_claim(self._claim)
            return await self._do("seal the chain", lambda: store.publish(file)) is Outcome.PUBLISHED
        finally:
            file.doom()
            self._throw_away(file.discard)

    async def _publish_record(self, newest: Chain | None, start: Start) -> Chain | None:
        """Begin the chain after ``newest``; None if there is one of that number."""
        store = self._store
        number = 1 if newest is None else newest.number + 1
        record = self._plan_record(newest, start)
        folder, hidden = await self._do(
            "begin the next chain",
            lambda: store.prepare_chain(self._claim.partition, number=number, record=record),
        )

        def publish() -> Outcome:
            try:
                outcome = store.publish(hidden)
                sync_upwards(store.files, folder, store.path)
            finally:
                hidden.discard()
            return outcome

        try:
            await confirm_claim(self._claim)
        except BaseException:
            self._throw_away(hidden.discard)
            raise
        try:
            outcome = await self._do("begin the next chain", publish)
        except BaseException:
            hidden.doom()
            raise
        if outcome is Outcome.TAKEN:
            return None
        return Chain(number=number, folder=folder, record=record, end=record.origin)

    def _throw_away(self, discard: Callable[[], None]) -> None:
        with contextlib.suppress(LocalProtocolError):  # the sink is closed: the next claim removes it
            self._store.threads.post(discard)

    async def _do(self, doing: str, work: Callable[[], T]) -> T:
        try:
            return await self._store.threads.run(work)
        except OSError as error:
            message = describe_failure(error, f"{doing} of {self._claim.partition}", self._store.path)
            raise RetriableSinkError(message) from error


def expect_chain(known: Chain | None, found: Chain | None, claim: Claim) -> None:
    """Raise RetriableSinkError if what is found is less than what was there: chains only grow."""
    if known is None or (found is not None and (found.number, found.end) >= (known.number, known.end)):
        return
    place = "no chain" if found is None else f"{found.folder} up to {found.end}"
    raise RetriableSinkError(
        f"{claim.partition}: expected {known.folder} up to {known.end}, found {place}; was the volume unmounted, or the "
        "path cleaned?"
    )


def _was_begun_for(chain: Chain, start: Start) -> bool:
    """Tell whether a chain was begun by the very request of this start, whose outcome was not heard of or not committed."""
    return start.request_id is not None and chain.record.request_id == start.request_id
