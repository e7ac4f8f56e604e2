# SPDX-License-Identifier: Apache-2.0
"""Positions in Kafka: each error code examined, no -1 taken for a position, and nothing asked that creates a topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

import pytest

from consumerd.client.coordinator import CoordinatorFinder
from consumerd.cluster.topics import ZooKeeperTopics
from consumerd.cluster.view import Broker
from consumerd.errors import BrokerError, ConsumerdError, RemoteProtocolError, RequestTimedOut, SessionLost
from consumerd.model import TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.kafka import KafkaOffset, KafkaOffsets, KafkaPositions
from consumerd.offsets.positions import IN_BOTH, IN_KAFKA, KeptPositions, Place, Position
from consumerd.offsets.store import Validity
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest
from consumerd.zk.layout import offset_path, topic_path
from consumerd.zk.layout_modern import MODERN
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.offsets_broker import NEWEST, OffsetsBroker
from tests.support.scripted_broker import FakeNetwork

P, Q, R = (TopicPartition.modern("orders", number) for number in range(3))
ONE, TWO = make_broker(1), make_broker(2)
PATIENCE_S = 10.0
LOADING, NOT_AVAILABLE, NOT_COORDINATOR = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Scene:
    """Two brokers, the second of which coordinates, and a ZooKeeper that knows ``orders`` with three partitions."""

    def __init__(self, newest: Mapping[ApiKey, tuple[int, int]] = NEWEST) -> None:
        self.one, self.two = OffsetsBroker(TWO, newest=newest), OffsetsBroker(TWO, newest=newest)
        self.network = FakeNetwork()
        self.network.brokers = {ONE.address: self.one, TWO.address: self.two}
        self.server = FakeZooKeeper()
        self.server.put(topic_path("__consumer_offsets"))
        topic = {"version": 1, "partitions": {str(number): [1] for number in range(3)}}
        self.server.put(topic_path("orders"), json.dumps(topic).encode())
        self.brokers: list[Broker] = [ONE]
        self.fail_brokers: list[Exception] = []
        """What looking up the brokers fails of, before it works."""
        self.ended_s = 0.0
        self.is_kept = False

    def run(self, scenario: Callable[[KafkaPositions], Awaitable[None]]) -> None:
        async def play() -> None:
            loop = asyncio.get_running_loop()
            async with ConnectionPool(
                Dialer(self.network, client_id="t", now=loop.time), now=loop.time, random=lambda: 0.0
            ) as pool:
                await scenario(self.open(pool))
                self.ended_s = loop.time()

        virtual_time.run(play())

    def open(self, pool: ConnectionPool) -> KafkaPositions:
        async def find_brokers() -> list[Broker]:
            if self.fail_brokers:
                raise self.fail_brokers.pop()
            return self.brokers

        self.zk = self.server.client("reader")
        self.zk.connect()
        coordinator = CoordinatorFinder(
            pool, "g", find_brokers, random=lambda: 0.0, patience_s=PATIENCE_S, request_timeout_s=4.0
        )
        topics = ZooKeeperTopics(self.zk, MODERN)
        return KafkaPositions(topics, coordinator, "g", request_timeout_s=4.0, is_kept=self.is_kept)

    def find(self, *partitions: TopicPartition) -> KafkaOffsets:
        """Read, and return what came of it."""
        answers = []

        async def scenario(kafka: KafkaPositions) -> None:
            answers.append(await kafka.find(partitions))

        self.run(scenario)
        return answers[0]


def kept(offset: int) -> KafkaOffset:
    return KafkaOffset(offset=offset, metadata="by us")


def with_newest(**newest: int) -> Mapping[ApiKey, tuple[int, int]]:
    return {**NEWEST, **{ApiKey[name.upper()]: (0, last) for name, last in newest.items()}}


@pytest.mark.parametrize("newest", [1, 2, 3])
def test_positions_are_read_from_the_coordinator_and_minus_one_is_none(newest: int) -> None:
    """In every version that reads Kafka; version 0 would read ZooKeeper."""
    scene = Scene(with_newest(offset_fetch=newest, find_coordinator=0))
    scene.two.offsets = {P: 300, Q: 0}

    assert KafkaOffsets(offsets={P: kept(300), Q: kept(0)}) == scene.find(P, Q, R)

    assert [newest] == [version for _, version in scene.two.asked(OffsetFetchRequest)]
    assert not scene.one.asked(OffsetFetchRequest)


def test_without_the_topic_of_positions_no_broker_is_asked() -> None:
    """The first request for a coordinator makes a broker create the topic."""
    scene = Scene()
    scene.server.remove(topic_path("__consumer_offsets"))

    assert KafkaOffsets() == scene.find(P)

    assert not scene.one.requests


def test_member_of_a_broker_does_not_look_for_the_topic_of_positions() -> None:
    """A broker that has just started may not know it: then a committed position would look like none."""
    scene = Scene()
    scene.server.remove(topic_path("__consumer_offsets"))
    scene.two.offsets = {P: 300}
    scene.is_kept = True

    assert KafkaOffsets(offsets={P: kept(300)}) == scene.find(P)


@pytest.mark.parametrize(
    "newest",
    [with_newest(offset_fetch=0), {ApiKey.FETCH: (0, 0), ApiKey.OFFSET_FETCH: (0, 0)}],
    ids=["version 0 alone", "no coordinators"],
)
def test_brokers_that_keep_no_positions_have_none(newest: Mapping[ApiKey, tuple[int, int]]) -> None:
    """Brokers up to 0.8.1, whatever the topic's name is used for there."""
    scene = Scene(newest)

    assert KafkaOffsets() == scene.find(P)

    assert not scene.two.asked(OffsetFetchRequest)


