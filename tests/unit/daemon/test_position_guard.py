# SPDX-License-Identifier: Apache-2.0
"""The start of a member whose group has positions in Kafka, too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from random import Random
from typing import cast

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import ClusterConnections
from consumerd.cluster.identities import ClusterIdentities
from consumerd.config.settings import Settings
from consumerd.connector.position_guard import check_other_place
from consumerd.daemon.routes import make_subscription
from consumerd.errors import ConfigError, SessionLost
from consumerd.model import Generation, TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import offset_path, request_path, topic_path
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.offsets_broker import OffsetsBroker
from tests.support.scripted_broker import FakeNetwork

P, Q, R = (TopicPartition.modern("orders", number) for number in range(3))
OTHER = TopicPartition.modern("payments", 0)


class TellingHooks(Hooks):
    def __init__(self) -> None:
        self.told: list[tuple[Trouble, str]] = []

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        self.told.append((kind, detail))


class Start:
    """A cluster with ``orders`` and ``payments``, whose group ``g`` is subscribed to ``orders``."""

    def __init__(self) -> None:
        self.server = FakeZooKeeper()
        self.server.put(topic_path("__consumer_offsets"))
        for name, count in (("orders", 3), ("payments", 1)):
            topic = {"version": 1, "partitions": {str(number): [1] for number in range(count)}}
            self.server.put(topic_path(name), json.dumps(topic).encode())
        self.broker = OffsetsBroker(make_broker(1))
        self.hooks = TellingHooks()
        self.took_s = 0.0

    def commit(self, partition: TopicPartition, position: int) -> None:
        self.server.put(offset_path("g", partition), b"%d" % position)

    def run(self, *, ignore: bool = False, subscription: dict[str, object] | None = None, **offsets: object) -> None:
        settings = Settings.model_validate(
            {
                "cluster": {"zookeeper": "zk:2181"},
                "group": {"id": "g"},
                "subscriptions": [{"sink": "out", **(subscription or {"topics": ["orders"]})}],
                "sinks": {"out": {"type": "stdout"}},
                "offsets": {"ignore_other_place": ignore, **offsets},
            }
        )

        async def play() -> None:
            loop = asyncio.get_running_loop()
            network = FakeNetwork()
            network.brokers = {make_broker(1).address: self.broker}
            dialer = Dialer(network, client_id="t", now=loop.time)
            self.zk = self.server.client("member")
            self.zk.connect()
            async with ConnectionPool(dialer, now=loop.time, random=lambda: 0.0) as pool:
                cluster = ClusterConnections(
                    address=ClusterAddress(bootstrap="broker-1:9092", client_id="t"),
                    pool=pool,
                    session=cast("AiozkClient", self.zk),
                    hooks=self.hooks,
                    generation=Generation.MODERN,
                    identities=ClusterIdentities(),
                )
                try:
                    await check_other_place(cluster, settings, make_subscription(settings), hooks=self.hooks)
                finally:
                    self.took_s = loop.time()

        virtual_time.run(play())


def test_a_start_is_refused_where_kafka_is_ahead() -> None:
    """Java stands at 300: the member would deliver 200 to 299 again. Each number and each way on is named."""
    start = Start()
    start.commit(P, 200)
    start.commit(Q, 70)
    start.broker.offsets = {P: 300, Q: 70, R: 5, OTHER: 1000}

    with pytest.raises(ConfigError) as refused:
        start.run()

    text = str(refused.value)
    assert ": orders/0 (300 in Kafka, 200 in ZooKeeper), orders/2 (5 in Kafka, none in ZooKeeper). " in text
    assert "consumerd offsets set -z zk:2181 -g g orders/0=300 orders/2=5" in text
    assert "offsets.ignore_other_place: true" in text
    assert "orders/1" not in text
    assert "payments" not in text


def test_a_position_of_a_deleted_topic_in_zookeeper_does_not_count() -> None:
    """The member would begin at offsets.on_missing, and Java at its position in Kafka."""
    start = Start()
    start.commit(P, 500)
    start.server.put_topic("orders", 10_000)
    topic = {"version": 1, "partitions": {"0": [1]}}
    start.server.put(topic_path("orders"), json.dumps(topic).encode())
    start.broker.offsets = {P: 300}

    with pytest.raises(
        ConfigError, match=r"orders/0 \(300 in Kafka, none that counts in ZooKeeper: position 500 is of a"
    ):
        start.run()


@pytest.mark.parametrize(
    "subscription", [{"topics": ["payments"]}, {"pattern": "pay.*"}, {"black_list": "orders"}], ids=str
)
def test_only_subscribed_topics_are_compared(subscription: dict[str, object]) -> None:
    """Topics of the group's other members are theirs."""
    start = Start()
    start.broker.offsets = {P: 300}

    start.run(subscription=subscription)

    assert 1 == len(start.broker.asked(OffsetFetchRequest)), "one question for all partitions"


