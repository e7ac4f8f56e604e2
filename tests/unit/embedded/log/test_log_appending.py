# SPDX-License-Identifier: Apache-2.0
"""What a log takes, what it makes of it, and when it begins a segment or flushes."""

from __future__ import annotations

import random

import google_crc32c
import pytest

from consumerd.embedded.log.errors import InvalidTimestamp, LogRecordTooLarge, RecordSetTooLarge
from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from consumerd.errors import CorruptMessageError
from consumerd.model import TimestampType
from consumerd.wire.modern.checking import UnsupportedForFormat
from tests.support.faulty_log_files import MemoryLogFiles
from tests.support.logs import START_MS, LogRig, read_records, record_set

LOG_APPEND = TimestampType.LOG_APPEND_TIME


def open_rig(**changes: object) -> LogRig:
    files = MemoryLogFiles(random.Random(1))
    rig = LogRig(files=files, settings=LogSettings(**changes))  # type: ignore[arg-type]  # fields by their names
    files.now_ms = lambda: rig.now_ms
    rig.open()
    return rig


@pytest.mark.parametrize("stored", [0, 1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_records_are_stored_in_the_format_of_the_log(stored: int, sent: int, codec: int) -> None:
    """A producer of another release is served, too: its records are converted, with their codec."""
    rig = open_rig(message_format=stored)
    rig.append(3)
    appended = rig.log.append(record_set([b"a", None, b"c"], keys=[None, b"k", b""], magic=sent, codec=codec))
    assert (3, 5, 3, None) == (
        appended.base_offset,
        appended.last_offset,
        appended.count,
        appended.log_append_time_ms,
    )
    with rig.log.read(3, 10_000, whole_first=True) as part:
        data = part.read()
    assert stored == data[16]
    assert codec == data[17 if stored < 2 else 22] & 7
    there = [(one.offset, one.key, one.value) for one in read_records(rig.log, 3)]
    assert [(3, None, b"a"), (4, b"k", None), (5, b"", b"c")] == there


@pytest.mark.parametrize("stored", [0, 1, 2])
@pytest.mark.parametrize("timestamp_type", [TimestampType.CREATE_TIME, LOG_APPEND])
def test_a_set_may_hold_units_of_several_formats(stored: int, timestamp_type: TimestampType) -> None:
    """What is in the log's own format stays as it is, what is not is converted, in order."""
    rig = open_rig(message_format=stored, timestamp_type=timestamp_type)
    sent = b"".join(
        record_set([f"{magic}.{codec}.{number}".encode() for number in range(2)], magic=magic, codec=codec)
        for magic in (1, 2, 0)
        for codec in (0, 1)
    )
    assert 12 == rig.log.append(sent).count
    expected = [f"{magic}.{codec}.{number}".encode() for magic in (1, 2, 0) for codec in (0, 1) for number in range(2)]
    assert list(enumerate(expected)) == [(one.offset, one.value) for one in read_records(rig.log)]
    rig.check_readable()


@pytest.mark.parametrize("stored", [1, 2])
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("codec", [0, 2])
def test_the_brokers_time_replaces_the_producers(stored: int, sent: int, codec: int) -> None:
    """LogAppendTime holds for every record, whatever format it came in, and is told to the producer."""
    rig = open_rig(message_format=stored, timestamp_type=LOG_APPEND)
    rig.now_ms += 17
    appended = rig.log.append(record_set([b"a", b"b"], magic=sent, codec=codec, timestamps=[5, 6]))
    assert rig.now_ms == appended.log_append_time_ms
    assert [(rig.now_ms, LOG_APPEND)] * 2 == [(one.timestamp, one.timestamp_type) for one in read_records(rig.log)]
    assert (rig.now_ms, 0) == rig.log.find_offset(rig.now_ms)


@pytest.mark.parametrize(
    ("changes", "data", "error"),
    [
        ({}, record_set([b"value"])[:-1] + b"?", CorruptMessageError),
        ({}, record_set([b"value"])[:-1], CorruptMessageError),
        ({}, b"\0" * 40, CorruptMessageError),
        ({}, record_set([b"value"], magic=1)[:-1] + b"?", CorruptMessageError),
        ({"cleanup_policy": CleanupPolicy.COMPACT}, record_set([b"value"]), CorruptMessageError),
        ({"max_message_bytes": 99}, record_set([b"x" * 100]), LogRecordTooLarge),
        ({"max_message_bytes": 99}, record_set([b"x", b"y" * 100], magic=1), LogRecordTooLarge),
        ({"segment_bytes": 200}, record_set([b"x" * 40] * 5, magic=1), RecordSetTooLarge),
        ({"max_timestamp_difference_ms": 10}, record_set([b"x"], timestamps=[START_MS - 11]), InvalidTimestamp),
        ({"max_timestamp_difference_ms": 10}, record_set([b"x"], timestamps=[START_MS + 11]), InvalidTimestamp),
    ],
)
def test_what_is_refused_leaves_no_trace(changes: dict[str, object], data: bytes, error: type[Exception]) -> None:
    """All of a record set or none of it: a part that is fine is not taken either."""
    rig = open_rig(**changes)
    fine = record_set([b"fine"], keys=[b"k"], magic=data[16])
    rig.log.append(fine)
    before = rig.log.size_bytes
    for sent in (data, fine + data):
        with pytest.raises(error):
            rig.log.append(sent)
    assert (1, before) == (rig.log.end_offset, rig.log.size_bytes)
    assert 1 == rig.log.append(fine).base_offset


def test_a_batch_that_the_format_cannot_say_is_told_from_a_corrupt_one() -> None:
    """Brokers answer it with an error of its own, so that the producer does not try again."""
    batch = bytearray(record_set([b"x"]))
    batch[43:51] = (7).to_bytes(8, "big")
    batch[51:57] = bytes(6)
    batch[17:21] = google_crc32c.value(bytes(batch[21:])).to_bytes(4, "big")
    with pytest.raises(UnsupportedForFormat):
        open_rig(message_format=1).log.append(batch)
    open_rig(message_format=2).log.append(batch)


def test_nothing_appended_is_nothing_stored() -> None:
    """A produce request may name a partition and send no records."""
    appended = open_rig().log.append(b"")
    assert (-1, -1, 0) == (appended.base_offset, appended.last_offset, appended.count)


def test_distance_in_time_does_not_matter_where_the_broker_gives_the_time() -> None:
    """As in Kafka: the check is about times that are kept."""
    rig = open_rig(max_timestamp_difference_ms=10, timestamp_type=LOG_APPEND)
    assert 0 == rig.log.append(record_set([b"x"], timestamps=[1])).base_offset


# -- segments


def bases(rig: LogRig) -> list[int]:
    return sorted(int(name[:20]) for name in rig.files.names(rig.folder) if name.endswith(".log"))


def test_a_segment_ends_where_the_next_set_has_no_room() -> None:
    """segment.bytes is a limit, not a mark to be passed."""
    size = len(record_set([b"x" * 10]))
    rig = open_rig(segment_bytes=3 * size)
    for _ in range(7):
        rig.log.append(record_set([b"x" * 10]))
    assert [0, 3, 6] == bases(rig)


def test_a_segment_ends_by_the_time_of_its_records() -> None:
    """segment.ms counts from the first record's timestamp to the new one's, whatever the clock says."""
    rig = open_rig(segment_ms=100)
    for timestamp in (1000, 1100, 1101, 1150, 1202):
        rig.log.append(record_set([b"x"], timestamps=[timestamp]))
    assert [0, 2, 4] == bases(rig)


def test_a_segment_without_times_ends_by_the_clock() -> None:
    """Magic 0 has no timestamps: then the segment's own age counts, over a clean restart, too."""
    rig = open_rig(segment_ms=100, message_format=0)
    rig.append(1)
    rig.now_ms += 100
    rig.append(1)
    assert [0] == bases(rig)
    rig.now_ms += 1
    rig.append(1)
    assert [0, 2] == bases(rig)


def test_a_segment_ends_when_its_index_is_full() -> None:
    """segment.index.bytes bounds the file that Kafka allocates for it."""
    rig = open_rig(segment_index_bytes=48, index_interval_bytes=0)
    for _ in range(9):
        rig.now_ms += 1
        rig.append(1)
    assert len(bases(rig)) > 2
    rig.close()
    for base in bases(rig):
        assert len(rig.files_content(f"{base:020d}.index")) <= 48
        assert len(rig.files_content(f"{base:020d}.timeindex")) <= 48


# -- flushes


def test_a_flush_follows_after_so_many_messages() -> None:
    """At most M messages are lost when the system crashes."""
    rig = open_rig(flush_messages=5)
    rig.append(4)
    assert (0, 4) == (rig.log.recovery_point, rig.log.unflushed)
    rig.append(1)
    assert (5, 0) == (rig.log.recovery_point, rig.log.unflushed)


@pytest.mark.parametrize("by_timer", [False, True])
def test_a_flush_follows_after_so_much_time(*, by_timer: bool) -> None:
    """At most S seconds are lost, be it that another append comes or that none does."""
    rig = open_rig(flush_interval_ms=1000)
    rig.append(1)
    rig.now_ms += 999
    rig.log.flush_if_due()
    assert 0 == rig.log.recovery_point
    rig.now_ms += 1
    if by_timer:
        rig.log.flush_if_due()
    else:
        rig.append(1)
    assert rig.log.end_offset == rig.log.recovery_point


def test_a_log_is_not_flushed_for_nothing() -> None:
    """An idle log costs no fsync."""
    rig = open_rig(flush_interval_ms=10)
    rig.append(1)
    rig.log.flush()
    synced: list[str] = []
    rig.files.before = lambda operation, name: synced.append(operation)  # type: ignore[attr-defined]  # of the faulty ones
    rig.now_ms += 1000
    rig.log.flush_if_due()
    rig.log.flush()
    assert [] == synced