@pytest.mark.parametrize("newest", [1, 3])
@pytest.mark.parametrize("code", [LOADING, NOT_AVAILABLE, NOT_COORDINATOR])
def test_a_coordinator_that_loads_or_moves_is_asked_again(code: ErrorCode, newest: int) -> None:
    """The Java consumer of 1.1 takes some of these for "no position", and begins at the end."""
    scene = Scene(with_newest(offset_fetch=newest))
    scene.two.offsets = {P: 300}
    scene.two.answer_codes = [code, code]

    assert {P: kept(300)} == scene.find(P).offsets

    assert 3 == len(scene.two.asked(OffsetFetchRequest))
    assert (1 if code is LOADING else 3) == len(scene.one.asked(FindCoordinatorRequest)), "found again if it moved"


def test_an_absent_coordinator_is_looked_for_again() -> None:
    """Its partition of the topic has no leader for the moment of an election."""
    scene = Scene()
    scene.two.offsets = {P: 300}
    scene.one.finding_codes = [NOT_AVAILABLE, NOT_AVAILABLE]

    assert {P: kept(300)} == scene.find(P).offsets


def test_a_coordinator_that_died_is_looked_for_again() -> None:
    """The broker that is asked learns of it a moment later."""
    scene = Scene()
    scene.two.offsets = {P: 300}
    scene.one.offsets = {P: 300}
    del scene.network.brokers[TWO.address]
    asked = scene.one.find_coordinator

    def find(request: FindCoordinatorRequest, version: int) -> object:
        if len(scene.one.asked(FindCoordinatorRequest)) > 2:
            scene.one.coordinator = ONE
        return asked(request, version)

    scene.one.handlers[FindCoordinatorRequest] = find

    assert {P: kept(300)} == scene.find(P).offsets


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ({"answer_codes": [LOADING] * 100}, "COORDINATOR_LOAD_IN_PROGRESS"),
        ({"finding_codes": [NOT_AVAILABLE] * 100}, "COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_the_wait_for_a_coordinator_ends_and_says_why(codes: Mapping[str, list[int]], reason: str) -> None:
    """A start must not wait for a coordinator for ever; a second question in the same command does not wait again."""
    scene = Scene()
    for broker in (scene.one, scene.two):
        for name, values in codes.items():
            setattr(broker, name, list(values))

    async def scenario(kafka: KafkaPositions) -> None:
        for _ in range(2):
            with pytest.raises(RequestTimedOut, match=rf"no coordinator of group 'g' .* within 10 s; last: .*{reason}"):
                await kafka.find([P])

    scene.run(scenario)
    assert PATIENCE_S <= scene.ended_s < PATIENCE_S + 1


def test_a_silent_broker_does_not_keep_another_from_being_asked() -> None:
    """A paused machine takes a connection and never answers."""
    scene = Scene()
    scene.brokers = [ONE, TWO]
    scene.one.silent = True
    scene.two.offsets = {P: 300}

    assert {P: kept(300)} == scene.find(P).offsets


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.INVALID_GROUP_ID])
@pytest.mark.parametrize("where", ["finding_codes", "answer_codes"])
def test_an_error_that_does_not_pass_is_raised_at_once(code: ErrorCode, where: str) -> None:
    """It is no "no position", and nothing to wait for."""
    scene = Scene()
    for broker in (scene.one, scene.two):
        setattr(broker, where, [code])

    async def scenario(kafka: KafkaPositions) -> None:
        with pytest.raises(BrokerError, match=code.name):
            await kafka.find([P])

    scene.run(scenario)
    assert scene.ended_s < 1


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_an_error_of_one_partition_leaves_the_others(code: ErrorCode) -> None:
    """The partition's position is unknown, not absent."""
    scene = Scene()
    scene.two.offsets = {P: 300, Q: 5}
    scene.two.partition_codes = {Q: code}

    found = scene.find(P, Q)

    assert {P: kept(300)} == found.offsets
    assert [Q] == list(found.failures)
    assert code.name in str(found.failures[Q])