def test_positions_that_are_equal_or_smaller_in_kafka_do_not_prevent_the_start() -> None:
    """So they are at rest in a group that commits to both, some of whose partitions are ours."""
    start = Start()
    start.commit(P, 300)
    start.commit(Q, 70)
    start.broker.offsets = {P: 300, Q: 60}

    start.run()

    assert [] == start.hooks.told
    assert start.took_s < 0.5


def test_a_commit_on_its_way_to_zookeeper_is_waited_for() -> None:
    """A member that commits to both was seen between its two writes."""
    start = Start()
    start.commit(P, 200)
    start.broker.offsets = {P: 300}
    answer = start.broker.fetch

    def fetch(request: OffsetFetchRequest, version: int) -> object:
        asyncio.get_running_loop().call_later(0.7, start.commit, P, 300)
        return answer(request, version)

    start.broker.handlers[OffsetFetchRequest] = fetch

    start.run()


def test_a_request_of_an_operator_says_where_its_partition_goes_on() -> None:
    """Where files have landed, ``offsets set`` leaves a request for the next start: it must not be refused."""
    start = Start()
    start.commit(P, 200)
    start.broker.offsets = {P: 300}
    start.server.put(request_path("g", P), b"{}")

    start.run()


def test_the_setting_lets_the_member_start_and_nothing_is_asked() -> None:
    """Positions in ZooKeeper were moved back on purpose."""
    start = Start()
    start.commit(P, 200)
    start.broker.offsets = {P: 300}

    start.run(ignore=True)

    assert [] == start.broker.requests


def test_without_positions_in_kafka_nothing_is_asked() -> None:
    """Most clusters of groups in ZooKeeper have no such topic, and asking would make it."""
    start = Start()
    start.commit(P, 200)
    start.server.remove(topic_path("__consumer_offsets"))

    start.run()

    assert [] == start.broker.requests


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "GROUP_AUTHORIZATION_FAILED"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_a_broker_that_does_not_tell_does_not_prevent_the_start(code: ErrorCode, name: str) -> None:
    """It is told once, and an absent coordinator delays the start by ten seconds at most."""
    start = Start()
    start.commit(P, 200)
    start.broker.finding_codes = [code] * 1000

    start.run()

    ((kind, detail),) = start.hooks.told
    assert Trouble.KAFKA_POSITIONS_UNKNOWN is kind
    assert name in detail
    assert start.took_s <= 10.5


def test_a_pattern_that_cannot_be_evaluated_is_left_to_the_group() -> None:
    """The member owns nothing then, and the group's disagreements say so: no process ends of it."""
    start = Start()
    start.broker.offsets = {P: 300}
    names = Random(1)
    for _ in range(1_000):
        start.server.put(topic_path("".join(names.choices("ab", k=240))))
    expression = "(?!" + "|".join(f"(.*a.{{{number}}}b)" for number in range(40)) + ").*"

    start.run(subscription={"pattern": expression})


