# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper goes away, comes back, or forgets us, while records flow; and a process that stalls past its session."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from consumerd.aio.timeouts import timeout
from tests.interop.conftest import ClusterFactory, Figure
from tests.support.daemon import Daemon, Delivery, settings_for
from tests.support.kafka import Cluster
from tests.support.landing_check import Place, check_landing, find_faults, wait_landed
from tests.support.load import SteadyLoad
from tests.support.registry import CommitWatch, Registry, open_registry
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import wait_until
from tests.support.zookeeper import SYNC, at_answer_to

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 6
PER_PARTITION = 50
SESSION_S = 6.0
SHORT_SESSION_S = 3.0


@pytest.mark.timeout(150)
async def test_a_cut_shorter_than_the_session_repeats_nothing_and_moves_nothing(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Cut right after an answered probe, for 0.7 of a session: delivery pauses, and goes on where it was."""
    cluster = shared_clusters(release)
    topic, group = unique("cut"), unique("cut")
    await asyncio.to_thread(cluster.create_topic, topic, PARTITIONS)
    async with TcpProxy(cluster.zk_port) as proxy:
        settings = settings_for(proxy.connect_string, group, topics=(topic,))
        producer = cluster.ledger_producer(linger_ms="5")
        with (
            Daemon(tmp_path, "member", settings) as daemon,
            SteadyLoad(producer, {topic: PARTITIONS}, per_second=PER_PARTITION),
        ):
            await asyncio.to_thread(daemon.wait, lambda: len(daemon.deliveries) > 200, "records flow")
            before = await asyncio.to_thread(daemon.status)
            cut_at = await _cut_after_probe(proxy)
            await asyncio.to_thread(wait_until, lambda: time.monotonic() - cut_at > 0.7 * SESSION_S, "0.7 of a session")
            await proxy.listen()
            healed_at = time.monotonic()
            await asyncio.to_thread(
                daemon.wait, lambda: any(one.at > healed_at + 3 for one in daemon.deliveries), "records flow again"
            )
            after = await asyncio.to_thread(daemon.status)
        ledger = await asyncio.to_thread(producer.finish)
        counts = Counter((one.topic, one.partition, one.offset) for one in daemon.deliveries)

    assert [key for key, count in counts.items() if count > 1] == [], "repeated"
    assert set(counts) <= set(ledger)
    assert after["session_epoch"] == before["session_epoch"]
    assert after["session_id"] == before["session_id"]
    assert len(after["rebalances"]) == len(before["rebalances"])
    pauses = [late.at - early.at for early, late in zip(daemon.deliveries, daemon.deliveries[1:], strict=False)]
    assert max(pauses) > 0.1 * SESSION_S, "delivery goes on although another member may soon own the partitions"


async def _cut_after_probe(proxy: TcpProxy) -> float:
    """Cut and refuse right after the answer to a probe has passed; return when that was."""
    done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    cut_after_answer = at_answer_to(SYNC, Action.CUT_AFTER)

    def on_frame(direction: Direction, frame: bytes) -> Action:
        action = cut_after_answer(direction, frame)
        if action is Action.CUT_AFTER and not done.done():
            proxy.on_frame = None
            proxy.refuse()
            done.set_result(time.monotonic())
        return action

    proxy.on_frame = on_frame
    async with timeout(20):
        return await done


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment on the clocks of whoever is asked about it."""

    monotonic: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)


