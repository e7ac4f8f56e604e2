# SPDX-License-Identifier: Apache-2.0
"""What a directory of logs knows of its last end, and what it makes of files that others have left there."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.embedded.log.errors import LogFailed, LogLocked
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import LONGEST_TOPIC, TopicPartition
from tests.support.faulty_log_files import FailOnce, MemoryLogFiles
from tests.support.log_check import check_folder, read_file
from tests.support.logs import PARTITION, LogRig, read_records

CLEAN = Path("/data/.kafka_cleanshutdown")
RECOVERY = Path("/data/recovery-point-offset-checkpoint")


def make_rig(**changes: object) -> tuple[LogRig, MemoryLogFiles]:
    files = MemoryLogFiles(random.Random(1))
    settings = LogSettings(**{"segment_bytes": 700, "index_interval_bytes": 100, **changes})  # type: ignore[arg-type]
    rig = LogRig(files=files, settings=settings)
    files.now_ms = lambda: rig.now_ms
    rig.open()
    return rig, files


def fill(rig: LogRig, appends: int = 20) -> None:
    for number in range(appends):
        rig.now_ms += 5
        rig.append(1 + number % 3, size=60)


def last_log(rig: LogRig) -> Path:
    return rig.folder / max(name for name in rig.files.names(rig.folder) if name.endswith(".log"))


def test_a_clean_end_is_noted_and_spares_the_check() -> None:
    """The mark is there only while nobody has the directory open, so that a crash leaves none."""
    rig, files = make_rig()
    fill(rig)
    assert CLEAN.name not in files.names(CLEAN.parent)
    rig.close()
    assert CLEAN.name in files.names(CLEAN.parent)
    assert f"0\n1\norders 0 {len(rig.acknowledged)}\n".encode() == read_file(files, RECOVERY)
    files.content(last_log(rig))[-1] ^= 1
    rig.open()
    assert CLEAN.name not in files.names(CLEAN.parent)
    assert len(rig.acknowledged) == rig.log.end_offset, "nobody has looked at the checksums"


def test_only_what_may_not_be_durable_is_checked() -> None:
    """Below the recovery point a wrong checksum is not recovery's business; above it the log is cut."""
    rig, files = make_rig(segment_bytes=1 << 20)
    fill(rig, 10)
    rig.flush()
    rig.directory.write_checkpoints()
    flushed, size = rig.log.end_offset, len(files.content(last_log(rig)))
    fill(rig, 10)
    files.content(last_log(rig))[size - 1] ^= 1
    files.kill()
    rig.open()
    assert len(rig.acknowledged) == rig.log.end_offset
    files.content(last_log(rig))[size + 80] ^= 1
    files.kill()
    rig.open()
    assert flushed == rig.log.end_offset


def test_without_a_recovery_point_everything_is_checked() -> None:
    """A directory that nobody has noted anything about may have lost anything; what follows a loss goes with it."""
    rig, files = make_rig()
    fill(rig, 30)
    assert rig.log.segment_count > 3
    second = sorted(name for name in files.names(rig.folder) if name.endswith(".log"))[1]
    files.content(rig.folder / second)[-1] ^= 1
    files.kill()
    rig.open()
    assert 2 == rig.log.segment_count
    assert rig.log.end_offset < 30
    rig.check_readable()


def test_the_newest_segment_alone_is_checked_where_nobody_asks_for_more() -> None:
    """Each segment is durable before the next one begins."""
    rig, files = make_rig()
    fill(rig, 30)
    first = rig.folder / f"{0:020d}.log"
    files.content(first)[-1] ^= 1
    files.content(last_log(rig))[-1] ^= 1
    files.kill()
    log = PartitionLog.open(rig.path, PARTITION, settings=rig.settings, files=files, now_ms=lambda: 0)
    assert int(last_log(rig).stem) <= log.end_offset < len(rig.acknowledged)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize(
    "spoil",
    [None, b"", b"\0" * 3, b"\0" * 24, b"\xff" * 24, bytes(range(48)), "zeros"],
    ids=["missing", "emptied", "odd", "zeroed", "ones", "rising nonsense", "as Kafka leaves it after a crash"],
)
def test_an_index_that_is_missing_or_bad_is_made_anew(suffix: str, number: int, spoil: bytes | str | None) -> None:
    """An index is no more than a shortcut, of the oldest segment or the newest."""
    rig, files = make_rig()
    fill(rig)
    rig.close()
    path = rig.folder / sorted(name for name in files.names(rig.folder) if name.endswith(suffix))[number]
    whole = read_file(files, path)
    if spoil is None:
        files.unlink(path)
    elif isinstance(spoil, str):
        files.content(path).extend(bytes(240))
    else:
        files.content(path)[:] = spoil
    rig.open()
    rig.check_recovered()
    rig.check_times()
    rig.close()
    if spoil != b"":
        assert whole == read_file(files, path)
        check_folder(files, rig.folder, indexed=True)


