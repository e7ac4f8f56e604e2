# SPDX-License-Identifier: Apache-2.0
"""The view that everybody believes, and how it is kept true."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

import pytest
import structlog

from consumerd.cluster.directory import ClusterDirectory, KnownBrokers
from consumerd.cluster.view import EMPTY_VIEW, ClusterSource, ClusterView
from consumerd.errors import ConnectionLost
from consumerd.model import Incarnation, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import NotConnected
from tests.support import virtual_time
from tests.support.cluster import make_broker, make_view, wait_leader
from tests.support.fake_zookeeper import FakeZooKeeper

T0 = TopicPartition.modern("t", 0)


class Source:
    """A source whose account is set by the test; None fails."""

    def __init__(self, view: ClusterView | None, failure: Exception) -> None:
        self.view = view
        self.delay_s = 0.01
        self.reads: list[float] = []
        self.asked: list[frozenset[str]] = []
        self.with_leaders: list[bool] = []
        self.known: KnownBrokers = list
        self._failure = failure

    async def read(self, topics: Collection[str] | None, *, leaders: bool = True) -> ClusterView:
        self.reads.append(asyncio.get_running_loop().time())
        self.asked.append(frozenset(topics or ()))
        self.with_leaders.append(leaders)
        await asyncio.sleep(self.delay_s)
        if self.view is None:
            raise self._failure
        return self.view


class Told(Hooks):
    def __init__(self) -> None:
        self.refreshes: list[tuple[str, bool]] = []

    def metadata_refreshed(self, source: str, *, failed: bool) -> None:
        self.refreshes.append((source, failed))


class Scene:
    """A directory over two sources, with a ZooKeeper for its watches."""

    def __init__(self, zookeeper: ClusterView | None, metadata: ClusterView | None) -> None:
        self.zookeeper = Source(zookeeper, NotConnected("away"))
        self.metadata = Source(metadata, ConnectionLost("all down"))
        self.told = Told()
        self.server = FakeZooKeeper()

    def run(self, scenario: Callable[[ClusterDirectory], Awaitable[None]], *, connect_after_s: float = 0.0) -> None:
        async def play() -> None:
            client = self.server.client("directory")
            if connect_after_s:
                asyncio.get_running_loop().call_later(connect_after_s, client.connect)
            else:
                client.connect()
            directory = ClusterDirectory(
                client,
                self.zookeeper,
                self._from_brokers,
                now=asyncio.get_running_loop().time,
                random=random.Random(1).random,
                hooks=self.told,
                layout=MODERN,
            )
            directory.follow({"t"})
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(directory.run())
                await scenario(directory)
                running.cancel()
            assert not any(client.watches.values())

        virtual_time.run(play())

    def _from_brokers(self, known: KnownBrokers) -> ClusterSource:
        self.metadata.known = known
        return self.metadata


def healthy(leader: int = 1, brokers: Collection[int] = (1, 2)) -> Scene:
    return Scene(make_view(brokers, {"t": [leader]}, epoch=1, incarnation=5), make_view(brokers, {"t": [leader]}))


def test_zookeeper_is_asked_who_leads_only_where_that_is_in_doubt() -> None:
    """It is a read for each of thousands of partitions, and Metadata tells it in one."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await wait_leader(directory, T0)
        await asyncio.sleep(20)
        directory.follow({"t", "u"})
        await asyncio.sleep(20)
        assert scene.zookeeper.with_leaders == [False, False]
        await directory.refresh("a broker says that it is not the leader")
        assert scene.zookeeper.with_leaders[-1]
        scene.metadata.view = None
        await asyncio.sleep(320)
        assert scene.zookeeper.with_leaders[-1], "nobody else tells now"

    scene.run(scenario)


def test_a_watch_that_fires_for_nothing_costs_no_reading_of_everything() -> None:
    """Each is told now and then, and after a reconnect, that it may have missed something."""
    scene = healthy()
    scene.server.put("/brokers/ids")
    scene.server.put("/brokers/topics/t", b"1")

    async def scenario(directory: ClusterDirectory) -> None:
        await wait_leader(directory, T0)
        await asyncio.sleep(20)
        for _ in range(3):
            directory._hear_news()  # as a session has it do that renews its watches
            await asyncio.sleep(20)
        reads = len(scene.zookeeper.reads)
        for _ in range(5):
            directory._hear_news()
            await asyncio.sleep(20)
        assert len(scene.zookeeper.reads) == reads
        scene.server.put("/brokers/topics/t", b"2")
        await asyncio.sleep(1)
        assert len(scene.zookeeper.reads) == reads + 1

    scene.run(scenario)


