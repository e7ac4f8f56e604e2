# SPDX-License-Identifier: Apache-2.0
"""Truncations that are kept with positions in Kafka: noted, read back, ended, and never lost by a commit of our own."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

import pytest

from consumerd.client.coordinator import CoordinatorFinder
from consumerd.cluster.view import Broker
from consumerd.errors import CoordinationError
from consumerd.model import UNKNOWN_INCARNATION, Incarnation, TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.offsets.commit_metadata import CommitMetadata, parse_metadata
from consumerd.offsets.kafka import KafkaPositions
from consumerd.offsets.kafka_requests import KafkaOffsetRequests
from consumerd.offsets.kafka_store import KafkaOffsetStore, MemberGeneration
from consumerd.offsets.kafka_truncations import KafkaLogTruncations
from consumerd.offsets.kafka_writer import KafkaOffsetWriter
from consumerd.offsets.store import Commit, CommitOutcome, KnownTruncations, LogTruncation, LostEnd, find_mark
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.offset_commit import OffsetCommitRequest
from tests.support import virtual_time
from tests.support.claims import StubClaim
from tests.support.cluster import make_broker
from tests.support.offsets_broker import OffsetsBroker
from tests.support.scripted_broker import FakeNetwork

P = TopicPartition.modern("orders", 0)
ONE = make_broker(1)
TOPIC = Incarnation.of_topic_id(uuid.UUID(int=7))
RECREATED = Incarnation.of_topic_id(uuid.UUID(int=8))
LOST = LostEnd(number=1, position=80, earliest=0, latest=60)


class Topics:
    """Brokers' topics: ``orders``, and the one with positions."""

    def __init__(self) -> None:
        self.incarnation: Incarnation | None = TOPIC
        self.others: dict[str, Incarnation | None] = {}

    async def list_topics(self) -> set[str]:
        return {"orders"}

    async def list_partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        return [P] if "orders" in topics else []

    async def find_incarnations(self, topics: Collection[str]) -> dict[str, Incarnation | None]:
        return {topic: self.incarnation if topic == "orders" else self.others.get(topic, TOPIC) for topic in topics}


