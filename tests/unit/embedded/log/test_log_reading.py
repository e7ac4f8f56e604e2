# SPDX-License-Identifier: Apache-2.0
"""Reads by offset and by time, whatever is done to the log meanwhile."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from consumerd.embedded.log.errors import LogDamaged, LogOffsetOutOfRange
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.settings import LogSettings
from consumerd.wire.modern.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tests.support.faulty_log_files import MemoryLogFiles
from tests.support.log_check import check_folder
from tests.support.logs import START_MS, LogRig, read_records, record_set


def open_rig(**changes: object) -> LogRig:
    files = MemoryLogFiles(random.Random(1))
    rig = LogRig(files=files, settings=LogSettings(**changes))  # type: ignore[arg-type]  # fields by their names
    files.now_ms = lambda: rig.now_ms
    rig.open()
    return rig


def fill(rig: LogRig, appends: int = 40) -> None:
    dice = random.Random(3)
    for number in range(appends):
        rig.now_ms += dice.choice([0, 0, 5, -3])
        rig.append(1 + number % 4, size=20 + dice.randrange(60), codec=number % 4)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("interval", [0, 150, 1 << 20])
def test_every_offset_is_found_from_every_offset(magic: int, interval: int) -> None:
    """The index is sparse, or dense, or empty: what a read begins with is the unit that holds the offset."""
    rig = open_rig(message_format=magic, index_interval_bytes=interval, segment_bytes=900)
    fill(rig)
    units = check_folder(rig.files, rig.folder, indexed=False)
    for offset in range(rig.log.end_offset):
        due = next(unit for unit in units if unit.last_offset >= offset)
        with rig.log.read(offset, 1, whole_first=True) as part:
            assert (due.position, due.size) == (part.position, part.size)
            assert due.size == len(part.read())
        assert offset == next(read_records(rig.log, offset)).offset


@pytest.mark.parametrize("magic", [1, 2])
def test_times_are_found_as_a_look_at_every_record_finds_them(magic: int) -> None:
    """Times may go back, within a set and between them: the first record that is new enough counts."""
    rig = open_rig(message_format=magic, index_interval_bytes=150, segment_bytes=900)
    fill(rig)
    rig.check_times()
    assert rig.log.find_offset(rig.now_ms + 1_000_000) is None
    rig.close()
    rig.open()
    rig.check_times()


def test_there_are_no_times_in_magic_0() -> None:
    """Nothing has a timestamp, so nothing is found by one."""
    rig = open_rig(message_format=0)
    fill(rig, 3)
    assert rig.log.find_offset(0) is None


def test_a_read_is_cut_off_where_it_is_asked_to_be() -> None:
    """A reader sees by the size that its first message is not whole, and asks for more; unless it wants it whole."""
    rig = open_rig()
    rig.append(1, size=300)
    with rig.log.read(0, 100, whole_first=False) as part:
        assert (100, 100) == (part.size, len(part.read()))
    with rig.log.read(0, 0, whole_first=False) as part:
        assert 0 == part.size
    with rig.log.read(0, 100, whole_first=True) as part:
        assert part.size > 300


def test_a_read_ends_with_its_segment() -> None:
    """A slice is of one file, so that it can be sent as it is."""
    rig = open_rig(segment_bytes=700)
    fill(rig)
    sizes = sorted(len(rig.files_content(name)) for name in rig.files.names(rig.folder) if name.endswith(".log"))
    with rig.log.read(0, 1 << 20, whole_first=True) as part:
        assert sizes[-1] <= 700
        assert part.size <= 700


def test_offsets_outside_are_refused_and_the_end_is_empty() -> None:
    """The end is where the next record will be; beyond it, and below the start, a reader must decide anew."""
    rig = open_rig()
    rig.append(3)
    with rig.log.read(3, 100, whole_first=True) as part:
        assert (0, b"", -1) == (part.size, part.read(), part.descriptor)
    for offset in (-1, 4):
        with pytest.raises(LogOffsetOutOfRange, match=r"\[0, 3\]"):
            rig.log.read(offset, 100, whole_first=True)


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    """Retention may delete what is just being sent: it is sent to its end, and then the file is gone."""
    rig = LogRig(files=OsLogFiles(), path=tmp_path, settings=LogSettings(segment_bytes=300, retention_bytes=0))
    rig.open()
    for _ in range(5):
        rig.append(1, size=100)
    part = rig.log.read(0, 1000, whole_first=True)
    before = part.read()
    rig.log.apply_retention()
    assert rig.log.start_offset > 0
    assert before == part.read() == os.pread(part.descriptor, part.size, part.position)
    descriptor = part.descriptor
    part.close()
    part.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    rig.close()


def test_what_cannot_be_a_unit_is_not_served() -> None:
    """Damage in an old segment is said, not sent."""
    rig = open_rig(segment_bytes=300, index_interval_bytes=1 << 20)
    for _ in range(6):
        rig.append(1, size=60)
    rig.files.content(rig.folder / f"{0:020d}.log")[8:12] = b"\0\0\0\3"  # type: ignore[attr-defined]  # of the faulty ones
    with pytest.raises(LogDamaged, match="offset 1"):
        rig.log.read(1, 100, whole_first=True)
    with pytest.raises(LogDamaged, match="time"):
        rig.log.find_offset(START_MS)
    assert 5 == next(read_records(rig.log, 5)).offset


def test_offsets_before_a_time_are_those_of_segments() -> None:
    """ListOffsets v0 knows when a segment was last written, and no more (Kafka's legacyFetchOffsetsBefore)."""
    rig = open_rig(segment_bytes=100)
    assert [0] == rig.log.offsets_before(LATEST_TIMESTAMP, 10)
    for _ in range(3):
        rig.now_ms += 100
        rig.append(1, size=20)
    # segments 0, 1, 2 were written at 100, 200 and 300; the end counts as written now
    rig.now_ms += 100
    assert [3, 2, 1, 0] == rig.log.offsets_before(LATEST_TIMESTAMP, 10)
    assert [3, 2] == rig.log.offsets_before(LATEST_TIMESTAMP, 2)
    assert [] == rig.log.offsets_before(LATEST_TIMESTAMP, 0)
    assert [0] == rig.log.offsets_before(EARLIEST_TIMESTAMP, 10)
    assert [1, 0] == rig.log.offsets_before(START_MS + 299, 10)
    assert [2, 1, 0] == rig.log.offsets_before(START_MS + 399, 10)
    assert [3, 2, 1, 0] == rig.log.offsets_before(START_MS + 400, 10)
    assert [] == rig.log.offsets_before(START_MS + 99, 10)


def test_a_record_set_is_seen_as_a_whole_or_not_at_all() -> None:
    """What an append has half written is beyond the end that readers go by."""
    rig = open_rig()
    rig.append(2)
    seen: list[tuple[int, list[int]]] = []

    def look(operation: str, name: str) -> None:
        if operation == "write":
            seen.append((rig.log.end_offset, [record.offset for record in read_records(rig.log)]))

    rig.files.before = look  # type: ignore[attr-defined]  # of the faulty ones
    rig.log.append(record_set([b"a", b"b"]))
    assert [(2, [0, 1])] == seen