def test_first_view_has_brokers_leaders_and_incarnations() -> None:
    """Brokers come from ZooKeeper at first: it is what the configuration names."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        assert await wait_leader(directory, T0) == make_broker(1)
        assert directory.view.topics["t"].incarnation == Incarnation(5)
        assert "u" not in directory.view.topics
        await directory.refresh("test")
        assert [broker.id for broker in scene.metadata.known()] == [1, 2]

    scene.run(scenario)
    assert scene.metadata.reads[0] == pytest.approx(0.01)  # not before there was a broker to ask


def test_normal_start_reports_no_failure() -> None:
    """The session is established a moment after everything starts; that is no warning to anybody."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await wait_leader(directory, T0)

    with structlog.testing.capture_logs() as logs:
        scene.run(scenario, connect_after_s=0.5)
    assert [log for log in logs if log["log_level"] != "debug"] == []
    assert scene.zookeeper.reads[0] >= 0.5


def test_quiet_cluster_is_read_every_few_minutes() -> None:
    """Watches may be lost in ways that nobody notices."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await asyncio.sleep(1000)

    scene.run(scenario)
    assert [round(at) for at in scene.zookeeper.reads] == [0, 300, 600, 900]


def test_storm_of_complaints_costs_few_reads() -> None:
    """A thousand partitions that lose their leader ask as one, and ever more slowly while nothing changes."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await directory.refresh("settle")
        for _ in range(600):
            for _ in range(100):
                directory.request_refresh("not the leader")
            await asyncio.sleep(0.1)

    scene.run(scenario)
    assert 15 <= len(scene.zookeeper.reads) <= 30
    gaps = [
        later - earlier for earlier, later in zip(scene.zookeeper.reads[1:], scene.zookeeper.reads[2:], strict=False)
    ]
    assert gaps[0] < 1.0 < gaps[-1]


def test_refresh_returns_after_one_that_began_later() -> None:
    """A reading that was on its way may have seen the state that is complained about."""
    scene = healthy()
    scene.zookeeper.delay_s = 1.0

    async def scenario(directory: ClusterDirectory) -> None:
        await directory.views.wait(lambda view: bool(view.brokers))
        async with asyncio.TaskGroup() as tasks:
            earlier = tasks.create_task(directory.refresh("first"))
            await asyncio.sleep(0.9)
            begun = len(scene.zookeeper.reads)
            await directory.refresh("second")
            assert earlier.done()
        assert len(scene.zookeeper.reads) == begun + 1

    scene.run(scenario)


def test_moved_leader_is_found() -> None:
    """The change is seen at the next reading, which the complaint brings about at once."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await wait_leader(directory, T0)
        await asyncio.sleep(100)
        scene.zookeeper.view = make_view({1, 2}, {"t": [2]}, epoch=2)
        scene.metadata.view = make_view({1, 2}, {"t": [2]})
        before = asyncio.get_running_loop().time()
        assert directory.find_leader(T0) == make_broker(1)
        await directory.refresh("not the leader")
        assert directory.find_leader(T0) == make_broker(2)
        assert asyncio.get_running_loop().time() - before < 0.1

    scene.run(scenario)


def test_leaderless_partition_is_read_again_until_it_has_one() -> None:
    """An election is under way; nobody needs to ask."""
    scene = Scene(make_view({1}, {"t": [None]}, epoch=1), make_view({1}, {"t": [None]}))

    async def scenario(directory: ClusterDirectory) -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(wait_leader(directory, T0))
            await asyncio.sleep(0.5)
            scene.zookeeper.view = make_view({1}, {"t": [1]}, epoch=2)
            scene.metadata.view = make_view({1}, {"t": [1]})
        assert waiting.result() == make_broker(1)
        assert asyncio.get_running_loop().time() < 3

    scene.run(scenario)


def test_zookeeper_away_keeps_its_account_and_believes_metadata() -> None:
    """Leaders move while ZooKeeper is away from us (not from the brokers)."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await wait_leader(directory, T0)
        scene.zookeeper.view = None
        scene.metadata.view = make_view({1, 2}, {"t": [2]})
        await directory.refresh("not the leader")
        assert directory.find_leader(T0) == make_broker(2)
        assert directory.view.topics["t"].incarnation == Incarnation(5)
        assert ("zookeeper", True) in scene.told.refreshes

    scene.run(scenario)