def test_bytes_behind_the_last_unit_are_cut_off_even_after_a_clean_end() -> None:
    """Nobody may have written there; what does not end with a whole unit was not left so by us."""
    rig, files = make_rig()
    fill(rig)
    rig.close()
    files.content(last_log(rig)).extend(b"nonsense that is longer than a header of a batch, which has 61 bytes")
    rig.open()
    rig.check_recovered()
    rig.append(1)
    rig.check_readable()


def test_a_stale_block_that_holds_whole_units_is_cut_off() -> None:
    """What a block held before may be a record with the right checksum: offsets that do not rise give it away."""
    rig, files = make_rig(segment_bytes=1 << 20)
    fill(rig)
    data = files.content(last_log(rig))
    data += data[:300]
    files.kill()
    rig.open()
    rig.check_recovered()
    assert len(rig.acknowledged) == rig.log.end_offset
    rig.append(1)
    rig.check_readable()


def test_what_a_crash_of_kafka_leaves_is_tidied() -> None:
    """Segments that were to be deleted or cleaned, indexes without a segment."""
    rig, files = make_rig()
    fill(rig)
    names = set(files.names(rig.folder))
    rig.close()
    for name in (
        f"{7:020d}.log.deleted",
        f"{7:020d}.index.deleted",
        f"{9:020d}.log.cleaned",
        f"{9:020d}.timeindex.cleaned",
        f"{9:020d}.index.swap",
        f"{123:020d}.index",
        f"{123:020d}.timeindex",
    ):
        files.close(files.open(rig.folder / name, create=True))
    rig.open()
    rig.check_recovered()
    assert names <= set(files.names(rig.folder))
    assert not {name for name in files.names(rig.folder) if "123" in name or name.endswith(("ed", "swap"))}


def test_a_failed_end_is_not_clean() -> None:
    """Then the next start has to look; the other logs are closed nevertheless."""
    rig, files = make_rig()
    other = TopicPartition.modern("clicks-and-more", 11)
    rig.directory.open_log(other, rig.settings)
    fill(rig)
    files.before = FailOnce("sync", ".log")
    with pytest.raises(ExceptionGroup):
        rig.directory.close()
    assert CLEAN.name not in files.names(CLEAN.parent)
    assert not files.open_count()
    rig.open()
    assert [other, PARTITION] == rig.directory.find_partitions()
    rig.check_recovered()


def test_a_log_that_nobody_has_opened_keeps_its_clean_end() -> None:
    """Logs are opened one by one; those that nobody needed are as they were."""
    rig, files = make_rig()
    fill(rig)
    rig.close()
    LogDirectory.open(rig.path, files=files, now_ms=lambda: 0).close()
    assert CLEAN.name in files.names(CLEAN.parent)
    files.unlink(CLEAN)
    LogDirectory.open(rig.path, files=files, now_ms=lambda: 0).close()
    assert CLEAN.name not in files.names(CLEAN.parent), "after an unclean end nobody has looked yet"


def test_a_deleted_log_is_gone_and_another_may_take_its_name() -> None:
    """A topic that is made again begins at 0, and a half deleted one is finished by the next start."""
    rig, files = make_rig()
    fill(rig)
    rig.directory.write_checkpoints()
    part = rig.log.read(0, 100, whole_first=True)
    rig.directory.delete_log(PARTITION)
    assert part.read()
    part.close()
    assert not files.is_folder(rig.folder)
    log = rig.directory.open_log(PARTITION, rig.settings)
    assert (0, 0) == (log.start_offset, log.end_offset)
    files.make_folder(rig.path / "gone-0.0123456789abcdef0123456789abcdef-delete")
    files.kill()
    rig.open()
    assert ["orders-0"] == [name for name in files.names(rig.path) if files.is_folder(rig.path / name)]


