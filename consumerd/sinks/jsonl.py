"""Files of JSON lines, exactly once.

What a file says of itself cannot stand within lines that everybody reads, so it stands beside them, in
``_meta/<position>.<file id>.json``, durable before the data file has its name. More than one attempt may have left such a
file for a position. The one that counts is the one whose size and SHA-256 are the data file's; where two attempts wrote
the same bytes (a seal and a file without records, say) the time of modification, which a link does not change and which is
stamped so that no two attempts share it, tells them apart; and where even that is no help, because the file was copied
here, the one that claims least: what it leaves out has no records.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from consumerd.model import TopicPartition
from consumerd.sinks.base import SinkContext
from consumerd.sinks.chain import (
    META_FOLDER,
    FileId,
    FileMetadata,
    data_name,
    meta_name,
    parse_meta_name,
)
from consumerd.sinks.chain_sink import ChainSink
from consumerd.sinks.filesystem import FileSystem
from consumerd.sinks.lines import encode_lines
from consumerd.sinks.options import ChainOptions
from consumerd.sinks.publish import HiddenFile, publish_record
from consumerd.sinks.record_fields import MalformedRecord
from consumerd.wire.records import RecordBatch

EXTENSION = "jsonl"


class JsonlEncoder:
    """Writes lines straight through; nothing is held."""

    held_bytes = kept_bytes = unwritten_bytes = 0

    def __init__(self, files: FileSystem, hidden: HiddenFile, *, folder: Path, position: int, file_id: FileId) -> None:
        self._files = files
        self._hidden = hidden
        self._folder = folder
        self._position = position
        self._file_id = file_id

    def append(self, batch: RecordBatch) -> None:
        """See FileEncoder."""
        for piece in encode_lines(batch):
            self._hidden.write(piece)

    def spill(self) -> None:
        """See FileEncoder: there is nothing to write."""

    def finish(self, metadata: FileMetadata) -> None:
        """See FileEncoder: sync the data, then publish the metadata."""
        self._hidden.stamp()
        modified_ns = self._hidden.sync()
        metadata = replace(metadata, size=self._hidden.size, sha256=self._hidden.sha256, modified_ns=modified_ns)
        publish_record(
            self._files,
            folder=self._folder / META_FOLDER,
            name=meta_name(self._position, self._file_id),
            data=metadata.encode(),
            file_id=self._file_id,
        )

    def drop(self) -> None:
        """See FileEncoder: there is no memory to give back."""


class JsonlFormat:
    """See FileFormat."""

    extension = EXTENSION
    subfolders = (META_FOLDER,)
    working_copies = 6  # base64, its text, the line, all lines, their bytes: each a third larger than the value

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
        name = data_name(position, EXTENSION)
        hidden = HiddenFile(files, folder=folder, name=name, file_id=file_id, digested=True)
        return hidden, JsonlEncoder(files, hidden, folder=folder, position=position, file_id=file_id)

    def read_metadata(self, files: FileSystem, folder: Path, position: int) -> FileMetadata:
        """Return the metadata that counts for the file at ``position``. Raises MalformedRecord, OSError."""
        data = folder / data_name(position, EXTENSION)
        size, modified_ns = files.size_and_mtime(data)
        names = [name for name in files.names(folder / META_FOLDER) if parse_meta_name(name) == position]
        candidates = [FileMetadata.parse(files.read(folder / META_FOLDER / name)) for name in names]
        matching = [candidate for candidate in candidates if candidate.size == size]
        if len(matching) > 1:
            sha256 = files.sha256(data)
            matching = [candidate for candidate in matching if candidate.sha256 == sha256]
        if not matching:
            raise MalformedRecord(f"none of the {len(names)} files in {META_FOLDER} for it is of {size} bytes like it")
        exact = [candidate for candidate in matching if candidate.modified_ns == modified_ns]
        return min(exact or matching, key=lambda candidate: candidate.next_offset)


class JsonlSink(ChainSink):
    """Lands JSON lines."""

    Options = ChainOptions

    def __init__(self, context: SinkContext, options: ChainOptions, *, files: FileSystem | None = None) -> None:
        super().__init__(context, options, JsonlFormat(), files=files)
