# SPDX-License-Identifier: Apache-2.0
"""Commits to Kafka: never without a claim, each code examined, and a request that is carried out once."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping

import pytest

from consumerd.client.coordinator import CoordinatorFinder
from consumerd.cluster.topics import ZooKeeperTopics
from consumerd.cluster.view import Broker
from consumerd.errors import ConsumerdError, CoordinationError, OffsetError
from consumerd.model import Incarnation, TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.offsets.kafka import KafkaPositions
from consumerd.offsets.kafka_store import KafkaOffsetStore, MemberGeneration
from consumerd.offsets.kafka_writer import KafkaOffsetWriter
from consumerd.offsets.positions import KafkaOffsetToken
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import Commit, CommitOutcome, OffsetRequest, Validity, judge
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.offset_commit import NO_GENERATION, OffsetCommitRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest
from consumerd.zk.layout import request_path, topic_path
from consumerd.zk.layout_modern import MODERN
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.delivery import FakeClaim
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.offsets_broker import NEWEST, OffsetsBroker
from tests.support.scripted_broker import FakeNetwork

P, Q = (TopicPartition.modern("orders", number) for number in range(2))
ONE, TWO = make_broker(1), make_broker(2)


class Scene:
    """Two brokers, the second of which coordinates, and a ZooKeeper that knows ``orders`` with two partitions."""

    def __init__(
        self, newest: Mapping[ApiKey, tuple[int, int]] = NEWEST, generation: MemberGeneration | None = None
    ) -> None:
        self.generation = generation
        self.one, self.two = OffsetsBroker(TWO, newest=newest), OffsetsBroker(TWO, newest=newest)
        self.network = FakeNetwork()
        self.network.brokers = {ONE.address: self.one, TWO.address: self.two}
        self.server = FakeZooKeeper()
        self.server.put(topic_path("__consumer_offsets"))
        self.make_topic()
        self.denied: list[str] = []

    def make_topic(self) -> None:
        """Create the topic, or create it again."""
        if self.server.read(topic_path("orders")) is not None:
            self.server.remove(topic_path("orders"))
        topic = {"version": 1, "partitions": {str(number): [1] for number in range(2)}}
        self.server.put(topic_path("orders"), json.dumps(topic).encode())

    @property
    def czxid(self) -> int:
        found = self.server.read(topic_path("orders"))
        assert found is not None
        return found[1].czxid

    def claim(self, partition: TopicPartition) -> FakeClaim:
        return FakeClaim(partition, incarnation=self.czxid)

    def run(self, scenario: Callable[[KafkaOffsetStore], Awaitable[None]]) -> None:
        async def play() -> None:
            loop = asyncio.get_running_loop()
            async with ConnectionPool(
                Dialer(self.network, client_id="t", now=loop.time), now=loop.time, random=lambda: 0.0
            ) as pool:
                await scenario(self.open(pool))

        virtual_time.run(play())

    def open(self, pool: ConnectionPool) -> KafkaOffsetStore:
        async def find_brokers() -> list[Broker]:
            return [ONE]

        zk = self.server.client("member")
        zk.connect()
        coordinator = self.coordinator = CoordinatorFinder(
            pool, "g", find_brokers, random=lambda: 0.0, patience_s=3.0, request_timeout_s=1.5
        )
        self.requests = ZooKeeperOffsetRequests(zk, "g")
        numbers = itertools.count(10)
        return KafkaOffsetStore(
            ZooKeeperTopics(zk, MODERN),
            coordinator,
            KafkaPositions(ZooKeeperTopics(zk, MODERN), coordinator, "g", request_timeout_s=1.5, keeps_failure=False),
            "g",
            request_timeout_s=1.5,
            new_id=lambda: f"{next(numbers):x}",
            requests=self.requests,
            denied=self.denied.append,
            generation=self.generation,
        )

    def commit(self, *commits: Commit) -> Mapping[TopicPartition, CommitOutcome]:
        """Commit once, and return what came of it."""
        outcomes = []

        async def scenario(store: KafkaOffsetStore) -> None:
            outcomes.append(await store.commit(commits))
            self.refusals = {one: store.explain_refusal(one) for one in (P, Q)}

        self.run(scenario)
        return outcomes[0]

    def put_request(self, request_id: str, position: int) -> OffsetRequest:
        """Leave a request for P, as ``consumerd offsets set`` does."""
        request = OffsetRequest(
            id=request_id, partition=P, position=position, new_chain=False, author="me", created_ms=1, version=0
        )

        async def put() -> None:
            zk = self.server.client("operator")
            zk.connect()
            await ZooKeeperOffsetRequests(zk, "g").put(request)

        virtual_time.run(put())
        return request


WRITTEN, FAILED, NOT_OWNER = CommitOutcome.WRITTEN, CommitOutcome.FAILED, CommitOutcome.NOT_OWNER


@pytest.mark.parametrize("newest", [1, 2, 3])
def test_positions_go_to_the_coordinator_without_a_generation(newest: int) -> None:
    """In every version that writes Kafka. Version 0 would write ZooKeeper."""
    scene = Scene({**NEWEST, ApiKey.OFFSET_COMMIT: (0, newest)})

    assert scene.commit(Commit(scene.claim(P), 40), Commit(scene.claim(Q), 7)) == {P: WRITTEN, Q: WRITTEN}

    assert scene.two.offsets == {P: 40, Q: 7}
    ((request, version),) = scene.two.asked(OffsetCommitRequest)
    assert (request.generation_id, request.member_id, version) == (NO_GENERATION, "", newest)
    assert not scene.one.asked(OffsetCommitRequest)


class Coordinated(Scene):
    """The same for a member that a broker coordinates, which keeps what the coordinator refuses."""

    def __init__(self, number: int = 4) -> None:
        super().__init__(generation=MemberGeneration())
        assert self.generation is not None
        self.generation.set(number, "member-1")
        self.refused: list[tuple[int, int]] = []
        self.generation.refused = lambda generation, error: self.refused.append((generation, error.code))

    def claim_of(self, generation: int, partition: TopicPartition = P) -> FakeClaim:
        return FakeClaim(partition, epoch=generation, incarnation=self.czxid)


def test_a_coordinated_member_commits_with_its_generation() -> None:
    """So that the coordinator refuses what comes late."""
    scene = Coordinated()

    assert scene.commit(Commit(scene.claim_of(4), 40)) == {P: WRITTEN}

    ((request, _),) = scene.two.asked(OffsetCommitRequest)
    assert (request.generation_id, request.member_id) == (4, "member-1")
    assert scene.refused == []


@pytest.mark.parametrize("number", [5, NO_GENERATION])
def test_a_claim_of_another_generation_is_never_committed(number: int) -> None:
    """Not even where the claim still seems to hold: without a generation the broker would compare nothing."""
    scene = Coordinated(number)

    assert scene.commit(Commit(scene.claim_of(4), 40)) == {P: NOT_OWNER}

    assert not scene.two.asked(OffsetCommitRequest)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (ErrorCode.ILLEGAL_GENERATION, NOT_OWNER),
        (ErrorCode.UNKNOWN_MEMBER_ID, NOT_OWNER),
        (ErrorCode.REBALANCE_IN_PROGRESS, FAILED),
    ],
)
def test_a_refused_commit_is_told_to_the_membership(code: ErrorCode, outcome: CommitOutcome) -> None:
    """It drops or drains the partition; a position is kept as long as the claim may stand."""
    scene = Coordinated()
    scene.two.commit_codes[P] = [code]

    assert scene.commit(Commit(scene.claim_of(4), 40), Commit(scene.claim_of(4, Q), 7)) == {P: outcome, Q: WRITTEN}

    assert scene.refused == [(4, code)]
    assert scene.two.offsets == {Q: 7}


def test_a_broker_that_would_write_zookeeper_is_refused() -> None:
    """The broker would own the nodes from then on, and members beside us would read them."""
    scene = Scene({**NEWEST, ApiKey.OFFSET_COMMIT: (0, 0)})

    assert scene.commit(Commit(scene.claim(P), 40)) == {P: FAILED}

    assert not scene.two.asked(OffsetCommitRequest)


def test_a_position_tells_its_topic_and_two_commits_of_one_offset_differ() -> None:
    """Without it a re-created topic would begin behind its first records."""
    scene = Scene()
    loaded = []

    async def scenario(store: KafkaOffsetStore) -> None:
        for _ in range(2):
            await store.commit([Commit(scene.claim(P), 40)])
            loaded.append((await store.load([P]))[P])

    scene.run(scenario)
    made = Incarnation(scene.czxid)

    assert [judge(one, made) for one in loaded] == [Validity.VALID] * 2
    assert judge(loaded[0], Incarnation(scene.czxid + 1)) is Validity.ANOTHER_INCARNATION
    assert loaded[0].token.mark != loaded[1].token.mark


def test_a_position_of_another_client_is_of_unknown_age() -> None:
    """Java members commit no metadata, and nothing else tells."""
    assert judge_of("") is Validity.UNKNOWN_AGE
    assert judge_of("consumerd czxid=x id=1") is Validity.UNKNOWN_AGE
    assert judge_of("consumerd czxid=5 id=1") is Validity.VALID
    assert judge_of("consumerd czxid=6 id=1") is Validity.ANOTHER_INCARNATION


def judge_of(metadata: str) -> Validity:
    scene = Scene()
    scene.two.offsets[P], scene.two.metadata[P] = 40, metadata
    loaded = []

    async def scenario(store: KafkaOffsetStore) -> None:
        loaded.append((await store.load([P]))[P])

    scene.run(scenario)
    return judge(loaded[0], Incarnation(5))


def test_a_claim_that_is_lost_or_pauses_commits_nothing() -> None:
    """The broker would take it from anybody."""
    scene = Scene()
    lost, paused = scene.claim(P), scene.claim(Q)
    lost.lease.set("lost")
    paused.lease.set("paused")

    assert scene.commit(Commit(lost, 40), Commit(paused, 7)) == {P: NOT_OWNER, Q: FAILED}

    assert not scene.two.asked(OffsetCommitRequest)


def test_a_claim_that_is_lost_while_the_coordinator_loads_is_not_sent_again() -> None:
    """The claim is checked before each request, not once."""
    scene = Scene()
    claim = scene.claim(P)

    class Losing(list[int]):
        def pop(self, index: int = -1) -> int:
            claim.lease.set("lost")
            return super().pop(index)

    scene.two.commit_codes[P] = Losing([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])

    assert scene.commit(Commit(claim, 40)) == {P: NOT_OWNER}

    assert len(scene.two.asked(OffsetCommitRequest)) == 1


def test_a_position_of_a_topic_that_was_created_again_is_dropped() -> None:
    """It would be taken for one of the new topic."""
    scene = Scene()
    claim = scene.claim(P)
    scene.make_topic()

    assert scene.commit(Commit(claim, 40)) == {P: NOT_OWNER}

    assert not scene.two.asked(OffsetCommitRequest)


def test_a_topic_that_was_just_compared_is_not_read_again() -> None:
    """In both places, ZooKeeper has compared it: each commit costs one read of its topics."""
    scene = Scene()
    claim = scene.claim(P)
    scene.server.remove(topic_path("orders"))

    assert scene.commit(Commit(claim, 40)) == {P: NOT_OWNER}
    assert scene.commit(Commit(claim, 40, is_of_topic=True)) == {P: WRITTEN}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_only_what_was_not_taken_is_sent_again(code: ErrorCode) -> None:
    """A coordinator that loads or has moved takes it a moment later."""
    scene = Scene()
    scene.two.commit_codes[P] = [code, code]

    assert scene.commit(Commit(scene.claim(P), 40), Commit(scene.claim(Q), 7)) == {P: WRITTEN, Q: WRITTEN}

    sent = [len(request.topics[0].partitions) for request, _ in scene.two.asked(OffsetCommitRequest)]
    assert sent == [2, 1, 1]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, "brokers coordinate members of a group of this name"),
        (ErrorCode.ILLEGAL_GENERATION, "brokers coordinate members of a group of this name"),
        (ErrorCode.REBALANCE_IN_PROGRESS, "brokers coordinate members of a group of this name"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "allow `Read` on `Group:g`"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "allow `Read` on `Topic:orders`"),
        (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, "INVALID_COMMIT_OFFSET_SIZE"),
    ],
)
def test_a_refusal_fails_its_own_partition_and_says_what_to_do(code: ErrorCode, words: str) -> None:
    """The other partition is committed."""
    scene = Scene()
    scene.two.commit_codes[P] = [code]

    assert scene.commit(Commit(scene.claim(P), 40), Commit(scene.claim(Q), 7)) == {P: FAILED, Q: WRITTEN}

    assert words in (scene.refusals[P] or "")
    assert scene.refusals[Q] is None
    assert scene.denied == (["orders"] if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else [])


def test_a_cluster_without_room_for_metadata_gets_none() -> None:
    """``offset.metadata.max.bytes`` may be 0; the position matters more than its age."""
    scene = Scene()
    scene.two.commit_codes[P] = [ErrorCode.OFFSET_METADATA_TOO_LARGE]

    assert scene.commit(Commit(scene.claim(P), 40)) == {P: WRITTEN}

    assert (scene.two.offsets[P], scene.two.metadata[P]) == (40, "")


def test_an_answer_without_a_partition_is_a_failure_of_that_partition() -> None:
    """It must not count as committed."""
    scene = Scene()
    scene.two.left_out = {P}

    assert scene.commit(Commit(scene.claim(P), 40), Commit(scene.claim(Q), 7)) == {P: FAILED, Q: WRITTEN}


def test_a_coordinator_that_does_not_answer_fails_the_commit_in_time() -> None:
    """Half a session timeout, so that no other member owns the partition by then."""
    scene = Scene()
    scene.two.silent = True
    ended = []

    async def scenario(store: KafkaOffsetStore) -> None:
        assert await store.commit([Commit(scene.claim(P), 40)]) == {P: FAILED}
        ended.append(asyncio.get_running_loop().time())

    scene.run(scenario)

    assert ended[0] <= 3.1


def test_many_partitions_take_several_requests() -> None:
    """A broker appends a request's positions as one batch, which has a limit of size."""
    scene = Scene()
    commits = [Commit(scene.claim(TopicPartition.modern("orders", number)), 1) for number in range(2500)]

    outcomes = scene.commit(*commits)

    assert set(outcomes.values()) == {WRITTEN}
    assert [
        sum(len(topic.partitions) for topic in request.topics) for request, _ in scene.two.asked(OffsetCommitRequest)
    ] == [
        1000,
        1000,
        500,
    ]


