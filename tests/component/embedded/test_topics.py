# SPDX-License-Identifier: Apache-2.0
"""Topics in a real ZooKeeper and their logs on disk: made, grown, changed and deleted, by us and by admin tools' nodes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from consumerd.embedded.appending import Appender
from consumerd.embedded.catalogue import LogCatalogue
from consumerd.embedded.log.errors import LogFailed
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.settings import CleanupPolicy, LogSettings
from consumerd.embedded.nodes import Nodes
from consumerd.embedded.topics import InvalidPartitions, InvalidTopic, NoSuchTopic, TopicExists
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import ConfigError, ConsumerdError, CoordinationError
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.records import NewRecord
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import make_client

P = TopicPartition.modern("t", 0)
STATE = {"controller_epoch": 1, "leader": 7, "version": 1, "leader_epoch": 0, "isr": [7]}


@pytest.fixture
def tool(server: EmbeddedZooKeeper, chroot: str) -> Iterator[KazooClient]:
    """Another client, which writes nodes as admin tools do, below the test's own chroot."""
    with_root = KazooClient(server.connect_string)
    with_root.start()
    with_root.ensure_path(chroot)
    with_root.stop()
    with_root.close()
    client = KazooClient(server.connect_string + chroot)
    client.start()
    yield client
    client.stop()
    client.close()


@asynccontextmanager
async def catalogue(
    server: EmbeddedZooKeeper,
    tool: KazooClient,
    directory: Path,
    *,
    port: int | None = None,
    call_timeout_s: float | None = None,
    files: OsLogFiles | None = None,
) -> AsyncIterator[LogCatalogue]:
    """Serve topics as broker 7."""

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    logs = LogDirectory.open(directory, files=files or OsLogFiles(), now_ms=now_ms)
    try:
        async with (
            make_client(f"127.0.0.1:{port or server.port}{tool.chroot}", call_timeout_s=call_timeout_s) as zk,
            Appender() as appender,
            LogCatalogue(
                zk,
                nodes=Nodes([BrokerId(7)]),
                settings=LogSettings(),
                directory=logs,
                appender=appender,
                now_ms=now_ms,
            ) as topics,
        ):
            yield topics
    finally:
        logs.close()


def put_topic(tool: KazooClient, name: str, *replicas: list[int]) -> None:
    """Write a topic as ``kafka-topics --create`` does."""
    tool.ensure_path("/config/topics")
    tool.create(f"/config/topics/{name}", b'{"version":1,"config":{}}')
    partitions = {str(number): brokers for number, brokers in enumerate(replicas)}
    tool.create(f"/brokers/topics/{name}", json.dumps({"version": 1, "partitions": partitions}).encode(), makepath=True)


def partitions(topics: LogCatalogue, name: str) -> tuple[int, ...] | None:
    found = topics.find(name)
    return None if found is None else found.partitions


def write_records(topics: LogCatalogue, partition: TopicPartition, count: int) -> None:
    log = topics.find_log(partition)
    assert log is not None
    log.append(build_record_set([NewRecord(value=b"v")] * count, magic=2))


def end(topics: LogCatalogue, partition: TopicPartition) -> int | None:
    log = topics.find_log(partition)
    return None if log is None else log.end_offset