def test_all_brokers_away_leave_zookeepers_account() -> None:
    """It names the leader to try again when they are back."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await wait_leader(directory, T0)
        scene.metadata.view = None
        scene.zookeeper.view = make_view({2}, {"t": [2]}, epoch=2)
        await directory.refresh("connection lost")
        assert directory.find_leader(T0) == make_broker(2)

    scene.run(scenario)


def test_brokers_that_have_all_moved_are_asked_at_the_addresses_that_they_registered() -> None:
    """Nobody answers at the addresses of the last Metadata response any more; ZooKeeper knows the new ones."""
    scene = healthy(brokers=(1,))

    async def scenario(directory: ClusterDirectory) -> None:
        await directory.refresh("settle")
        moved = replace(make_broker(1), host="moved")
        scene.metadata.view = None
        scene.zookeeper.view = replace(scene.zookeeper.view or EMPTY_VIEW, brokers={moved.id: moved})
        await directory.refresh("connection lost")
        assert directory.find_leader(T0) == moved
        assert list(scene.metadata.known()) == [moved]
        # Metadata that answers again is believed: its listener is the one that we can reach
        behind_a_proxy = replace(moved, host="listener")
        scene.metadata.view = replace(make_view({1}, {"t": [1]}), brokers={moved.id: behind_a_proxy})
        await directory.refresh("again")
        assert directory.find_leader(T0) == behind_a_proxy

    scene.run(scenario)


def test_broker_that_is_not_registered_is_not_asked_for_metadata() -> None:
    """It has left the cluster, answers still, and names itself in each response."""
    scene = healthy(brokers=(1, 2))

    async def scenario(directory: ClusterDirectory) -> None:
        scene.zookeeper.view = make_view({1}, {"t": [1]}, epoch=2, incarnation=5)
        await directory.refresh("2 has left")
        assert list(scene.metadata.known()) == [make_broker(1)]
        scene.zookeeper.view = None
        await directory.refresh("who is registered cannot be read")
        assert list(scene.metadata.known()) == [make_broker(1), make_broker(2)]

    scene.run(scenario)


def test_everything_away_empties_nothing() -> None:
    """And is tried again at most every ten seconds; one line tells of it, one of the recovery."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        before = await directory.refresh("settle")
        scene.zookeeper.view = scene.metadata.view = None
        await directory.refresh("broken")
        started = len(scene.zookeeper.reads)
        await asyncio.sleep(100)
        assert directory.view.find_leader(T0) == before.find_leader(T0)
        assert 10 <= len(scene.zookeeper.reads) - started <= 40
        scene.zookeeper.view, scene.metadata.view = before, make_view({1, 2}, {"t": [1]})
        await directory.refresh("mended")

    with structlog.testing.capture_logs() as logs:
        scene.run(scenario)
    events = [(log["event"], log["source"]) for log in logs if log["event"].startswith("cluster_read")]
    assert sorted(events) == sorted(
        (event, source)
        for event in ("cluster_read_failed", "cluster_read_recovered")
        for source in ("zookeeper", "metadata")
    )


def test_nothing_there_at_start_is_waited_for() -> None:
    """A daemon may be started before its cluster."""
    scene = Scene(None, None)

    async def scenario(directory: ClusterDirectory) -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(wait_leader(directory, T0))
            await asyncio.sleep(60)
            assert not waiting.done()
            scene.zookeeper.view = make_view({1}, {"t": [1]}, epoch=1)
            scene.metadata.view = make_view({1}, {"t": [1]})
        assert waiting.result() == make_broker(1)
        assert asyncio.get_running_loop().time() < 71

    scene.run(scenario)


