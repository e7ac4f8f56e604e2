# SPDX-License-Identifier: Apache-2.0
"""Members on an embedded cluster without ZooKeeper: they share, take over, and follow re-created topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from consumerd.aio.timeouts import timeout
from consumerd.client.opening import open_producer
from consumerd.config.settings import Settings
from consumerd.daemon.assemble import Daemon
from consumerd.daemon.status import DaemonStatus
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from tests.support.landing_reader import LandedPartition, read_landing
from tests.support.waiting import until

pytestmark = [pytest.mark.records, pytest.mark.timeout(300)]

TOPIC: Final = "orders"
PARTITIONS: Final = 4
PATIENCE_S: Final = 120.0


@contextlib.asynccontextmanager
async def served(partitions: int = PARTITIONS) -> AsyncIterator[EmbeddedCluster]:
    make = partial(BrokerSettings, as_release="4.0")
    async with EmbeddedCluster(without_zookeeper=True, make_broker=make, topics={TOPIC: partitions}) as cluster:
        yield cluster


class Running:
    """A daemon in this process."""

    def __init__(self, bootstrap: str, folder: Path, tasks: asyncio.TaskGroup, **offsets: object) -> None:
        settings = {
            "cluster": {"bootstrap": bootstrap},
            "group": {"id": "lake", "membership": "kafka", "session_timeout_ms": 6000},
            "offsets": {"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200, **offsets},
            "subscriptions": [{"topics": [TOPIC], "sink": "lake"}],
            "sinks": {"lake": {"type": "jsonl", "path": str(folder / "landing"), "roll_ms": 200}},
            "fetch": {"max_wait_ms": 100},
            "http": {"listen": "off"},
        }
        self.daemon = Daemon(Settings.model_validate(settings))
        self._stop = asyncio.Event()
        self._task = tasks.create_task(self.daemon.run(self._stop))

    async def status(self) -> DaemonStatus:
        return await self.daemon.read_status()

    async def stop(self) -> None:
        """Leave in order."""
        self._stop.set()
        await self._task

    async def kill(self) -> None:
        """End without leaving the group, as far as a task can."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def produce(
    cluster: EmbeddedCluster, numbers: Iterable[int], partitions: int = PARTITIONS, word: str = "v"
) -> None:
    async with open_producer(cluster.bootstrap) as producer:
        sent = [
            await producer.enqueue(TOPIC, f"{word}-{number}".encode(), key=b"k", partition=number % partitions)
            for number in numbers
        ]
        for one in sent:
            await one


async def shared(*members: Running) -> None:
    """Wait until these members own all partitions, each some, and none twice."""

    async def is_shared() -> bool:
        owned = [[one.partition for one in (await member.status()).partitions] for member in members]
        every = [partition for some in owned for partition in some]
        return all(owned) and len(every) == len(set(every)) == PARTITIONS

    await until(is_shared, within_s=PATIENCE_S)


async def acknowledged(*members: Running, least: int) -> None:
    async def is_done() -> bool:
        found = [one.acknowledged or 0 for member in members for one in (await member.status()).partitions]
        return sum(found) >= least

    await until(is_done, within_s=PATIENCE_S)


def landed(folder: Path) -> dict[int, LandedPartition]:
    landing = read_landing(folder / "landing")
    assert landing.problems == []
    return {int(one.partition): one for one in landing.partitions.values()}


def incarnations(one: LandedPartition) -> list[str]:
    return [str(chain.record["incarnation"]) for chain in one.chains]


async def test_two_members_share_and_take_over_and_each_record_lands_once(tmp_path: Path) -> None:
    """One leaves, one is cut off, one comes: files hold each record once, in one chain of the topic's id."""
    async with served() as cluster, asyncio.TaskGroup() as tasks:
        await produce(cluster, range(200))
        one, two = (Running(cluster.bootstrap, tmp_path, tasks) for _ in range(2))
        await shared(one, two)
        await produce(cluster, range(200, 400))
        await acknowledged(one, two, least=400)
        await one.kill()
        await shared(two)
        three = Running(cluster.bootstrap, tmp_path, tasks)
        await shared(two, three)
        await produce(cluster, range(400, 600))
        await acknowledged(two, three, least=600)
        status = await three.status()
        await two.stop()
        await shared(three)
        await three.stop()

    found = landed(tmp_path)
    assert {one: list(range(150)) for one in range(PARTITIONS)} == {one: found[one].offsets for one in found}
    assert {1} == {len(one.chains) for one in found.values()}
    (incarnation,) = {name for one in found.values() for name in incarnations(one)}
    assert 22 == len(incarnation)
    assert ("none", "kafka") == (status.session_phase, status.positions)
    assert status.coordination is not None