def test_partitions_that_start_together_share_a_request() -> None:
    """A thousand claims must not be a thousand requests, and one partition's error is its own."""
    scene = Scene()
    scene.two.offsets = {Q: 7}
    scene.two.partition_codes = {P: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    found = []

    async def scenario(store: KafkaOffsetStore) -> None:
        found.extend(await asyncio.gather(store.load([P]), store.load([Q]), return_exceptions=True))

    scene.run(scenario)

    assert isinstance(found[0], CoordinationError)
    assert "allow `Read` on `Topic:orders`" in str(found[0])
    assert found[1][Q].token == KafkaOffsetToken(offset=7, metadata="by us")
    assert len(scene.two.asked(OffsetFetchRequest)) == 1


# -- operators' requests


def test_a_request_is_deleted_once_its_position_is_committed() -> None:
    """It is carried out once."""
    scene = Scene()
    request = scene.put_request("r1", 10)

    assert scene.commit(Commit(scene.claim(P), 10, request)) == {P: WRITTEN}

    assert scene.two.offsets[P] == 10
    assert scene.server.read(request_path("g", P)) is None


def test_a_request_that_was_replaced_is_not_carried_out() -> None:
    """The newer one will be."""
    scene = Scene()
    request = scene.put_request("r1", 10)
    scene.put_request("r2", 20)

    assert scene.commit(Commit(scene.claim(P), 10, request)) == {P: CommitOutcome.REQUEST_CHANGED}

    assert not scene.two.asked(OffsetCommitRequest)
    assert scene.server.read(request_path("g", P)) is not None


def test_a_request_whose_node_cannot_be_deleted_is_tried_again() -> None:
    """Until it is deleted, the next owner would carry it out again."""
    scene = Scene()
    request = scene.put_request("r1", 10)
    outcomes = []

    async def scenario(store: KafkaOffsetStore) -> None:
        removing = scene.requests.remove

        async def fail(_request: OffsetRequest) -> None:
            raise CoordinationError("no connection")

        scene.requests.remove = fail  # type: ignore[method-assign]
        outcomes.append(await store.commit([Commit(scene.claim(P), 10, request)]))
        scene.requests.remove = removing  # type: ignore[method-assign]
        outcomes.append(await store.commit([Commit(scene.claim(P), 10, request)]))

    scene.run(scenario)

    assert outcomes == [{P: FAILED}, {P: WRITTEN}]
    assert scene.server.read(request_path("g", P)) is None


# -- an operator's writes


def write(scene: Scene, position: int, incarnation: Incarnation | None = None) -> None:
    async def scenario(_store: KafkaOffsetStore) -> None:
        writer = KafkaOffsetWriter(scene.coordinator, "g", request_timeout_s=1.5, new_id=lambda: "a1")
        await writer.write(P, position, incarnation)

    scene.run(scenario)


def test_an_operators_position_tells_its_topic_and_names_no_generation() -> None:
    """It is one of ours for the member that reads it."""
    scene = Scene()
    scene.two.commit_codes[P] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]

    write(scene, 40, Incarnation(scene.czxid))

    assert (40, f"consumerd czxid={scene.czxid} id=a1") == (scene.two.offsets[P], scene.two.metadata[P])
    assert {NO_GENERATION} == {one.generation_id for one, _ in scene.two.asked(OffsetCommitRequest)}


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, OffsetError, "allow `Read` on `Topic:orders`"),
        (ErrorCode.ILLEGAL_GENERATION, OffsetError, "choose another group.id"),
        (None, CoordinationError, "missing in the answer"),
    ],
)
def test_an_operators_position_that_is_refused_is_an_error(
    code: ErrorCode | None, kind: type[ConsumerdError], said: str
) -> None:
    """Nothing is written, and the reason is told."""
    scene = Scene()
    if code is None:
        scene.two.left_out.add(P)
    else:
        scene.two.commit_codes[P] = [code]

    with pytest.raises(kind, match=said):
        write(scene, 40)


def test_an_operators_position_is_not_written_to_a_broker_that_keeps_it_in_zookeeper() -> None:
    """Version 0 would overwrite ZooKeeper's node behind the member's back."""
    scene = Scene({**NEWEST, ApiKey.OFFSET_COMMIT: (0, 0)})

    with pytest.raises(CoordinationError, match=r"0\.8\.2 or later"):
        write(scene, 40)

    assert {} == scene.two.offsets
