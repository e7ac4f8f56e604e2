# SPDX-License-Identifier: Apache-2.0
"""How a name becomes public exactly once, and where a chain ends.

Everything here blocks and runs in threads. One rule carries it all: **a file gets its final name by link(2) once its
content is durable, and link(2) never replaces a name.** What follows from it:

* A reader sees a whole file or none; a crash at any point leaves hidden names only, which whoever claims the partition
  next removes.
* Two writers that are sent to the same position by the same predecessor race for one name, and one of them loses. The
  check of the lease before the link need not be atomic with it: a process that is stalled between the two, wakes up when
  another has published at that position, and links, finds the name taken; and if nobody has, its file is what belongs
  there, and whoever claims the partition next starts behind it. The lease saves work; the name keeps the order.
* A chain is ended the same way: its seal takes the one name that the next file could have. Whoever has been sent there
  loses that race as any other, sees the seal, and knows that this chain is over for good; a data file that was there
  first has moved the end, and the seal is tried again behind it.
* A name that is visible need not be durable yet: its publisher may have died before it synced the folder. So
  :func:`find_chain` syncs what it has found before it believes it, for the position that it gives is going to be
  committed.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd import failpoints
from consumerd.aio.threads import SideThread
from consumerd.errors import ConfigError, RetriableSinkError
from consumerd.landing.chain import (
    CHAIN_RECORD,
    META_FOLDER,
    ROOT_RECORD,
    ChainRecord,
    FileId,
    RootRecord,
    chain_folder,
    data_name,
    hidden_name,
    is_hidden,
    parse_chain_folder,
    parse_data_name,
    partition_folder,
)
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.metadata import MetadataReader
from consumerd.landing.record_fields import MalformedRecord, describe_malformed
from consumerd.model import TopicPartition

SYNC_EVERY_BYTES: Final = 16 << 20
"""A growing file is synced this often, beside what goes on, so that little is left for the moment when a revoked partition
waits for it.
"""

_NS_PER_MS: Final = 1_000_000
_NOT_OURS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL})
"""What syncing a folder gives where a process may not read it, or where its file system cannot be written."""


class Outcome(enum.Enum):
    """Result of giving a file its final name."""

    PUBLISHED = "published"
    TAKEN = "taken"
    """The name is another file's. Of a ``HiddenFile`` also: a later claim of the partition has removed the hidden name."""
    REMOVED = "removed"
    """The hidden name is gone, and nothing was published."""


def create_exclusive(files: FileSystem, hidden: Path, descriptor: int, target: Path) -> Outcome:
    """Give a durable file its final name, unless that is taken, and make the name durable.

    Args:
        descriptor: of the file, open.

    Raises OSError, after which the name may be public or not.
    """
    try:
        if failpoints.ENABLED:
            failpoints.reach("before_link")
        files.link(hidden, target)
        if failpoints.ENABLED:
            failpoints.reach("after_link")
    except (FileExistsError, FileNotFoundError) as error:
        # a server that repeats a link whose answer was lost finds the name taken by this very file
        if not files.is_same(descriptor, target):
            return Outcome.TAKEN if isinstance(error, FileExistsError) else Outcome.REMOVED
    if failpoints.ENABLED:
        failpoints.reach("before_folder_sync")
    files.sync_folder(target.parent)
    if failpoints.ENABLED:
        failpoints.reach("after_folder_sync")
    return Outcome.PUBLISHED