def test_a_partition_that_the_answer_leaves_out_is_an_error() -> None:
    """It was asked for, so its position is not known to be none."""
    scene = Scene()
    scene.two.offsets = {P: 300}
    scene.two.left_out = {Q}

    found = scene.find(P, Q)

    assert {P: kept(300)} == found.offsets
    assert isinstance(found.failures[Q], RemoteProtocolError)
    assert "orders/1: the partition is missing in the answer" in str(found.failures[Q])


def test_an_offset_below_minus_one_is_an_error() -> None:
    """No broker writes it."""
    scene = Scene()
    scene.two.offsets = {P: -2}

    assert "expected an offset, or -1 for none, got -2" in str(scene.find(P).failures[P])


def test_a_coordinator_without_an_address_is_an_error() -> None:
    """Older brokers answer so together with an error code, never without one."""
    scene = Scene()
    scene.one.coordinator = Broker(id=TWO.id, host="", port=-1)

    async def scenario(kafka: KafkaPositions) -> None:
        with pytest.raises(ConsumerdError, match="expected a broker's address, got broker 2 at '', port -1"):
            await kafka.find([P])

    scene.run(scenario)


def test_zookeeper_that_did_not_answer_is_asked_again() -> None:
    """Only a coordinator that did not answer is not asked again: a start repeats the question until it has ZooKeeper."""
    scene = Scene()
    scene.two.offsets = {P: 300}
    failures: list[Exception] = [SessionLost("away")]
    scene.fail_brokers = failures

    async def scenario(kafka: KafkaPositions) -> None:
        with pytest.raises(SessionLost):
            await kafka.find([P])
        assert {P: kept(300)} == (await kafka.find([P])).offsets

    scene.run(scenario)


@pytest.mark.parametrize("newest", [1, 2])
def test_all_positions_of_a_group(newest: int) -> None:
    """A group that ZooKeeper does not know; version 1 must be given the partitions of all topics."""
    scene = Scene(with_newest(offset_fetch=newest))
    scene.two.offsets = {P: 300}

    async def scenario(kafka: KafkaPositions) -> None:
        assert {P: kept(300)} == (await kafka.find_all()).offsets
        positions = GroupPositions(scene.zk, "g", kafka)
        assert await positions.explain_absence() is None
        assert {"orders"} == await positions.list_kafka_topics()
        read = await positions.read_kept()
        assert {P: 300} == {one: position.value for one, position in read.kafka.items()}
        assert f"{IN_KAFKA}. Here count those in ZooKeeper (offsets.storage: zookeeper)" == read.explain_places()

    scene.run(scenario)