def test_zookeeper_that_does_not_answer_is_asked_again() -> None:
    """The group cannot be joined without it either."""
    start = Start()
    start.commit(P, 200)
    start.broker.offsets = {P: 300}
    failures = [SessionLost("away"), SessionLost("away")]
    asked = FakeZooKeeper.client

    def client(server: FakeZooKeeper, name: str) -> object:
        made = asked(server, name)
        exists = made.exists

        async def failing(path: str) -> object:
            if failures:
                raise failures.pop()
            return await exists(path)

        made.exists = failing  # type: ignore[method-assign]  # what the session does while it is lost
        return made

    start.server.client = client.__get__(start.server)  # type: ignore[method-assign]

    with pytest.raises(ConfigError, match=r"orders/0 \(300 in Kafka"):
        start.run()

    assert start.took_s >= 2


# -- positions in Kafka alone

KAFKA_ALONE: Mapping[str, object] = {"storage": "kafka", "dual_commit": False}


def test_a_start_from_kafka_is_refused_where_zookeeper_is_ahead() -> None:
    """The step with commits to both places was left out: the member would begin at offsets.on_missing, or earlier."""
    start = Start()
    for partition, position in ((P, 200), (Q, 70), (R, 7)):
        start.commit(partition, position)
    start.broker.offsets = {P: 100, Q: 70}

    with pytest.raises(ConfigError) as refused:
        start.run(**KAFKA_ALONE)

    text = str(refused.value)
    assert ": orders/0 (200 in ZooKeeper, 100 in Kafka), orders/2 (7 in ZooKeeper, none in Kafka). " in text
    assert "offsets.dual_commit: true" in text
    assert "offsets.ignore_other_place: true" in text
    assert "orders/1" not in text


def test_a_start_from_kafka_is_refused_in_a_cluster_that_keeps_nothing_there() -> None:
    """No broker need be asked, since the request would create the topic."""
    start = Start()
    start.commit(P, 200)
    start.server.remove(topic_path("__consumer_offsets"))

    with pytest.raises(ConfigError, match=r"orders/0 \(200 in ZooKeeper, none in Kafka\)"):
        start.run(**KAFKA_ALONE)

    assert [] == start.broker.requests


def test_a_position_of_a_deleted_topic_in_kafka_does_not_count() -> None:
    """Ours tell the topic that they are of, so 1000 of the deleted one is not larger than 200."""
    start = Start()
    start.commit(P, 200)
    start.broker.offsets = {P: 1000}
    start.broker.metadata = {P: "consumerd czxid=1 id=aa"}

    with pytest.raises(ConfigError, match=r"orders/0 \(200 in ZooKeeper, none that counts in Kafka: position 1000 is"):
        start.run(**KAFKA_ALONE)


@pytest.mark.parametrize(
    ("in_kafka", "offsets"),
    [
        (300, KAFKA_ALONE),
        (200, KAFKA_ALONE),
        (100, {**KAFKA_ALONE, "ignore_other_place": True}),
        (100, {"storage": "kafka"}),
        (300, {"storage": "kafka"}),
    ],
    ids=["larger in Kafka", "equal", "ignored", "both are read", "both are read, larger in Kafka"],
)
def test_starts_that_lose_nothing_are_not_refused(in_kafka: int, offsets: Mapping[str, object]) -> None:
    """ZooKeeper keeps what it had when the group left it."""
    start = Start()
    start.commit(P, 200)
    start.broker.offsets = {P: in_kafka}

    start.run(**offsets)


def test_a_start_from_kafka_waits_for_the_coordinator() -> None:
    """Positions that are not told are not absent, and nothing can be delivered without them."""
    start = Start()
    start.commit(P, 200)
    start.broker.offsets = {P: 100}
    start.broker.finding_codes = [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 2

    with pytest.raises(ConfigError, match="larger positions in ZooKeeper"):
        start.run(**KAFKA_ALONE)

    assert [Trouble.KAFKA_POSITIONS_UNKNOWN] == [kind for kind, _ in start.hooks.told]


def test_a_partition_that_the_coordinator_refuses_does_not_hold_the_others_up() -> None:
    """Its topic may never be permitted; its own start tells the refusal."""
    start = Start()
    start.commit(P, 200)
    start.broker.partition_codes = {P: ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    start.run(**KAFKA_ALONE)

    ((_, detail),) = start.hooks.told
    assert "TOPIC_AUTHORIZATION_FAILED" in detail
