# SPDX-License-Identifier: Apache-2.0
"""A log whose disk is cut off, fails, or loses and adds blocks, at any moment: what was flushed is there, nothing else
is served, and it goes on.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from consumerd.embedded.log.errors import LogError, LogFailed, LogFull, LogWriteFailed
from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from tests.support.faulty_files import PowerCut
from tests.support.faulty_log_files import FailOnce, MemoryLogFiles
from tests.support.log_check import check_folder
from tests.support.logs import PARTITION, LogRig, read_records, record_set

pytestmark = pytest.mark.records

SEEDS = 2


def make_rig(seed: int, **changes: object) -> LogRig:
    files = MemoryLogFiles(random.Random(seed))
    values: dict[str, object] = {"segment_bytes": 700, "index_interval_bytes": 100, **changes}
    rig = LogRig(files=files, settings=LogSettings(**values))  # type: ignore[arg-type]  # fields by their names
    files.now_ms = lambda: rig.now_ms
    return rig


def run_until_power_goes(rig: LogRig, changes: int, story: Callable[[LogRig], None]) -> bool:
    """Tell the story, cut the power at that change of the disk, and open what is left; False if the story ended before."""
    files = rig.files
    assert isinstance(files, MemoryLogFiles)
    files.changes_left = changes
    try:
        story(rig)
    except (PowerCut, ExceptionGroup):
        files.restore()
        rig.open()
        return True
    files.changes_left = None
    return False


def append_and_flush(rig: LogRig) -> None:
    """Three segments, flushes, checkpoints, retention, a clean end and a second life."""
    rig.open()
    for number in range(24):
        rig.now_ms += 10
        rig.append(1 + number % 3, size=20 + 17 * (number % 4), codec=number % 3)
        if number % 5 == 4:
            rig.flush()
        if number % 7 == 6:
            rig.directory.write_checkpoints()
        if number == 12:
            rig.close()
            rig.open()
        if number == 20:
            rig.log.apply_retention()
    rig.close()


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_power_may_go_at_every_write(magic: int) -> None:
    """The promise of the flush, at each boundary there is, with several ways in which blocks get lost or added."""
    for boundary in range(1000):
        ended = 0
        for seed in range(SEEDS):
            rig = make_rig(seed, message_format=magic, retention_bytes=1500)
            if not run_until_power_goes(rig, boundary, append_and_flush):
                ended += 1
                continue
            rig.check_recovered()
            rig.append(3, size=40)
            rig.check_readable()
            if magic:
                rig.check_times()
            rig.close()
            check_folder(rig.files, rig.folder, indexed=True)
        if ended:
            assert SEEDS == ended
            assert boundary > 40, "the story has a boundary for every write, sync, rename and unlink"
            return
    raise AssertionError("the story never ended")


KEYS = [b"a", b"b", b"c", b"d", b"e"]


def write_and_compact(rig: LogRig) -> None:
    """Values of a few keys, again and again, some deleted, compacted twice in between."""
    rig.open()
    dice = random.Random(7)
    for number in range(30):
        rig.now_ms += 10
        keys = [dice.choice(KEYS) for _ in range(3)]
        values = [None if dice.random() < 0.2 else f"{number}.{index}".encode() for index in range(3)]
        rig.in_flight = [(rig.now_ms, value or b"") for value in values]
        rig.log.append(record_set(values, magic=rig.settings.message_format, codec=number % 2, keys=keys))
        rig.log.flush()
        rig.acknowledged += zip(keys, values, strict=True)  # type: ignore[arg-type]  # keys in place of timestamps here
        if number % 12 == 11:
            rig.log.compact()
    rig.close()


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_power_may_go_at_every_write_of_a_compaction(magic: int) -> None:
    """Segments take each other's place in several steps, and the last value of each key survives all of them."""
    for boundary in range(1000):
        rig = make_rig(
            boundary,
            message_format=magic,
            segment_bytes=400,
            cleanup_policy=CleanupPolicy.COMPACT,
            delete_retention_ms=50,
            min_cleanable_ratio=0.0,
        )
        if not run_until_power_goes(rig, boundary, write_and_compact):
            assert boundary > 150
            return
        expected = dict(rig.acknowledged)  # the last value of each key
        rig.log.compact(min_ratio=0.0)
        check_folder(rig.files, rig.folder, indexed=False)
        there = list(read_records(rig.log))
        acknowledged_end = len(rig.acknowledged)
        found = {record.key: record.value for record in there if record.offset < acknowledged_end}
        later = {record.key for record in there if record.offset >= acknowledged_end}
        for key, value in expected.items():
            assert key in later or value == found.get(key), f"key {key!r} at boundary {boundary}"
    raise AssertionError("the story never ended")