async def test_recreated_topic_lands_from_its_beginning_in_a_chain_of_its_own(tmp_path: Path) -> None:
    """It has more records than the old one had. With ``on_missing: latest``, nothing of it is skipped either."""
    async with served(partitions=1) as cluster, asyncio.TaskGroup() as tasks:
        member = Running(cluster.bootstrap, tmp_path, tasks, on_missing="latest")

        async def has_begun() -> bool:
            return any(one.acknowledged is not None for one in (await member.status()).partitions)

        await until(has_begun, within_s=PATIENCE_S)
        await produce(cluster, range(50), 1, "old")
        await acknowledged(member, least=50)
        await cluster.broker.topics.delete(TOPIC)
        await cluster.broker.create_topic(TOPIC)
        await produce(cluster, range(80), 1, "new")

        async def has_all() -> bool:
            with contextlib.suppress(KeyError):
                chains = (await asyncio.to_thread(landed, tmp_path))[0].chains
                return len(chains) == 2 and chains[1].end == 80
            return False

        await until(has_all, within_s=PATIENCE_S)
        await member.stop()

    partition = landed(tmp_path)[0]
    old, new = incarnations(partition)
    assert old != new
    assert [50, 80] == [sum(len(file.records) for file in chain.files) for chain in partition.chains]


async def test_member_goes_on_at_its_committed_position(tmp_path: Path) -> None:
    """After all have stopped; the commit names the topic's id."""
    async with served() as cluster, asyncio.TaskGroup() as tasks:
        await produce(cluster, range(100))
        one = Running(cluster.bootstrap, tmp_path, tasks)
        await acknowledged(one, least=100)
        await one.stop()
        await produce(cluster, range(100, 200))
        two = Running(cluster.bootstrap, tmp_path, tasks)
        await acknowledged(two, least=200)
        await two.stop()

    assert {one: list(range(50)) for one in range(PARTITIONS)} == {
        one: each.offsets for one, each in landed(tmp_path).items()
    }


async def test_waiting_for_brokers_is_told(tmp_path: Path) -> None:
    """Before the cluster is there."""
    async with served() as cluster:
        bootstrap = cluster.bootstrap
    async with asyncio.TaskGroup() as tasks:
        member = Running(bootstrap, tmp_path, tasks)

        async def is_told() -> bool:
            status = await member.status()
            return not status.ready and "brokers at" in status.not_ready[0]

        async with timeout(PATIENCE_S):
            await until(is_told, within_s=PATIENCE_S)
        await member.stop()


async def test_goes_on_without_the_brokers_of_its_settings(tmp_path: Path) -> None:
    """They only tell of the others: months later, none of them need be there any more."""
    make = partial(BrokerSettings, as_release="4.0")
    async with (
        EmbeddedCluster(without_zookeeper=True, make_broker=make, topics={TOPIC: PARTITIONS}, nodes=2) as cluster,
        asyncio.TaskGroup() as tasks,
    ):
        one = Running(cluster.brokers[0].bootstrap, tmp_path, tasks)
        await shared(one)
        await produce(cluster, range(100))
        await acknowledged(one, least=100)
        await cluster.stop_broker(0)
        await produce(cluster, range(100, 200))

        async def is_committed() -> bool:
            return 200 == sum(one.committed or 0 for one in (await one.status()).partitions)

        await until(is_committed, within_s=PATIENCE_S)
        two = Running(cluster.bootstrap, tmp_path, tasks)
        await shared(one, two)
        await one.stop()
        await two.stop()

    assert {one: list(range(50)) for one in range(PARTITIONS)} == {
        one: each.offsets for one, each in landed(tmp_path).items()
    }


async def test_brokers_without_topic_ids_are_told(tmp_path: Path) -> None:
    """A member that owns nothing says why, once for each topic."""
    with capture_logs() as entries:
        old = EmbeddedCluster(topics={TOPIC: PARTITIONS})
        async with timeout(PATIENCE_S), old as cluster, asyncio.TaskGroup() as tasks:
            member = Running(cluster.bootstrap, tmp_path, tasks)

            async def is_told() -> bool:
                return any(one["event"] == "topic_unreadable" for one in entries)

            await until(is_told, within_s=PATIENCE_S)
            status = await member.status()
            await member.stop()

    assert status.partitions == ()
    told = [one for one in entries if one["event"] == "topic_unreadable"]
    assert [(one["topic"], "no topic id" in one["error"]) for one in told] == [(TOPIC, True)]
