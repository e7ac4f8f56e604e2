# SPDX-License-Identifier: Apache-2.0
"""Files of JSON lines, exactly once.

A file's metadata is beside it (``landing.metadata``), since everybody reads the lines.
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
from consumerd.sinks.lines import PIECE_BYTES, encode_lines
from consumerd.sinks.options import ChainOptions
from consumerd.wire.records import RecordBatch

MEMBER_BYTES: Final = PIECE_BYTES
"""Lines that are compressed together."""


class JsonlOptions(ChainOptions):
    """Settings of the sink."""

    compression: LineCompression = Field(
        default="none", description="How lines are compressed: .jsonl, .jsonl.gz, .jsonl.zst."
    )


class JsonlEncoder:
    """Writes lines, straight through, or compressed once there are enough of them."""

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
        """See FileEncoder."""
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
        """See FileEncoder: lines that wait to be compressed. A compressor at work is the format's ``thread_bytes``."""
        return self._waiting_bytes

    @property
    def unwritten_bytes(self) -> int:
        """See FileEncoder."""
        return self._waiting_bytes

    def spill(self) -> None:
        """See FileEncoder: compress what waits."""
        if self._waiting:
            self._write_member()

    def _write_member(self) -> None:
        for data in compress_lines(self._compression, self._waiting):
            self._hidden.write(data)
        self._waiting, self._waiting_bytes = [], 0

    def finish(self, metadata: FileMetadata) -> None:
        """See FileEncoder: sync the data, then publish the metadata.

        A claim that comes meanwhile may remove the hidden metadata after it has passed the folder of the data. The data
        would then have a name and nothing that says what it is: it is never linked.
        """
        # nothing at all is no gzip file: programs call it cut off
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
            self._hidden.doom()

    def drop(self) -> None:
        """See FileEncoder."""
        self._waiting, self._waiting_bytes = [], 0


class JsonlFormat:
    """See FileFormat."""

    subfolders = (META_FOLDER,)
    working_copies = 6  # base64, its text, the line, all lines, their bytes: each a third larger than the value

    def __init__(self, compression: LineCompression = "none") -> None:
        self._compression: LineCompression = compression
        self.extension = EXTENSIONS[compression]
        self.read_metadata = partial(read_beside, extension=self.extension)
        compressor = COMPRESSOR_BYTES[compression]
        self.thread_bytes = (
            compressor + MEMBER_BYTES if compressor else 0
        )  # with what it gives, at worst as much as it got

    def open(
        self,
        files: FileSystem,
        *,
        partition: TopicPartition,  # noqa: ARG002 - each batch names its own
        folder: Path,
        position: int,
        file_id: FileId,
    ) -> tuple[HiddenFile, JsonlEncoder]:
        """See FileFormat."""
        name = data_name(position, self.extension)
        hidden = HiddenFile(files, folder=folder, name=name, file_id=file_id, digested=True)
        return hidden, JsonlEncoder(files, hidden, self._compression, folder=folder, position=position, file_id=file_id)


class JsonlSink(ChainSink):
    """Lands JSON lines."""

    Options = JsonlOptions

    def __init__(self, context: SinkContext, options: JsonlOptions, *, files: FileSystem | None = None) -> None:
        super().__init__(context, options, JsonlFormat(options.compression), files=files)
