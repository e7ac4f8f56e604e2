# SPDX-License-Identifier: Apache-2.0
"""Durability of names: of new paths, and of folders whose fsync has failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from consumerd.landing.chain import FileId, RootRecord
from consumerd.landing.filesystem import OsFileSystem
from consumerd.landing.publish import claim_root
from tests.support.clocks import ManualClock
from tests.support.sinks import SinkRig, run_of

ROOT = RootRecord(root="r", cluster="c", group="g")


class Disk(OsFileSystem):
    """Fails the folders' fsyncs that it is told to, and notes what happens in which order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Path]] = []
        self.failing: dict[Path, int] = {}
        """Folders, and with what each of their fsyncs fails; once where the number is below 0."""

    def make_folders(self, path: Path) -> None:
        self.calls.append(("make", path))
        super().make_folders(path)

    def create(self, path: Path) -> int:
        self.calls.append(("create", path))
        return super().create(path)

    def link(self, source: Path, target: Path) -> None:
        self.calls.append(("link", target))
        super().link(source, target)

    def _fsync(self, path: Path) -> None:
        self.calls.append(("fsync", path))
        code = self.failing.get(path)
        if code is not None:
            if code < 0:
                del self.failing[path]
            raise OSError(abs(code), os.strerror(abs(code)), str(path))
        super()._fsync(path)

    def synced(self) -> list[Path]:
        return [path for what, path in self.calls if what == "fsync"]


def test_every_parent_that_was_made_is_durable_before_the_record(tmp_path: Path):
    """A power cut must not take away a folder in which files were landed and committed."""
    disk, path = Disk(), tmp_path / "lake" / "raw" / "landing"
    claim_root(disk, path, ROOT, FileId("f"))
    linked = disk.calls.index(("link", path / "_consumerd.json"))
    before = [folder for what, folder in disk.calls[:linked] if what == "fsync"]
    assert {tmp_path / "lake" / "raw", tmp_path / "lake", tmp_path} <= set(before)
    assert path in disk.synced()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EINVAL])
def test_parents_that_are_none_of_ours_are_left_alone(tmp_path: Path, code: int):
    """A process need not be able to read, or sync, what it cannot have made."""
    disk, path = Disk(), tmp_path / "lake" / "landing"
    disk.failing[tmp_path] = code
    claim_root(disk, path, ROOT, FileId("f"))
    assert tmp_path.parent not in disk.synced()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_parent_whose_fsync_fails_is_no_path_to_land_in(tmp_path: Path, code: int):
    """Its names may be gone after a power cut."""
    disk = Disk()
    disk.failing[tmp_path] = code
    with pytest.raises(OSError, match=os.strerror(code)):
        claim_root(disk, tmp_path / "lake" / "landing", ROOT, FileId("f"))
    assert not (tmp_path / "lake" / "landing" / "_consumerd.json").exists()


def test_fsync_that_failed_is_not_believed_when_it_is_only_repeated(tmp_path: Path):
    """The kernel reports a lost write once: the folder is changed, so that there is something to write again."""
    disk = Disk()
    disk.failing[tmp_path] = -errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync_folder(tmp_path)
    disk.calls.clear()
    disk.sync_folder(tmp_path)
    assert [what for what, _ in disk.calls] == ["create", "fsync"]
    assert list(tmp_path.iterdir()) == []
    disk.calls.clear()
    disk.sync_folder(tmp_path)
    assert [what for what, _ in disk.calls] == ["fsync"]


def test_folder_that_cannot_be_changed_any_more_stays_in_doubt(tmp_path: Path):
    """A journal that was aborted: the file system is read-only from then on, and its fsyncs succeed."""

    class Aborted(Disk):
        def create(self, path: Path) -> int:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    disk = Aborted()
    disk.failing[tmp_path] = -errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync_folder(tmp_path)
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            disk.sync_folder(tmp_path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_published_file_counts_only_once_its_folder_was_written_anew(tmp_path: Path, kind: str):
    """The name was public when the fsync failed; what it says is committed after a sync that means something."""
    rig = SinkRig(kind=kind, path=tmp_path / "landing", clock=ManualClock())
    disk = Disk()
    writer = await rig.writer(files=disk)
    await writer.write(run_of(0, 10))
    folder = next(rig.path.rglob("chain=1"))
    disk.failing[folder] = -errno.EIO
    with pytest.raises(Exception, match="Input/output error"):
        await writer.flush()
    assert list(folder.glob(f"0*.{kind}"))
    disk.calls.clear()
    await writer.write(run_of(10, 12))
    rewritten = [index for index, (what, path) in enumerate(disk.calls) if what == "create" and ".sync-" in path.name]
    assert rewritten
    assert ("fsync", folder) in disk.calls[rewritten[0] :]
    assert await writer.flush() == 12
    assert rig.offsets() == list(range(12))
    await rig.close()