class CrashingLog(RuleBasedStateMachine):
    """Everything that may happen to a log, in any order."""

    @initialize(
        seed=st.integers(0, 1 << 32),
        magic=st.sampled_from([0, 1, 2]),
        flush_messages=st.sampled_from([None, None, 4]),
        retention_bytes=st.sampled_from([None, None, 1200]),
    )
    def begin(self, seed: int, magic: int, flush_messages: int | None, retention_bytes: int | None) -> None:
        self.rig = make_rig(seed, message_format=magic, flush_messages=flush_messages, retention_bytes=retention_bytes)
        assert isinstance(self.rig.files, MemoryLogFiles)
        self.files = self.rig.files
        self.rig.open()

    @rule(count=st.integers(1, 5), size=st.integers(10, 100), magic=st.sampled_from([0, 1, 2]), codec=st.integers(0, 3))
    def append(self, count: int, size: int, magic: int, codec: int) -> None:
        self.rig.append(count, size=size, magic=magic, codec=codec)

    @rule(ms=st.integers(1, 1000))
    def wait(self, ms: int) -> None:
        self.rig.now_ms += ms

    @rule()
    def flush(self) -> None:
        self.rig.flush()

    @rule()
    def note_checkpoints(self) -> None:
        self.rig.directory.write_checkpoints()

    @rule()
    def apply_retention(self) -> None:
        self.rig.log.apply_retention()

    @rule()
    def end_and_begin_again(self) -> None:
        self.rig.close()
        check_folder(self.files, self.rig.folder, indexed=True)
        assert not self.files.open_count()
        self.rig.open()
        self.rig.check_recovered()

    @rule(left=st.integers(0, 12), data=st.data())
    def cut_power(self, left: int, data: st.DataObject) -> None:
        self._work_until_the_end(left, data)
        self.files.restore()
        self._begin_again(data, self.files.restore)

    @rule(left=st.integers(0, 12), data=st.data())
    def kill(self, left: int, data: st.DataObject) -> None:
        self._work_until_the_end(left, data)
        self.files.kill()
        if self.rig.settings.retention_bytes is None:
            self.rig.durable_end = len(self.rig.acknowledged)
        self._begin_again(data, self.files.kill)

    def _work_until_the_end(self, left: int, data: st.DataObject) -> None:
        self.files.changes_left = left
        with contextlib.suppress(PowerCut, ExceptionGroup):
            for _ in range(data.draw(st.integers(0, 3))):
                self.rig.append(data.draw(st.integers(1, 3)), size=60)
            if data.draw(st.booleans()):
                self.rig.flush()
            if data.draw(st.booleans()):
                self.rig.close()
        self.files.cut_power()

    def _begin_again(self, data: st.DataObject, end: Callable[[], None]) -> None:
        if data.draw(st.integers(0, 3)) == 0:  # once more, in the middle of the recovery
            self.files.changes_left = data.draw(st.integers(0, 6))
            with contextlib.suppress(PowerCut):
                self.rig.open()
            self.files.cut_power()
            end()
        self.rig.open()
        self.rig.check_recovered()

    @rule(code=st.sampled_from([errno.ENOSPC, errno.EIO, errno.EDQUOT]), size=st.integers(10, 250))
    def fail_to_write(self, code: int, size: int) -> None:
        self.files.before = fault = FailOnce("write", ".log", code)
        before = repr(self.rig.log)
        with pytest.raises(LogWriteFailed if code == errno.EIO else LogFull):
            self.rig.append(2, size=size)
        assert fault.failed
        assert before == repr(self.rig.log)
        self.rig.in_flight = []

    @rule(operation=st.sampled_from(["sync", "truncate"]))
    def fail_for_good(self, operation: str) -> None:
        """After a failed fsync, or a write that cannot be taken back, the log is offline until it is opened anew."""
        if operation == "sync":
            self.files.before = FailOnce("sync", ".log")
        else:
            fault = FailOnce("write", ".log")
            cut = FailOnce("truncate", ".log")
            self.files.before = lambda what, name: (fault(what, name), cut(what, name))[0]
        with pytest.raises(LogFailed):
            self.rig.append(1, size=30)
            self.rig.log.flush()
        for refused in (
            lambda: self.rig.log.append(record_set([b"refused"])),
            self.rig.log.flush,
            lambda: self.rig.log.read(self.rig.log.end_offset, 1, whole_first=True),
        ):
            with pytest.raises(LogFailed):
                refused()
        self.rig.log = self.rig.directory.open_log(PARTITION, self.rig.settings)
        self.rig.check_recovered()

    @invariant()
    def everything_is_there(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.files.before = lambda operation, name: None
        assert len(self.rig.acknowledged) == self.rig.log.end_offset
        for record in read_records(self.rig.log):
            assert self.rig.acknowledged[record.offset][1] == record.value

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            with contextlib.suppress(LogError):
                self.rig.log.discard()


TestCrashingLog = CrashingLog.TestCase
TestCrashingLog.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
