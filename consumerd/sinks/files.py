# SPDX-License-Identifier: Apache-2.0
"""One landed data file, from its first byte to its final name.

A :class:`FileFormat` encodes batches; :class:`OpenFile` keeps the order of the steps: create, append, finish, publish.
The steps block and run in threads. They never overlap, even if a caller was cancelled while its step is still running,
and calls the next one.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from consumerd.errors import CorruptMessageError, PermanentSinkError
from consumerd.landing.chain import FileId, FileMetadata
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.metadata import MetadataReader
from consumerd.landing.publish import HiddenFile, Outcome
from consumerd.model import TopicPartition
from consumerd.wire.records import RecordBatch


class FileEncoder(Protocol):
    """Encodes batches of records into the bytes of one file.

    Records may wait in memory until :meth:`spill` or :meth:`finish`.
    """

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the encoder holds, including :attr:`kept_bytes`."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that :meth:`spill` does not free, but only :meth:`finish` or :meth:`drop`."""

    @property
    def unwritten_bytes(self) -> int:
        """Size of the records that are not in the file yet, uncompressed."""

    def append(self, batch: RecordBatch) -> None:
        """Encode a batch, which has at least one record.

        Raises OSError; PermanentSinkError or CorruptMessageError for a batch that cannot be encoded, with no record
        taken.
        """

    def spill(self) -> None:
        """Write the records that wait in memory to the file. Raises OSError."""

    def finish(self, metadata: FileMetadata) -> None:
        """Write the rest of the file and its metadata, and make both durable. Raises OSError.

        A format may keep the metadata in a second file, which a later owner of the partition may remove. Publishing the
        data file then returns ``Outcome.TAKEN``.
        """

    def drop(self) -> None:
        """Release the encoder's memory after the file was discarded. Idempotent, raises nothing."""


class FileFormat(Protocol):
    """Format of landed files, such as Parquet: file names, encoder, and reader of metadata."""

    @property
    def extension(self) -> str:
        """Extension of file names, such as ``jsonl.gz``."""

    @property
    def subfolders(self) -> tuple[str, ...]:
        """Subfolders that the format needs beside the data files, such as ``_meta``."""

    @property
    def working_copies(self) -> int:
        """Number of copies in memory that encoding a batch takes, besides the batch."""

    @property
    def thread_bytes(self) -> int:
        """Bytes of memory that each encoding thread takes, besides copies of a batch."""

    def open(
        self, files: FileSystem, *, partition: TopicPartition, folder: Path, position: int, file_id: FileId
    ) -> tuple[HiddenFile, FileEncoder]:
        """Return a partition's next file and its encoder; nothing is created on disk yet.

        Args:
            files: File system to write to.
            folder: Folder of the file.
            position: Offset at which the file begins; the file's name is made of it.
            file_id: Id of this attempt to write it.
        """

    @property
    def read_metadata(self) -> MetadataReader:
        """Reader of a published file's metadata."""


class OpenFile:
    """A landed file that is being written.

    After a failed step only :meth:`discard` may be called.
    """

    def __init__(self, file_id: FileId, hidden: HiddenFile, encoder: FileEncoder) -> None:
        self.file_id = file_id
        self._hidden = hidden
        self._encoder = encoder
        self._turn = threading.Lock()
        self._created = False
        self._intact = True

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the file's records and its encoder take."""
        return self._encoder.held_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that :meth:`spill` does not free, until the file is finished or discarded."""
        return self._encoder.kept_bytes

    @property
    def size(self) -> int:
        """Size in bytes if the file ended now; records not written yet count uncompressed."""
        return self._hidden.size + self._encoder.unwritten_bytes

    def append(self, batch: RecordBatch) -> None:
        """Encode a batch into the file; the first one creates it on disk.

        Raises OSError; PermanentSinkError or CorruptMessageError for a batch that cannot be encoded, with no record
        taken.
        """
        with self._step():
            self._create()
            if len(batch):
                self._encoder.append(batch)

    def spill(self) -> None:
        """Write the records that wait in memory to the file. Raises OSError."""
        with self._step():
            self._encoder.spill()

    def finish(self, metadata: FileMetadata) -> None:
        """Complete the file, which may be empty, and make it durable. Raises OSError."""
        with self._step():
            self._create()
            self._encoder.finish(metadata)

    def publish(self) -> Outcome:
        """Link the finished file to its final name, and sync the folder. Raises OSError.

        Returns PUBLISHED; or TAKEN if another file has the name, or a later owner has removed this file.
        """
        with self._step():
            return self._hidden.publish()

    def doom(self) -> None:
        """Forbid that the file is published, without waiting for a running step.

        A link that has begun already is not undone.
        """
        self._hidden.doom()

    def discard(self) -> None:
        """Remove the unpublished file if possible, after the running step. Idempotent, raises nothing."""
        # a step whose caller was cancelled may begin only after this; it then fails, so it leaves no file behind
        with self._turn:
            self._intact = False
            self._hidden.discard()
            self._encoder.drop()

    def _create(self) -> None:
        if not self._created:
            self._hidden.create()
            self._created = True

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Run one step at a time; refuse steps after a failure or :meth:`discard`."""
        # after a failed write the content of the file is unknown
        with self._turn:
            if not self._intact:
                raise OSError(errno.EIO, "the file was given up, or an earlier write to it failed")
            self._intact = False
            try:
                yield
            except (PermanentSinkError, CorruptMessageError):
                self._intact = True
                raise
            self._intact = True
