# SPDX-License-Identifier: Apache-2.0
"""The quarantine: one file for each undeliverable unit that the policy ``quarantine`` skips.

A unit is a record, message, compressed wrapper or batch. Its file is published as landed files are: hidden name, fsync,
``claim.confirm()``, link, fsync of the folders. Only then does :meth:`FileQuarantine.put` return, and the position may
move past the unit. If the name is taken by the same unit, it is stored already: by an earlier attempt whose commit was
lost, or by another member.

Example: the message at offset 41 of ``orders-0`` is corrupt. Its bytes are stored as
``orders/0/<incarnation>/00000000000000000041-0.jsonl``. The member dies before it commits 42. The next owner meets the
corrupt message again, finds the file, and continues at 42.

All blocking work is done by one thread, in order. So the hidden file of a cancelled ``put`` is removed before the next
one begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from consumerd.aio.threads import WorkThreads
from consumerd.errors import ConfigError, RetriableSinkError
from consumerd.landing.chain import FileId
from consumerd.landing.failures import describe_failure
from consumerd.landing.filesystem import FileSystem, OsFileSystem
from consumerd.landing.publish import HiddenFile, Outcome, remove_hidden, sync_upwards
from consumerd.landing.record_fields import MalformedRecord
from consumerd.model import Claim
from consumerd.sinks.base import QuarantinedUnit, RootRegistry, SinkContext
from consumerd.sinks.chain_root import ChainRoot
from consumerd.sinks.confirming import confirm_claim
from consumerd.sinks.quarantine_record import KeptUnit, encode_unit, holds_unit, unit_folders, unit_name

_CLOSE_S: Final = 5.0
"""Longest time, in seconds, that closing waits for the thread."""
_NAME: Final = "quarantine"

T = TypeVar("T")


class FileQuarantine:
    """Quarantine of undeliverable records, as files below one path, which all members share.

    Implements ``base.Quarantine`` and ``base.CheckedSink``.

    Args:
        cluster_id: identifies the cluster; the path belongs to one cluster.
        writer_id: id of this process, which no other process has.
        wall_ms: returns the wall-clock time in ms since the epoch, which is stored in the files.
        roots: records, in ZooKeeper, of the path's random id; None if nothing is recorded.
    """

    def __init__(
        self,
        path: Path,
        *,
        group: str,
        cluster_id: str,
        writer_id: str,
        wall_ms: Callable[[], int],
        files: FileSystem | None = None,
        roots: RootRegistry | None = None,
    ) -> None:
        self._path = path
        self._files = files or OsFileSystem()
        self._group = group
        self._cluster_id = cluster_id
        self._writer_id = writer_id
        self._wall_ms = wall_ms
        self._threads = WorkThreads(name="quarantine", count=1)
        self._attempts = itertools.count(1)
        context = SinkContext(
            sink_name=_NAME,
            group=group,
            cluster_id=cluster_id,
            writer_id=writer_id,
            now=lambda: wall_ms() / 1000,
            charge=lambda _size: None,  # the pipeline has charged the unit's bytes
            roots=roots,
        )
        self._root = ChainRoot(
            context, path=path, shared=True, files=self._files, threads=self._threads, whose="the quarantine"
        )

    async def check(self) -> None:
        """Check that the path belongs to this group and its volume is mounted.

        Initializes a new path. Raises ConfigError for a path of another cluster or group, RetriableSinkError for a
        missing volume.
        """
        await self._root.check(self._next_file_id)

    async def put(self, unit: QuarantinedUnit, claim: Claim) -> None:
        """Store an undeliverable record, message or batch in a file, durably. Idempotent.

        After a cancellation it may be stored or not. ``claim`` is checked before the file is published. Raises
        RetriableSinkError, OwnershipLost, IncarnationChanged.
        """
        kept = KeptUnit(unit=unit, cluster=self._cluster_id, group=self._group, when_ms=self._wall_ms())
        attempt = _Attempt(self._files, self._path, kept, self._next_file_id())
        try:
            await self._check(unit)
            while not await self._do(unit, lambda: self._in_place(attempt.prepare)):
                await confirm_claim(claim)
                if await self._do(unit, lambda: self._in_place(attempt.publish)):
                    return
        except BaseException:
            attempt.doom()
            self._threads.post(attempt.discard)
            raise

    async def close(self) -> None:
        """End the thread, within five seconds. Idempotent."""
        await self._threads.close(timeout_s=_CLOSE_S)

    async def _do(self, unit: QuarantinedUnit, work: Callable[[], T]) -> T:
        try:
            return await self._threads.run(work)
        except OSError as error:
            doing = f"quarantine offset {unit.offset} of {unit.partition}"
            raise RetriableSinkError(describe_failure(error, doing, self._path)) from error

    async def _check(self, unit: QuarantinedUnit) -> None:
        try:
            await self.check()
        except (ConfigError, RetriableSinkError) as error:
            raise RetriableSinkError(f"cannot quarantine offset {unit.offset} of {unit.partition}: {error}") from error

    def _in_place(self, step: Callable[[], bool]) -> bool:
        """Run a step if the checked volume is still mounted. Raises OSError, RetriableSinkError."""
        self._root.require()
        return step()

    def _next_file_id(self) -> FileId:
        return FileId(f"{self._writer_id}-q{next(self._attempts)}")


class _Attempt:
    """One attempt to store a unit. All methods but :meth:`doom` run in the quarantine's thread."""

    def __init__(self, files: FileSystem, path: Path, kept: KeptUnit, file_id: FileId) -> None:
        self._files = files
        self._path = path
        self._folder = path.joinpath(*unit_folders(kept.unit))
        self._kept = kept
        self._file_id = file_id
        self._hidden: HiddenFile | None = None
        self._doomed = False

    def prepare(self) -> bool:
        """Write the unit's hidden file; return True if the unit is stored already. Raises OSError."""
        self.discard()
        self._files.make_folders(self._folder)
        # of members that died; one that is still writing has lost the partition to us, so it may not publish either
        remove_hidden(self._files, self._folder)
        name = self._find_free_name()
        if name is not None:
            self._hidden = HiddenFile(self._files, folder=self._folder, name=name, file_id=self._file_id)
            if self._doomed:
                self._hidden.doom()
            self._hidden.create()
            for piece in encode_unit(self._kept):
                self._hidden.write(piece)
            self._hidden.sync()
        sync_upwards(self._files, self._folder, self._path)
        return name is None

    def publish(self) -> bool:
        """Link the file to its name; return False if the name is taken. Raises OSError."""
        assert self._hidden is not None
        return self._hidden.publish() is Outcome.PUBLISHED

    def doom(self) -> None:
        """Prevent the link from now on. Called on the event loop."""
        self._doomed = True
        if self._hidden is not None:
            self._hidden.doom()

    def discard(self) -> None:
        """Remove the hidden file, if there is one. Raises nothing."""
        hidden, self._hidden = self._hidden, None
        if hidden is not None:
            hidden.discard()

    def _find_free_name(self) -> str | None:
        """Return the first free name for the unit's file, or None if already stored.

        A file that cannot be parsed counts as another unit.
        """
        unit = self._kept.unit
        taken = set(self._files.names(self._folder))
        for copy in itertools.count():
            name = unit_name(unit.offset, unit.index, copy)
            if name not in taken:
                return name
            try:
                if holds_unit(self._files.read(self._folder / name), unit):
                    return None
            except MalformedRecord:
                continue
        raise AssertionError("unreachable: a count has no end")
