# SPDX-License-Identifier: Apache-2.0
"""Retention and compaction, with readers at work and with a disk that fails."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.embedded.log.errors import LogError, LogFailed, LogFull, LogOffsetOutOfRange
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from consumerd.model import TimestampType
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.records import NewRecord, Record
from tests.support.faulty_log_files import FailOnce, MemoryLogFiles
from tests.support.log_check import check_folder
from tests.support.logs import PARTITION, START_MS, LogRig, read_records, record_set

HOUR_MS = 3_600_000


def open_rig(**changes: object) -> tuple[LogRig, MemoryLogFiles]:
    files = MemoryLogFiles(random.Random(1))
    rig = LogRig(files=files, settings=LogSettings(**changes))  # type: ignore[arg-type]  # fields by their names
    files.now_ms = lambda: rig.now_ms
    rig.open()
    return rig, files


def compacting(**changes: object) -> tuple[LogRig, MemoryLogFiles]:
    return open_rig(
        **{"cleanup_policy": CleanupPolicy.COMPACT, "segment_bytes": 200, "index_interval_bytes": 50, **changes}
    )


def append(rig: LogRig, *pairs: tuple[bytes, bytes | None], codec: int = 0) -> None:
    rig.log.append(
        record_set(
            [value for _, value in pairs],
            keys=[key for key, _ in pairs],
            timestamps=[rig.now_ms] * len(pairs),
            magic=rig.settings.message_format,
            codec=codec,
        )
    )


def begin_segment(rig: LogRig) -> None:
    """Fill the newest segment up, so that everything before may be compacted."""
    before = rig.log.segment_count
    while rig.log.segment_count == before:
        append(rig, (b"filler", b"." * 60))


def pairs(rig: LogRig) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in read_records(rig.log) if one.key != b"filler"]


# -- both


def test_a_log_of_both_policies_is_compacted_and_its_old_segments_go() -> None:
    """Whoever asks for both expects no key to stay for ever."""
    rig, _ = compacting(cleanup_policy=CleanupPolicy.COMPACT_AND_DELETE, retention_ms=HOUR_MS, min_cleanable_ratio=0.0)
    append(rig, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    begin_segment(rig)
    assert rig.log.apply_retention() == 0
    assert rig.log.compact()
    assert [(b"b", b"1"), (b"a", b"2")] == [(key, value) for _, key, value in pairs(rig)]
    rig.now_ms += HOUR_MS + 1
    append(rig, (b"c", b"1"))
    assert rig.log.apply_retention() > 0
    assert [(b"c", b"1")] == [(key, value) for _, key, value in pairs(rig)]
    rig.log.close()
    rig.open()
    assert [(b"c", b"1")] == [(key, value) for _, key, value in pairs(rig)]


# -- retention


def test_segments_go_by_the_newest_of_their_times() -> None:
    """One old record among new ones keeps nothing, one new among old ones keeps all of its segment."""
    rig, _ = open_rig(segment_bytes=100, retention_ms=HOUR_MS, segment_ms=1 << 40)
    for timestamp in (START_MS, START_MS + 5, START_MS + 4, START_MS + 7):
        rig.log.append(record_set([b"x" * 10], timestamps=[timestamp]))
    rig.now_ms = START_MS + HOUR_MS
    assert 0 == rig.log.apply_retention()
    rig.now_ms += 1
    assert (1, 1) == (rig.log.apply_retention(), rig.log.start_offset)
    rig.now_ms += 4
    assert 0 == rig.log.apply_retention(), "the next one is five milliseconds younger, and holds back the one behind it"
    rig.now_ms += 1
    assert (2, 3) == (rig.log.apply_retention(), rig.log.start_offset)


def test_segments_without_times_go_by_their_last_change() -> None:
    """Magic 0 has no timestamps."""
    rig, _ = open_rig(segment_bytes=60, retention_ms=HOUR_MS, message_format=0)
    rig.append(1, size=20)
    rig.now_ms += 10
    rig.append(1, size=20)
    rig.now_ms = START_MS + HOUR_MS
    assert 0 == rig.log.apply_retention(), "at retention.ms exactly it stays, as in Kafka"
    rig.now_ms += 1
    assert (1, 1) == (rig.log.apply_retention(), rig.log.start_offset)


def test_the_newest_segment_goes_when_it_is_too_old() -> None:
    """Nothing is kept for ever because nobody writes any more; the next offset stays what it was."""
    rig, files = open_rig(retention_ms=HOUR_MS)
    rig.append(7)
    rig.now_ms += HOUR_MS + 10
    assert 1 == rig.log.apply_retention()
    assert (7, 7) == (rig.log.start_offset, rig.log.end_offset)
    assert 0 == rig.log.apply_retention()
    assert f"{7:020d}.log" in files.names(rig.folder)
    rig.close()
    rig.open()
    assert (7, 7) == (rig.log.start_offset, rig.log.end_offset)
    assert 7 == rig.log.append(record_set([b"next"])).base_offset


def test_as_many_bytes_stay_as_are_asked_for() -> None:
    """A segment goes only if what is left is retention.bytes or more, and the newest never does."""
    size = len(record_set([b"x" * 10]))
    rig, _ = open_rig(segment_bytes=size, retention_bytes=3 * size, retention_ms=None)
    for _ in range(5):
        rig.log.append(record_set([b"x" * 10]))
    assert (2, 2) == (rig.log.apply_retention(), rig.log.start_offset)
    assert 3 * size == rig.log.size_bytes
    with pytest.raises(LogOffsetOutOfRange):
        rig.log.read(1, 10, whole_first=True)


def test_segments_go_one_at_a_time_and_oldest_first() -> None:
    """Whenever the power goes, what is left begins later or where it did, and has no hole."""
    rig, files = open_rig(segment_bytes=100, retention_bytes=0, retention_ms=None)
    for _ in range(4):
        rig.append(1)
    calls: list[tuple[str, str]] = []
    files.before = lambda operation, name: calls.append((operation, name[18:] if operation == "unlink" else ""))
    rig.log.apply_retention()
    expected = []
    for number in range(3):
        expected += [("unlink", f"0{number}{ending}") for ending in (".log", ".index", ".timeindex")]
        expected.append(("sync_folder", ""))
    assert expected == calls


# -- compaction


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [0, 1])
def test_the_last_record_of_each_key_stays_where_it_was(magic: int, codec: int) -> None:
    """Offsets are kept, so that committed positions hold; what is gone is jumped over."""
    rig, files = compacting(message_format=magic)
    append(rig, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), codec=codec)
    append(rig, (b"c", b"1"), codec=codec)
    append(rig, (b"b", b"2"), (b"d", b"1"), codec=codec)
    append(rig, (b"c", b"2"), codec=codec)
    begin_segment(rig)
    before = rig.log.segment_count
    assert rig.log.compact()
    assert [(2, b"a", b"2"), (4, b"b", b"2"), (5, b"d", b"1"), (6, b"c", b"2")] == pairs(rig)
    assert before == rig.log.segment_count, "their tombstones are young"
    for offset in range(rig.log.end_offset):
        assert next(read_records(rig.log, offset)).offset >= offset
    units = check_folder(files, rig.folder, indexed=False)
    assert 0 == rig.log.start_offset
    if magic == 2:
        assert 0 == units[0].offset, "a batch keeps its place although its first records are gone"
        assert 2 == units[0].last_offset
    rig.close()
    check_folder(files, rig.folder, indexed=True)
    rig.open()
    assert 4 == len(pairs(rig))


def test_what_is_clean_is_not_cleaned_again_for_little() -> None:
    """min.cleanable.dirty.ratio, over a restart, too."""
    rig, _ = compacting(min_cleanable_ratio=0.5)
    for number in range(8):
        append(rig, (f"k{number}".encode(), b"." * 50))
    begin_segment(rig)
    assert rig.log.compact()
    assert not rig.log.compact()
    rig.close()
    rig.open()
    assert not rig.log.compact()
    append(rig, (b"k1", b"new"))
    begin_segment(rig)
    assert not rig.log.compact()
    assert rig.log.compact(min_ratio=0.0)
    assert (b"k1", b"new") in [pair[1:] for pair in pairs(rig)]


def test_a_tombstone_goes_when_readers_have_had_time_to_see_it() -> None:
    """It takes its key's records at once, and itself delete.retention.ms after it came into the clean part."""
    rig, _ = compacting(delete_retention_ms=HOUR_MS, min_cleanable_ratio=0.0)
    append(rig, (b"a", b"1"), (b"b", b"1"))
    append(rig, (b"a", None))
    begin_segment(rig)
    assert rig.log.compact()
    assert [(1, b"b", b"1"), (2, b"a", None)] == pairs(rig)
    while (2, b"a", None) in pairs(rig):
        rig.now_ms += HOUR_MS // 10
        begin_segment(rig)
        assert rig.log.compact()
    assert START_MS + HOUR_MS <= rig.now_ms <= START_MS + 2 * HOUR_MS
    assert [(1, b"b", b"1")] == pairs(rig)


