# SPDX-License-Identifier: Apache-2.0
"""Opening of a partition's folder, after a clean or an unclean shutdown.

A segment is begun only when the previous one is durable, so losses are at the end of the newest one. There are two
kinds of damage: blocks that were never written, and blocks that were allocated without content. Size and checksum
detect both, and the segment is cut after its last whole message or batch. Segments that Kafka left unclean are checked
from the recovery point on, which may be in an older segment. Source: Kafka's documentation, "Log"; Log.loadSegments.

Checked bytes are written again before they count as durable: an ``fsync`` of the previous process may have failed,
after which the kernel keeps pages that it believes to be on the disk.

Example: the recovery point is 900, and segments begin at 0, 500 and 1,000. The first is believed (it ends below 900);
the other two are checked from 900 on. If the batch at 950 has a wrong checksum, the segment of 500 is cut there, and
the segment of 1,000 is deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.headers import CHUNK_BYTES
from consumerd.embedded.log.segment import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    Segment,
    find_base_offset,
    remove_segment,
    segment_path,
)

CLEANED_ENDING: Final = ".cleaned"
"""Ending of the name of a compacted segment that is being written."""
SWAP_ENDING: Final = ".swap"
"""Ending of the name of a complete and durable compacted segment, which will replace its sources."""
DELETED_ENDING: Final = ".deleted"
"""Ending of the names of files that Kafka is about to delete."""


def open_segments(
    folder: Path, files: OsLogFiles, *, index_interval_bytes: int, clean: bool, recovery_point: int | None
) -> tuple[Segment, ...]:
    """Open all segments in the folder of a partition's log, and return them in order.

    Creates the first segment in an empty folder. Raises OSError, with nothing left open.

    Args:
        folder: The folder of the partition's log.
        index_interval_bytes: Bytes of a segment between two entries of its index.
        clean: True if the previous process closed the log: its indexes are used, and records are not checked.
        recovery_point: All records below this offset are durable and not checked. None if unknown: then the newest
            segment is checked.
    """
    finish_interrupted(folder, files)
    segments: list[Segment] = []
    try:
        _open_all(folder, files, segments, index_interval_bytes, clean=clean, recovery_point=recovery_point)
    except BaseException:
        for segment in segments:
            segment.close()
        raise
    return tuple(segments)


def _open_all(
    folder: Path,
    files: OsLogFiles,
    segments: list[Segment],
    interval_bytes: int,
    *,
    clean: bool,
    recovery_point: int | None,
) -> None:
    """Open all segments, and add each one to ``segments`` at once.

    So the caller can close them after an error.
    """
    bases = sorted(base for name in files.names(folder) if (base := find_base_offset(name)) is not None)
    for number, base in enumerate(bases):
        segment = Segment(folder, base, files, index_interval_bytes=interval_bytes)
        file_bytes = segment.open()
        segments.append(segment)
        segment.created_ms = segment.modified_ms()
        next_base = bases[number + 1] if number + 1 < len(bases) else None
        doubtful = not clean and (next_base is None or (recovery_point is not None and next_base > recovery_point))
        if not doubtful and segment.load(file_bytes, next_base=next_base):
            continue
        known = recovery_point if recovery_point is not None and doubtful else base
        segment.recover(file_bytes, checked_from=known, next_base=next_base)
        damaged = segment.size < file_bytes
        if damaged:
            segment.cut()
        if doubtful:
            _write_again(segment, files, known)
        segment.sync()  # before the indexes, which are trusted from then on
        segment.write_indexes()
        if damaged and doubtful:  # segments after a loss are not contiguous any more
            for later in bases[number + 1 :]:
                remove_segment(folder, later, files)
            break
    if not segments:
        segment = Segment(folder, 0, files, index_interval_bytes=interval_bytes)
        segment.open(create=True)
        segments.append(segment)
        segment.created_ms = segment.modified_ms()
    files.sync_folder(folder)


def _write_again(segment: Segment, files: OsLogFiles, checked_from: int) -> None:
    first = segment.locate(checked_from, segment.file)
    position = first.position if first is not None else segment.size
    descriptor = segment.file.descriptor
    while position < segment.size:
        data = files.read(descriptor, position, min(CHUNK_BYTES, segment.size - position))
        files.write(descriptor, position, data)
        position += len(data)


def finish_interrupted(folder: Path, files: OsLogFiles) -> None:
    """Finish or undo an interrupted compaction or deletion.

    Incomplete files are deleted, complete compacted segments replace their sources. Raises OSError; a second call
    continues where the first one failed.
    """
    names = files.names(folder)
    for name in names:
        if name.endswith((CLEANED_ENDING, DELETED_ENDING)) or (
            name.endswith(SWAP_ENDING) and find_base_offset(name, SWAP_ENDING) is None
        ):
            files.unlink(folder / name)
    for name in sorted(names):
        base = find_base_offset(name, SWAP_ENDING)
        if base is not None:
            _finish_swap(folder, base, files)
    bases = {base for name in files.names(folder) if (base := find_base_offset(name)) is not None}
    for name in files.names(folder):
        stem, dot, suffix = name.partition(".")
        if dot + suffix in INDEX_SUFFIXES and stem.isdigit() and int(stem) not in bases:
            files.unlink(folder / name)


def _finish_swap(folder: Path, base: int, files: OsLogFiles) -> None:
    swap = segment_path(folder, base, LOG_SUFFIX + SWAP_ENDING)
    merged = Segment(folder, base, files, index_interval_bytes=CHUNK_BYTES)
    try:
        merged.recover(merged.open(path=swap), checked_from=base)
    finally:
        merged.close()
    place_swapped(folder, base, merged.next_offset, files)


def place_swapped(folder: Path, base: int, next_offset: int, files: OsLogFiles) -> None:
    """Replace the segments that begin in ``[base, next_offset)`` by a compacted one.

    The compacted segment is the ``.swap`` file of ``base``. The others are removed in rising order, so that after an
    interruption the newest ones are left. The caller writes the indexes. Raises OSError.
    """
    for name in sorted(files.names(folder)):
        old = find_base_offset(name)
        if old is not None and base < old < next_offset:
            remove_segment(folder, old, files)
            files.sync_folder(folder)
    for suffix in INDEX_SUFFIXES:
        files.unlink(segment_path(folder, base, suffix))
    files.rename(segment_path(folder, base, LOG_SUFFIX + SWAP_ENDING), segment_path(folder, base))
    files.sync_folder(folder)