class HiddenFile:
    """A new file under its hidden name, until it is published or discarded.

    Used by one thread at a time, but for :meth:`doom`, :meth:`discard` and the size, which any may ask for.

    Writable by whoever writes to binary files (``write``, ``tell``, ``flush``, ``close``, ``closed``). Once it is discarded it
    swallows what is still written to it: pyarrow writes a footer even when it is dropped.
    """

    closed = False

    def __init__(self, files: FileSystem, *, folder: Path, name: str, file_id: FileId, digested: bool = False) -> None:
        self._files = files
        self._path = folder / hidden_name(name, file_id)
        self._target = folder / name
        self._digest = hashlib.sha256() if digested else None
        self._descriptor: int | None = None
        self._doomed = threading.Event()
        self._synced_size = 0
        self._syncing = SideThread(name="sync")
        self._open = threading.Lock()  # held while the descriptor is written to, or given up
        self.size = 0

    @property
    def sha256(self) -> str:
        """The digest of what was written, in hexadecimal."""
        assert self._digest is not None
        return self._digest.hexdigest()

    def create(self) -> None:
        """Make the file. Raises OSError."""
        self._descriptor = self._files.create(self._path)

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``, all of it. Raises OSError, after which the file is only good to be discarded."""
        size = len(data)
        with self._open:
            if self._descriptor is not None:
                self._files.write(self._descriptor, data)
                self.size += size
                if self._digest is not None:
                    self._digest.update(data)
                if self.size - self._synced_size >= SYNC_EVERY_BYTES:
                    self._sync_beside(self._descriptor)
        return size

    def _sync_beside(self, descriptor: int) -> None:
        self._syncing.start(lambda: self._sync(descriptor))
        self._synced_size = self.size

    def tell(self) -> int:
        """Return how much was written."""
        return self.size

    def flush(self) -> None:
        """Do nothing: nothing is buffered here."""

    def close(self) -> None:
        """Do nothing: it is closed when it is published or discarded."""

    def sync(self) -> int:
        """Make the content durable and return the time of modification in ns. Raises OSError."""
        assert self._descriptor is not None
        self._syncing.wait()
        self._sync(self._descriptor)
        self._synced_size = self.size
        return self._files.modified_ns(self._descriptor)

    def _sync(self, descriptor: int) -> None:
        if failpoints.ENABLED:
            failpoints.reach("before_fsync")
        self._files.sync(descriptor)
        if failpoints.ENABLED:
            failpoints.reach("after_fsync")

    def stamp(self) -> None:
        """Give the file a time of modification that tells it from other attempts at its name of the same millisecond,
        even of the same bytes: the clock of file systems ticks slowly. Raises OSError.
        """
        assert self._descriptor is not None
        modified_ns = self._files.modified_ns(self._descriptor)
        mark = zlib.crc32(self._path.name.encode()) % _NS_PER_MS
        self._files.set_modified_ns(self._descriptor, modified_ns - modified_ns % _NS_PER_MS + mark)

    def doom(self) -> None:
        """From any thread and at once: whatever happens, no link from now on. One that is under way may succeed."""
        self._doomed.set()

    def publish(self) -> Outcome:
        """Give the file its final name and make that durable. Raises OSError; the name may then be public or not."""
        if self._doomed.is_set():
            return Outcome.TAKEN
        assert self._descriptor is not None
        outcome = create_exclusive(self._files, self._path, self._descriptor, self._target)
        if outcome is not Outcome.PUBLISHED:
            return Outcome.TAKEN
        self.discard()
        return outcome

    def overwrite(self, modified_ns: int) -> Outcome:
        """Put the file in the place of the published one of its name, and make that durable.

        The rules of links hold for new names only. A published file is replaced by rename, in one step, and by the job
        ``erase`` alone, which keeps position and ``next_offset``: no writer's next step depends on which of both is there.

        Args:
            modified_ns: time of modification that the file gets, that of the replaced one.

        Returns TAKEN if a claim has removed the hidden name. Raises OSError; either file may be there then.
        """
        assert self._descriptor is not None
        self._syncing.wait()
        self._files.set_modified_ns(self._descriptor, modified_ns)
        self._sync(self._descriptor)
        try:
            self._files.replace(self._path, self._target)
        except FileNotFoundError:
            return Outcome.TAKEN
        self._files.sync_folder(self._target.parent)
        self.discard()
        return Outcome.PUBLISHED

    def discard(self) -> None:
        """Close the file and remove the hidden name, as far as that can be done. Idempotent, raises nothing.

        What stays behind is removed by whoever claims the partition next.
        """
        self._doomed.set()
        with self._open:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                self._syncing.wait()
            with contextlib.suppress(OSError):
                self._files.close(descriptor)
            with contextlib.suppress(OSError):
                self._files.unlink(self._path)


def publish_record(files: FileSystem, *, folder: Path, name: str, data: bytes, file_id: FileId) -> Outcome:
    """Publish a small file, or find that somebody has. Raises OSError."""
    file = write_record(files, folder=folder, name=name, data=data, file_id=file_id)
    try:
        return file.publish()
    finally:
        file.discard()


def write_record(files: FileSystem, *, folder: Path, name: str, data: bytes, file_id: FileId) -> HiddenFile:
    """Write a small file, durable and ready to be published. Raises OSError and leaves nothing behind then."""
    file = HiddenFile(files, folder=folder, name=name, file_id=file_id)
    try:
        file.create()
        file.write(data)
        file.sync()
    except BaseException:
        file.discard()
        raise
    return file


def claim_root(files: FileSystem, path: Path, record: RootRecord, file_id: FileId) -> RootRecord:
    """Return whose path this is: what the record there says, or ``record``, which is published if there is none.

    Raises OSError, RetriableSinkError.
    """
    found = find_root(files, path)
    if found is None:
        files.make_folders(path)
        _sync_parents(files, path)
        publish_record(files, folder=path, name=ROOT_RECORD, data=record.encode(), file_id=file_id)
        found = find_root(files, path)
        if found is None:
            raise RetriableSinkError(f"{path / ROOT_RECORD} vanished while it was being made")
    remove_hidden(files, path)  # whoever is making one as well finds ours
    files.sync_folder(path)
    files.sync_folder(path.parent)
    return found


def _sync_parents(files: FileSystem, path: Path) -> None:
    """Make a new path's name durable, and its parents' names: any of them may have been made for it. Raises OSError.

    Above the direct parent it ends where a folder cannot be synced by us: nothing was made there.
    """
    files.sync_folder(path.parent)
    for folder in path.parent.parents:
        try:
            files.sync_folder(folder)
        except OSError as error:
            if error.errno in _NOT_OURS:
                return
            raise


def find_root(files: FileSystem, path: Path) -> RootRecord | None:
    """Read whose path this is, or None if nobody's. Raises OSError, RetriableSinkError."""
    try:
        return RootRecord.parse(files.read(path / ROOT_RECORD))
    except FileNotFoundError:
        return None
    except MalformedRecord as error:
        raise RetriableSinkError(describe_malformed(str(path / ROOT_RECORD), error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A chain as it was found: ``end`` is the position of the next file, or of the seal that stands there."""

    number: int
    folder: Path
    record: ChainRecord
    end: int
    sealed: bool = False


def find_chain(
    files: FileSystem, root: Path, partition: TopicPartition, *, extension: str, read_metadata: MetadataReader
) -> Chain | None:
    """Return a partition's newest chain, durable as far as it is told, or None if it has none.

    For whoever holds the claim only: hidden names are removed first, so that no writer that began before can publish
    afterwards. Raises OSError, RetriableSinkError for what is damaged, and ConfigError for a chain of another file format.
    """
    topic, name = partition_folder(partition)
    home = root / topic / name
    numbers = sorted(filter(None, map(parse_chain_folder, files.names(home))), reverse=True)
    for number in numbers:
        folder = home / chain_folder(number)
        remove_hidden(files, folder)
        remove_hidden(files, folder / META_FOLDER)
        record = _find_chain_record(files, folder)
        if record is None:
            continue  # its maker died before it published the record; whoever opens the chain uses the folder
        if record.extension != extension:
            raise ConfigError(
                f"{folder} holds .{record.extension} files and this sink writes .{extension}: give the sink another "
                "path, or the type and the compression that it had"
            )
        end, sealed = _find_end(files, folder, record, partition, read_metadata)
        sync_upwards(files, folder, root)
        return Chain(number=number, folder=folder, record=record, end=end, sealed=sealed)
    return None


def prepare_chain(
    files: FileSystem,
    root: Path,
    partition: TopicPartition,
    *,
    number: int,
    record: ChainRecord,
    file_id: FileId,
    subfolders: tuple[str, ...] = (),
) -> tuple[Path, HiddenFile]:
    """Make a chain's folders, and its record ready to be published. Raises OSError."""
    topic, name = partition_folder(partition)
    folder = root / topic / name / chain_folder(number)
    files.make_folders(folder)
    for subfolder in subfolders:
        files.make_folders(folder / subfolder)
    hidden = write_record(files, folder=folder, name=CHAIN_RECORD, data=record.encode(), file_id=file_id)
    return folder, hidden


def sync_upwards(files: FileSystem, folder: Path, root: Path) -> None:
    """Make a folder's names durable, and its own, up to the root. Raises OSError."""
    files.sync_folder(folder)
    while folder != root:
        folder = folder.parent
        files.sync_folder(folder)


def remove_hidden(files: FileSystem, folder: Path) -> None:
    """Remove what others left half done in a folder, or are about to publish. Raises OSError."""
    for name in files.names(folder):
        if is_hidden(name):
            files.unlink(folder / name)


def _find_chain_record(files: FileSystem, folder: Path) -> ChainRecord | None:
    try:
        return ChainRecord.parse(files.read(folder / CHAIN_RECORD))
    except FileNotFoundError:
        return None
    except MalformedRecord as error:
        raise RetriableSinkError(describe_malformed(str(folder / CHAIN_RECORD), error)) from error


def _find_end(
    files: FileSystem, folder: Path, record: ChainRecord, partition: TopicPartition, read_metadata: MetadataReader
) -> tuple[int, bool]:
    """Return the ``next_offset`` of the last file, or the origin of a chain that has none; and whether it is sealed."""
    positions = [parse_data_name(name, record.extension) for name in files.names(folder)]
    newest = max((position for position in positions if position is not None), default=None)
    if newest is None:
        return record.origin, False
    path = folder / data_name(newest, record.extension)
    try:
        metadata = read_metadata(files, folder, newest, files.names(folder / META_FOLDER))
    except MalformedRecord as error:
        raise RetriableSinkError(describe_malformed(f"{path}: its metadata", error)) from error
    if (metadata.position, metadata.topic, metadata.partition) != (newest, partition.topic, partition.partition):
        raise RetriableSinkError(
            f"{path}: its metadata is that of position {metadata.position} of {metadata.topic}/{metadata.partition}; "
            "was the file moved here?"
        )
    return metadata.next_offset, metadata.sealed