def test_a_group_of_which_nothing_can_be_said_is_not_called_absent_without_a_doubt() -> None:
    """A coordinator that does not answer may keep its positions."""
    scene = Scene()
    scene.one.finding_codes = [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 10

    async def scenario(kafka: KafkaPositions) -> None:
        absence = await GroupPositions(scene.zk, "g", kafka).explain_absence()
        assert absence is not None
        assert absence.startswith(
            "there is no group 'g' in ZooKeeper, and it is not known if Kafka has positions of it"
        )
        assert "GROUP_AUTHORIZATION_FAILED" in absence

    scene.run(scenario)


def test_both_places_and_which_partitions_are_ahead_in_kafka() -> None:
    """Java stands at 300 in Kafka, ZooKeeper says 200: from there records would be delivered again."""
    scene = Scene()
    scene.server.put("/consumers/g")
    for partition, data in ((P, b"200"), (Q, b"70")):
        scene.server.put(offset_path("g", partition), data)
    scene.two.offsets = {P: 300, Q: 70, R: 5}

    async def scenario(kafka: KafkaPositions) -> None:
        for read in (
            await GroupPositions(scene.zk, "g", kafka).read_kept(["orders"]),
            await GroupPositions(scene.zk, "g", kafka).find_kept([P, Q, R]),
        ):
            assert {P: 300, R: 5} == {one: position.value for one, position in read.find_ahead().items()}
            assert (Place.KAFKA, Validity.UNKNOWN_AGE, "by us") == (
                read.kafka[P].place,
                read.kafka[P].validity,
                read.kafka[P].metadata,
            )
            assert (None, 300) == (read.kafka[P].valid, read.kafka[P].believed)
            assert f"{IN_BOTH}. Here count the larger of both (offsets.storage: kafka)" == read.explain_places(Place)
            assert "" == read.unknown

    scene.run(scenario)


def test_a_commit_to_both_places_between_the_reads_is_not_taken_for_one_to_kafka_alone() -> None:
    """1. Kafka is read: 200. 2. A member commits 300 to Kafka, then to ZooKeeper. 3. ZooKeeper is read: 300."""
    scene = Scene()
    scene.server.put(offset_path("g", P), b"200")
    scene.two.offsets = {P: 200}
    answer = scene.two.fetch

    def fetch(request: OffsetFetchRequest, version: int) -> object:
        answered = answer(request, version)
        scene.two.offsets = {P: 300}
        scene.server.put(offset_path("g", P), b"300")
        return answered

    scene.two.handlers[OffsetFetchRequest] = fetch

    async def scenario(kafka: KafkaPositions) -> None:
        assert {} == (await GroupPositions(scene.zk, "g", kafka).find_kept([P])).find_ahead()

    scene.run(scenario)


def test_unknown_positions_are_told_with_the_reason_and_zookeepers_are_there() -> None:
    """A command shows what it knows."""
    scene = Scene()
    scene.server.put(offset_path("g", P), b"200")
    scene.two.offsets = {Q: 5}
    scene.two.partition_codes = {P: ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    async def scenario(kafka: KafkaPositions) -> None:
        read = await GroupPositions(scene.zk, "g", kafka).read_kept(["orders"])
        assert 200 == read.zookeeper[P].valid
        assert [Q] == list(read.kafka)
        assert "TOPIC_AUTHORIZATION_FAILED" in read.unknown

    scene.run(scenario)


def test_our_positions_in_kafka_tell_the_topic_that_they_are_of() -> None:
    """The others are of unknown age, and believed."""
    scene = Scene()
    scene.server.put(offset_path("g", P), b"200")
    stat = scene.server.read(topic_path("orders"))
    assert stat is not None
    scene.two.offsets = {P: 300, Q: 1000, R: 5}
    scene.two.metadata = {P: f"consumerd czxid={stat[1].czxid} id=a1", Q: "consumerd czxid=1 id=a1"}

    async def scenario(kafka: KafkaPositions) -> None:
        read = await GroupPositions(scene.zk, "g", kafka).read_kept(["orders"])
        assert {P: Validity.VALID, Q: Validity.ANOTHER_INCARNATION, R: Validity.UNKNOWN_AGE} == {
            one: position.validity for one, position in read.kafka.items()
        }
        assert {P: 300, Q: None, R: 5} == {one: position.believed for one, position in read.kafka.items()}
        assert {P, R} == read.find_ahead().keys()

    scene.run(scenario)


def test_positions_of_a_deleted_topic_in_kafka_are_never_ahead() -> None:
    """A broker of 0.8.2 keeps them."""
    gone = Position(value=7, validity=Validity.UNKNOWN_AGE, place=Place.KAFKA)
    assert {} == KeptPositions(zookeeper={}, kafka={P: gone}).find_ahead()
