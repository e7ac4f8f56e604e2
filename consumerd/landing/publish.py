# SPDX-License-Identifier: Apache-2.0
"""Publishes files under names that are taken exactly once, and finds the ends of chains.

Everything here blocks and runs in threads. One rule is the base of all: **a file gets its final name by link(2) once
its content is durable, and link(2) never replaces a name.** It follows:

- A reader sees a whole file or none. A crash leaves only hidden names, which the next owner of the partition removes.
- Two writers that continue from the same predecessor compete for one name, and one of them loses.
- The check of the lease before the link need not be atomic with it. A process may stall between the two. If another has
  published at that position meanwhile, the name is taken. If not, the file is the right one there, and the next owner
  starts behind it. The lease saves work; the name keeps the order.
- A chain is ended in the same way: its seal takes the only name that the next file could have. Another writer loses
  that name, sees the seal, and knows that the chain is over. If a data file was first, it has moved the end, and the
  seal is tried again behind it.
- A visible name need not be durable yet: its publisher may have died before it synced the folder. So :func:`find_chain`
  syncs the folder before it returns a position that is going to be committed.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import threading
import zlib
from dataclasses import dataclass
from functools import partial
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
from consumerd.model import Incarnation, TopicPartition

SYNC_EVERY_BYTES: Final = 16 << 20
"""Number of bytes after which a growing file is synced in the background.

Little is then left to sync when a revoked partition waits for it.
"""

_NS_PER_MS: Final = 1_000_000
_NOT_OURS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL})
"""Error numbers of a folder that cannot be synced for lack of permission."""


class Outcome(enum.Enum):
    """Result of giving a file its final name."""

    PUBLISHED = "published"
    TAKEN = "taken"
    """Another file has the name, or this file was removed before it was published.

    The partition's next owner removes unpublished files.
    """
    REMOVED = "removed"
    """The file was removed before it was published."""


def create_exclusive(files: FileSystem, hidden: Path, descriptor: int, target: Path) -> Outcome:
    """Link a durable file to its final name, unless taken, and sync the folder.

    Args:
        hidden: Path under which the file was written.
        descriptor: File descriptor of the open file.
        target: Final path.

    Returns PUBLISHED; TAKEN if another file has the name; REMOVED if ``hidden`` does not exist. Raises OSError, after
    which the file may have its final name or not.
    """
    try:
        if failpoints.ENABLED:
            failpoints.reach("before_link")
        files.link(hidden, target)
        if failpoints.ENABLED:
            failpoints.reach("after_link")
    except (FileExistsError, FileNotFoundError) as error:
        # a server that repeats a link after its answer was lost finds the name taken by this very file
        if not files.is_same(descriptor, target):
            return Outcome.TAKEN if isinstance(error, FileExistsError) else Outcome.REMOVED
    if failpoints.ENABLED:
        failpoints.reach("before_folder_sync")
    files.sync_folder(target.parent)
    if failpoints.ENABLED:
        failpoints.reach("after_folder_sync")
    return Outcome.PUBLISHED


class HiddenFile:
    """A new file under a hidden name, until it is published or discarded.

    Readers ignore hidden names. One thread at a time may use a hidden file, except for :meth:`doom`, :meth:`discard`
    and the size, which any thread may use.

    The class has the methods that libraries need of a binary file (``write``, ``tell``, ``flush``, ``close``,
    ``closed``). A discarded file ignores further writes, because pyarrow writes a footer even when its writer is
    dropped.

    Args:
        folder: Folder of the file.
        name: Final name of the file.
        file_id: Id of this attempt, part of the hidden name.
        digested: True to compute the SHA-256 of the bytes written.
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
        """SHA-256 of the bytes written, in hexadecimal."""
        assert self._digest is not None
        return self._digest.hexdigest()

    def create(self) -> None:
        """Create the file on disk. Raises OSError."""
        self._descriptor = self._files.create(self._path)

    def write(self, data: bytes | memoryview) -> int:
        """Append all of ``data``.

        Raises OSError, after which the file can only be discarded.
        """
        size = len(data)
        with self._open:
            if self._descriptor is not None:
                self._files.write(self._descriptor, data)
                self.size += size
                if self._digest is not None:
                    self._digest.update(data)
                if self.size - self._synced_size >= SYNC_EVERY_BYTES:
                    self._syncing.start(partial(self._sync, self._descriptor))
                    self._synced_size = self.size
        return size

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size

    def flush(self) -> None:
        """Do nothing: nothing is buffered here."""

    def close(self) -> None:
        """Do nothing: the file is closed when it is published or discarded."""

    def sync(self) -> int:
        """Make the file's content durable; return its time of modification, in ns since the epoch.

        Raises OSError.
        """
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
        """Set a modification time that no other attempt to write this file has.

        The clock of file systems is coarse, so attempts within one millisecond could have equal times. Raises OSError.
        """
        assert self._descriptor is not None
        modified_ns = self._files.modified_ns(self._descriptor)
        mark = zlib.crc32(self._path.name.encode()) % _NS_PER_MS
        self._files.set_modified_ns(self._descriptor, modified_ns - modified_ns % _NS_PER_MS + mark)

    def doom(self) -> None:
        """Forbid that the file is published; callable from any thread, returns at once.

        A call of ``link(2)`` that is under way may still succeed.
        """
        self._doomed.set()

    def publish(self) -> Outcome:
        """Link the file to its final name, and make that durable.

        Returns PUBLISHED; or TAKEN if another file has the name, or this file was removed or doomed. Raises OSError,
        after which the file may have its name or not.
        """
        if self._doomed.is_set():
            return Outcome.TAKEN
        assert self._descriptor is not None
        outcome = create_exclusive(self._files, self._path, self._descriptor, self._target)
        if outcome is not Outcome.PUBLISHED:
            return Outcome.TAKEN
        self.discard()
        return outcome

    def overwrite(self, modified_ns: int) -> Outcome:
        """Replace the published file that has this file's final name, and make the change durable.

        Only the job ``erase`` does this. Published files are otherwise never changed. The new file has the position and
        ``next_offset`` of the old one, so writers may meet either of them.

        Args:
            modified_ns: Time of modification of the old file, in ns since the epoch, which the new file gets.

        Returns PUBLISHED; or TAKEN if a process that claimed the partition has removed this file. Raises OSError;
        either file may be there then.
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
        """Close the file, and try to remove it. Idempotent, raises nothing.

        If it cannot be removed, the next owner of the partition does that.
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
    """Write and publish a small file, unless its name is taken. Raises OSError.

    Returns PUBLISHED, or TAKEN if another file has the name.
    """
    file = write_record(files, folder=folder, name=name, data=data, file_id=file_id)
    try:
        return file.publish()
    finally:
        file.discard()