@pytest.mark.parametrize("clean", [True, False])
def test_what_segments_became_one_are_not_found_by_the_next_start(*, clean: bool) -> None:
    """Each would give its records once more, those that were overtaken as well."""
    rig, files = compacting(min_cleanable_ratio=0.0, delete_retention_ms=0, segment_bytes=600)
    for number in range(24):
        append(rig, (f"k{number % 4}".encode(), f"{number}".encode() * 10))
    begin_segment(rig)
    before = rig.log.segment_count
    rig.now_ms += HOUR_MS
    assert rig.log.compact()
    rig.now_ms += HOUR_MS
    begin_segment(rig)
    assert rig.log.compact()
    kept, count = pairs(rig), rig.log.segment_count
    assert count < before
    assert 4 == len(kept)
    if clean:
        rig.close()
        check_folder(files, rig.folder, indexed=True)
    rig.open()

    assert (kept, count) == (pairs(rig), rig.log.segment_count)


def test_headers_times_and_the_brokers_time_survive() -> None:
    """A batch that loses a record is written anew, and says of the others what it did."""
    for timestamp_type in (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME):
        rig, _ = compacting(timestamp_type=timestamp_type)
        records = [
            NewRecord(key=b"a", value=b"1", timestamp=START_MS),
            NewRecord(key=b"b", value=b"1", timestamp=START_MS + 3, headers=(("h", b"v"), ("n", None))),
            NewRecord(key=b"a", value=b"2", timestamp=START_MS + 1),
        ]
        rig.log.append(build_record_set(records, magic=2, codec=1))
        begin_segment(rig)
        before = [record for record in read_records(rig.log) if record.offset in (1, 2)]
        assert rig.log.compact()
        assert before == [record for record in read_records(rig.log) if record.offset < 3]


