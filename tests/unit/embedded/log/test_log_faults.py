# SPDX-License-Identifier: Apache-2.0
"""A disk that fails at one call: what the log says, and whether it goes on. The crash tests have the rest."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from consumerd.embedded.log.errors import LogError, LogFailed, LogFull, LogWriteFailed
from consumerd.embedded.log.settings import LogSettings
from tests.support.faulty_log_files import FailOnce, MemoryLogFiles
from tests.support.log_check import check_folder
from tests.support.logs import PARTITION, START_MS, LogRig


def open_rig() -> tuple[LogRig, MemoryLogFiles]:
    files = MemoryLogFiles(random.Random(1))
    rig = LogRig(files=files, settings=LogSettings(segment_bytes=300, retention_bytes=0, index_interval_bytes=50))
    files.now_ms = lambda: rig.now_ms
    rig.open()
    for _ in range(4):
        rig.append(1, size=150)
    return rig, files


def nothing(operation: str, name: str) -> None:
    """Let everything pass."""


@pytest.mark.parametrize(
    ("operation", "ending", "code", "error"),
    [
        ("create", ".log", errno.ENOSPC, LogFull),
        ("create", ".index", errno.ENOSPC, LogFull),
        ("write", ".timeindex", errno.EDQUOT, LogFull),
        ("sync", ".index", errno.EIO, LogWriteFailed),
        ("sync", ".log", errno.EIO, LogFailed),
        ("truncate", "04.log", errno.EIO, LogFailed),
        ("sync_folder", "", errno.EIO, LogFailed),
    ],
)
def test_a_segment_that_cannot_begin_keeps_the_append_out(
    operation: str, ending: str, code: int, error: type[LogError]
) -> None:
    """The log goes on where it is known what the disk holds, and is opened anew where it is not."""
    rig, files = open_rig()
    files.before = fault = FailOnce(operation, ending, code)
    with pytest.raises(error):
        rig.append(1, size=150)
    assert fault.failed
    files.before = nothing
    if error is LogFailed:
        with pytest.raises(LogFailed, match="offline"):
            rig.append(1)
        rig.log = rig.directory.open_log(PARTITION, rig.settings)
    rig.check_recovered()
    rig.append(1, size=150)
    rig.check_readable()
    rig.close()
    check_folder(files, rig.folder, indexed=True)


def read_first(rig: LogRig) -> object:
    """Read from the first offset."""
    with rig.log.read(0, 1000, whole_first=True) as part:
        return part.size


@pytest.mark.parametrize("look", [read_first, lambda rig: rig.log.find_offset(START_MS)], ids=["offset", "time"])
def test_a_read_that_fails_is_said_and_may_be_tried_again(look: Callable[[LogRig], object]) -> None:
    """Nothing has changed, so the log is not offline; the descriptor is not lost."""
    rig, files = open_rig()
    before = files.open_count()
    files.before = FailOnce("read", ".log")
    with pytest.raises(LogFailed, match="cannot be read"):
        look(rig)
    assert look(rig)
    assert before == files.open_count()


def test_a_segment_that_cannot_be_deleted_takes_the_log_offline() -> None:
    """Which names are there is not known any more; the next start sees."""
    rig, files = open_rig()
    files.before = FailOnce("unlink", ".log")
    with pytest.raises(LogFailed):
        rig.log.apply_retention()
    with pytest.raises(LogFailed, match="offline"):
        rig.append(1)
    rig.log = rig.directory.open_log(PARTITION, rig.settings)
    rig.check_recovered()
    assert 3 == rig.log.apply_retention()


@pytest.mark.parametrize("ending", [".log", ".index", ".timeindex"])
def test_a_log_that_cannot_be_closed_is_closed_nevertheless(ending: str) -> None:
    """No descriptor stays open, and the end does not count as clean."""
    rig, files = open_rig()
    rig.append(1)
    files.before = FailOnce("sync", ending)
    with pytest.raises(LogFailed):
        rig.log.close()
    with pytest.raises(ExceptionGroup):
        rig.directory.close()
    assert 0 == files.open_count()
    rig.open()
    rig.check_recovered()


@pytest.mark.parametrize("operation", ["read", "sync_folder"])
def test_a_log_that_cannot_be_opened_leaves_nothing_open(operation: str) -> None:
    """It may be tried again, for as long as the disk is ill."""
    rig, files = open_rig()
    rig.close()
    rig.open()
    rig.log.close()
    before = files.open_count()
    files.before = FailOnce(operation)
    with pytest.raises(LogFailed):
        rig.directory.open_log(PARTITION, rig.settings)
    assert before == files.open_count()
    rig.log = rig.directory.open_log(PARTITION, rig.settings)
    rig.check_recovered()


def test_what_a_directory_cannot_do_is_said() -> None:
    """Checkpoints, deletions, the mark of a clean end."""
    rig, files = open_rig()
    files.before = FailOnce("rename")
    with pytest.raises(LogFailed, match="checkpoints"):
        rig.directory.write_checkpoints()
    files.before = FailOnce("rename")
    with pytest.raises(LogFailed, match="deleted"):
        rig.directory.delete_log(PARTITION)
    rig.log = rig.directory.open_log(PARTITION, rig.settings)
    rig.check_recovered()
    files.before = FailOnce("create", "shutdown")
    with pytest.raises(ExceptionGroup):
        rig.directory.close()
    assert 0 == files.open_count()
    files.before = FailOnce("create", "clean")
    rig.open()
    rig.check_recovered()
