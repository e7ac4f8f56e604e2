# SPDX-License-Identifier: Apache-2.0
"""Replacement of a landed file by one without some of its records. Blocks.

Position, ``next_offset``, and the time of modification stay: to daemons and to the job ``bronze`` it is the same file.
The offsets of erased records become a gap of the reason ``erased``, except those at which another record is left.

Order of the steps, so that a file and its metadata always fit, also after a crash between two steps:

1. The new file is written under a hidden name. A claim of the partition may remove it: then nothing is changed, and the
   erasure of this file is tried again.
2. JSON lines only: the new metadata is published in ``_meta``, beside the old. Readers choose by size and SHA-256, so
   that the old metadata counts as long as the old file is there.
3. The new file is made durable and renamed over the old one, and the folder is synced. Parquet has its metadata within.

The old metadata in ``_meta`` stays for readers that have seen the old file's size, until the file is erased from again,
or removed. It has no keys or values. One race is left: a reader takes the metadata before the third step, and opens the
file after it. It finds fewer records than the metadata say, and reports a damaged file; its next run does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from consumerd.landing.chain import (
    META_FOLDER,
    FileId,
    FileMetadata,
    GapLedger,
    LandedGap,
    data_name,
    meta_name,
    parse_meta_name,
)
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.metadata import keeps_metadata_beside
from consumerd.landing.publish import HiddenFile, Outcome, publish_record
from consumerd.landing.record_fields import MalformedRecord
from consumerd.model import GapReason


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftRecords:
    """Count, offsets and times of the records that stay in a file after an erasure.

    Timestamps are in ms since the epoch. Offsets and timestamps are None if no record stays.
    """

    count: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    min_timestamp: int | None = None
    max_timestamp: int | None = None


class ContentWriter(Protocol):
    """Function that writes the content of the file that replaces a landed one."""

    def __call__(self, hidden: HiddenFile) -> FileMetadata:
        """Write the complete new file, with Parquet's footer; return the file's metadata.

        Raises OSError.
        """


def describe_erased(metadata: FileMetadata, left: LeftRecords, erased: Iterable[tuple[int, int]]) -> FileMetadata:
    """Return the metadata of a file from which records were erased.

    The erased ranges become gaps of the reason ``erased``. Size, digest and time of modification are None: the writer
    of the file sets them.

    Args:
        metadata: Metadata of the file as it was.
        left: Count, offsets and times of the records that stay.
        erased: Half-open ranges of offsets at which no record is left, ascending, disjoint.
    """
    gaps = [
        *metadata.gaps,
        *(LandedGap(start=start, end=end, reason=GapReason.ERASED, offsets=end - start) for start, end in erased),
    ]
    ledger = GapLedger()
    for gap in sorted(gaps, key=lambda gap: (gap.start, gap.end)):
        ledger.add_entry(gap)
    return replace(
        metadata,
        count=left.count,
        first_offset=left.first_offset,
        last_offset=left.last_offset,
        min_timestamp=left.min_timestamp,
        max_timestamp=left.max_timestamp,
        gaps=ledger.entries(),
        size=None,
        sha256=None,
        modified_ns=None,
    )


def replace_file(
    files: FileSystem, folder: Path, old: FileMetadata, *, extension: str, file_id: FileId, write: ContentWriter
) -> Outcome:
    """Replace a landed file under its name; ``write`` writes the new content.

    Args:
        folder: Folder of the file.
        old: Metadata of the file as it is.
        extension: Extension of the file, without a dot.
        file_id: Id of this attempt, part of the name under which the new file is written first.

    Returns PUBLISHED; or TAKEN, with nothing changed, if a process that claimed the partition has removed the
    unfinished new file. Raises the errors of ``write``; OSError, after which either file may be there.
    """
    name = data_name(old.position, extension)
    beside = keeps_metadata_beside(extension)
    _, modified_ns = files.size_and_mtime(folder / name)
    hidden = HiddenFile(files, folder=folder, name=name, file_id=file_id, digested=beside)
    try:
        hidden.create()
        metadata = write(hidden)
        if beside:
            _remove_stale(files, folder / META_FOLDER, old)
            described = replace(metadata, size=hidden.size, sha256=hidden.sha256, modified_ns=modified_ns)
            published = publish_record(
                files,
                folder=folder / META_FOLDER,
                name=meta_name(old.position, file_id),
                data=described.encode(),
                file_id=file_id,
            )
            if published is Outcome.TAKEN:
                return Outcome.TAKEN
        return hidden.overwrite(modified_ns)
    finally:
        hidden.discard()


def _remove_stale(files: FileSystem, folder: Path, current: FileMetadata) -> None:
    """Remove the metadata in ``_meta`` of earlier attempts and erasures of a file.

    The file is published, so none of them counts any more.
    """
    for name in files.names(folder):
        if parse_meta_name(name) == current.position:
            with suppress(MalformedRecord):
                found = FileMetadata.parse(files.read(folder / name))
                if (found.size, found.sha256) != (current.size, current.sha256):
                    files.unlink(folder / name)
