# SPDX-License-Identifier: Apache-2.0
"""A restore has each landed record once, and positions in it mean the same records as in the source."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumerd import failpoints
from consumerd.access.address import ClusterAddress
from consumerd.admin.migrate.mirrored import MirroredPartitions, MirrorId
from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.mirror.partition_map import PartitionMap
from consumerd.mirror.positions import open_mirror_positions
from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.sinks.base import Start
from consumerd.spark import replay
from consumerd.spark.job import Silent, Summary
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import Record
from tests.support.bronze import run_bronze
from tests.support.claims import StubClaim
from tests.support.embedded import EmbeddedThread
from tests.support.landing_zone import FIRST_MS, LandingZone
from tests.support.mirroring import P, Seen, numbers, open_mirror, read_committed
from tests.support.processes import end_all_in
from tests.support.record_batches import record

pytestmark = pytest.mark.records

GROUP = "mirror"


@pytest.fixture
def target(tmp_path: Path) -> Iterator[EmbeddedThread]:
    with EmbeddedThread(tmp_path / "target", None) as running:
        yield running


@pytest.fixture
def _all_gone(tmp_path: Path) -> Iterator[None]:
    yield
    end_all_in(tmp_path)


def make(partition: TopicPartition, incarnation: Incarnation, offset: int) -> Record:
    return record(
        offset,
        None if offset % 10 == 9 else f"{partition}@{incarnation}:{offset}".encode(),
        key=None if offset % 7 == 6 else b"k%d" % offset,
        timestamp=NO_TIMESTAMP if offset % 11 == 10 else FIRST_MS + offset,
        headers=(("a", b"%d" % offset), ("b", None)) if offset % 5 == 0 else (),
    )


def restore(spark: SparkSession, tmp_path: Path, target: EmbeddedThread, **options: object) -> Summary:
    chosen = {"map": True, "topic": "orders", "bootstrap_servers": target.bootstrap, "group": GROUP, **options}
    pipeline = Pipeline.model_validate({"path": str(tmp_path / "lake"), "replay": chosen})
    return replay.run(lambda: spark, JobSettings(pipeline=pipeline), Silent())


def land(zone: LandingZone, partition: int) -> list[tuple[str, Record]]:
    """Return a partition's records with their incarnations, in the order in which a mirror would have written them."""
    found = [
        (Incarnation.parse(identity.incarnation), identity.offset, kept)
        for identity, kept in zone.expected.items()
        if identity.partition == str(partition)
    ]
    return [(str(incarnation), kept) for incarnation, _, kept in sorted(found, key=lambda one: one[:2])]


def content(seen: list[Seen]) -> list[tuple[object, ...]]:
    return [(one.key, one.value, one.headers, one.timestamp) for one in seen]


def landed(records: list[tuple[str, Record]]) -> list[tuple[object, ...]]:
    return [(one.key, one.value, one.headers, one.timestamp) for _, one in records]


async def read_map(target: EmbeddedThread, cluster: str, partition: int) -> PartitionMap:
    async with open_mirror_positions(ClusterAddress(bootstrap=target.bootstrap, client_id="test")) as positions:
        await positions.refresh()
        mirrored = MirroredPartitions(positions, MirrorId(cluster, GROUP))
        found = mirrored.find(TopicPartition.modern("orders", partition), Incarnation(7))
        assert found is not None
        return found


def test_each_position_means_the_same_record_and_a_mirror_goes_on(
    spark: SparkSession, zone: LandingZone, target: EmbeddedThread, tmp_path: Path
) -> None:
    """With holes of compaction, a truncated log, and an earlier topic of the name, which is not restored."""
    zone.make = make
    zone.land("orders", 0, 0, 30, czxid=5)
    zone.land("orders", 0, 3, 120, gaps=[Gap(40, 47, GapReason.COMPACTION), Gap(60, 61, GapReason.CONTROL)], files=2)
    zone.land("orders", 1, 0, 60)
    zone.land("orders", 1, 50, 90, truncated=True)
    run_bronze(spark, [zone], tmp_path / "lake" / "bronze")
    expected = [[one for one in land(zone, number) if one[0] != "5"] for number in (0, 1)]

    dry = restore(spark, tmp_path, target, dry_run=True)
    done = restore(spark, tmp_path, target)
    again = restore(spark, tmp_path, target)

    assert (209, 0) == (dry.numbers["records"], dry.numbers["sent"])
    assert (209, 209) == (done.numbers["records"], done.numbers["sent"])
    assert [("0", "7", 3, 120, 3, 120, 109), ("1", "7", 0, 60, 0, 60, 60), ("1", "7.1", 50, 90, 50, 90, 40)] == list(
        done.tables[0].rows
    )
    assert (0, ()) == (again.numbers["sent"], again.findings[1:])
    seen = [read_committed(target.bootstrap, "orders", number) for number in (0, 1)]
    assert [landed(records) for records in expected] == [content(records) for records in seen]

    for number, end in ((0, 120), (1, 90)):
        translation = asyncio.run(read_map(target, zone.cluster, number))
        by_offset = {one.offset: content([one])[0] for one in seen[number]}
        for position in range(end):
            newest = {one.offset: one for _, one in expected[number] if not (_ == "7" and number and one.offset >= 50)}
            wanted = newest[min(offset for offset in newest if offset >= position)]
            assert landed([("", wanted)])[0] == by_offset[translation.translate(position).offset]

    asyncio.run(hand_over(target))
    after = read_committed(target.bootstrap, "orders", 0)
    assert [b"%8d" % offset for offset in range(120, 130)] == [one.value for one in after[109:]]


async def hand_over(target: EmbeddedThread) -> None:
    """Mirror ten more records, as a daemon of the same group and cluster does."""
    async with open_mirror(target.bootstrap) as rig:
        writer = await rig.sink.open(StubClaim(P))
        assert (120, 0) == (writer.resume_position, writer.truncation)
        await writer.start(Start(position=120, reason="committed"))
        await writer.write(numbers(120, 130))
        assert 130 == await writer.flush()


@pytest.mark.usefixtures("_all_gone")
@pytest.mark.parametrize("points", ["before_mirror_commit=kill@3", "after_mirror_commit=kill@2"])
def test_restore_killed_and_run_again_has_each_record_once(
    spark: SparkSession, zone: LandingZone, target: EmbeddedThread, tmp_path: Path, points: str
) -> None:
    """A task dies with an open transaction, or after a commit that nobody was told of."""
    zone.make = make
    zone.land("orders", 0, 0, 300, files=3)
    run_bronze(spark, [zone], tmp_path / "lake" / "bronze")
    command = [sys.executable, "-m", "consumerd.spark", "replay", "--map", "--topic", "orders", "--group", GROUP]
    died = subprocess.run(
        [*command, "--path", str(tmp_path / "lake"), "--bootstrap-servers", target.bootstrap, "--master", "local[1]",
         "--set", "pipeline.spark.settings={spark.sql.execution.arrow.maxRecordsPerBatch: '50'}"],
        cwd=tmp_path,
        env={**os.environ, failpoints.VARIABLE: points, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert (1, True) == (died.returncode, "fail_point_reached" in died.stderr), died.stderr
    rest = restore(spark, tmp_path, target)

    assert 200 == rest.numbers["sent"]
    assert ("0", "7", 0, 300, 100, 300, 200) == rest.tables[0].rows[0]
    seen = read_committed(target.bootstrap, "orders")
    assert landed(land(zone, 0)) == content(seen)
    translation = asyncio.run(read_map(target, zone.cluster, 0))
    assert [one.offset for one in seen] == [translation.translate(position).offset for position in range(300)]