def test_a_log_of_many_keys_is_cleaned_in_several_goes() -> None:
    """Memory is bounded by the keys that are remembered at a time; what they did not reach is still to be cleaned."""
    rig, files = compacting(min_cleanable_ratio=0.0, cleaner_keys=3)
    for number in range(24):
        append(rig, (f"k{number % 8}".encode(), f"{number}".encode() * 10))
    begin_segment(rig)
    last = {key: value for _, key, value in pairs(rig)}
    goes = 0
    while rig.log.compact():
        goes += 1
        assert last == {key: value for _, key, value in pairs(rig)}
    assert goes > 1
    rig.log.close()
    check_folder(files, rig.folder, indexed=True)


def test_other_logs_are_not_compacted() -> None:
    """And compacted ones are not deleted from."""
    rig, _ = open_rig(segment_bytes=150)
    rig.append(1, size=50)
    rig.append(1, size=50)
    assert 2 == rig.log.segment_count
    assert not rig.log.compact(min_ratio=0.0)
    rig, _ = compacting(retention_bytes=0)
    begin_segment(rig)
    assert 0 == rig.log.apply_retention()


@pytest.mark.parametrize(
    ("operation", "ending", "code", "error"),
    [
        ("create", ".cleaned", errno.ENOSPC, LogFull),
        ("write", ".cleaned", errno.ENOSPC, LogFull),
        ("sync", ".cleaned", errno.EIO, LogError),
        ("rename", ".cleaned", errno.EIO, LogError),
        ("rename", ".swap", errno.EIO, LogFailed),
        ("sync", ".index", errno.EIO, LogFailed),
    ],
)
def test_a_compaction_that_fails_changes_nothing(operation: str, ending: str, code: int, error: type[LogError]) -> None:
    """Before the swap the log goes on as it was; after it the next start finishes what was begun."""
    rig, files = compacting()
    for number in range(8):
        append(rig, (f"k{number % 3}".encode(), f"{number}".encode() * 20))
    begin_segment(rig)
    last = {key: value for _, key, value in pairs(rig)}
    files.before = fault = FailOnce(operation, ending, code)
    with pytest.raises(error):
        rig.log.compact()
    assert fault.failed
    files.before = lambda operation, name: None
    if error is LogFailed:
        with pytest.raises(LogFailed):
            append(rig, (b"refused", b""))
        rig.log = rig.directory.open_log(PARTITION, rig.settings)
    assert last == {key: value for _, key, value in pairs(rig)}
    rig.log.compact()
    assert last == {key: value for _, key, value in pairs(rig)}
    assert len(last) == len(pairs(rig))
    check_folder(files, rig.folder, indexed=False)