def write_record(files: FileSystem, *, folder: Path, name: str, data: bytes, file_id: FileId) -> HiddenFile:
    """Write a small durable file under a hidden name; return it for publishing.

    Raises OSError, and then leaves no file.
    """
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
    """Return the content of the path's ``_consumerd.json``; publish ``record`` if there is none.

    The file names the group and the cluster that own the path. Raises OSError; RetriableSinkError for a malformed file.
    """
    found = find_root(files, path)
    if found is None:
        files.make_folders(path)
        _sync_parents(files, path)
        publish_record(files, folder=path, name=ROOT_RECORD, data=record.encode(), file_id=file_id)
        found = find_root(files, path)
        if found is None:
            raise RetriableSinkError(f"{path / ROOT_RECORD} vanished while it was being made")
    remove_hidden(files, path)  # another writer that creates a root now finds ours
    files.sync_folder(path)
    files.sync_folder(path.parent)
    return found


def _sync_parents(files: FileSystem, path: Path) -> None:
    """Make a new path's name and its parents' names durable.

    Any of the parents may have been created for it. Above the direct parent it stops at a folder that this process may
    not sync: it created nothing there. Raises OSError.
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
    """Return the content of the path's ``_consumerd.json``; None without the file.

    It names the group and the cluster that own the path. Raises OSError; RetriableSinkError for a malformed file.
    """
    try:
        return RootRecord.parse(files.read(path / ROOT_RECORD))
    except FileNotFoundError:
        return None
    except MalformedRecord as error:
        raise RetriableSinkError(describe_malformed(str(path / ROOT_RECORD), error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A chain of landed files, as found on disk.

    Attributes:
        number: Number among the partition's chains, from 1.
        record: Content of the chain's ``_chain.json``.
        end: Offset after the last file, which gives the next file its name; the chain's origin without a file.
        sealed: True if the file named ``end`` is a seal, which has no records. Then no file can be added.
    """

    number: int
    folder: Path
    record: ChainRecord
    end: int
    sealed: bool = False


def find_chain(
    files: FileSystem,
    root: Path,
    partition: TopicPartition,
    *,
    extension: str,
    read_metadata: MetadataReader,
    topic: Incarnation | None = None,
) -> Chain | None:
    """Return a partition's newest chain of landed files, or None. Its files are durable.

    Only the holder of the partition's claim may call this function: it first removes unpublished files, so that no
    earlier writer can publish afterwards. Raises OSError; RetriableSinkError for damaged files; ConfigError for a chain
    of another file format.

    Args:
        root: Path of the sink.
        extension: Expected extension of the data files, without a dot.
        read_metadata: Reads the metadata of one file.
        topic: Look for the newest chain of this topic; None for the newest of all.
    """
    home = root.joinpath(*partition_folder(partition))
    numbers = sorted(filter(None, map(parse_chain_folder, files.names(home))), reverse=True)
    for number in numbers:
        folder = home / chain_folder(number)
        remove_hidden(files, folder)
        remove_hidden(files, folder / META_FOLDER)
        record = _find_chain_record(files, folder)
        if record is None:
            continue  # its writer died before it published the record; the next chain uses the folder
        if topic is not None and not record.incarnation.is_same_topic(topic):
            continue
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
    """Create the folders of a new chain of files; return its folder and unpublished record.

    The chain begins to exist when the caller publishes the record, ``_chain.json``. Raises OSError.

    Args:
        number: Number of the chain among those of the partition, from 1.
        record: Content of the chain's ``_chain.json``.
        file_id: Id of this attempt.
        subfolders: Names of folders to create in the chain's folder, such as ``_meta``.
    """
    topic, name = partition_folder(partition)
    folder = root / topic / name / chain_folder(number)
    files.make_folders(folder)
    for subfolder in subfolders:
        files.make_folders(folder / subfolder)
    hidden = write_record(files, folder=folder, name=CHAIN_RECORD, data=record.encode(), file_id=file_id)
    return folder, hidden


def sync_upwards(files: FileSystem, folder: Path, root: Path) -> None:
    """Make the names in a folder durable, then those in each parent, up to ``root``.

    Raises OSError.
    """
    files.sync_folder(folder)
    while folder != root:
        folder = folder.parent
        files.sync_folder(folder)


def remove_hidden(files: FileSystem, folder: Path) -> None:
    """Remove unpublished files of other writers in a folder. Raises OSError."""
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
    """Return the end of a chain of files, and True if it is sealed.

    The end is the ``next_offset`` of the last file, or the origin of a chain without files. No file can be added to a
    sealed chain.
    """
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
