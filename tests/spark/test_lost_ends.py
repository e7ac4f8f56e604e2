# SPDX-License-Identifier: Apache-2.0
"""Logs that lose their ends in unclean elections, through delivery, files, audit and bronze: each record that was landed, once.

A record's time says which history of the log it is of: the same offsets are other records after an election.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd.delivery.policy import OffsetPolicy, OnOutOfRange
from consumerd.delivery.ports import DeliverySettings
from consumerd.delivery.status import DeliveryState
from consumerd.landing.examine import examine
from consumerd.landing.findings import FindingKind
from consumerd.landing.footers import read_all
from consumerd.landing.report import AuditReport
from consumerd.landing.scan import scan_landing
from consumerd.model import TopicPartition
from tests.support.bronze import read_bronze, run_bronze
from tests.support.clocks import LoopClock
from tests.support.delivery import TOPIC_CZXID, DeliveryRig, FakeLog
from tests.support.landing_zone import FIRST_MS, LandingZone
from tests.support.sinks import SinkRig
from tests.support.waiting import until

pytestmark = pytest.mark.records

P = TopicPartition.modern("orders", 0)
HISTORY_MS = 1_000_000
Row = tuple[str, int, int]
"""Incarnation, offset, time in ms."""


class Group:
    """Replicas of one group, each with the folder of a name, and the bronze table of what they land."""

    def __init__(self, spark: SparkSession, at: Path, on_above: OnOutOfRange) -> None:
        self.spark = spark
        self.at = at
        self.settings = DeliverySettings(commit_interval_ms=10, recheck_ms=50, offsets=OffsetPolicy(on_above=on_above))
        self.files: dict[str, SinkRig] = {}
        self.rig: DeliveryRig | None = None
        self.epoch = 0
        self.log = FakeLog(0, 0)
        self.log.timestamp_ms = self._time
        self.ledger: list[Row] = []
        self.elections = 0

    def append(self, count: int) -> None:
        """Produce; what is landed of a history before stays in the ledger."""
        end = self.log.latest
        name = f"{TOPIC_CZXID}.{self.elections}" if self.elections else str(TOPIC_CZXID)
        self.ledger += [(name, offset, self._time(offset)) for offset in range(end, end + count)]
        self.log.append(count)

    def elect(self, end: int) -> None:
        """Lose the log's end."""
        self.elections += 1
        self.log.truncate(end)

    def _time(self, offset: int) -> int:
        return FIRST_MS + self.elections * HISTORY_MS + offset

    async def hold(self, folder: str, work: Callable[[DeliveryRig], Awaitable[None]]) -> None:
        """Have a replica claim the partition, and lose it after ``work``."""
        files = self.files.setdefault(
            folder,
            SinkRig(
                kind="parquet",
                path=self.at / folder,
                clock=LoopClock(),
                roll_ms=30,
                shared=False,
                consumer_id=folder,
            ),
        )
        rig = DeliveryRig(destination=files.member(), settings=self.settings, beside=self.rig)
        if self.rig is None:
            self.rig = rig
            rig.brokers.logs[P] = self.log
            rig.store.put(P, 0)
        async with rig:
            self.epoch += 1
            await rig.claim(P, self.epoch)
            await work(rig)
            rig.claims[P].lease.set("lost")
            await rig.deliveries.lost([P])

    async def close(self) -> None:
        for files in self.files.values():
            await files.close()

    def run_bronze(self) -> None:
        """Take over what has landed, and hold the table against the ledger."""
        zones = [LandingZone(files.path) for files in self.files.values()]
        summary = run_bronze(self.spark, zones, self.at / "bronze")
        rows = [
            (key.incarnation, key.offset, content[0] or 0)
            for key, content in read_bronze(self.spark, self.at / "bronze")
        ]
        assert sorted(self.ledger) == sorted(rows)
        assert () == summary.findings
        assert [] == [finding.detail for finding in self.examine().errors]

    def examine(self) -> AuditReport:
        """Audit what has landed."""
        return examine(read_all(scan_landing([files.path for files in self.files.values()])), depth="footers")


