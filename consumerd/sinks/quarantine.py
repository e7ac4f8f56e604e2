# SPDX-License-Identifier: Apache-2.0
"""Where units that a policy passes over are kept: one file each, published as landed files are.

Hidden name, fsync, ``claim.confirm()``, link, fsync of the folders; only then does :meth:`FileQuarantine.put` return, and
the position may move past the unit. A name that is taken by the same unit means that it is kept: by an earlier attempt
whose commit was lost, or by another member.

All blocking work is done by one thread, step by step, so that what is left of a put that was cancelled is cleared away
before the next one begins.
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
_NAME: Final = "quarantine"

T = TypeVar("T")


class FileQuarantine:
    """The quarantine below one path, which replicas of the group share; implements ``sinks.base.Quarantine`` and
    ``CheckedSink``.

    ``roots`` is where the group keeps which root the path has; None where nothing is recorded. ``wall_ms`` is the calendar's milliseconds, for the files' own account of when they were made. Writer id and cluster
    id are those of the sinks.
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
            charge=lambda _size: None,  # whoever puts a unit here counts it
            roots=roots,
        )
        self._root = ChainRoot(
            context, path=path, shared=True, files=self._files, threads=self._threads, whose="the quarantine"
        )

    async def check(self) -> None:
        """See CheckedSink: whose path is it, and is it the one that it was? Makes it this group's if it is nobody's."""
        await self._root.check(self._next_file_id)

    async def put(self, unit: QuarantinedUnit, claim: Claim) -> None:
        """See Quarantine. Cancelling may leave the unit kept or not; to put it again is fine."""
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
        """End the thread. Idempotent, bounded."""
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
        """Take a step on the volume that was checked, and on no other. Raises OSError, RetriableSinkError."""
        self._root.require()
        return step()

    def _next_file_id(self) -> FileId:
        return FileId(f"{self._writer_id}-q{next(self._attempts)}")


class _Attempt:
    """One unit on its way to its name. Everything but :meth:`doom` happens in the one thread."""

    def __init__(self, files: FileSystem, path: Path, kept: KeptUnit, file_id: FileId) -> None:
        self._files = files
        self._path = path
        self._folder = path.joinpath(*unit_folders(kept.unit))
        self._kept = kept
        self._file_id = file_id
        self._hidden: HiddenFile | None = None
        self._doomed = False

    def prepare(self) -> bool:
        """Tell whether the unit is kept already, else make a hidden file of it. Raises OSError."""
        self.discard()
        self._files.make_folders(self._folder)
        # left by whoever died in the middle; a member that is still at it has lost the partition to us
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
        """Give the file its name and tell whether it has it. Raises OSError."""
        assert self._hidden is not None
        return self._hidden.publish() is Outcome.PUBLISHED

    def doom(self) -> None:
        """From the loop, at once: no link from now on."""
        self._doomed = True
        if self._hidden is not None:
            self._hidden.doom()

    def discard(self) -> None:
        """Remove the hidden file, if any. Raises nothing."""
        hidden, self._hidden = self._hidden, None
        if hidden is not None:
            hidden.discard()

    def _find_free_name(self) -> str | None:
        """Return the name that the unit is to have, or None if it is kept under one of those that it may have.

        A file that cannot be read is passed over: whatever it was, it is not known to be this unit.
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
