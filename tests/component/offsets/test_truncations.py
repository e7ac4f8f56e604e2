# SPDX-License-Identifier: Apache-2.0
"""What members note of logs that have lost their ends, on a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import CoordinationError
from consumerd.model import SessionEpoch, TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.positions import KafkaOffsetToken, KeptPositions
from consumerd.offsets.store import KnownTruncations, LogTruncation, LostEnd
from consumerd.offsets.truncations import NotedStop, ZooKeeperLogTruncations, list_noted_stops
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import truncation_path, truncations_path
from tests.support.delivery import FakeClaim
from tests.support.zookeeper import make_client, run_server

pytestmark = pytest.mark.records

P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)
CZXID = 7
FIRST = LogTruncation(number=1, position=30, voids=4242)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One server for the module; each test has a group of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
async def zk(server: EmbeddedZooKeeper) -> AsyncIterator[AiozkClient]:
    async with make_client(server.connect_string) as client:
        await client.wait_connected()
        yield client


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group that no other test uses."""
    return str(request.node.name).replace("[", "-").replace("]", "")


def claim(zk: AiozkClient, partition: TopicPartition = P, czxid: int = CZXID) -> FakeClaim:
    return FakeClaim(partition, zk.state.epoch, czxid)


async def test_what_one_member_has_noted_every_other_one_finds(zk: AiozkClient, group: str) -> None:
    """Whatever folder it lands in, and whoever has died since."""
    await ZooKeeperLogTruncations(zk, group).note(claim(zk), FIRST)
    other = ZooKeeperLogTruncations(zk, group)
    assert (await other.find(claim(zk))).last == FIRST
    assert (await other.find(claim(zk, Q))).last is None
    data, _ = await zk.get(f"/consumers/{group}/consumerd/truncations/t/0")
    assert json.loads(data) == {"format": 1, "incarnation": "7", "truncation": 1, "position": 30, "voids": 4242}


async def test_each_truncation_replaces_the_one_before_and_none_goes_back(zk: AiozkClient, group: str) -> None:
    """One that was decided upon before another was noted is decided upon anew."""
    truncations = ZooKeeperLogTruncations(zk, group)
    second = LogTruncation(number=2, position=25, voids=0)
    await truncations.note(claim(zk), FIRST)
    await truncations.note(claim(zk), second)
    with pytest.raises(CoordinationError, match=r"truncations/t/0: truncation 2 was noted meanwhile"):
        await truncations.note(claim(zk), FIRST)
    assert (await truncations.find(claim(zk))).last == second


async def test_the_number_begins_anew_with_the_topic(zk: AiozkClient, group: str) -> None:
    """What is noted is about the records of a topic that is gone."""
    truncations = ZooKeeperLogTruncations(zk, group)
    await truncations.note(claim(zk), LogTruncation(number=5, position=9, voids=0))
    assert (await truncations.find(claim(zk, czxid=9))).last is None
    await truncations.note(claim(zk, czxid=9), FIRST)
    assert (await truncations.find(claim(zk, czxid=9))).last == FIRST


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"1",
        b'{"format": 2}',
        b'{"format": 1, "incarnation": 7, "truncation": 1, "position": 1, "voids": 0}',
        b'{"format": 1, "incarnation": "7", "truncation": true, "position": 1, "voids": 0}',
        b'{"format": 1, "incarnation": "7", "truncation": -1, "position": 1, "voids": 0}',
        b'{"format": 1, "incarnation": "7", "truncation": 1, "position": 1.5, "voids": 0}',
    ],
)
async def test_a_node_that_cannot_be_read_is_not_taken_for_none(zk: AiozkClient, data: bytes, group: str) -> None:
    """Records that differ would get the same identity; the error says what to put there."""
    group = f"{group[:40]}-{len(data)}-{hash(data) & 0xFFFF}"
    await zk.ensure_path(truncations_path(group, "t"))
    await zk.create(truncation_path(group, P), data)
    truncations = ZooKeeperLogTruncations(zk, group)
    with pytest.raises(
        CoordinationError, match=r'truncations/t/0 says how often .* cannot be read .*"incarnation": "7"'
    ):
        await truncations.find(claim(zk))
    with pytest.raises(CoordinationError, match="cannot be read"):
        await truncations.note(claim(zk), FIRST)


async def test_nothing_is_noted_in_another_session_than_the_claims(zk: AiozkClient, group: str) -> None:
    """A member that stalls past its session and wakes up has nothing to say about a log that somebody else delivers."""
    truncations = ZooKeeperLogTruncations(zk, group)
    stale = FakeClaim(P, SessionEpoch(zk.state.epoch + 1), CZXID)
    with pytest.raises(CoordinationError):
        await truncations.note(stale, FIRST)
    assert (await truncations.find(claim(zk))).last is None
    await truncations.note(claim(zk), FIRST)
    with pytest.raises(CoordinationError):
        await truncations.note(stale, LogTruncation(number=2, position=1, voids=0))
    assert (await truncations.find(claim(zk))).last == FIRST


