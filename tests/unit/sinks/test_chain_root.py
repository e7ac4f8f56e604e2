# SPDX-License-Identifier: Apache-2.0
"""Whose path it is, and what a volume that goes, comes and changes can do to landed files: nothing."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from consumerd.errors import ConfigError, CoordinationError, RetriableSinkError
from consumerd.sinks.base import Start
from tests.support.faulty_files import RecordingFileSystem
from tests.support.landing_reader import read_landing
from tests.support.sinks import MemoryRoots, SinkRig, run_of

pytestmark = pytest.mark.records


def root_of(path: Path) -> str:
    landing = read_landing(path)
    assert landing.root is not None
    return str(landing.root["root"])


def unmount(rig: SinkRig) -> Path:
    """Leave an empty folder where the volume was."""
    away = rig.path.rename(rig.path.with_name("volume"))
    rig.path.mkdir()
    return away


def mount(rig: SinkRig, volume: Path) -> None:
    """Let the volume cover the folder again."""
    assert list(rig.path.iterdir()) == [], "something was written beside the volume"
    rig.path.rmdir()
    volume.rename(rig.path)


async def test_root_is_remembered_with_the_first_open(rig: SinkRig):
    """From then on the group knows which volume belongs there."""
    await rig.writer()

    assert rig.roots.recorded == {("lake", None): root_of(rig.path)}


async def test_root_is_remembered_before_anything_is_claimed(rig: SinkRig):
    """A foreign path is found when the daemon starts, and so is a new one made ours."""
    await rig.member().check()

    assert rig.roots.recorded == {("lake", None): root_of(rig.path)}
    rig.group = "other"
    with pytest.raises(ConfigError, match="belongs to group 'lake'"):
        await rig.member().check()


async def test_path_that_lacks_the_remembered_root_is_refused_until_it_is_mounted(rig: SinkRig):
    """A container that starts before its volume is mounted must not begin to land in the folder beneath."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.flush()
    volume = unmount(rig)
    sink = rig.member()

    with pytest.raises(RetriableSinkError, match=r"has no _consumerd.json.*mount the volume.*delete.*/roots/lake/None"):
        await sink.check()
    with pytest.raises(RetriableSinkError, match="mount the volume"):
        await sink.open(rig.claim())
    mount(rig, volume)
    assert (await sink.open(rig.claim())).resume_position == 10


async def test_path_with_another_root_is_refused(rig: SinkRig):
    """Two volumes were swapped, or two replicas that should share one folder have one each."""
    await rig.writer()
    other = SinkRig(kind=rig.kind, path=rig.path.with_name("other"), clock=rig.clock)
    await other.writer()
    rig.path = other.path

    with pytest.raises(RetriableSinkError, match=r"has root .*, and the root of sink 'lake' is .*shared to false"):
        await rig.member().open(rig.claim())
    await other.close()


async def test_forgotten_root_lets_a_new_volume_in_without_a_restart(rig: SinkRig):
    """The old one is gone for good: the message says which node to delete, and that is all there is to do."""
    await rig.writer()
    unmount(rig)
    sink = rig.member()
    with pytest.raises(RetriableSinkError):
        await sink.check()
    rig.roots.recorded.clear()

    assert (await sink.open(rig.claim())).resume_position is None
    assert rig.roots.recorded == {("lake", None): root_of(rig.path)}


@pytest.mark.parametrize("took_effect", [False, True])
async def test_crash_between_making_a_root_and_remembering_it_heals(rig: SinkRig, took_effect: bool):
    """The record on the disk comes first: a root that is remembered exists."""
    rig.roots.failure = CoordinationError("connection lost")
    rig.roots.before_answer = took_effect
    if not took_effect:
        with pytest.raises(RetriableSinkError, match="could not be looked up: connection lost"):
            await rig.member().check()
        assert read_landing(rig.path).root is None
        rig.roots.failure = CoordinationError("connection lost")
        rig.roots.before_answer = True
    with pytest.raises(RetriableSinkError, match="could not be looked up: connection lost"):
        await rig.member().check()
    made = root_of(rig.path)
    if not took_effect:
        rig.roots.recorded.clear()

    await rig.member().open(rig.claim())
    assert rig.roots.recorded == {("lake", None): made}
    assert rig.landing().leftovers == []


async def test_two_members_that_start_at_once_remember_one_root(rig: SinkRig):
    """Whoever comes second finds the first one's."""
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(rig.member().check())

    assert rig.roots.recorded == {("lake", None): root_of(rig.path)}


async def test_path_within_a_landing_folder_is_refused(rig: SinkRig):
    """Another process's sink lies around it, and would take what is there for its own."""
    await rig.writer()
    rig.path, rig.roots = rig.path / "deeper", MemoryRoots()

    with pytest.raises(ConfigError, match=r"lies within .*landing, where files are landed already"):
        await rig.member().check()
    assert not rig.path.exists()


# -- a path of each replica's own


async def test_each_replica_has_a_root_of_its_own(rig: SinkRig):
    """What is remembered of one says nothing about another's."""
    rig.shared = False
    roots = {}
    for name in ("a", "b"):
        rig.path, rig.consumer_id = rig.path.with_name(name), name
        await rig.member().check()
        roots["lake", name] = root_of(rig.path)

    assert rig.roots.recorded == roots
    rig.path = rig.path.with_name("a")
    with pytest.raises(RetriableSinkError) as caught:
        await rig.member().check()
    assert "/roots/lake/b" in str(caught.value)
    assert "shared" not in str(caught.value)


