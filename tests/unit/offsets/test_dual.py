# SPDX-License-Identifier: Apache-2.0
"""Positions in both places: the larger of two of this topic counts, and no failure between two writes does harm."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from consumerd.model import Incarnation, TopicPartition
from consumerd.offsets.dual import DualOffsetStore, choose
from consumerd.offsets.positions import KafkaOffsetToken, KeptPositions, OffsetNodeToken, Position
from consumerd.offsets.store import Commit, CommitOutcome, OffsetRequest, StoredOffset, judge
from consumerd.offsets.store import Place as StoredIn
from tests.support import virtual_time
from tests.support.delivery import FakeClaim

P, Q = (TopicPartition.modern("orders", number) for number in range(2))
MADE = Incarnation(100)
WRITTEN, UNCHANGED, FAILED, NOT_OWNER = (
    CommitOutcome.WRITTEN,
    CommitOutcome.UNCHANGED,
    CommitOutcome.FAILED,
    CommitOutcome.NOT_OWNER,
)
REQUEST = OffsetRequest(id="r1", partition=P, position=10, new_chain=False, author="me", created_ms=1, version=0)


def in_zookeeper(position: int, *, mzxid: int = 200) -> StoredOffset:
    return StoredOffset(position=position, token=OffsetNodeToken(mzxid=mzxid, version=0))


def in_kafka(position: int, *, czxid: int | None = None) -> StoredOffset:
    text = "" if czxid is None else f"consumerd czxid={czxid} id=1"
    return StoredOffset(position=position, token=KafkaOffsetToken(offset=position, metadata=text))


class Place:
    """One place; ``outcomes`` are used up first to last, then everything is written."""

    def __init__(self, name: str, journal: list[tuple[str, TopicPartition, int]]) -> None:
        self.rewrite_s = 600.0 if name == "kafka" else None
        self.stored: dict[TopicPartition, StoredOffset] = {}
        self.outcomes: dict[TopicPartition, list[CommitOutcome]] = {}
        self.requests: list[OffsetRequest | None] = []
        self.compared: list[bool] = []
        self._name = name
        self._journal = journal

    async def load(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, StoredOffset | None]:
        return {partition: self.stored.get(partition) for partition in partitions}

    async def commit(self, commits: Sequence[Commit]) -> Mapping[TopicPartition, CommitOutcome]:
        found = {}
        for commit in commits:
            partition = commit.claim.partition
            self._journal.append((self._name, partition, commit.position))
            self.requests.append(commit.fulfils)
            self.compared.append(commit.is_of_topic)
            given = self.outcomes.get(partition)
            found[partition] = given.pop(0) if given else WRITTEN
        return found

    def explain_refusal(self, partition: TopicPartition) -> str | None:
        return None


class Scene:
    def __init__(self) -> None:
        self.journal: list[tuple[str, TopicPartition, int]] = []
        self.zookeeper, self.kafka = Place("zookeeper", self.journal), Place("kafka", self.journal)

        async def find(topics: Collection[str]) -> Mapping[str, Incarnation | None]:
            return dict.fromkeys(topics, MADE)

        self.store = DualOffsetStore(self.zookeeper, self.kafka, find)

    def commit(self, *commits: Commit) -> Mapping[TopicPartition, CommitOutcome]:
        return virtual_time.run(self.store.commit(commits))

    def load(self, *partitions: TopicPartition) -> Mapping[TopicPartition, StoredOffset | None]:
        return virtual_time.run(self.store.load(partitions))


def read(zookeeper: StoredOffset | None, kafka: StoredOffset | None) -> KeptPositions:
    """Return what commands read of these."""
    there = {} if zookeeper is None else {P: as_position(zookeeper, StoredIn.ZOOKEEPER)}
    return KeptPositions(zookeeper=there, kafka={} if kafka is None else {P: as_position(kafka, StoredIn.KAFKA)})


def as_position(stored: StoredOffset, place: StoredIn) -> Position:
    validity = judge(stored, MADE)
    return Position(value=stored.position, validity=validity, place=place, token=stored.token, incarnation=MADE)


def move(partition: TopicPartition, position: int, fulfils: OffsetRequest | None = None) -> Commit:
    return Commit(FakeClaim(partition), position, fulfils)


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "counting"),
    [
        (in_zookeeper(200), in_kafka(300), 300),
        (in_zookeeper(300), in_kafka(200), 300),
        (in_zookeeper(200), None, 200),
        (None, in_kafka(300), 300),
        (None, None, None),
        (in_zookeeper(1000, mzxid=50), in_kafka(40, czxid=100), 40),
        (in_zookeeper(40), in_kafka(1000, czxid=50), 40),
        (in_zookeeper(1000, mzxid=50), in_kafka(900, czxid=50), 1000),
    ],
    ids=[
        "kafka larger",
        "zookeeper larger",
        "zookeeper alone",
        "kafka alone",
        "none",
        "zookeeper's is of a deleted topic",
        "kafka's is of a deleted topic",
        "both are of a deleted topic",
    ],
)
def test_the_larger_position_of_this_topic_counts(
    zookeeper: StoredOffset | None, kafka: StoredOffset | None, counting: int | None
) -> None:
    """As in Java, but for positions that are known to be of a deleted topic."""
    chosen = choose(zookeeper, kafka, MADE)

    assert (None if chosen is None else chosen.position) == counting
    assert read(zookeeper, kafka).find_counting(P, frozenset(StoredIn)).value == counting


@pytest.mark.parametrize("zookeeper", [None, 200, 300])
@pytest.mark.parametrize("kafka", [None, 200, 300])
def test_of_one_place_its_own_position_counts(zookeeper: int | None, kafka: int | None) -> None:
    """Whatever the other place holds."""
    kept = read(None if zookeeper is None else in_zookeeper(zookeeper), None if kafka is None else in_kafka(kafka))

    assert kept.find_counting(P).value == zookeeper
    assert kept.find_counting(P, {StoredIn.KAFKA}).value == kafka


def test_of_two_equal_positions_the_one_with_a_known_age_counts() -> None:
    """A truncation is recorded with the mark of the position that it makes void, so it must not change."""
    assert choose(in_zookeeper(40), in_kafka(40), MADE) == in_zookeeper(40)


def test_progress_is_written_to_zookeeper_first() -> None:
    """A lost claim is refused there, and Kafka would take the position from anybody."""
    scene = Scene()
    scene.zookeeper.outcomes[P] = [NOT_OWNER]

    assert scene.commit(move(P, 40), move(Q, 7)) == {P: NOT_OWNER, Q: WRITTEN}

    assert scene.journal == [("zookeeper", P, 40), ("zookeeper", Q, 7), ("kafka", Q, 7)]


def test_what_only_one_place_has_taken_is_not_committed() -> None:
    """It is written again, and the larger one is read until then."""
    scene = Scene()
    scene.kafka.outcomes[P] = [FAILED]

    assert scene.commit(move(P, 40)) == {P: FAILED}

    scene.zookeeper.outcomes[P] = [UNCHANGED]
    assert scene.commit(move(P, 40)) == {P: WRITTEN}


def test_the_topic_that_zookeeper_has_compared_is_not_read_again() -> None:
    """Each commit costs one read of its topics: ZooKeeper's own, or Kafka's if ZooKeeper had nothing to write."""
    scene = Scene()
    scene.zookeeper.outcomes[Q] = [UNCHANGED]

    scene.commit(move(P, 40), move(Q, 7))

    assert scene.zookeeper.compared == [False, False]
    assert scene.kafka.compared == [True, False]


def test_a_rewind_is_written_to_kafka_first() -> None:
    """If only ZooKeeper had moved back, Kafka's larger position would be read, and the rewind would be lost."""
    scene = Scene()
    scene.zookeeper.stored[P] = in_zookeeper(80)
    scene.load(P)

    scene.commit(move(P, 60))

    assert scene.journal == [("kafka", P, 60), ("zookeeper", P, 60)]


def test_a_request_is_deleted_by_zookeeper_once_kafka_has_its_position() -> None:
    """Deleted before that, nobody would rewind Kafka after a failure, and its larger position would win."""
    scene = Scene()
    scene.kafka.outcomes[P] = [FAILED]

    assert scene.commit(move(P, 10, REQUEST)) == {P: FAILED}
    assert scene.zookeeper.requests == []

    assert scene.commit(move(P, 10, REQUEST)) == {P: WRITTEN}
    assert scene.zookeeper.requests == [REQUEST]
    assert scene.kafka.requests == [None, None]


def test_idle_positions_are_written_again_as_kafka_needs() -> None:
    """Kafka forgets them."""
    assert Scene().store.rewrite_s == 600.0