async def test_a_stop_is_noted_beside_the_last_truncation_and_neither_hides_the_other(
    zk: AiozkClient, group: str
) -> None:
    """Older releases would go on where ``T/P`` says, against their policy."""
    truncations = ZooKeeperLogTruncations(zk, group)
    lost = LostEnd(number=2, position=80, earliest=0, latest=60, voids=99)
    await truncations.note_lost_end(claim(zk), lost)
    assert await truncations.find(claim(zk)) == KnownTruncations(last=None, lost_end=lost)
    await truncations.note(claim(zk), FIRST)
    assert await truncations.find(claim(zk)) == KnownTruncations(last=FIRST, lost_end=lost)
    assert await truncations.find(claim(zk, Q)) == KnownTruncations()
    assert await truncations.find(claim(zk, czxid=9)) == KnownTruncations()
    data, stat = await zk.get(f"/consumers/{group}/consumerd/truncations/t/0.lost")
    assert json.loads(data) == {
        "format": 1,
        "incarnation": "7",
        "truncation": 2,
        "position": 80,
        "earliest": 0,
        "latest": 60,
        "voids": 99,
    }
    await truncations.note_lost_end(claim(zk), lost)
    assert (await zk.get(f"/consumers/{group}/consumerd/truncations/t/0.lost"))[1].version == stat.version
    later = LostEnd(number=2, position=90, earliest=0, latest=70, voids=100)
    await truncations.note_lost_end(claim(zk), later)
    assert (await truncations.find(claim(zk))).lost_end == later
    with pytest.raises(CoordinationError):
        await truncations.note_lost_end(FakeClaim(P, SessionEpoch(zk.state.epoch + 1), CZXID), lost)
    await zk.set(f"/consumers/{group}/consumerd/truncations/t/0.lost", b'{"format": 2}')
    with pytest.raises(CoordinationError, match=r"truncations/t/0.lost .* cannot be read .*consumerd offsets set"):
        await truncations.find(claim(zk))


async def list_stops(
    zk: AiozkClient, group: str, topics: Collection[str] | None = None
) -> dict[TopicPartition, NotedStop]:
    """Return the stops that count for members that read ZooKeeper."""
    kept = KeptPositions(zookeeper=await GroupPositions(zk, group).read())
    return await list_noted_stops(zk, group, kept.find_token, topics)


async def test_stop_is_listed_until_somebody_says_where_to_go_on(zk: AiozkClient, group: str) -> None:
    """It counts for the topic as it is, while the committed position is the one that it is about."""
    topic = f"topic-{group}"
    partition = TopicPartition.modern(topic, 0)
    await zk.ensure_path(f"/brokers/topics/{topic}")
    await zk.ensure_path(f"/consumers/{group}/offsets/{topic}")
    await zk.create(f"/consumers/{group}/offsets/{topic}/0", b"80")
    made = await zk.exists(f"/brokers/topics/{topic}")
    _, stored = await zk.get(f"/consumers/{group}/offsets/{topic}/0")
    assert made is not None
    held = claim(zk, partition, made.czxid)
    truncations = ZooKeeperLogTruncations(zk, group)
    lost = LostEnd(number=1, position=80, earliest=0, latest=60, voids=stored.mzxid)
    assert await list_stops(zk, group) == {}
    await truncations.note_lost_end(held, lost)
    assert {one: stop.lost for one, stop in (await list_stops(zk, group)).items()} == {partition: lost}
    assert await list_stops(zk, group, ["another"]) == {}

    await truncations.note_lost_end(claim(zk, partition, made.czxid + 1), lost)
    assert await list_stops(zk, group) == {}, "of a deleted topic of the same name"

    await truncations.note_lost_end(held, lost)
    await truncations.note(held, LogTruncation(number=1, position=60, voids=stored.mzxid))
    assert await list_stops(zk, group) == {}, "delivery has gone on at 60"

    await truncations.note_lost_end(held, LostEnd(number=2, position=80, earliest=0, latest=60, voids=stored.mzxid))
    assert list(await list_stops(zk, group)) == [partition], "it has stopped again since"
    await zk.set(f"/consumers/{group}/offsets/{topic}/0", b"70")
    assert await list_stops(zk, group) == {}, "another member has committed since"


async def test_stop_of_a_group_in_kafka_ends_with_the_position_in_kafka(zk: AiozkClient, group: str) -> None:
    """ZooKeeper has no position of it, or one that no member writes any more."""
    topic = f"topic-{group}"
    partition = TopicPartition.modern(topic, 0)
    await zk.ensure_path(f"/brokers/topics/{topic}")
    made = await zk.exists(f"/brokers/topics/{topic}")
    assert made is not None
    held = claim(zk, partition, made.czxid)
    stored, later = (KafkaOffsetToken(offset=offset, metadata="") for offset in (80, 90))
    lost = LostEnd(number=1, position=80, earliest=0, latest=60, voids=stored.mark)
    await ZooKeeperLogTruncations(zk, group).note_lost_end(held, lost)

    async def list_with(token: KafkaOffsetToken) -> list[TopicPartition]:
        return list(await list_noted_stops(zk, group, {partition: token}.get))

    assert [partition] == await list_with(stored)
    assert [] == await list_with(later)
    assert {} == await list_stops(zk, group), "members that read ZooKeeper have no position"


@pytest.mark.parametrize("suffix", ["", ".lost"])
async def test_note_that_cannot_be_read_is_listed_with_its_path(zk: AiozkClient, group: str, suffix: str) -> None:
    """It stops the partition for whoever claims it."""
    topic = f"topic-{group}"
    await zk.ensure_path(f"/brokers/topics/{topic}")
    await zk.ensure_path(truncations_path(group, topic))
    path = f"{truncations_path(group, topic)}/0{suffix}"
    await zk.create(path, b"[1]")
    (stop,) = (await list_stops(zk, group)).values()
    assert (stop.path, stop.lost) == (path, None)
    assert "cannot be read (no object of format 1)" in stop.describe()
