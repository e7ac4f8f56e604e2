# SPDX-License-Identifier: Apache-2.0
"""Delivery and real files together: every kind of new beginning and of gap, read back by somebody independent."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from consumerd.delivery.policy import OffsetPolicy, UnitPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.errors import CorruptMessageError
from consumerd.model import Gap, GapReason, TopicPartition
from tests.support.clocks import LoopClock
from tests.support.delivery import TOPIC_CZXID, DeliveryRig
from tests.support.landing_reader import LandedPartition
from tests.support.sinks import SinkRig
from tests.support.waiting import until

pytestmark = pytest.mark.records

P = TopicPartition.modern("t", 0)


class World:
    """A group whose members come and go, on one path."""

    def __init__(self, kind: str, path: Path, policy: UnitPolicy) -> None:
        self.files = SinkRig(kind=kind, path=path, clock=LoopClock(), roll_ms=30)
        self.rig = DeliveryRig(
            destination=self.files.member(),
            settings=DeliverySettings(
                commit_interval_ms=10,
                recheck_ms=50,
                offsets=OffsetPolicy(on_below="nearest", on_above="nearest"),
                on_corrupt=policy,
            ),
        )
        self.epoch = 0
        self.incarnation = TOPIC_CZXID

    async def claim(self) -> None:
        self.epoch += 1
        await self.rig.claim(P, self.epoch, self.incarnation)

    async def crash(self) -> None:
        """Lose the claim in the middle of whatever is going on."""
        self.rig.claims[P].lease.set("lost")
        await self.rig.deliveries.lost([P])

    async def committed(self, position: int) -> None:
        await until(lambda: self.rig.store.position(P) == position)

    def landed(self) -> LandedPartition:
        landing = self.files.landing()
        assert landing.problems == []
        return landing.partitions["t", "0"]


@asynccontextmanager
async def living(kind: str, path: Path, policy: UnitPolicy = "stop") -> AsyncIterator[World]:
    world = World(kind, path, policy)
    try:
        async with world.rig:
            yield world
    finally:
        await world.files.close()


kinds = pytest.mark.parametrize("kind", ["jsonl", "parquet"])


@kinds
async def test_a_request_back_lands_its_records_again_in_a_chain_of_its_own(kind: str, tmp_path: Path) -> None:
    """The old chain is sealed and stays as it was."""
    async with living(kind, tmp_path) as world:
        log = world.rig.log(P, 0, 40)
        await world.claim()
        await world.committed(40)
        request = world.rig.requests.put(P, 15)
        await until(lambda: not world.rig.store.requests)
        await world.committed(40)
        log.append(5)
        await world.committed(45)
        first, second = world.landed().chains

    assert ([0, 40], [15, 45]) == ([first.origin, first.end], [second.origin, second.end])
    assert (request.id, "request") == (second.record["request_id"], second.record["reason"])


@kinds
async def test_a_request_ahead_lands_its_gap(kind: str, tmp_path: Path) -> None:
    """With the reason that is only known while the request is there."""
    async with living(kind, tmp_path) as world:
        log = world.rig.log(P, 0, 40)
        await world.claim()
        await world.committed(40)
        log.append(90)
        world.rig.requests.put(P, 120)
        await until(lambda: not world.rig.store.requests)
        await world.committed(130)
        landed = world.landed()

    assert 1 == len(landed.chains)
    (gap,) = landed.gaps
    assert (120, "reset") == (gap["end"], gap["reason"])
    assert landed.offsets == [*range(gap["start"]), *range(120, 130)]


@kinds
async def test_a_log_that_lost_its_end_goes_on_in_a_truncated_chain(kind: str, tmp_path: Path) -> None:
    """The same offsets are other records from there on, which the incarnation says."""
    async with living(kind, tmp_path) as world:
        log = world.rig.log(P, 0, 40)
        await world.claim()
        await world.committed(40)
        log.truncate(30)
        await world.committed(30)
        log.append(20)
        await world.committed(50)
        first, second = world.landed().chains

    assert ([0, 40], [30, 50]) == ([first.origin, first.end], [second.origin, second.end])
    assert [(TOPIC_CZXID, 0), (TOPIC_CZXID, 1)] == [first.incarnation, second.incarnation]


@kinds
async def test_a_topic_made_again_goes_on_at_its_beginning(kind: str, tmp_path: Path) -> None:
    """Nothing of the new topic is skipped, and nothing of the old one is in its chain."""
    async with living(kind, tmp_path) as world:
        world.rig.log(P, 0, 40)
        await world.claim()
        await world.committed(40)
        world.rig.claims[P].lease.set("changed")
        world.rig.log(P, 0, 60)
        world.rig.brokers.feeds[-1].log.append(10)
        await until(lambda: world.rig.losses)
        world.incarnation = world.rig.store.next_zxid()
        await world.claim()
        await world.committed(60)
        first, second = world.landed().chains

    assert ([0, 40], [0, 60]) == ([first.origin, first.end], [second.origin, second.end])
    assert world.incarnation == second.incarnation[0]


@kinds
async def test_what_a_policy_passes_over_is_a_gap_in_the_files(kind: str, tmp_path: Path) -> None:
    """Damaged units and unreadable headers, with good records on both sides."""
    async with living(kind, tmp_path, "quarantine") as world:
        log = world.rig.log(P, 0, 40)
        log.lasting_faults[10] = CorruptMessageError("bad", partition=P, offset=10, next_offset=13, raw=b"raw")
        log.bad_headers = {25, 26}
        await world.claim()
        await world.committed(40)
        landed = world.landed()

    assert landed.offsets == [*range(10), *range(13, 25), *range(27, 40)]
    assert [(10, 13), (25, 26), (26, 27)] == [(gap["start"], gap["end"]) for gap in split(landed.gaps)]
    assert {"corrupt"} == {gap["reason"] for gap in landed.gaps}
    assert [10, 25, 26] == [unit.offset for unit in world.rig.quarantine.units]


def split(gaps: list[dict[str, int]]) -> list[dict[str, int]]:
    """Return gaps as single offsets where files have joined neighbours."""
    return [
        {"start": at, "end": at + 1} if gap["start"] >= 25 else gap
        for gap in gaps
        for at in (range(gap["start"], gap["end"]) if gap["start"] >= 25 else [gap["start"]])
    ]


@kinds
@pytest.mark.parametrize("delay_s", [0.0, 0.01])
async def test_crashes_while_moving_leave_whole_chains(kind: str, delay_s: float, tmp_path: Path) -> None:
    """At whatever moment: nothing lost, nothing twice in a chain, and every beginning explained."""
    async with living(kind, tmp_path, "skip") as world:
        log = world.rig.log(P, 0, 40)
        await world.claim()
        await world.committed(40)
        for move in range(6):
            log.append(10)
            if move % 3 == 0:
                log.truncate(log.latest - 25)
            elif move % 3 == 1:
                world.rig.requests.put(P, log.latest // 2, new_chain=True)
            else:
                world.rig.requests.put(P, log.latest - 3)
            await asyncio.sleep(delay_s)
            await world.crash()
            await world.claim()
            await asyncio.sleep(delay_s)
            await world.crash()
            await world.claim()
            await until(lambda: not world.rig.store.requests)
            log.append(1)
            await world.committed(log.latest)
            landed = world.landed()
            assert [] == landed.find_lost(range(log.latest))
            assert landed.end == log.latest


def newest_file(world: World) -> Path:
    """Return the newest data file, of whatever chain."""
    found = world.files.path.glob(f"topic=t/partition=0/chain=*/[0-9]*.{world.files.kind}")
    return max(found, key=lambda path: (int(path.parent.name.removeprefix("chain=")), path.name))


@kinds
async def test_newest_file_that_was_removed_is_told_as_missing(kind: str, tmp_path: Path) -> None:
    """This group has committed what it held: to say that another member consumed it would hide a loss."""
    async with living(kind, tmp_path) as world:
        log = world.rig.log(P, 0, 40)
        await world.claim()
        await world.committed(40)
        log.append(10)
        await world.committed(50)
        await world.crash()
        newest_file(world).unlink()
        await world.claim()
        log.append(5)
        await world.committed(55)
        landed = world.landed()
        told = world.rig.hooks.named("gap_recorded")

    assert [(P, Gap(40, 50, GapReason.MISSING_FILE))] == told
    assert [("missing file", 40, 50)] == [(gap["reason"], gap["start"], gap["end"]) for gap in landed.gaps]
    assert (1, 55) == (len(landed.chains), landed.end)


@kinds
async def test_missing_file_is_told_from_what_another_member_consumed_behind_it(kind: str, tmp_path: Path) -> None:
    """A Java member went on from what was landed here: only that is its own."""
    async with living(kind, tmp_path) as world:
        log = world.rig.log(P, 0, 40)
        await world.claim()
        await world.committed(40)
        log.append(30)
        await world.committed(70)
        await world.crash()
        newest_file(world).unlink()
        log.append(30)
        world.rig.store.put(P, 90)
        await world.claim()
        await world.committed(100)
        told = world.rig.hooks.named("gap_recorded")
        landed = world.landed()

    assert [(P, Gap(40, 70, GapReason.MISSING_FILE)), (P, Gap(70, 90, GapReason.CONSUMED_ELSEWHERE))] == told
    assert ["missing file", "consumed elsewhere"] == [gap["reason"] for gap in landed.gaps]


@kinds
async def test_partition_whose_folder_was_removed_is_told_as_missing(kind: str, tmp_path: Path) -> None:
    """There is no chain to record it in; log, metric and alert tell of it all the same."""
    async with living(kind, tmp_path) as world:
        log = world.rig.log(P, 0, 40)
        await world.claim()
        await world.committed(40)
        await world.crash()
        shutil.rmtree(world.files.path / "topic=t")
        await world.claim()
        log.append(5)
        await world.committed(45)
        told = world.rig.hooks.named("gap_recorded")
        landed = world.landed()

    assert [(P, Gap(0, 40, GapReason.MISSING_FILE))] == told
    assert (40, 45) == (landed.chains[0].origin, landed.end)
