# SPDX-License-Identifier: Apache-2.0
"""Seals a partition's chain, and begins or joins the next one.

A *seal* is a data file without records at a chain's end. While it is there, no other file can get that name, so no
writer can add to the chain. A chain begins with its record, ``_chain.json``. The steps are::

    seal chain n at its end  ->  publish the record of chain n+1  ->  write there

Seal and record are published as data files are: written, synced, the claim confirmed, linked, the folder synced. So
only one writer can take each name.

Example: chain 1 ends at 100, and the operator moves the partition to 500. The writer publishes the seal
``chain=1/00000000000000000100.parquet``, then ``chain=2/_chain.json`` with origin 500, and then writes
``chain=2/00000000000000000500.parquet``.

What may happen in between:

* The seal's name is taken by a data file: an earlier owner, stalled until now, has published 100-149, and the chain's
  end is 150. The chains are read again. After an operator's request, a truncation or a topic re-creation the seal goes
  to 150, because these do not depend on the end. Any other start was decided upon the end 100: RetriableSinkError, and
  the pipeline opens a new writer and decides again.
* The seal's name is taken by another seal: the chain is sealed, which was the aim.
* A crash after the seal: the next owner finds a sealed chain without a successor. It begins the chain that its start
  asks for, or else one that begins at the seal (reason ``sealed``).
* The record's name is taken: another writer has begun chain n+1. :meth:`ChainSuccession._joins` decides whether to
  write there.

A writer that stalls during these steps and wakes up late can do no harm. Either a name that it wants is taken, or its
hidden file has been removed by the next owner, or it makes a seal that the next owner would have to make anyway. It can
never add to a sealed chain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from consumerd.errors import IncarnationChanged, LocalProtocolError, OwnershipLost, RetriableSinkError
from consumerd.landing.chain import SEALED, ChainRecord, FileSummary
from consumerd.landing.failures import describe_failure
from consumerd.landing.publish import Chain, Outcome, sync_upwards
from consumerd.model import Claim
from consumerd.sinks.base import Start
from consumerd.sinks.chain_store import ChainStore
from consumerd.sinks.confirming import confirm_claim

T = TypeVar("T")

_ATTEMPTS: Final = 8
"""Number of times that another writer may take a name before :meth:`ChainSuccession.begin` fails."""


class ChainSuccession:
    """Seals a partition's newest chain of landed files and begins the next, under one claim.

    A seal is an empty file at a chain's end, after which the chain cannot grow. A partition gets a new chain, for
    example, after an operator's request, a truncation of its log or a topic re-creation.
    """

    def __init__(self, store: ChainStore, claim: Claim) -> None:
        self._store = store
        self._claim = claim

    def look(self) -> Chain | None:
        """Return the partition's newest chain of files, None without one. Blocks.

        Also removes unpublished files of processes that owned the partition before. Raises OSError, SinkError,
        ConfigError.
        """
        return self._store.find_chain(self._claim.partition)

    def look_back(self) -> Chain | None:
        """Return the newest chain of the claimed topic, None without one. Blocks.

        A newer chain may be of another topic of this name: a broker that is out of date may have told the id of a
        deleted topic once more. Raises as :meth:`look`.
        """
        return self._store.find_chain(self._claim.partition, self._claim.incarnation)

    def is_current(self, chain: Chain) -> bool:
        """Return True if a chain has records of the claimed topic's incarnation.

        False if they are of a deleted topic with the same name.
        """
        return chain.record.incarnation.is_same_topic(self._claim.incarnation)

    def goes_on(self, chain: Chain, start: Start) -> bool:
        """Return True if a writer with this start continues ``chain``.

        False means that it has to begin a new chain. ``chain`` must be the partition's newest.
        """
        if chain.sealed or not self._holds(chain, start):
            return False
        return not start.new_chain or _was_begun_for(chain, start)

    def _holds(self, chain: Chain, start: Start) -> bool:
        """Return True if a chain's incarnation and truncation are the log's current ones."""
        return chain.record.incarnation == self._claim.incarnation.truncated(start.truncation)

    def check_line(self, known: Chain, found: Chain) -> None:
        """Check that a writer of chain ``known`` may continue with ``found``.

        ``found`` is the newest chain on disk. The writer may continue if it is the same chain, or begins where
        ``known`` was sealed. Otherwise another writer has begun ``found`` for a reason that this writer does not know:
        IncarnationChanged is raised if the topic was created again, OwnershipLost if the log was truncated or an
        operator has moved the position. The partition is then claimed again, and starts at the end of ``found``.
        """
        if found.number == known.number:
            return
        if found.record.incarnation.is_later_topic(known.record.incarnation) is not False:
            raise IncarnationChanged(
                f"{self._claim.partition}: {found.folder} is of the topic's incarnation {found.record.incarnation}, "
                f"this claim is of {self._claim.incarnation}"
            )
        if not found.record.continues(known.record):
            raise OwnershipLost(
                f"{self._claim.partition}: another writer has sealed {known.folder} and begun {found.folder} at "
                f"{found.record.origin} ({found.record.reason})"
            )

    async def begin(self, newest: Chain | None, start: Start) -> Chain:
        """Begin the partition's next chain of files; return it.

        If another writer has begun one meanwhile for the same reason, that chain is returned. Waits while the lease is
        paused.

        Args:
            newest: the newest chain when the start was decided, or None. The start does not continue this chain.

        Raises OwnershipLost, IncarnationChanged, RetriableSinkError.
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
        """Raise RetriableSinkError if the newest chain is of a later truncation than the start."""
        if newest is not None and self.is_current(newest) and start.truncation < newest.record.incarnation.truncation:
            raise RetriableSinkError(
                f"{self._claim.partition}: {newest.folder} is of incarnation {newest.record.incarnation}, "
                f"the start is of truncation {start.truncation}; looking again"
            )

    def _joins(self, seen: Chain | None, found: Chain, start: Start) -> bool:
        """Return True to write to the newest chain, False to begin another one.

        Called after another writer has taken a name.

        ===========================  ===============================================================================
        start                        newest chain, ``found``
        ===========================  ===============================================================================
        any                          of an earlier incarnation or truncation: another one
        new chain, with a request    begun by the same request and not sealed: join; otherwise: another one
        new chain, without request   unchanged since ``seen``: another one
        no new chain                 ends at or above the start, or begins at the seal of ``seen``: join, or another
                                     one if it is sealed, too
        ===========================  ===============================================================================

        In all other cases the start was decided upon a chain that has changed: raises RetriableSinkError. Raises
        IncarnationChanged if ``found`` is of a later incarnation. Topic ids do not tell that: another chain is begun
        then, before which the claim is confirmed.
        """
        if not self.is_current(found):
            if found.record.incarnation.is_later_topic(self._claim.incarnation):
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
            incarnation=self._claim.incarnation.truncated(start.truncation),
            extension=self._store.format.extension,
            reason=reason,
            writer=self._store.writer_id,
            request_id=request_id,
            cluster=self._store.cluster_id,
        )

    async def _seal(self, chain: Chain) -> bool:
        """Publish a seal at a chain's end; return False if the name is taken."""
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
        """Publish the record of the next chain; return None if it exists already."""
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
        with contextlib.suppress(LocalProtocolError):  # the sink is closed; the next claim removes the file
            self._store.threads.post(discard)

    async def _do(self, doing: str, work: Callable[[], T]) -> T:
        try:
            return await self._store.threads.run(work)
        except OSError as error:
            message = describe_failure(error, f"{doing} of {self._claim.partition}", self._store.path)
            raise RetriableSinkError(message) from error


def expect_chain(known: Chain | None, found: Chain | None, claim: Claim) -> None:
    """Raise RetriableSinkError if a partition's newest chain is older or shorter than before.

    Then files were removed, or the volume was unmounted.

    Args:
        known: The chain as it was when last read; None without one.
        found: The chain as it is on disk now; None without one.
    """
    if known is None or (found is not None and (found.number, found.end) >= (known.number, known.end)):
        return
    place = "no chain" if found is None else f"{found.folder} up to {found.end}"
    raise RetriableSinkError(
        f"{claim.partition}: expected {known.folder} up to {known.end}, found {place}; "
        "was the volume unmounted, or the path cleaned?"
    )


def _was_begun_for(chain: Chain, start: Start) -> bool:
    """Return True if an earlier attempt at the start's request has begun this chain."""
    return start.request_id is not None and chain.record.request_id == start.request_id
