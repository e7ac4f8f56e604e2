# SPDX-License-Identifier: Apache-2.0
"""How a partition's directory is opened, whatever the end of the last process.

A segment is begun only when the one before it is durable, so what can be lost is at the end of the newest. Two kinds of
damage are found there: blocks that were never written, and blocks that were added without their content. Size and
checksum tell both; the segment is cut back to its last whole unit. A segment that Kafka left unclean is checked from the
recovery point on, which need not be in the newest one. Source: Kafka's documentation, "Log"; Log.loadSegments.

What was checked is written once more before it counts as durable: a process before this one may have seen ``fsync`` fail,
after which the kernel holds pages that it believes to be on the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.embedded.log.files import LogFileSystem
from consumerd.embedded.log.headers import CHUNK_BYTES
from consumerd.embedded.log.segment import INDEX_SUFFIXES, LOG_SUFFIX, Segment, find_base_offset, segment_path

CLEANED_ENDING: Final = ".cleaned"
"""A compacted segment that is being written."""
SWAP_ENDING: Final = ".swap"
"""A compacted segment that is whole and durable, and takes the place of those that it was made of."""
DELETED_ENDING: Final = ".deleted"
"""What Kafka is about to delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The segments of a directory, open; ``cut_bytes`` were at the ends of files, and of segments behind a cut."""

    segments: tuple[Segment, ...]
    checked: int
    cut_bytes: int


def open_segments(
    folder: Path, files: LogFileSystem, *, index_interval_bytes: int, clean: bool, recovery_point: int | None
) -> Recovered:
    """Open all segments, and make the first one in an empty directory.

    ``clean``: the last process has closed the log. ``recovery_point``: everything below is durable; None where nobody
    knows, and then the newest segment is checked. Raises OSError, with nothing left open.
    """
    finish_interrupted(folder, files)
    segments: list[Segment] = []
    try:
        return _open_all(folder, files, segments, index_interval_bytes, clean=clean, recovery_point=recovery_point)
    except BaseException:
        for segment in segments:
            segment.close()
        raise


def _open_all(
    folder: Path,
    files: LogFileSystem,
    segments: list[Segment],
    interval_bytes: int,
    *,
    clean: bool,
    recovery_point: int | None,
) -> Recovered:
    bases = sorted(base for name in files.names(folder) if (base := find_base_offset(name)) is not None)
    checked = cut_bytes = 0
    for number, base in enumerate(bases):
        segment = Segment(folder, base, files, index_interval_bytes=interval_bytes)
        file_bytes = segment.open()
        segments.append(segment)
        segment.created_ms = segment.modified_ms()
        next_base = bases[number + 1] if number + 1 < len(bases) else None
        doubtful = not clean and (next_base is None or (recovery_point is not None and next_base > recovery_point))
        if not doubtful and segment.load(file_bytes, next_base=next_base):
            continue
        checked += 1
        known = recovery_point if recovery_point is not None and doubtful else base
        segment.recover(file_bytes, checked_from=known, next_base=next_base)
        damaged = segment.size < file_bytes
        if damaged:
            cut_bytes += file_bytes - segment.size
            segment.cut()
        if doubtful:
            _write_again(segment, files, known)
        segment.seal()
        if damaged and doubtful:  # what was written behind a loss cannot follow it
            for later in bases[number + 1 :]:
                cut_bytes += _remove(folder, later, files)
            break
    if not segments:
        segment = Segment(folder, 0, files, index_interval_bytes=interval_bytes)
        segment.open(create=True)
        segments.append(segment)
        segment.created_ms = segment.modified_ms()
    files.sync_folder(folder)
    return Recovered(segments=tuple(segments), checked=checked, cut_bytes=cut_bytes)


def _write_again(segment: Segment, files: LogFileSystem, checked_from: int) -> None:
    first = segment.locate(checked_from, segment.file)
    position = first.position if first is not None else segment.size
    descriptor = segment.file.descriptor
    while position < segment.size:
        data = files.read(descriptor, position, min(CHUNK_BYTES, segment.size - position))
        files.write(descriptor, position, data)
        position += len(data)


def _remove(folder: Path, base: int, files: LogFileSystem) -> int:
    path = segment_path(folder, base)
    descriptor = files.open(path)
    try:
        size = files.size(descriptor)
    finally:
        files.close(descriptor)
    for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
        files.unlink(segment_path(folder, base, suffix))
    return size


def finish_interrupted(folder: Path, files: LogFileSystem) -> None:
    """Do what a compaction or deletion had begun: drop what was not finished, and let finished segments take their place.

    Raises OSError; a second try goes on where the first one ended.
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


def _finish_swap(folder: Path, base: int, files: LogFileSystem) -> None:
    swap = folder / f"{segment_path(folder, base).name}{SWAP_ENDING}"
    merged = Segment(folder, base, files, index_interval_bytes=CHUNK_BYTES)
    try:
        merged.recover(merged.open(path=swap), checked_from=base)
    finally:
        merged.close()
    place_swapped(folder, base, merged.next_offset, files)


def place_swapped(folder: Path, base: int, next_offset: int, files: LogFileSystem) -> None:
    """Let a finished compacted segment take the place of those that begin in ``[base, next_offset)``.

    Their names go in rising order, so that after an end in between what is left of them is the newest. The indexes are
    the caller's to write. Raises OSError.
    """
    for name in sorted(files.names(folder)):
        old = find_base_offset(name)
        if old is not None and base < old < next_offset:
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                files.unlink(segment_path(folder, old, suffix))
            files.sync_folder(folder)
    for suffix in INDEX_SUFFIXES:
        files.unlink(segment_path(folder, base, suffix))
    target = segment_path(folder, base)
    files.rename(folder / f"{target.name}{SWAP_ENDING}", target)
    files.sync_folder(folder)
