"""Where units that a policy passes over are kept: one file each, published as landed files are.

Hidden name, fsync, ``claim.confirm()``, link, fsync of the folders; only then does :meth:`FileQuarantine.put` return, and
the position may move past the unit. A name that is taken by the same unit means that it is kept: by an earlier attempt
whose commit was lost, or by another member.

All blocking work is done by one thread, step by step, so that what is left of a put that was cancelled is cleared away
before the next one begins.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from consumerd.errors import ConfigError, RetriableSinkError
from consumerd.model import Claim
from consumerd.sinks.base import QuarantinedUnit
from consumerd.sinks.chain import ROOT_RECORD, FileId, RootRecord
from consumerd.sinks.confirming import confirm_claim
from consumerd.sinks.failures import describe_failure
from consumerd.sinks.filesystem import FileSystem, OsFileSystem
from consumerd.sinks.publish import HiddenFile, Outcome, claim_root, find_root, remove_hidden, sync_upwards
from consumerd.sinks.quarantine_record import KeptUnit, encode_unit, holds_unit, unit_folders, unit_name
from consumerd.sinks.record_fields import MalformedRecord
from consumerd.sinks.threads import WorkThreads

_CLOSE_S: Final = 5.0

T = TypeVar("T")


class FileQuarantine:
    """The quarantine below one path, which replicas of the group share; implements ``sinks.base.Quarantine`` and
    ``CheckedSink``.

    ``wall_ms`` is the calendar's milliseconds, for the files' own account of when they were made. Writer id and cluster
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
        charge: Callable[[int], None],
        files: FileSystem | None = None,
    ) -> None:
        self._path = path
        self._charge = charge
        self._files = files or OsFileSystem()
        self._group = group
        self._cluster_id = cluster_id
        self._writer_id = writer_id
        self._wall_ms = wall_ms
        self._threads = WorkThreads(name="quarantine", count=1)
        self._attempts = itertools.count(1)
        self._root: str | None = None

    async def check(self) -> None:
        """See CheckedSink: whose path is it? Makes it this group's if it is nobody's."""
        try:
            await self._threads.run(self._check_root)
        except OSError as error:
            raise RetriableSinkError(describe_failure(error, "use the path", self._path)) from error

    async def put(self, unit: QuarantinedUnit, claim: Claim) -> None:
        """See Quarantine. Cancelling may leave the unit kept or not; to put it again is fine."""
        size = len(unit.raw)  # what writing it may take besides the unit itself; it is encoded piece by piece
        self._charge(size)
        try:
            await self._put(unit, claim)
        finally:
            self._charge(-size)

    async def _put(self, unit: QuarantinedUnit, claim: Claim) -> None:
        kept = KeptUnit(unit=unit, cluster=self._cluster_id, group=self._group, when_ms=self._wall_ms())
        attempt = _Attempt(self._files, self._path, kept, self._next_file_id())
        try:
            while not await self._do(unit, lambda: self._prepare(attempt)):
                await confirm_claim(claim)
                if await self._do(unit, attempt.publish):
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
        except ConfigError as error:
            raise RetriableSinkError(f"{unit.partition}: cannot quarantine offset {unit.offset}: {error}") from error

    def _prepare(self, attempt: _Attempt) -> bool:
        self._check_root()
        return attempt.prepare()

    def _check_root(self) -> None:
        """Make sure that the path is this group's, and on the volume that it was on before.

        Raises OSError, ConfigError, RetriableSinkError.
        """
        found = find_root(self._files, self._path)
        if self._root is None:
            ours = RootRecord(root=uuid.uuid4().hex, cluster=self._cluster_id, group=self._group)
            found = found or claim_root(self._files, self._path, ours, self._next_file_id())
            if (found.cluster, found.group) != (ours.cluster, ours.group):
                raise ConfigError(
                    f"quarantine.path {self._path} belongs to group {found.group!r} of cluster {found.cluster}, and this "
                    f"is group {ours.group!r} of cluster {ours.cluster}: give the quarantine another path"
                )
            self._root = found.root
        elif found is None or found.root != self._root:
            raise RetriableSinkError(
                f"{self._path / ROOT_RECORD} is {'missing' if found is None else 'that of another volume'}, though it "
                "was there before: mount the volume that was mounted when the first unit was quarantined"
            )

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
