# SPDX-License-Identifier: Apache-2.0
"""Sink ``jsonl``: lands files of JSON lines, each record exactly once.

A file's metadata is in a second file beside it (``landing.metadata``), so that the data file has records only.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import Field

from consumerd.landing.chain import (
    META_FOLDER,
    FileId,
    FileMetadata,
    data_name,
    meta_name,
)
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.line_compression import COMPRESSOR_BYTES, EXTENSIONS, LineCompression, compress_lines
from consumerd.landing.metadata import read_beside
from consumerd.landing.publish import HiddenFile, Outcome, publish_record
from consumerd.model import TopicPartition
from consumerd.sinks.base import SinkContext
from consumerd.sinks.chain_sink import ChainSink
from consumerd.sinks.lines import PIECE_BYTES, WORKING_COPIES, encode_lines
from consumerd.sinks.options import ChainOptions
from consumerd.wire.records import RecordBatch

MEMBER_BYTES: Final = PIECE_BYTES
"""Approximate size, in bytes, of the lines that are compressed together into one gzip member or zstd frame."""


class JsonlOptions(ChainOptions):
    """Settings of the sink ``jsonl``."""

    compression: LineCompression = Field(
        default="none", description="How lines are compressed: .jsonl, .jsonl.gz, .jsonl.zst."
    )


class JsonlEncoder:
    """Writes JSON lines to a file; compressed lines in steps of 1 MiB."""

    kept_bytes = 0

    def __init__(
        self,
        files: FileSystem,
        hidden: HiddenFile,
        compression: LineCompression,
        *,
        folder: Path,
        position: int,
        file_id: FileId,
    ) -> None:
        self._files = files
        self._compression = compression
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._hidden = hidden
        self._folder = folder
        self._position = position
        self._file_id = file_id

    def append(self, batch: RecordBatch) -> None:
        """Write a batch's lines, or keep them to be compressed. Raises OSError, CorruptMessageError."""
        for piece in encode_lines(batch):
            if self._compression == "none":
                self._hidden.write(piece)
                continue
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
            if self._waiting_bytes >= MEMBER_BYTES:
                self._write_member()

    @property
    def held_bytes(self) -> int:
        """Bytes of lines that wait to be compressed. The compressor's own memory is not included."""
        return self._waiting_bytes

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of lines that are not in the file yet, uncompressed."""
        return self._waiting_bytes

    def spill(self) -> None:
        """Compress the waiting lines, and write them to the file. Raises OSError."""
        if self._waiting:
            self._write_member()

    def _write_member(self) -> None:
        for data in compress_lines(self._compression, self._waiting):
            self._hidden.write(data)
        self._waiting, self._waiting_bytes = [], 0

    def finish(self, metadata: FileMetadata) -> None:
        """Write the waiting lines, sync the file, and publish its metadata. Raises OSError.

        The metadata is published first. If a later owner of the partition has removed it, the data file will not be
        published.
        """
        # an empty file is not a valid gzip file, so at least one member is written
        if self._waiting or (self._compression != "none" and not self._hidden.size):
            self._write_member()
        self._hidden.stamp()
        modified_ns = self._hidden.sync()
        metadata = replace(metadata, size=self._hidden.size, sha256=self._hidden.sha256, modified_ns=modified_ns)
        outcome = publish_record(
            self._files,
            folder=self._folder / META_FOLDER,
            name=meta_name(self._position, self._file_id),
            data=metadata.encode(),
            file_id=self._file_id,
        )
        if outcome is Outcome.TAKEN:
            # the next owner has removed our hidden metadata, perhaps after it had looked for hidden data files; without
            # metadata the data must not be published
            self._hidden.doom()

    def drop(self) -> None:
        """Release the lines that wait to be compressed, after the file was discarded."""
        self._waiting, self._waiting_bytes = [], 0


class JsonlFormat:
    """File format of the sink ``jsonl``: JSON lines, compressed or not."""

    subfolders = (META_FOLDER,)
    working_copies = WORKING_COPIES

    def __init__(self, compression: LineCompression = "none") -> None:
        self._compression: LineCompression = compression
        self.extension = EXTENSIONS[compression]
        self.read_metadata = partial(read_beside, extension=self.extension)
        compressor = COMPRESSOR_BYTES[compression]
        # the output of a compressor is at most as large as its input
        self.thread_bytes = compressor + MEMBER_BYTES if compressor else 0

    def open(
        self,
        files: FileSystem,
        *,
        partition: TopicPartition,  # noqa: ARG002 - each batch names its own
        folder: Path,
        position: int,
        file_id: FileId,
    ) -> tuple[HiddenFile, JsonlEncoder]:
        """Return a partition's next file and its encoder; nothing is created on disk yet.

        Args:
            files: File system to write to.
            folder: Folder of the file.
            position: Offset at which the file begins; the file's name is made of it.
            file_id: Id of this attempt to write it.
        """
        name = data_name(position, self.extension)
        hidden = HiddenFile(files, folder=folder, name=name, file_id=file_id, digested=True)
        return hidden, JsonlEncoder(files, hidden, self._compression, folder=folder, position=position, file_id=file_id)


class JsonlSink(ChainSink):
    """Sink that lands files of JSON lines, compressed or not."""

    Options = JsonlOptions

    def __init__(self, context: SinkContext, options: JsonlOptions, *, files: FileSystem | None = None) -> None:
        super().__init__(context, options, JsonlFormat(options.compression), files=files)
