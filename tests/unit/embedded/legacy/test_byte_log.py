# SPDX-License-Identifier: Apache-2.0
"""The log whose offsets count bytes: segments, visibility, retention, recovery, and disks that fail."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consumerd.embedded.legacy.byte_log import DEFAULT_SETTINGS, ByteLog
from consumerd.embedded.log.errors import (
    LogDamaged,
    LogError,
    LogFailed,
    LogFull,
    LogOffsetOutOfRange,
    LogRecordTooLarge,
    LogWriteFailed,
)
from consumerd.embedded.log.files import OsLogFiles
from consumerd.errors import CorruptMessageError
from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.wire.legacy.message_set import build_message_set
from consumerd.wire.legacy.stored_message import encode_message
from tests.support.faulty_files import PowerCut
from tests.support.faulty_log_files import FailOnce, MemoryLogFiles

PARTITION = TopicPartition("t", PartitionKey(1, BrokerId(0)))
FOLDER = Path("/logs")
START_MS = 1_795_000_000_000
DAY_MS = 86_400_000
MESSAGE_BYTES = 60


class ByteLogRig:
    """A log in memory, with a clock of its own; segments are over their size at more than 100 bytes."""

    def __init__(self, files: OsLogFiles | None = None, folder: Path = FOLDER, **settings: Any) -> None:
        self.now_ms = START_MS
        self.memory = MemoryLogFiles(random.Random(1))
        self.memory.now_ms = lambda: self.now_ms
        self.files: OsLogFiles = files or self.memory
        self.folder = folder
        self.settings = replace(DEFAULT_SETTINGS, **{"segment_bytes": 100, **settings})
        self.make_folder()
        self.log = self.open()

    def make_folder(self) -> None:
        """Make the directory of the logs, as its owner does."""
        self.files.make_folder(self.folder)
        self.files.sync_folder(self.folder.parent)

    def open(self) -> ByteLog:
        """Open the log anew."""
        self.log = ByteLog.open(
            self.folder, PARTITION, settings=self.settings, files=self.files, now_ms=lambda: self.now_ms
        )
        return self.log

    def read(self, offset: int, most: int = 1 << 20) -> bytes:
        """Return what a FETCH gets."""
        with self.log.read(offset, most) as part:
            return part.read()

    def names(self) -> list[str]:
        """Return the files of the log."""
        return sorted(self.files.names(self.folder / "t-1"))


def messages(*numbers: int) -> bytes:
    """Return messages of 60 bytes each."""
    return b"".join(encode_message(b"%050d" % number) for number in numbers)


def nothing(operation: str, name: str) -> None:
    """Let everything pass."""


# -- segments


def test_offsets_count_bytes_and_name_the_segments() -> None:
    """A segment exceeds its size by its last set; the next one is named after its first byte."""
    rig = ByteLogRig()
    assert [60, 60, 120] == [rig.log.append(messages(*numbers)) for numbers in ((0,), (1,), (2, 3))]

    assert ["00000000000000000000.kafka", "00000000000000000120.kafka"] == rig.names()
    assert ((0, 120), 0, 240) == (rig.log.segment_starts, rig.log.start_offset, rig.log.end_offset)
    assert "<ByteLog t/0-1 [0, 240)>" == repr(rig.log)


def test_a_read_never_crosses_the_end_of_a_segment() -> None:
    """Nor does it begin at a message, or end at one, if it is not asked to: bytes are bytes."""
    rig = ByteLogRig()
    for number in range(4):
        rig.log.append(messages(number))

    assert messages(0, 1) == rig.read(0)
    assert messages(2, 3) == rig.read(120)
    assert messages(1)[:7] == rig.read(60, 7)
    assert messages(0, 1)[3:] == rig.read(3)
    assert [b"", b"", b""] == [rig.read(240), rig.read(0, 0), rig.read(0, -1)]


@pytest.mark.parametrize("offset", [-1, 241, 1 << 62])
def test_an_offset_outside_of_the_log_is_out_of_range(offset: int) -> None:
    """Below, and beyond the end; the end itself is not."""
    rig = ByteLogRig()
    rig.log.append(messages(0, 1, 2, 3))
    with pytest.raises(LogOffsetOutOfRange, match=rf"offset {offset} is outside the log \[0, 240\]"):
        rig.log.read(offset, 1)


def test_a_segment_that_is_old_ends_before_the_next_append() -> None:
    """Its age counts from its first message, or the first since the log was opened: ``log.roll.hours``."""
    rig = ByteLogRig(segment_ms=1000, segment_bytes=1 << 20)
    rig.log.append(messages(0))
    rig.now_ms += 1000
    rig.log.append(messages(1))
    rig.now_ms += 1
    rig.log.append(messages(2))
    assert (0, 120) == rig.log.segment_starts


def test_a_log_is_the_same_when_opened_again() -> None:
    """A stopped broker goes on at the offset at which it ended."""
    rig = ByteLogRig()
    for number in range(3):
        rig.log.append(messages(number))
    rig.log.close()
    rig.log.close()
    assert ((0, 120), 180) == (rig.open().segment_starts, rig.log.end_offset)
    rig.log.append(messages(3))
    assert messages(2, 3) == rig.read(120)
    with pytest.raises(LogFailed, match="closed"):
        ByteLogRig.read(close(rig), 0)


def close(rig: ByteLogRig) -> ByteLogRig:
    """Close the log of a rig."""
    rig.log.close()
    return rig


def test_a_log_that_was_wiped_begins_at_zero() -> None:
    """Nothing remembers the offsets of a broker that has lost its disk."""
    rig = ByteLogRig()
    rig.log.append(messages(0, 1))
    rig.log.close()
    for name in rig.names():
        rig.files.unlink(rig.folder / "t-1" / name)
    assert (0, 0) == (rig.open().start_offset, rig.log.end_offset)


def test_a_missing_segment_is_said() -> None:
    """Bytes that are missing would move all messages behind them to other offsets."""
    rig = ByteLogRig()
    for number in range(5):
        rig.log.append(messages(number))
    rig.log.close()
    rig.files.unlink(rig.folder / "t-1" / "00000000000000000120.kafka")
    with pytest.raises(LogDamaged, match=r"ends at offset 120, the next one begins at 240"):
        rig.open()
    assert 0 == rig.memory.open_count()


# -- what is stored


@pytest.mark.parametrize(
    "stored",
    [
        build_message_set([b"a", b"b"], magic=0),
        build_message_set([b"a", b"b"], codec=1),
        build_message_set([b"a", b"b"], codec=2),
        messages(0) + build_message_set([b"a"], magic=0) + build_message_set([b"c"], codec=1),
        b"",
    ],
    ids=["magic 0", "gzip", "snappy", "mixed", "empty"],
)
def test_messages_are_stored_as_they_are(stored: bytes) -> None:
    """No conversion, no decompression: a compressed message takes its own bytes."""
    rig = ByteLogRig()
    assert len(stored) == rig.log.append(stored)
    assert stored == rig.read(0)


def test_a_last_message_that_is_cut_off_is_left_out() -> None:
    """The next append must begin at a message."""
    rig = ByteLogRig()
    assert 60 == rig.log.append(messages(0, 1)[:-1])
    rig.log.append(messages(2))
    assert messages(0, 2) == rig.read(0)


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (messages(0) + damaged(), CorruptMessageError)
        for damaged in (
            lambda: messages(1)[:-1] + b"x",
            lambda: build_message_set([b"a"], codec=1)[:-9] + b"x" * 9,
            lambda: b"\0\0\0\x09\x02\0",
            lambda: encode_message(messages(1)[:-1] + b"x", codec=0)[:5] + b"\x03" + b"x" * 64,
            lambda: encode_message(b"not gzip", codec=1),
        )
    ]
    + [(messages(0)[:-1], CorruptMessageError), (messages(0) + encode_message(bytes(201)), LogRecordTooLarge)],
    ids=["checksum", "compressed checksum", "magic 2", "codec 3", "not compressed", "cut off", "too large"],
)
def test_of_a_bad_set_nothing_is_stored(refused: bytes, error: type[Exception]) -> None:
    """Not even the messages before the bad one; the log goes on."""
    rig = ByteLogRig(max_message_bytes=200)
    with pytest.raises(error):
        rig.log.append(refused)
    assert (0, b"") == (rig.log.end_offset, rig.read(0))
    rig.log.append(messages(0) + encode_message(bytes(200)))


def test_a_set_that_is_damaged_and_too_large_counts_as_too_large() -> None:
    """Sizes are looked at first: its producer is not cut off."""
    rig = ByteLogRig(max_message_bytes=200)
    with pytest.raises(LogRecordTooLarge, match=r"t/0-1: .* 201 bytes"):
        rig.log.append(messages(0)[:-1] + b"x" + encode_message(bytes(201)))


def test_a_log_of_kafka_0_6_takes_magic_0_only() -> None:
    """0.6 knows no other message, and so no compression."""
    rig = ByteLogRig(message_format=0)
    stored = build_message_set([b"a", b"b"], magic=0)
    assert len(stored) == rig.log.append(stored)
    with pytest.raises(CorruptMessageError, match=r"magic 1 is unknown to Kafka 0\.6"):
        rig.log.append(stored + messages(0))
    assert stored == rig.read(0)


# -- flushes


def test_messages_are_invisible_until_they_are_flushed() -> None:
    """To reads and to the log end offset; offsets beyond are out of range. A compressed message counts as one."""
    rig = ByteLogRig(flush_messages=3, segment_bytes=1 << 20)
    compressed = build_message_set([b"a", b"b", b"c"], codec=1)
    rig.log.append(compressed)
    rig.log.append(messages(0))

    assert (2, 0, b"", [0]) == (rig.log.unflushed, rig.log.end_offset, rig.read(0), rig.log.offsets_before(-1, 9))
    with pytest.raises(LogOffsetOutOfRange):
        rig.log.read(len(compressed), 100)
    rig.log.append(messages(1))
    assert (0, compressed + messages(0, 1)) == (rig.log.unflushed, rig.read(0))


def test_a_flush_is_due_after_an_interval() -> None:
    """It is looked at when messages arrive, and by a timer."""
    rig = ByteLogRig(flush_messages=None, flush_interval_ms=1000, segment_bytes=1 << 20)
    rig.log.append(messages(0))
    rig.now_ms += 999
    rig.log.flush_if_due()
    assert b"" == rig.read(0)
    rig.now_ms += 1
    rig.log.flush_if_due()
    assert messages(0) == rig.read(0)
    rig.now_ms += 1000
    rig.log.append(messages(1))
    assert messages(0, 1) == rig.read(0)


@pytest.mark.parametrize("act", [ByteLog.flush, lambda log: log.append(messages(9))], ids=["flush", "new segment"])
def test_a_flush_on_request_and_before_a_new_segment(act: Callable[[ByteLog], object]) -> None:
    """All segments but the newest are visible as a whole."""
    rig = ByteLogRig(flush_messages=None)
    rig.log.append(messages(0, 1))
    act(rig.log)
    assert (120, messages(0, 1)) == (rig.log.end_offset, rig.read(0))


def test_a_closed_log_has_lost_nothing() -> None:
    """A stop flushes."""
    rig = ByteLogRig(flush_messages=None)
    rig.log.append(messages(0))
    rig.log.close()
    rig.memory.cut_power()
    rig.memory.restore()
    rig.open()
    assert messages(0) == rig.read(0)


# -- offsets by time


def test_offsets_by_time_are_those_of_segments_last_written_before() -> None:
    """The end of the log counts as written now, unless the newest segment is empty."""
    rig = ByteLogRig()
    for number in range(5):
        rig.log.append(messages(number))
        rig.now_ms += 1000
    # segments were last written at 1000, 3000 and 4000 ms, and now is 5000
    expected = {-1: [300, 240, 120, 0], -2: [0], -3: [], 0: [], 999: [], 1000: [0], 3999: [120, 0], 4999: [240, 120, 0]}
    expected[5000] = expected[-1]
    found = {time: rig.log.offsets_before(time + START_MS if time >= 0 else time, 9) for time in expected}
    assert expected == found
    assert [[300], [300, 240], []] == [rig.log.offsets_before(-1, count) for count in (1, 2, 0)]


# -- retention


def test_retention_by_age_deletes_whole_segments() -> None:
    """Offsets in them are out of range; who reads one can finish."""
    rig = ByteLogRig(retention_ms=DAY_MS)
    rig.log.append(messages(0, 1))
    rig.now_ms += 1000
    rig.log.append(messages(2, 3))
    rig.now_ms += DAY_MS
    with rig.log.read(60, 100) as part:
        assert (1, 0) == (rig.log.apply_retention(), rig.log.apply_retention())
        assert messages(1) == part.read()

    assert (120, [240, 120], messages(2, 3)) == (
        rig.log.start_offset,
        rig.log.offsets_before(-1, 9),
        rig.read(120),
    )
    with pytest.raises(LogOffsetOutOfRange):
        rig.log.read(60, 100)


def test_retention_of_all_leaves_an_empty_log_that_goes_on_at_its_end() -> None:
    """Byte offsets are never given twice while the broker has its disk."""
    rig = ByteLogRig(retention_ms=DAY_MS)
    for number in range(3):
        rig.log.append(messages(number))
    rig.now_ms += DAY_MS + 1
    assert (2, (180,), [180]) == (rig.log.apply_retention(), rig.log.segment_starts, rig.log.offsets_before(-1, 9))
    rig.now_ms += DAY_MS + 1
    assert 0 == rig.log.apply_retention()
    rig.log.append(messages(3))
    rig.log.close()
    assert (180, 240) == (rig.open().start_offset, rig.log.end_offset)
    assert not rig.log.compact()


def test_retention_by_size_keeps_at_least_that_much() -> None:
    """The oldest segment goes once the others have ``log.retention.size``."""
    rig = ByteLogRig(retention_bytes=150)
    for number in range(6):
        rig.log.append(messages(number))
    assert (1, (120, 240)) == (rig.log.apply_retention(), rig.log.segment_starts)


# -- recovery


@pytest.mark.parametrize("kept", [1, 4, 9, 59])
def test_a_last_message_that_a_crash_has_cut_is_truncated(kept: int, tmp_path: Path) -> None:
    """The next append begins where the last whole message ends. On real files."""
    rig = ByteLogRig(OsLogFiles(), tmp_path)
    for number in range(3):
        rig.log.append(messages(number))
    rig.log.close()
    path = tmp_path / "t-1" / "00000000000000000120.kafka"
    path.write_bytes(messages(2, 3)[: 60 + kept])
    assert (180, 60) == (rig.open().end_offset, path.stat().st_size)
    rig.log.append(messages(4))
    assert messages(2, 4) == rig.read(120)
    rig.log.close()


@pytest.mark.parametrize("left", [bytes(40), b"\xff" * 40, messages(9)[:-1] + b"x" + messages(10)])
def test_damaged_bytes_and_what_is_behind_them_are_truncated(left: bytes) -> None:
    """Zeros of a file system, anything, or a message of which a part was written."""
    rig = ByteLogRig(segment_bytes=1 << 20)
    rig.log.append(messages(0, 1))
    rig.memory.content(FOLDER / "t-1" / "00000000000000000000.kafka").extend(left)
    rig.memory.kill()
    assert 120 == rig.open().end_offset


@pytest.mark.parametrize("seed", range(10))
def test_what_a_killed_broker_had_not_flushed_is_durable_once_readers_see_it(seed: int) -> None:
    """Its next process shows what is in the file, begins a segment behind it, and may lose power then."""
    rig = ByteLogRig(flush_messages=10)
    rig.memory = rig.files = MemoryLogFiles(random.Random(seed), block_bytes=16)
    rig.make_folder()
    rig.open().append(messages(1, 2))
    rig.memory.kill()
    rig.open()
    assert messages(1, 2) == rig.read(0)
    rig.log.append(messages(3))

    rig.memory.cut_power()
    rig.memory.restore()

    assert rig.open().segment_starts == (0, 2 * MESSAGE_BYTES)
    assert messages(1, 2) == rig.read(0)


def test_recovery_leaves_the_times_of_segments() -> None:
    """OFFSETS by time, and retention, go by them."""
    rig = ByteLogRig()
    rig.log.append(messages(1))
    rig.memory.kill()
    rig.now_ms += DAY_MS

    assert rig.open().offsets_before(START_MS, 1) == [0]


def test_a_message_larger_than_a_step_of_recovery_is_kept() -> None:
    """Recovery reads a megabyte at a time."""
    rig = ByteLogRig(segment_bytes=1 << 30, max_message_bytes=5 << 20)
    large = encode_message(bytes(3 << 20))
    rig.log.append(messages(0) + large + messages(1))
    rig.memory.kill()
    assert 120 + len(large) == rig.open().end_offset
    rig.memory.content(FOLDER / "t-1" / "00000000000000000000.kafka").pop()
    rig.memory.kill()
    assert 60 + len(large) == rig.open().end_offset


@pytest.mark.parametrize("seed", range(60))
def test_after_a_power_cut_the_log_is_a_prefix_with_all_that_was_visible(seed: int) -> None:
    """Whatever the disk has kept: messages that a consumer may have seen keep their offsets."""
    draw = random.Random(seed)
    rig = ByteLogRig(flush_messages=draw.choice((1, 3, None)))
    rig.memory = rig.files = MemoryLogFiles(draw)
    rig.make_folder()
    rig.open()
    written, visible = b"", 0
    rig.memory.changes_left = draw.randint(1, 40)
    try:
        for number in range(60):
            some = messages(*range(number, number + draw.randint(1, 3)))
            written += some
            rig.log.append(some)
            visible = rig.log.end_offset
    except PowerCut:
        pass
    rig.memory.cut_power()
    rig.memory.restore()
    rig.open()

    found = b"".join(rig.read(start) for start in rig.log.segment_starts)
    assert (0, len(found)) == (rig.log.start_offset, rig.log.end_offset)
    assert len(found) >= visible
    assert found == written[: len(found)]


# -- a disk that fails


@pytest.mark.parametrize(
    ("operation", "code", "more", "error"),
    [
        ("create", errno.ENOSPC, 0, LogFull),
        ("write", errno.ENOSPC, 0, LogFull),
        ("write", errno.EIO, 0, LogWriteFailed),
        ("sync", errno.EIO, 0, LogFailed),
        ("sync_folder", errno.EIO, 0, LogFailed),
    ],
)
def test_a_failed_append_leaves_the_log_as_it_was(operation: str, code: int, more: int, error: type[LogError]) -> None:
    """It goes on where it is known what the disk holds, and is offline, until it is opened again, where it is not."""
    rig = ByteLogRig()
    rig.log.append(messages(0, 1))
    rig.memory.before = fault = FailOnce(operation, "", code, more=more)
    with pytest.raises(error):
        rig.log.append(messages(2))
    assert 1 == fault.failed
    rig.memory.before = nothing
    if error is LogFailed:
        for act in (lambda: rig.log.append(messages(3)), lambda: rig.log.read(0, 1), rig.log.close):
            with pytest.raises(LogFailed, match="offline"):
                act()
        rig.open()
    end = rig.log.end_offset
    rig.log.append(messages(3))
    assert messages(3) == rig.read(end)[-60:]


@pytest.mark.parametrize("operation", ["unlink", "sync_folder"])
def test_a_segment_that_cannot_be_deleted_takes_the_log_offline(operation: str) -> None:
    """Which offsets it has after a crash is then unknown."""
    rig = ByteLogRig(retention_ms=DAY_MS)
    for number in range(3):
        rig.log.append(messages(number))
    rig.now_ms += DAY_MS + 1
    rig.memory.before = FailOnce(operation)
    with pytest.raises(LogFailed, match="deleted"):
        rig.log.apply_retention()
    rig.log.flush_if_due()
    assert "offline" in repr(rig.log)


@pytest.mark.parametrize("operation", ["read", "create", "sync_folder"])
def test_a_log_that_cannot_be_opened_leaves_no_file_open(operation: str) -> None:
    """Else a broker that tries again runs out of descriptors."""
    rig = ByteLogRig()
    rig.log.append(messages(0))
    rig.log.close()
    if operation == "create":
        rig.files.unlink(FOLDER / "t-1" / rig.names()[0])
    rig.memory.before = FailOnce(operation)
    with pytest.raises(LogFailed, match="cannot be opened"):
        rig.open()
    assert 0 == rig.memory.open_count()
    rig.open()