def test_an_offline_log_is_opened_anew_in_the_same_directory() -> None:
    """Once the disk is well again, what it holds is checked and written once more."""
    rig, files = make_rig()
    fill(rig)
    files.before = FailOnce("sync", ".log")
    with pytest.raises(LogFailed):
        rig.log.flush()
    files.before = lambda operation, name: None
    rig.log = rig.directory.open_log(PARTITION, rig.settings)
    rig.check_recovered()
    files.cut_power()
    files.restore()
    rig.durable_end = len(rig.acknowledged)
    rig.open()
    rig.check_recovered()


def test_a_checkpoint_that_cannot_be_read_counts_as_none() -> None:
    """It only spares work."""
    rig, files = make_rig()
    fill(rig)
    rig.directory.write_checkpoints()
    for content in (b"", b"0\n", b"1\n1\norders 0 5\n", b"0\n2\norders 0 5\n", b"0\n1\norders 0\n", b"\xff\n"):
        files.content(RECOVERY)[:] = content
        files.kill()
        rig.open()
        rig.check_recovered()


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    """Two brokers on one directory would write over each other; the end of a process frees it, however it ends."""
    first = LogDirectory.open(tmp_path, files=OsLogFiles(), now_ms=lambda: 0)
    with pytest.raises(LogLocked):
        LogDirectory.open(tmp_path, files=OsLogFiles(), now_ms=lambda: 0)
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"  # as Java does
    refused = subprocess.run([sys.executable, "-c", code, tmp_path / ".lock"], capture_output=True, check=False)
    assert b"BlockingIOError" in refused.stderr
    first.close()
    first.close()
    LogDirectory.open(tmp_path, files=OsLogFiles(), now_ms=lambda: 0).close()


def test_real_files_are_read_back(tmp_path: Path) -> None:
    """The port's real side does what the tests' other one does."""
    rig = LogRig(files=OsLogFiles(), path=tmp_path / "a" / "b", settings=LogSettings(segment_bytes=700))
    rig.open()
    fill(rig)
    rig.close()
    check_folder(rig.files, rig.folder, indexed=True)
    rig.open()
    rig.check_recovered()
    assert len(rig.acknowledged) == len(list(read_records(rig.log)))
    rig.directory.delete_log(PARTITION)
    assert not rig.folder.exists()
    rig.directory.close()


@pytest.mark.parametrize("noted_again", [True, False])
def test_what_was_durable_of_a_deleted_log_says_nothing_of_its_successor(noted_again: bool) -> None:
    """Nobody has noted anything since when the successor's end is damaged: it must not be taken for checked."""
    rig, files = make_rig(segment_bytes=1 << 20)
    fill(rig)
    rig.flush()
    rig.directory.write_checkpoints()
    rig.directory.delete_log(PARTITION)
    if not noted_again:
        files.kill()  # before the successor is made
        rig.directory = LogDirectory.open(rig.path, files=files, now_ms=lambda: 0)
    rig.log = rig.directory.open_log(PARTITION, rig.settings)
    rig.acknowledged.clear()
    fill(rig, 3)
    files.content(last_log(rig))[-1] ^= 1
    files.kill()
    rig.open()
    assert rig.log.end_offset < len(rig.acknowledged)


def test_a_topic_of_the_longest_name_can_be_deleted_and_set_aside(tmp_path: Path) -> None:
    """Its folder's name is as long as a name may be, so that the one it is renamed to has to be cut (KAFKA-4893)."""
    partition = TopicPartition.modern("t" * LONGEST_TOPIC, 12345)
    logs = LogDirectory.open(tmp_path, files=OsLogFiles(), now_ms=lambda: 0)
    logs.open_log(partition, LogSettings())
    logs.delete_log(partition)
    assert [] == [path for path in tmp_path.iterdir() if path.is_dir()]
    logs.open_log(partition, LogSettings()).close()
    aside = logs.set_aside(partition)
    assert aside is not None
    assert [aside] == [path for path in tmp_path.iterdir() if path.is_dir()]
    logs.close()
    logs = LogDirectory.open(tmp_path, files=OsLogFiles(), now_ms=lambda: 0)
    assert aside.is_dir(), "what was set aside stays"
    logs.close()
