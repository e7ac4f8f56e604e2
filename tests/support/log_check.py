# SPDX-License-Identifier: Apache-2.0
"""What is in the files of a log, read byte by byte as the formats say, by none of the product's code."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import google_crc32c

from consumerd.embedded.log.files import OsLogFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUnit:
    """A unit of a segment: where it is, its first bytes' offset, its last offset and newest timestamp."""

    position: int
    size: int
    offset: int
    last_offset: int
    timestamp: int


def walk(data: bytes) -> Iterator[StoredUnit]:
    """Give all units; raises AssertionError unless they are whole, intact, and fill ``data``."""
    at = 0
    while at < len(data):
        assert len(data) - at >= 26, f"{len(data) - at} bytes are left at {at}"
        offset, size = struct.unpack_from(">qi", data, at)
        end = at + 12 + size
        assert size >= 14, f"a unit of {size} bytes at {at}"
        assert end <= len(data), f"the unit at {at} is cut off"
        magic = data[at + 16]
        last_offset, timestamp = offset, -1
        if magic == 2:
            (checksum,) = struct.unpack_from(">I", data, at + 17)
            assert checksum == google_crc32c.value(data[at + 21 : end]), f"checksum of the batch at {at}"
            delta, _, timestamp = struct.unpack_from(">iqq", data, at + 23)
            last_offset += delta
        else:
            assert magic in (0, 1), f"magic {magic} at {at}"
            (checksum,) = struct.unpack_from(">I", data, at + 12)
            assert checksum == crc32(data[at + 16 : end]), f"checksum of the message at {at}"
            if magic:
                (timestamp,) = struct.unpack_from(">q", data, at + 18)
        yield StoredUnit(position=at, size=end - at, offset=offset, last_offset=last_offset, timestamp=timestamp)
        at = end


def read_file(files: OsLogFiles, path: Path) -> bytes:
    """Return a file's content."""
    descriptor = files.open(path)
    try:
        return files.read(descriptor, 0, files.size(descriptor))
    finally:
        files.close(descriptor)


def check_folder(files: OsLogFiles, folder: Path, *, indexed: bool) -> list[StoredUnit]:
    """Check a partition's files and return all its units, in order.

    Segments must hold whole, intact units whose offsets rise over all files; ``indexed``: every one must have its indexes.
    An index that is there must agree with its segment. Nothing else may be there. Raises AssertionError.
    """
    names = sorted(files.names(folder))
    bases = [name.removesuffix(".log") for name in names if name.endswith(".log")]
    assert bases, "a log has a segment at least"
    known = {base + ending for base in bases for ending in (".log", ".index", ".timeindex")}
    assert set(names) <= known, f"{set(names) - known} should not be there"
    units: list[StoredUnit] = []
    for number, base in enumerate(bases):
        assert len(base) == 20
        data = read_file(files, folder / f"{base}.log")
        here = list(walk(data))
        after = units[-1].last_offset if units else -1
        for unit in here:
            assert max(after + 1, int(base)) <= unit.offset <= unit.last_offset, f"{unit} behind offset {after}"
            after = unit.last_offset
        if number + 1 < len(bases):
            assert after < int(bases[number + 1]), f"offset {after} in {base}, before {bases[number + 1]}"
        _check_index(files, folder, base, here, indexed=indexed)
        _check_time_index(files, folder, base, here, indexed=indexed)
        units += here
    return units


def _check_index(files: OsLogFiles, folder: Path, base: str, units: list[StoredUnit], *, indexed: bool) -> None:
    name = f"{base}.index"
    if name not in files.names(folder):
        assert not indexed, f"{name} is missing"
        return
    data = read_file(files, folder / name)
    by_position = {unit.position: unit for unit in units}
    before = (-1, 0)
    for offset, position in struct.iter_unpack(">ii", data):
        assert (offset, position) > before, f"{name}: {(offset, position)} behind {before}"
        assert position > before[1], f"{name}: position {position} behind {before}"
        assert by_position[position].offset == offset + int(base), f"{name}: {(offset, position)}"
        before = (offset, position)


def _check_time_index(files: OsLogFiles, folder: Path, base: str, units: list[StoredUnit], *, indexed: bool) -> None:
    name = f"{base}.timeindex"
    if name not in files.names(folder):
        assert not indexed, f"{name} is missing"
        return
    entries = list(struct.iter_unpack(">qi", read_file(files, folder / name)))
    before = (-1, -1)
    for timestamp, offset in entries:
        assert timestamp > before[0], f"{name}: {timestamp} behind {before[0]}"
        assert offset >= before[1], f"{name}: {offset} behind {before[1]}"
        newest = max((unit.timestamp for unit in units if unit.last_offset <= offset + int(base)), default=-1)
        assert newest == timestamp, f"{name}: {timestamp} up to offset {offset}, where {newest} is the newest"
        before = (timestamp, offset)
    if indexed:
        newest = max((unit.timestamp for unit in units), default=-1)
        assert before[0] == newest, f"{name} ends with {before[0]}, the newest is {newest}"