def test_watches_bring_a_refresh() -> None:
    """New brokers, new partitions, new topics: at once, not after minutes."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        for change in (
            lambda: scene.server.put("/brokers/ids/3", b"{}"),
            lambda: scene.server.put("/brokers/topics/t", b"one"),
            lambda: scene.server.put("/brokers/topics/t", b"two"),
        ):
            await asyncio.sleep(50)
            reads = len(scene.zookeeper.reads)
            change()
            scene.server.put("/brokers/topics/u", b"nobody follows it")
            await asyncio.sleep(1)
            assert len(scene.zookeeper.reads) == reads + 1

    scene.run(scenario)


def test_news_cut_a_long_backoff_short() -> None:
    """A broker dies, and everybody complains in vain until its ZooKeeper session ends; then seconds count."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        async with asyncio.TaskGroup() as tasks:
            complaining = tasks.create_task(_complain(directory))
            await asyncio.sleep(40)
            reads = len(scene.zookeeper.reads)
            scene.server.put("/brokers/ids/3", b"{}")
            await asyncio.sleep(1)
            assert len(scene.zookeeper.reads) >= reads + 2
            complaining.cancel()

    scene.run(scenario)


def test_burst_of_news_is_one_refresh() -> None:
    """A thousand topics made by a script are read a few times, not a thousand."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await asyncio.sleep(50)
        reads = len(scene.zookeeper.reads)
        for number in range(200):
            scene.server.put("/brokers/topics/t", b"%d" % number)
            await asyncio.sleep(0.005)
        await asyncio.sleep(1)
        assert 2 <= len(scene.zookeeper.reads) - reads <= 10

    scene.run(scenario)


async def _complain(directory: ClusterDirectory) -> None:
    while True:
        directory.request_refresh("connection lost")
        await asyncio.sleep(0.1)


def test_following_other_topics_reads_and_watches_them() -> None:
    """A pattern that matches a new topic; what is no longer followed costs nothing more."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await asyncio.sleep(50)
        directory.follow({"u"})
        directory.follow({"u"})
        await directory.refresh("test")
        assert scene.zookeeper.asked[-1] == scene.metadata.asked[-1] == frozenset({"u"})
        await asyncio.sleep(50)
        reads = len(scene.zookeeper.reads)
        scene.server.put("/brokers/topics/t", b"")
        await asyncio.sleep(1)
        assert len(scene.zookeeper.reads) == reads
        scene.server.put("/brokers/topics/u", b"")
        await asyncio.sleep(1)
        assert len(scene.zookeeper.reads) == reads + 1

    scene.run(scenario)


def test_passing_disagreement_is_not_worth_a_line() -> None:
    """Every election is one."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await wait_leader(directory, T0)
        scene.metadata.view = make_view({1, 2}, {"t": [2]})
        await directory.refresh("test")
        await asyncio.sleep(3)
        scene.metadata.view = make_view({1, 2}, {"t": [1]})
        await asyncio.sleep(100)

    with structlog.testing.capture_logs() as logs:
        scene.run(scenario)
    assert not [log for log in logs if "views" in log["event"]]


def test_lasting_disagreement_is_reported_once_and_its_end_too() -> None:
    """A broker that is cut off from its controller, or a ZooKeeper server that lags."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await wait_leader(directory, T0)
        scene.metadata.view = make_view({1, 2}, {"t": [2]})
        await directory.refresh("test")
        await asyncio.sleep(100)
        assert directory.find_leader(T0) == make_broker(1)
        scene.metadata.view = make_view({1, 2}, {"t": [1]})
        await asyncio.sleep(100)

    with structlog.testing.capture_logs() as logs:
        scene.run(scenario)
    lines = [log for log in logs if "views" in log["event"]]
    assert [line["event"] for line in lines] == ["cluster_views_disagree", "cluster_views_agree"]
    assert (lines[0]["subject"], lines[0]["zookeeper"], lines[0]["metadata"]) == ("t/0", "1", "2")


def test_hanging_zookeeper_does_not_hold_up_metadata() -> None:
    """Its account is published when it comes, the other at once."""
    scene = healthy()

    async def scenario(directory: ClusterDirectory) -> None:
        await directory.refresh("settle")
        scene.zookeeper.delay_s = 30
        scene.metadata.view = make_view({1, 2, 3}, {"t": [1]})
        directory.request_refresh("test")
        before = asyncio.get_running_loop().time()
        await directory.views.wait(lambda view: 3 in view.brokers)
        assert asyncio.get_running_loop().time() - before < 1.0

    scene.run(scenario)
