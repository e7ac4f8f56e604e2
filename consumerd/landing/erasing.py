# SPDX-License-Identifier: Apache-2.0
"""Replacement of a landed file by one without some of its records. Blocks.

Position, ``next_offset``, and the time of modification stay: to daemons and to bronze it is the same file. What was
erased is a gap of the reason ``erased``, as far as no record is left at its offset.

Order of the steps, so that a file and its metadata always fit, also after a crash between two steps:

1. The new file is written under a hidden name. A claim of the partition may remove it: then nothing is changed, and
   the erasure of this file is tried again.
2. JSON lines only: the new metadata is published in ``_meta``, beside the old. Readers choose by size and SHA-256, so
   that the old metadata counts as long as the old file is there.
3. The new file is made durable and renamed over the old one, and the folder is synced. Parquet has its metadata within.

The old metadata in ``_meta`` stays for readers that have seen the old file's size, until the file is erased from again,
or removed. It has no keys or values. One race is left: a reader takes the metadata before the third step, and opens the
file after it. It finds fewer records than it was told, and reports a damaged file; its next run does not.
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
from consumerd.landing.line_compression import find_line_compression
from consumerd.landing.publish import HiddenFile, Outcome, publish_record
from consumerd.landing.record_fields import MalformedRecord
from consumerd.model import GapReason


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftRecords:
    """Records that stay in a file; offsets and timestamps are None without records."""

    count: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    min_timestamp: int | None = None
    max_timestamp: int | None = None


class ContentWriter(Protocol):
    """Writes the new file's content."""

    def __call__(self, hidden: HiddenFile) -> FileMetadata:
        """Write everything, Parquet's footer included, and return the new metadata. Raises OSError."""


def describe_erased(metadata: FileMetadata, left: LeftRecords, erased: Iterable[tuple[int, int]]) -> FileMetadata:
    """Return a file's metadata without some records.

    Args:
        erased: spans of offsets at which no record is left, ascending, disjoint.
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
    """Write a published file anew under its name; ``write`` gives its content.

    Args:
        folder: of the chain.
        old: metadata of the file as it is.

    Returns TAKEN, with nothing changed, if a claim of the partition has removed the hidden file. Raises OSError, after
    which either file may be there, and what ``write`` raises.
    """
    name = data_name(old.position, extension)
    beside = find_line_compression(extension) is not None
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
    """Remove a position's metadata of earlier attempts and erasures.

    The file is published, so that none of them counts any more.
    """
    for name in files.names(folder):
        if parse_meta_name(name) == current.position:
            with suppress(MalformedRecord):
                found = FileMetadata.parse(files.read(folder / name))
                if (found.size, found.sha256) != (current.size, current.sha256):
                    files.unlink(folder / name)