async def committed(rig: DeliveryRig, position: int) -> None:
    await until(lambda: rig.store.position(P) == position)


@pytest.mark.parametrize("way", ["policy", "request"])
def test_records_after_an_election_are_in_bronze_beside_those_that_the_log_has_lost(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """Under a policy, and under the default one by the request that the stop's advice names."""
    group = Group(spark, tmp_path, "nearest" if way == "policy" else "stop")

    async def before(rig: DeliveryRig) -> None:
        group.append(40)
        await committed(rig, 40)

    async def after(rig: DeliveryRig) -> None:
        group.elect(30)
        if way == "request":
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            rig.requests.put(P, 30)
        await committed(rig, 30)
        group.append(20)
        await committed(rig, 50)

    async def story() -> None:
        await group.hold("a", before)
        await asyncio.to_thread(group.run_bronze)
        await group.hold("a", after)
        await group.close()

    asyncio.run(story())
    group.run_bronze()
    assert 60 == len(group.ledger)


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_a_log_that_has_regrown_past_a_stop_is_read_where_the_operator_says(
    spark: SparkSession, tmp_path: Path, restart: bool
) -> None:
    """Bronze holds the lost records, and beside them those that took their offsets."""
    group = Group(spark, tmp_path, "stop")

    async def before(rig: DeliveryRig) -> None:
        group.append(40)
        await committed(rig, 40)

    async def lose(rig: DeliveryRig) -> None:
        group.elect(30)
        await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
        await until(lambda: rig.truncations.lost)
        group.append(30)
        await asyncio.sleep(0.5)  # ten looks
        assert (DeliveryState.STOPPED, 40) == (rig.status(P).state, rig.store.position(P))
        if not restart:
            await ask(rig)

    async def ask(rig: DeliveryRig) -> None:
        await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
        rig.requests.put(P, 30)
        await committed(rig, 60)

    async def story() -> None:
        await group.hold("a", before)
        await asyncio.to_thread(group.run_bronze)
        await group.hold("a", lose)
        if restart:
            await group.hold("a", ask)
        await group.close()

    asyncio.run(story())
    group.run_bronze()
    assert 40 + 30 == len(group.ledger)
    truncated = [one for one in group.examine().findings if one.kind is FindingKind.LOG_TRUNCATED]
    assert [(30, 40)] == [(one.start, one.end) for one in truncated]


@pytest.mark.parametrize("way", ["policy", "request", "another's election"])
def test_replicas_with_folders_of_their_own_count_the_same_elections(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """One of them has met it; those that take over go on in the same history, or find it themselves where nobody has."""
    group = Group(spark, tmp_path, "stop" if way == "request" else "nearest")

    async def before(rig: DeliveryRig) -> None:
        group.append(40)
        await committed(rig, 40)

    async def meet(rig: DeliveryRig) -> None:
        if way == "request":
            await until(lambda: rig.status(P).state is DeliveryState.STOPPED)
            rig.requests.put(P, 30)
        await committed(rig, 30)
        group.append(15)
        await committed(rig, 45)

    async def go_on(rig: DeliveryRig) -> None:
        group.append(15)
        await committed(rig, group.log.latest)

    async def story() -> None:
        await group.hold("a", before)
        if way == "another's election":
            group.elect(30)
            await group.hold("b", meet)
        else:

            async def both(rig: DeliveryRig) -> None:
                group.elect(30)
                await meet(rig)

            await group.hold("a", both)
        await asyncio.to_thread(group.run_bronze)
        await group.hold("b", go_on)
        await group.hold("a", go_on)
        await group.close()

    asyncio.run(story())
    group.run_bronze()
    assert 40 + 15 + 15 + 15 == len(group.ledger)