async def test_shared_path_is_remembered_once_for_all_replicas(rig: SinkRig):
    """Its root does not depend on who looks."""
    rig.consumer_id = "a"
    await rig.member().check()

    assert list(rig.roots.recorded) == [("lake", None)]


async def test_nameless_replica_remembers_nothing_and_says_so_once(rig: SinkRig):
    """A generated id is another one after each restart: under it nothing could be found again."""
    rig.shared = False
    sink = rig.member()
    with capture_logs() as logs:
        await sink.check()
        await sink.open(rig.claim())

    assert rig.roots.recorded == {}
    assert [(log["event"], log["sink"]) for log in logs] == [("root_unrecorded", "lake")]


async def test_each_replicas_chain_goes_on_where_it_ended_or_where_the_group_is(rig: SinkRig):
    """With paths of their own, exactly-once holds per path: what another replica has landed is a gap here."""
    rig.shared, paths = False, {name: rig.path.with_name(name) for name in ("a", "b")}
    committed = 0
    for name, end in (("a", 10), ("b", 20), ("a", 30)):
        rig.path, rig.consumer_id = paths[name], name
        writer = await rig.member().open(rig.claim())
        await writer.start(Start(position=max(committed, writer.resume_position or 0), reason="committed"))
        await writer.write(run_of(committed, end))
        committed = await writer.flush()

    landed = {name: read_landing(path).partitions["orders", "3"] for name, path in paths.items()}
    assert [one.problems for one in landed.values()] == [[], []]
    assert landed["a"].offsets == [*range(10), *range(20, 30)]
    assert landed["b"].offsets == list(range(10, 20))
    assert landed["a"].gaps == [{"start": 10, "end": 20, "reason": "consumed elsewhere", "offsets": 10}]


# -- a path that changes while the daemon runs


async def test_volume_that_is_unmounted_takes_no_file_with_it(rig: SinkRig):
    """Nothing is written beside it, nothing acknowledged, and once it is back the same file is published."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    volume = unmount(rig)
    for _ in range(2):
        with pytest.raises(RetriableSinkError, match="missing, though it was there before: mount") as caught:
            await writer.flush()
        assert caught.value.resume_position is None
    mount(rig, volume)

    assert await writer.flush() == 10
    assert rig.offsets() == list(range(10))


async def test_volume_that_is_unmounted_right_before_the_link_takes_no_file_with_it(rig: SinkRig):
    """The hidden file went with the volume, so there is nothing that could get the name."""
    files = RecordingFileSystem()
    writer = await rig.writer(files=files)
    await writer.write(run_of(0, 10))
    volumes = []

    def swap(operation: str, name: str) -> None:
        if (operation, name) == ("link", f"{0:020d}.{rig.kind}") and not volumes:
            volumes.append(unmount(rig))

    files.before = swap
    with pytest.raises(RetriableSinkError, match="mount the volume") as caught:
        await writer.flush()
    assert caught.value.resume_position == 0
    mount(rig, volumes[0])
    await writer.write(run_of(0, 10))
    assert await writer.flush() == 10
    assert rig.offsets() == list(range(10))


async def test_volume_that_is_swapped_for_a_like_one_is_noticed_before_the_link(rig: SinkRig):
    """Its folders have the same names; its root has not."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    volume = rig.path.rename(rig.path.with_name("volume"))
    shutil.copytree(volume, rig.path)
    record = rig.path / "_consumerd.json"
    record.write_text(record.read_text().replace(root_of(volume), "f" * 32))

    with pytest.raises(RetriableSinkError, match="that of another volume"):
        await writer.flush()
    assert read_landing(rig.path).partitions["orders", "3"].offsets == []


async def test_nothing_is_cleaned_up_on_another_volume(rig: SinkRig):
    """What looks like a leftover there is what its own group is about to publish."""
    files = RecordingFileSystem()
    writer = await rig.writer(files=files)
    await writer.write(run_of(0, 10))

    def fail(operation: str, name: str) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, "I/O error")

    files.before = fail
    with pytest.raises(RetriableSinkError):
        await writer.flush()
    files.before = lambda operation, name: None
    volume = rig.path.rename(rig.path.with_name("volume"))
    shutil.copytree(volume, rig.path)
    record = rig.path / "_consumerd.json"
    record.write_text(record.read_text().replace(root_of(volume), "f" * 32))
    theirs = next(rig.path.glob("*/*/chain=1")) / f".{0:020d}.{rig.kind}.theirs-1.tmp"
    theirs.touch()

    with pytest.raises(RetriableSinkError, match="that of another volume"):
        await writer.write(run_of(0, 10))
    assert theirs.exists()


async def test_volume_that_is_unmounted_while_a_partition_is_opened_is_not_replaced(rig: SinkRig):
    """An empty folder has no chains: to believe it would begin the partition anew."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.flush()
    files = RecordingFileSystem()
    sink = rig.member(files)
    opened = await sink.open(rig.claim())
    volume = unmount(rig)

    with pytest.raises(RetriableSinkError, match="mount the volume"):
        await sink.open(rig.claim())
    with pytest.raises(RetriableSinkError, match="mount the volume"):
        await opened.start(Start(position=3, reason="request", new_chain=True, request_id="r1"))
    with pytest.raises(RetriableSinkError, match="mount the volume"):
        await opened.start(Start(position=10, reason="on_above", truncation=1))
    mount(rig, volume)
    assert rig.offsets() == list(range(10))
