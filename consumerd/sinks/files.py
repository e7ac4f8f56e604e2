# SPDX-License-Identifier: Apache-2.0
"""One data file of a chain, from its first byte to its final name, in any format.

A :class:`FileFormat` knows how bytes are made of batches; :class:`OpenFile` knows the order of the steps. The steps
block and run in threads, one after the other even if whoever waited for one was cancelled and asks for the next.
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
    """Turns batches into one file's bytes."""

    @property
    def held_bytes(self) -> int:
        """What is kept in memory, :attr:`kept_bytes` included."""

    @property
    def kept_bytes(self) -> int:
        """The part of it that stays until the file ends, whatever is written out before."""

    @property
    def unwritten_bytes(self) -> int:
        """How much of what was taken is not in the file yet, as it is."""

    def append(self, batch: RecordBatch) -> None:
        """Take a batch that has records.

        Raises OSError; PermanentSinkError or CorruptMessageError if the batch cannot be encoded, before any of it is
        taken.
        """

    def spill(self) -> None:
        """Write what is held to the file. Raises OSError."""

    def finish(self, metadata: FileMetadata) -> None:
        """Complete the file, sync it, and put its metadata where it belongs, just as durable. Raises OSError.

        Where a later claim has removed the metadata, the file is doomed: publishing it finds its name taken.
        """

    def drop(self) -> None:
        """Let go of memory; the file was discarded. Idempotent, raises nothing."""


class FileFormat(Protocol):
    """One kind of file."""

    @property
    def extension(self) -> str:
        """The last part of its names."""

    @property
    def subfolders(self) -> tuple[str, ...]:
        """Folders within a chain's that it needs."""

    @property
    def working_copies(self) -> int:
        """How often the bytes of a batch are in memory, besides the batch itself, while it is encoded."""

    @property
    def thread_bytes(self) -> int:
        """Memory that each thread may take besides while it encodes, whatever the batch."""

    def open(
        self, files: FileSystem, *, partition: TopicPartition, folder: Path, position: int, file_id: FileId
    ) -> tuple[HiddenFile, FileEncoder]:
        """Prepare a file of a partition; nothing is on the disk before the hidden file's ``create``."""

    @property
    def read_metadata(self) -> MetadataReader:
        """Reader of a published file's metadata."""


class OpenFile:
    """A file that is being written. Not to be used again after any step failed, but for :meth:`discard`."""

    def __init__(self, file_id: FileId, hidden: HiddenFile, encoder: FileEncoder) -> None:
        self.file_id = file_id
        self._hidden = hidden
        self._encoder = encoder
        self._turn = threading.Lock()
        self._created = False
        self._intact = True

    @property
    def held_bytes(self) -> int:
        """What is kept in memory."""
        return self._encoder.held_bytes

    @property
    def kept_bytes(self) -> int:
        """The part of it that only the end of the file frees."""
        return self._encoder.kept_bytes

    @property
    def size(self) -> int:
        """How large the file would be if it ended now; what waits to be written counts as it is, uncompressed."""
        return self._hidden.size + self._encoder.unwritten_bytes

    def append(self, batch: RecordBatch) -> None:
        """Take a batch. Raises as :meth:`FileEncoder.append`."""
        with self._step():
            self._create()
            if len(batch):
                self._encoder.append(batch)

    def spill(self) -> None:
        """Write what is held to the file. Raises OSError."""
        with self._step():
            self._encoder.spill()

    def finish(self, metadata: FileMetadata) -> None:
        """Complete the file, which may be empty, and make it durable. Raises OSError."""
        with self._step():
            self._create()
            self._encoder.finish(metadata)

    def publish(self) -> Outcome:
        """Link the finished file to its final name and sync the folder. Raises OSError."""
        with self._step():
            return self._hidden.publish()

    def doom(self) -> None:
        """At once and without waiting for a step that runs: this file is not going to be published any more."""
        self._hidden.doom()

    def discard(self) -> None:
        """Remove the file as far as that can be done; waits for a step that runs. Idempotent, raises nothing.

        A step whose caller was cancelled may get its turn only after this: it fails, so that it leaves no file behind.
        """
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
        """Let steps happen one by one, and none after one that failed (what a failed write left is unknown) or once the
        file was discarded.
        """
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