# -- with readers at work


def run_with_readers(rig: LogRig, look: Callable[[], None], work: Callable[[], None]) -> None:
    """Do ``work`` while four threads ``look`` again and again; raises what any of them raises."""
    done = threading.Event()
    errors: list[BaseException] = []
    looks = [0] * 4

    def read(number: int) -> None:
        try:
            while not done.is_set() or not looks[number]:
                look()
                looks[number] += 1
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        work()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert [] == errors
    assert all(looks)


def test_readers_see_whole_records_while_segments_are_deleted(tmp_path: Path) -> None:
    """A reader has what it asked for, or hears that it is gone; nothing else, whoever deletes meanwhile."""
    rig = LogRig(files=OsLogFiles(), path=tmp_path, settings=LogSettings(segment_bytes=2000, retention_bytes=5000))
    rig.open()
    rig.append(10, size=100)

    def look() -> None:
        start = rig.log.start_offset
        try:
            for record in read_records(rig.log, start, max_bytes=1000):
                assert f"{record.offset}:".encode().ljust(100, b".") == record.value
        except LogOffsetOutOfRange:
            assert start < rig.log.start_offset
        rig.log.find_offset(START_MS)
        rig.log.offsets_before(-1, 100)

    def work() -> None:
        for _ in range(100):
            rig.append(5, size=100)
            rig.log.apply_retention()

    run_with_readers(rig, look, work)
    rig.check_readable()
    rig.close()


def test_readers_see_the_last_of_each_key_while_segments_are_compacted(tmp_path: Path) -> None:
    """A compacted segment takes the place of others between two reads, and nobody misses a key."""
    settings = LogSettings(cleanup_policy=CleanupPolicy.COMPACT, segment_bytes=3000, min_cleanable_ratio=0.0)
    rig = LogRig(files=OsLogFiles(), path=tmp_path, settings=settings)
    rig.open()
    keys = [f"key{number}".encode() for number in range(12)]
    append(rig, *((key, b"first") for key in keys))
    written = dict.fromkeys(keys, 0)

    def look() -> None:
        before = dict(written)
        found: dict[bytes | None, Record] = {}
        for record in read_records(rig.log, 0, max_bytes=1000):
            assert not found or record.offset > max(one.offset for one in found.values())
            found[record.key] = record
        for key, number in before.items():
            value = found[key].value or b""
            assert number <= (0 if value == b"first" else int(value.split()[0]))

    def work() -> None:
        dice = random.Random(5)
        for number in range(1, 200):
            key = dice.choice(keys)
            append(rig, (key, f"{number} ".encode() * 20))
            written[key] = number
            if number % 40 == 0:
                rig.log.compact()

    run_with_readers(rig, look, work)
    assert rig.log.size_bytes < 20_000
    rig.close()