class Scene:
    """A coordinator, and a member of generation 4 that keeps truncations with its positions."""

    def __init__(self) -> None:
        self.broker = OffsetsBroker(ONE)
        self.topics = Topics()
        self.claim = StubClaim(P, incarnation=TOPIC)
        self.claim.epoch = 4  # type: ignore[assignment]

    @property
    def text(self) -> CommitMetadata | None:
        return parse_metadata(self.broker.metadata.get(P, ""))

    def run(self, scenario: Callable[[KafkaOffsetStore, KafkaLogTruncations], Awaitable[None]]) -> None:
        async def play() -> None:
            loop = asyncio.get_running_loop()
            network = FakeNetwork()
            network.brokers = {ONE.address: self.broker}
            dialer = Dialer(network, client_id="t", now=loop.time)
            async with ConnectionPool(dialer, now=loop.time, random=lambda: 0.0) as pool:
                store = self.open(pool)
                await scenario(store, KafkaLogTruncations(store))

        virtual_time.run(play())

    def open(self, pool: ConnectionPool) -> KafkaOffsetStore:
        async def find_brokers() -> list[Broker]:
            return [ONE]

        generation = MemberGeneration()
        generation.set(4, "member-1")
        finder = CoordinatorFinder(pool, "g", find_brokers, random=lambda: 0.0, patience_s=3.0, request_timeout_s=1.5)
        numbers = itertools.count(10)
        positions = KafkaPositions(self.topics, finder, "g", request_timeout_s=1.5, keeps_failure=False)
        self.requests = KafkaOffsetRequests(lambda partitions: store.load(partitions))  # noqa: PLW0108 - made below
        self.writer = KafkaOffsetWriter(
            finder, "g", request_timeout_s=1.5, new_id=lambda: f"{next(numbers):x}", positions=positions
        )
        store = KafkaOffsetStore(
            self.topics,
            finder,
            positions,
            "g",
            request_timeout_s=1.5,
            new_id=lambda: f"{next(numbers):x}",
            requests=self.requests,
            generation=generation,
            keeps_truncations=True,
        )
        return store

    def commit(self, position: int, truncation: int = 0) -> Commit:
        return Commit(self.claim, position, truncation=truncation)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_without_a_position_nothing_is_known(scene: Scene) -> None:
    """As of a group that begins."""

    async def look(_store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        assert KnownTruncations() == await truncations.find(scene.claim)

    scene.run(look)


def test_noted_truncation_moves_position_and_number_together(scene: Scene) -> None:
    """A crash right after it leaves a position that the next owner begins a chain of this truncation at."""

    async def truncate(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        await store.commit([scene.commit(80)])
        await truncations.note(scene.claim, LogTruncation(number=1, position=60, voids=1))

    async def find(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        stored = (await store.load([P]))[P]
        known = await truncations.find(scene.claim)
        assert known == KnownTruncations(last=LogTruncation(number=1, position=60, voids=find_mark(stored)))
        await store.commit([scene.commit(70, truncation=1)])
        after = await truncations.find(scene.claim)
        stored = (await store.load([P]))[P]
        assert after.last is not None
        assert (after.last.number, after.last.makes_void(stored)) == (1, False)

    scene.run(truncate)
    assert (60, CommitMetadata(incarnation=TOPIC.truncated(1), noted=True)) == (scene.broker.offsets[P], scene.text)
    scene.run(find)
    assert (70, CommitMetadata(incarnation=TOPIC.truncated(1))) == (scene.broker.offsets[P], scene.text)


def test_position_from_before_the_truncation_is_not_committed_after_it(scene: Scene) -> None:
    """The partition's pipeline may still have it while it begins again."""

    async def play(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        await truncations.note(scene.claim, LogTruncation(number=1, position=60, voids=1))
        assert {P: CommitOutcome.FAILED} == await store.commit([scene.commit(85)])
        assert {P: CommitOutcome.WRITTEN} == await store.commit([scene.commit(60, truncation=1)])

    scene.run(play)
    assert 60 == scene.broker.offsets[P]


def test_stop_is_kept_with_the_position_until_that_moves(scene: Scene) -> None:
    """Also when the position of the idle partition is committed again, by this owner or by the next one."""
    stop = CommitMetadata(incarnation=TOPIC, lost_end=LOST, voids=True)

    async def stop_above(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        await store.commit([scene.commit(80)])
        stored = (await store.load([P]))[P]
        lost = LostEnd(number=1, position=80, earliest=0, latest=60, voids=find_mark(stored))
        await truncations.note_lost_end(scene.claim, lost)
        commits = len(scene.broker.asked(OffsetCommitRequest))
        await truncations.note_lost_end(scene.claim, replace(lost, voids=find_mark((await store.load([P]))[P])))
        assert commits == len(scene.broker.asked(OffsetCommitRequest))

    async def go_on(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        found = (await truncations.find(scene.claim)).lost_end
        assert found is not None
        assert found.makes_void((await store.load([P]))[P])
        await store.commit([scene.commit(80)])
        assert stop == scene.text
        await store.commit([scene.commit(90)])

    scene.run(stop_above)
    assert (80, stop) == (scene.broker.offsets[P], scene.text)
    scene.run(go_on)
    assert (90, CommitMetadata(incarnation=TOPIC)) == (scene.broker.offsets[P], scene.text)


def test_stop_makes_a_position_void_that_was_committed_again_meanwhile(scene: Scene) -> None:
    """As that of an idle partition is from time to time: the position is the same, and only its text is another."""

    async def play(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        await store.commit([scene.commit(80)])
        before = (await store.load([P]))[P]
        await store.commit([scene.commit(80)])
        await truncations.note_lost_end(scene.claim, replace(LOST, voids=find_mark(before)))
        found = (await truncations.find(scene.claim)).lost_end
        assert found is not None
        assert found.makes_void((await store.load([P]))[P])

    scene.run(play)


def test_stop_is_kept_though_another_one_could_not_be_noted(scene: Scene) -> None:
    """The position is committed again with the former one."""

    async def play(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        await store.commit([scene.commit(80)])
        await truncations.note_lost_end(scene.claim, replace(LOST, voids=find_mark((await store.load([P]))[P])))
        scene.broker.commit_codes[P] = [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
        with pytest.raises(CoordinationError, match="could not be noted"):
            await truncations.note_lost_end(
                scene.claim, replace(LOST, latest=50, voids=find_mark((await store.load([P]))[P]))
            )
        assert {P: CommitOutcome.WRITTEN} == await store.commit([scene.commit(80)])

    scene.run(play)
    assert (80, CommitMetadata(incarnation=TOPIC, lost_end=LOST, voids=True)) == (scene.broker.offsets[P], scene.text)


def test_position_that_an_operator_has_set_is_a_request_until_it_is_carried_out(scene: Scene) -> None:
    """Otherwise a sink with files would go on at their end. What is known of truncations stays."""

    async def play(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        await store.commit([scene.commit(80, truncation=2)])
        assert await scene.requests.find(P) is None
        await scene.writer.write(P, 40, TOPIC)
        request = await scene.requests.find(P)
        known = await truncations.find(scene.claim)
        assert request is not None
        assert known.last is not None
        assert (40, 2) == (request.position, known.last.number)
        carried = Commit(scene.claim, 40, request, truncation=2)
        assert {P: CommitOutcome.WRITTEN} == await store.commit([carried])
        assert await scene.requests.find(P) is None

    scene.run(play)
    assert (40, CommitMetadata(incarnation=TOPIC.truncated(2))) == (scene.broker.offsets[P], scene.text)


def test_request_after_a_truncation_is_carried_out_once(scene: Scene) -> None:
    """The truncation is noted first, at the position that was asked for; a crash in between keeps both."""

    async def play(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        await scene.writer.write(P, 40, TOPIC)
        await truncations.note(scene.claim, LogTruncation(number=1, position=40, voids=1))
        request = await scene.requests.find(P)
        assert request is not None
        await truncations.find(scene.claim)
        await store.commit([Commit(scene.claim, 40, request, truncation=1)])
        await store.commit([scene.commit(40, truncation=1)])
        assert await scene.requests.find(P) is None

    scene.run(play)
    assert (40, CommitMetadata(incarnation=TOPIC.truncated(1))) == (scene.broker.offsets[P], scene.text)


def test_request_names_the_topic_in_which_the_position_was_set(scene: Scene) -> None:
    """So that the claim decides if it is about a deleted topic, and not a broker that may be out of date."""

    async def play(_store: KafkaOffsetStore, _truncations: KafkaLogTruncations) -> None:
        await scene.writer.write(P, 40, TOPIC)
        for told in (RECREATED, UNKNOWN_INCARNATION, None):
            scene.topics.incarnation = told
            request = await scene.requests.find(P)
            assert request is not None
            assert TOPIC == request.topic

    scene.run(play)


def test_truncation_of_a_deleted_topic_says_nothing(scene: Scene) -> None:
    """The new topic's log was never truncated."""
    scene.broker.offsets[P] = 60
    scene.broker.metadata[P] = CommitMetadata(incarnation=RECREATED.truncated(2)).encode("ab")

    async def look(_store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        assert KnownTruncations() == await truncations.find(scene.claim)

    scene.run(look)


def test_topic_whose_id_a_broker_does_not_name_holds_no_other_topic_up(scene: Scene) -> None:
    """For lack of a permission for that topic, for instance: positions of the others are written."""
    clicks = TopicPartition.modern("clicks", 0)
    scene.topics.others["clicks"] = UNKNOWN_INCARNATION
    claim = StubClaim(clicks, incarnation=TOPIC)
    claim.epoch = scene.claim.epoch

    async def play(store: KafkaOffsetStore, _truncations: KafkaLogTruncations) -> None:
        outcomes = await store.commit([scene.commit(80), Commit(claim, 5)])
        assert {P: CommitOutcome.WRITTEN, clicks: CommitOutcome.FAILED} == outcomes
        assert "names no topic id of clicks" in (store.explain_refusal(clicks) or "")
        scene.topics.others["clicks"] = TOPIC
        assert {clicks: CommitOutcome.WRITTEN} == await store.commit([Commit(claim, 5)])

    scene.run(play)
    assert {P: 80, clicks: 5} == scene.broker.offsets


def test_cluster_that_takes_no_text_is_named(scene: Scene) -> None:
    """Without the number, other records would land as the same ones. The position stays, and so do shorter texts."""

    async def play(store: KafkaOffsetStore, truncations: KafkaLogTruncations) -> None:
        await store.commit([scene.commit(80)])
        scene.broker.commit_codes[P] = [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        with pytest.raises(CoordinationError, match=r"offset\.metadata\.max\.bytes"):
            await truncations.note(scene.claim, LogTruncation(number=1, position=60, voids=1))
        assert (80, CommitMetadata(incarnation=TOPIC)) == (scene.broker.offsets[P], scene.text)
        assert {P: CommitOutcome.WRITTEN} == await store.commit([scene.commit(85)])

    scene.run(play)
    assert (85, CommitMetadata(incarnation=TOPIC)) == (scene.broker.offsets[P], scene.text)


@pytest.mark.parametrize(
    "metadata",
    [
        CommitMetadata(incarnation=Incarnation(7)),
        CommitMetadata(incarnation=TOPIC.truncated(3), noted=True),
        CommitMetadata(incarnation=TOPIC.truncated(999_999_999), lost_end=LOST, voids=True),
        CommitMetadata(incarnation=Incarnation(2**63 - 1, 1), lost_end=LOST),
        CommitMetadata(incarnation=TOPIC.truncated(2), lost_end=LOST, request_id="0123abcd"),
    ],
    ids=["czxid", "noted", "lost", "kept", "set"],
)
def test_text_is_read_as_it_was_written(metadata: CommitMetadata) -> None:
    """And is short enough for every broker's default."""
    text = metadata.encode("0123abcd")

    assert metadata == parse_metadata(text)
    assert len(text) < 200


@pytest.mark.parametrize(
    "text", ["", "by us", "consumerd id=ab", "consumerd czxid=7 truncation=x id=ab", "consumerd czxid=7"]
)
def test_text_of_others_is_not_ours(text: str) -> None:
    """A position with it is of unknown age."""
    assert parse_metadata(text) is None
