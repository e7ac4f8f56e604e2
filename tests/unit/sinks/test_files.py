# SPDX-License-Identifier: Apache-2.0
"""One file and its steps."""

import errno
import threading
from pathlib import Path

import pytest

from consumerd.landing.chain import FileId, FileSummary
from consumerd.landing.publish import SYNC_EVERY_BYTES
from consumerd.model import Incarnation
from consumerd.sinks.files import OpenFile
from consumerd.sinks.jsonl import JsonlFormat
from tests.support.faulty_files import RecordingFileSystem
from tests.support.sinks import PARTITION, run_of

STEPS = ["append", "spill", "finish", "publish"]


def open_file(files: RecordingFileSystem, folder: Path) -> OpenFile:
    (folder / "_meta").mkdir()
    hidden, encoder = JsonlFormat().open(files, partition=PARTITION, folder=folder, position=0, file_id=FileId("w-1"))
    return OpenFile(FileId("w-1"), hidden, encoder)


def take_step(file: OpenFile, step: str) -> None:
    metadata = FileSummary(0).describe(
        PARTITION, writer="w", group="g", cluster="c", incarnation=Incarnation(1), chain=1
    )
    steps = {
        "append": lambda: file.append(run_of(0, 3)),
        "spill": file.spill,
        "finish": lambda: file.finish(metadata),
        "publish": file.publish,
    }
    steps[step]()


@pytest.mark.parametrize("step", STEPS)
def test_no_step_follows_one_that_failed(tmp_path: Path, step: str):
    """A cancelled call's failure is seen by nobody, and half a batch may be in the file."""
    failing = [errno.EIO]

    def fail_once(operation: str, name: str) -> None:
        if operation == "write" and failing:
            raise OSError(failing.pop(), "I/O error")

    file = open_file(RecordingFileSystem(fail_once), tmp_path)
    with pytest.raises(OSError, match="I/O error"):
        file.append(run_of(0, 3))
    with pytest.raises(OSError, match="an earlier write"):
        take_step(file, step)

    file.discard()
    file.discard()
    assert [found.name for found in tmp_path.iterdir()] == ["_meta"]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_no_step_that_comes_late_brings_back_a_file_that_was_discarded(tmp_path: Path, step: str, begun: bool):
    """Two threads take the step of a cancelled call and its removal from one queue: the removal may come first."""
    file = open_file(RecordingFileSystem(), tmp_path)
    if begun:
        file.append(run_of(0, 3))
    file.discard()
    with pytest.raises(OSError, match="given up"):
        take_step(file, step)

    assert sorted(found.name for found in tmp_path.rglob("*")) == ["_meta"]


def test_growing_file_is_synced_on_the_way(tmp_path: Path):
    """A revoked partition has three seconds: too little for the sync of a file that was never synced before."""
    files = RecordingFileSystem()
    file = open_file(files, tmp_path)
    for start in range(9):
        file.append(run_of(start, start + 1, size=SYNC_EVERY_BYTES // 4))

    file.discard()  # waits for the sync that may be under way

    assert [operation for operation, _ in files.calls].count("sync") == 2


def test_a_file_is_written_to_while_it_is_synced(tmp_path: Path):
    """The disk is as slow as what fills it, and each would wait for the other."""
    released = threading.Event()

    def hold(operation: str, name: str) -> None:
        assert operation != "sync" or released.wait(20)

    files = RecordingFileSystem(hold)
    file = open_file(files, tmp_path)
    for start in range(7):
        file.append(run_of(start, start + 1, size=SYNC_EVERY_BYTES // 4))
    released.set()
    file.discard()

    operations = [operation for operation, _ in files.calls]
    assert operations.count("sync") == 1
    assert operations[-1] == "unlink"
    assert operations[-2] == "write"


def test_a_sync_that_failed_meanwhile_is_told_before_the_file_is_finished(tmp_path: Path):
    """The system tells of what it could not write once: a later sync would succeed."""
    failures = [OSError(errno.EIO, "lost")]

    def fail_once(operation: str, name: str) -> None:
        if operation == "sync" and failures:
            raise failures.pop()

    file = open_file(RecordingFileSystem(fail_once), tmp_path)
    file.append(run_of(0, 1, size=SYNC_EVERY_BYTES))
    with pytest.raises(OSError, match="lost"):
        take_step(file, "finish")
    file.discard()


def test_no_descriptor_is_closed_while_it_is_synced(tmp_path: Path):
    """Its number may be another file's a moment later."""
    released = threading.Event()
    syncing: list[str] = []
    closed_while_syncing: list[str] = []

    class Watched(RecordingFileSystem):
        def sync(self, descriptor: int) -> None:
            syncing.append("it is")
            assert released.wait(20)
            super().sync(descriptor)
            syncing.clear()

        def close(self, descriptor: int) -> None:
            closed_while_syncing.extend(syncing)
            super().close(descriptor)

    file = open_file(Watched(), tmp_path)
    file.append(run_of(0, 1, size=SYNC_EVERY_BYTES))
    threading.Timer(0.05, released.set).start()
    file.discard()

    assert closed_while_syncing == []
    assert syncing == []