@pytest.mark.smoke
@pytest.mark.timeout(150)
async def test_half_open_for_longer_than_a_session_stops_everything_before_the_server_gives_it_away(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """The server hears nothing of us: by its time stamps and ours, delivery, files and commits end before the session.

    A record that is delivered, a file that is published or a position that is written after the server has ended the
    session is one that the next owner may deliver, publish or write as well.
    """
    cluster = shared_clusters(release)
    printed, landed, group = unique("printed"), unique("landed"), unique("half-open")
    for topic in (printed, landed):
        await asyncio.to_thread(cluster.create_topic, topic, PARTITIONS)
    landing = tmp_path / "landing"
    async with TcpProxy(cluster.zk_port) as proxy:
        settings = settings_for(
            proxy.connect_string,
            group,
            topics=(printed,),
            group={"session_timeout_ms": int(SHORT_SESSION_S * 1000)},
            offsets={"commit_interval_ms": 100},
        )
        settings["subscriptions"].append({"topics": [landed], "sink": "lake"})
        settings["sinks"]["lake"] = {"type": "jsonl", "path": str(landing), "roll_ms": 100}
        producer = cluster.ledger_producer(linger_ms="5")
        with open_registry(cluster.zookeeper) as registry, Daemon(tmp_path, "member", settings) as daemon:
            with SteadyLoad(producer, dict.fromkeys((printed, landed), PARTITIONS), per_second=PER_PARTITION):
                await asyncio.to_thread(daemon.wait_ready)
                await asyncio.to_thread(
                    daemon.wait,
                    lambda: sum(map(bool, registry.offsets(group, landed).values())) == PARTITIONS,
                    "files and commits",
                )
                count = len(daemon.deliveries)
                await asyncio.to_thread(daemon.wait, lambda: len(daemon.deliveries) > count + 200, "records flow")
                proxy.blackhole(Direction.TO_SERVER)
                alive = await asyncio.to_thread(_watch_owners_end, registry, group, (printed, landed))
                # only a later act would show, so one has to be given its chance
                await asyncio.to_thread(wait_until, lambda: _age(alive) > SHORT_SESSION_S / 2, "half a session more")
                last = {
                    "delivery": daemon.deliveries[-1].at - alive.monotonic,
                    "publication": max(path.stat().st_ctime for path in landing.rglob("0*.jsonl")) - alive.wall,
                    "commit": max(
                        registry.offsets_written(group, topic) for topic in (printed, landed)
                    ) - alive.wall,
                }  # fmt: skip
                proxy.heal()
                await asyncio.to_thread(daemon.wait, lambda: daemon.status()["session_epoch"] == 2, "a new session", 40)
            ledger = await asyncio.to_thread(producer.finish)
            places = {place for place in ledger if place[0] == landed}
            await asyncio.to_thread(wait_landed, landing, places)
            await asyncio.to_thread(
                daemon.wait, lambda: {_place(one) for one in daemon.deliveries} >= set(ledger) - places, "all delivered"
            )

    for what, seconds in last.items():
        figure(f"seconds from the last {what} to the end of the session", -seconds)
    assert {what: seconds for what, seconds in last.items() if seconds >= 0} == {}
    assert find_faults(landing, {place: sent for place, sent in ledger.items() if place in places}) == []


def _watch_owners_end(registry: Registry, group: str, topics: Collection[str]) -> Moment:
    """Wait until the server has ended the session that owns everything; return the last moment when it had not."""
    alive = Moment()
    while True:
        asked = Moment()
        if any(len(registry.owners(group, topic)) < PARTITIONS for topic in topics):
            return alive
        alive = asked
        time.sleep(0.002)


def _age(moment: Moment) -> float:
    return time.monotonic() - moment.monotonic


def _place(one: Delivery) -> Place:
    return one.topic, one.partition, one.offset


@pytest.mark.timeout(150)
def test_zookeeper_killed_and_restarted(
    release: str, own_cluster: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Two members go on by themselves, own everything again, and what they landed is whole."""
    cluster = own_cluster(release)
    topic, group = unique("killed"), unique("killed")
    cluster.create_topic(topic, PARTITIONS)
    landing = tmp_path / "landing"
    sink = {"type": "jsonl", "path": str(landing), "roll_ms": 500}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)
    producer = cluster.ledger_producer(linger_ms="5")
    with Daemon(tmp_path, "one", settings) as one, Daemon(tmp_path, "two", settings) as two:
        with SteadyLoad(producer, {topic: PARTITIONS}, per_second=PER_PARTITION):
            one.wait(lambda: len(one.owned()) == len(two.owned()) == PARTITIONS // 2, "both own half")
            cluster.kill_zookeeper()
            one.wait(lambda: one.status()["session_phase"] in {"paused", "suspended", "none"}, "one notices")
            assert one.get("/livez")[0] == 200
            cluster.start_zookeeper()
            with open_registry(cluster.zookeeper) as registry:
                one.wait(
                    lambda: registry.is_settled(group, topic, PARTITIONS), "everything is owned by the rule again", 40
                )
            one.wait_ready()
            two.wait_ready()
        ledger = producer.finish()
        wait_landed(landing, ledger)
        assert one.terminate() == 0
        assert two.terminate() == 0

    check_landing(landing, ledger)


@pytest.mark.timeout(120)
async def test_a_zookeeper_that_becomes_slow_costs_time_and_nothing_else(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Every answer comes 300 ms late, of a session of 3 s: the lease stays fresh, a member comes and goes, and each record
    lands once.
    """
    cluster, name = shared_clusters(release), unique("slow")
    await asyncio.to_thread(cluster.create_topic, name, PARTITIONS)
    async with TcpProxy(cluster.zk_port) as proxy:
        await asyncio.to_thread(_share_while_slow, cluster, proxy, name, tmp_path)


def _share_while_slow(cluster: Cluster, proxy: TcpProxy, name: str, folder: Path) -> None:
    """Let a second member come and go, whose ZooKeeper is quick; then judge the first one and what has landed."""
    options = {
        "topics": (name,),
        "sink": {"type": "parquet", "path": str(folder / "landing"), "roll_ms": 400},
        "group": {"session_timeout_ms": int(SHORT_SESSION_S * 1000)},
        "log": {"level": "info"},
    }
    producer = cluster.ledger_producer(linger_ms="5")
    with (
        open_registry(cluster.zookeeper) as registry,
        Daemon(folder, "slow", settings_for(proxy.connect_string, name, **options)) as slow,
    ):
        with SteadyLoad(producer, {name: PARTITIONS}, per_second=PER_PARTITION):
            slow.wait(lambda: len(registry.offsets(name, name)) == PARTITIONS, "the first commits")
            proxy.delay_s = 0.3
            with Daemon(folder, "quick", settings_for(cluster.zookeeper, name, **options)) as quick:
                quick.wait(
                    lambda: len(registry.members(name)) == 2 and registry.is_settled(name, name, PARTITIONS),
                    "both share by the rule",
                )
                assert quick.terminate() == 0, quick.log()[-3000:]
            slow.wait(lambda: registry.is_settled(name, name, PARTITIONS), "the slow one has everything back")
        ledger = producer.finish()
        wait_landed(folder / "landing", ledger)
        metrics = slow.get("/metrics")[1]
        assert slow.terminate() == 0, slow.log()[-3000:]

    assert re.findall(r'consumerd_session_phase_total{phase="(\w+)"} (\S+)', metrics) == [("fresh", "1.0")]
    assert find_faults(folder / "landing", ledger) == []


@pytest.mark.timeout(150)
def test_a_process_stopped_past_its_session_harms_nobody_when_it_wakes_up(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Promise 3: files never overlap, commits never regress, and the sleeper comes back as a new member."""
    cluster = shared_clusters(release)
    topic, group = unique("stalled"), unique("stalled")
    cluster.create_topic(topic, PARTITIONS)
    landing = tmp_path / "landing"
    sink = {"type": "parquet", "path": str(landing), "roll_ms": 400}
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), sink=sink)
    producer = cluster.ledger_producer(linger_ms="5")
    with (
        open_registry(cluster.zookeeper) as registry,
        Daemon(tmp_path, "sleeper", settings) as sleeper,
        CommitWatch(registry, group, topic) as commits,
    ):
        with SteadyLoad(producer, {topic: PARTITIONS}, per_second=PER_PARTITION) as load:
            sleeper.wait(lambda: len(sleeper.owned()) == PARTITIONS, "the sleeper owns all")
            sleeper.wait(lambda: commits.count > 2 * PARTITIONS, "commits")
            with Daemon(tmp_path, "heir", settings) as heir:
                heir.wait(lambda: len(heir.owned()) == PARTITIONS // 2, "the heir owns half")
                sleeper.stop()
                heir.wait(lambda: len(heir.owned()) == PARTITIONS, "the heir takes over", 40)
                landed = commits.count
                heir.wait(lambda: commits.count > landed + 2 * PARTITIONS, "the heir commits")
                sleeper.resume()
                heir.wait(lambda: sleeper.status()["session_epoch"] == 2, "the sleeper has a new session", 40)
                heir.wait(
                    lambda: len(registry.members(group)) == 2 and registry.is_settled(group, topic, PARTITIONS),
                    "both share again by the rule",
                    40,
                )
                assert len(sleeper.owned()) == PARTITIONS // 2
                load.stop()
                ledger = producer.finish()
                wait_landed(landing, ledger)
                assert heir.terminate() == 0
        assert sleeper.terminate() == 0
    assert commits.regressions == []
    check_landing(landing, ledger)