async def test_a_topic_is_there_when_it_has_been_made(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Its logs are open, whoever asks next; over a restart they are what they were."""
    async with catalogue(server, tool, tmp_path) as topics:
        heard: list[frozenset[str]] = []
        topics.subscribe(heard.append)
        await topics.create("t", 2, {"retention.ms": "5000"})
        write_records(topics, P, 3)
        made = (topics.names(), partitions(topics, "t"), partitions(topics, "u"), len(topics.logs()), heard)
    async with catalogue(server, tool, tmp_path) as topics:
        log = topics.find_log(P)
        assert log is not None
        assert (3, 5000) == (log.end_offset, log.settings.retention_ms)

    assert (["t"], (0, 1), None, 2, [frozenset({"t"})]) == made
    assert STATE == json.loads(tool.get("/brokers/topics/t/partitions/1/state")[0])


async def test_what_cannot_be_a_topic_is_refused_before_anything_is_written(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Bad names, no partitions, settings that make no sense, a name that is taken or collides."""
    async with catalogue(server, tool, tmp_path) as topics:
        await topics.create("a.b", 1)
        for name, partitions, error in (
            ("a/b", 1, InvalidTopic),
            ("a_b", 1, InvalidTopic),
            ("none", 0, InvalidPartitions),
            ("a.b", 1, TopicExists),
        ):
            with pytest.raises(error):
                await topics.create(name, partitions)
        with pytest.raises(ConfigError, match=r"retention\.ms"):
            await topics.create("t", 1, {"retention.ms": "soon"})
        with pytest.raises(NoSuchTopic):
            await topics.delete("t")

    assert ["a.b"] == tool.get_children("/brokers/topics") == tool.get_children("/config/topics")


async def test_of_two_that_make_the_same_topic_one_is_told_that_it_exists(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Auto-creation comes from many clients at once."""
    async with catalogue(server, tool, tmp_path) as topics:
        outcomes = await asyncio.gather(*(topics.create("t", 1) for _ in range(5)), return_exceptions=True)

        assert 4 == sum(isinstance(one, TopicExists) for one in outcomes)
        assert topics.find_log(P) is not None


async def test_who_is_told_that_a_topic_exists_finds_its_settings(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Two mirrors begin at once: the second one checks the settings of the topic that the first one makes."""
    found: list[str | None] = []

    async with catalogue(server, tool, tmp_path) as topics:

        async def create_and_look() -> None:
            with contextlib.suppress(TopicExists):
                await topics.create("t", 1, {"cleanup.policy": "compact"})
            topic = topics.find("t")
            found.append(None if topic is None else topic.config.get("cleanup.policy"))

        await asyncio.gather(*(create_and_look() for _ in range(5)))

    assert found == ["compact"] * 5


async def test_a_topic_that_an_admin_tool_writes_is_served(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Nobody tells the broker: it watches. Partitions added later are served, too."""
    async with catalogue(server, tool, tmp_path) as topics:
        put_topic(tool, "t", [7])
        await until(lambda: end(topics, P) == 0)
        write_records(topics, P, 3)
        tool.set("/brokers/topics/t", b'{"version":1,"partitions":{"0":[7],"1":[7],"2":[7]}}')
        await until(lambda: partitions(topics, "t") == (0, 1, 2))

        assert (3, 0) == (end(topics, P), end(topics, TopicPartition.modern("t", 2)))
    assert STATE == json.loads(tool.get("/brokers/topics/t/partitions/2/state")[0])


async def test_partitions_of_other_brokers_and_topics_that_make_no_sense_do_not_disturb(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """They are known, or left out; what is ours is served."""
    tool.ensure_path("/brokers/topics")
    tool.create("/brokers/topics/broken", b"{")
    tool.create("/brokers/topics/a b", b'{"version":1,"partitions":{"0":[7]}}')
    put_topic(tool, "t", [7], [8], [8, 7])
    async with catalogue(server, tool, tmp_path) as topics:
        assert ["t"] == topics.names()
        assert (0, None, 0) == tuple(end(topics, TopicPartition.modern("t", number)) for number in range(3))
    assert tool.exists("/brokers/topics/t/partitions/1") is None


async def test_a_partition_that_has_lost_its_leader_is_led_again(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """In the next leader epoch, by the controller of now."""
    put_topic(tool, "t", [7])
    lost = {"controller_epoch": 2, "leader": -1, "version": 1, "leader_epoch": 4, "isr": [7]}
    tool.create("/brokers/topics/t/partitions/0/state", json.dumps(lost).encode(), makepath=True)
    tool.create("/controller_epoch", b"3")
    async with catalogue(server, tool, tmp_path):
        expected = {"controller_epoch": 3, "leader": 7, "version": 1, "leader_epoch": 5, "isr": [7]}
        assert expected == json.loads(tool.get("/brokers/topics/t/partitions/0/state")[0])


async def test_changed_settings_are_told_to_open_logs(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """As kafka-configs writes them: the settings, then a notification. One that makes no sense changes nothing."""
    async with catalogue(server, tool, tmp_path) as topics:
        await topics.create("t", 1)
        tool.ensure_path("/config/changes")
        tool.set("/config/topics/t", b'{"version":1,"config":{"retention.ms":"77","cleanup.policy":"compact"}}')
        tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"topics/t"}', sequence=True)
        log = topics.find_log(P)
        assert log is not None
        await until(lambda: log.settings.retention_ms == 77)
        compacted = log.settings.cleanup_policy
        tool.set("/config/topics/t", b'{"version":1,"config":{"retention.ms":"never"}}')
        tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"topics/t"}', sequence=True)
        await until(lambda: log.settings.retention_ms == LogSettings().retention_ms)

        assert compacted is CleanupPolicy.COMPACT


async def test_a_deleted_topic_takes_its_records_with_it(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """By the node that admin tools write; one of the same name begins anew."""
    async with catalogue(server, tool, tmp_path) as topics:
        for name in ("t", "kept"):
            await topics.create(name, 2)
        write_records(topics, P, 3)
        tool.create("/admin/delete_topics/t", b"", makepath=True)
        tool.create("/admin/delete_topics/never", b"")
        await until(lambda: not tool.get_children("/admin/delete_topics"))
        nodes = (tool.exists("/brokers/topics/t"), tool.exists("/config/topics/t"))
        folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
        names = topics.names()
        await topics.create("t", 1)

        assert ((None, None), ["kept-0", "kept-1"], ["kept"], 0) == (nodes, folders, names, end(topics, P))
        await topics.delete("kept")
        assert ["t"] == topics.names()


async def test_a_topic_that_cannot_be_deleted_holds_up_no_others(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Who asked for it is told, who makes another meanwhile is not; it is tried again."""
    files = _StuckFiles()
    async with catalogue(server, tool, tmp_path, files=files) as topics:
        await topics.create("t", 1)
        files.stuck = True
        async with asyncio.TaskGroup() as tasks:
            deleting = tasks.create_task(_failure_of(topics.delete("t")))
            making = tasks.create_task(_failure_of(topics.create("u", 1)))
        assert (["u"], None, 0) == (topics.names(), making.result(), end(topics, TopicPartition.modern("u", 0)))
        assert isinstance(deleting.result(), LogFailed)
        assert tool.exists("/brokers/topics/t")
        files.stuck = False
        await topics.create("v", 1)
        assert not tool.exists("/brokers/topics/t")


class _StuckFiles(OsLogFiles):
    """The real ones; while ``stuck``, nothing can be renamed."""

    stuck = False

    def rename(self, source: Path, target: Path) -> None:
        """See LogFiles."""
        if self.stuck:
            raise OSError(errno.EIO, "stuck")
        super().rename(source, target)


async def _failure_of(work: Awaitable[object]) -> Exception | None:
    try:
        await work
    except ConsumerdError as error:
        return error
    return None


async def test_records_of_a_topic_whose_nodes_are_lost_stay_on_disk_and_are_not_the_next_ones(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Nobody asked for their deletion; a topic that is made again has none of them."""
    async with catalogue(server, tool, tmp_path) as topics:
        await topics.create("t", 1)
        write_records(topics, P, 3)
        tool.delete("/brokers/topics/t", recursive=True)
        await until(lambda: topics.names() == [])
        await topics.create("t", 1)
        made_again = end(topics, P)
        write_records(topics, P, 1)

    assert 0 == made_again
    (stray,) = tmp_path.glob("t-0.*-stray")
    assert (stray / f"{0:020}.log").stat().st_size > (tmp_path / "t-0" / f"{0:020}.log").stat().st_size > 0


async def test_a_topic_that_is_another_one_between_two_looks_begins_empty(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Deleted and made again in one step: only the transaction that made its node tells."""
    async with catalogue(server, tool, tmp_path) as topics:
        await topics.create("t", 1)
        write_records(topics, P, 3)
        at_once = tool.transaction()
        for below in ("/partitions/0/state", "/partitions/0", "/partitions", ""):
            at_once.delete(f"/brokers/topics/t{below}")
        at_once.create("/brokers/topics/t", b'{"version":1,"partitions":{"0":[7]}}')
        assert all(not isinstance(one, Exception) for one in at_once.commit())
        await until(lambda: end(topics, P) == 0)

        assert ["t"] == topics.names()


async def test_a_topic_made_again_while_the_broker_was_away_begins_empty(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Its directory has the name of one whose topic is no more."""
    async with catalogue(server, tool, tmp_path) as topics:
        await topics.create("t", 1)
        write_records(topics, P, 3)
    tool.delete("/brokers/topics/t", recursive=True)
    tool.delete("/config/topics/t")
    put_topic(tool, "t", [7])
    async with catalogue(server, tool, tmp_path) as topics:
        assert 0 == end(topics, P)


async def test_topics_are_served_while_zookeeper_is_away_and_caught_up_with_after(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Producers and consumers need no ZooKeeper; what came meanwhile is found."""
    async with TcpProxy(server.port) as proxy, catalogue(server, tool, tmp_path, port=proxy.port) as topics:
        await topics.create("t", 1)
        proxy.refuse()
        put_topic(tool, "u", [7])
        write_records(topics, P, 3)
        meanwhile = (topics.names(), end(topics, P))
        proxy.heal()
        await until(lambda: topics.names() == ["t", "u"])

        assert (["t"], 3) == meanwhile


async def test_who_makes_a_topic_while_zookeeper_is_away_is_told_and_what_follows_is_seen(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """Passes fail meanwhile, and go on failing quietly; the first that succeeds catches up."""
    async with (
        TcpProxy(server.port) as proxy,
        catalogue(server, tool, tmp_path, port=proxy.port, call_timeout_s=0.2) as topics,
    ):
        await topics.create("t", 1)
        proxy.blackhole()
        with pytest.raises(CoordinationError):
            await topics.create("u", 1)
        put_topic(tool, "v", [7])
        proxy.heal()
        await until(lambda: "v" in topics.names(), within_s=20)

        assert 0 == end(topics, P)


async def test_a_partition_whose_log_cannot_be_opened_does_not_disturb_the_others(
    server: EmbeddedZooKeeper, tool: KazooClient, tmp_path: Path
) -> None:
    """It has no leader until it can; then it is served without anybody's help."""
    (tmp_path / "t-0").write_text("a file where a directory should be")
    async with catalogue(server, tool, tmp_path) as topics:
        await topics.create("t", 2)
        hindered = (end(topics, P), end(topics, TopicPartition.modern("t", 1)))
        (tmp_path / "t-0").unlink()
        await topics.create("u", 1)

        assert (None, 0) == hindered
        assert 0 == end(topics, P)
