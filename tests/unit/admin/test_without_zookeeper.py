# SPDX-License-Identifier: Apache-2.0
"""Commands on a cluster that is given by its brokers alone: topic ids, positions in Kafka, members of its coordinator."""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import ClusterConnections
from consumerd.admin.cancellation import cancel_requests
from consumerd.admin.doctor.facts import LogFacts
from consumerd.admin.doctor.kafka_group import read_kafka_facts
from consumerd.admin.doctor.position_checks import check_positions
from consumerd.admin.inspection import (
    JavaPatience,
    explain,
    find_coordinated,
    find_partitions,
    find_topics,
)
from consumerd.admin.kafka_moves import move_in_kafka, plan_kafka_moves
from consumerd.admin.lag import explain_incarnations, find_lag
from consumerd.admin.operations import PositionMoveRow, Target, Way
from consumerd.admin.positions import export_offsets, find_named, find_offsets
from consumerd.admin.targets import find_reset_targets
from consumerd.cli.offsets_move import move
from consumerd.client.opening import ClusterAccess, open_access
from consumerd.cluster.identities import ClusterIdentities
from consumerd.config.inspection import InspectionSettings
from consumerd.config.settings import Settings
from consumerd.errors import ConfigError, NotFound, OffsetError
from consumerd.model import UNKNOWN_INCARNATION, Generation, Incarnation, TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.offsets.commit_metadata import CommitMetadata, format_metadata
from consumerd.offsets.opening import open_kafka_writer, open_positions
from consumerd.offsets.positions import KafkaOffsetToken
from consumerd.offsets.store import KAFKA_ONLY, LostEnd, Place
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.consumer_protocol import AssignedTopic, Assignment, encode_assignment
from consumerd.wire.modern.groups import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from consumerd.wire.modern.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListedPartition,
    ListedTopic,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from consumerd.wire.modern.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.offsets_broker import NEWEST, OffsetsBroker
from tests.support.scripted_broker import FakeNetwork

P, Q = (TopicPartition.modern("orders", number) for number in range(2))
ONE = make_broker(1)
ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
TOPIC_ID = "ABEiM0RVZneImaq7zN3u_w"
LOG_END = 100
SETTINGS = InspectionSettings.model_validate({"cluster": {"bootstrap": "broker-1:9092"}, "group": {"id": "g"}})


class KraftBroker(OffsetsBroker):
    """The one broker of a cluster: ``orders`` with two partitions, and a group whose members are scripted."""

    def __init__(self, *, newest_metadata: int = 12) -> None:
        ranges = {
            **NEWEST,
            ApiKey.METADATA: (0, newest_metadata),
            ApiKey.LIST_OFFSETS: (1, 2),
            ApiKey.DESCRIBE_GROUPS: (0, 1),
        }
        super().__init__(ONE, newest=ranges)
        self.handlers |= {
            MetadataRequest: self.describe_topics,
            ListOffsetsRequest: self.list_offsets,
            DescribeGroupsRequest: self.describe_group,
        }
        self.ids = {"orders": ID, "__consumer_offsets": uuid.uuid4()}
        self.members: dict[str, tuple[TopicPartition, ...]] = {}
        self.state = "Dead"

    def describe_topics(self, request: MetadataRequest, version: int) -> object:
        wanted = self.ids if request.topics is None else request.topics
        topics = []
        for name in wanted:
            if name not in self.ids:
                topics.append(MetadataTopic(error_code=3, topic=name, partitions=()))
                continue
            partitions = tuple(
                MetadataPartition(partition=number, leader=1, replicas=(1,), isr=(1,)) for number in range(2)
            )
            known = {"topic_id": self.ids[name]} if version >= 10 else {}
            topics.append(MetadataTopic(topic=name, partitions=partitions, **known))
        return MetadataResponse(
            brokers=(MetadataBroker(node_id=1, host=ONE.host, port=ONE.port),),
            cluster_id="the-cluster" if version >= 2 else None,
            controller_id=1 if version >= 1 else -1,
            topics=tuple(topics),
        )

    def list_offsets(self, request: ListOffsetsRequest, _version: int) -> object:
        return ListOffsetsResponse(
            topics=tuple(
                ListedTopic(
                    topic=topic.topic,
                    partitions=tuple(
                        ListedPartition(
                            partition=one.partition, offset=10 if one.timestamp == EARLIEST_TIMESTAMP else LOG_END
                        )
                        for one in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def describe_group(self, request: DescribeGroupsRequest, _version: int) -> object:
        members = tuple(
            DescribedMember(
                member_id=f"{name}-1",
                client_id=name,
                client_host="/10.0.0.1",
                metadata=b"",
                assignment=encode_assignment(
                    Assignment(
                        topics=tuple(
                            AssignedTopic(topic=one.topic, partitions=(one.partition.number,)) for one in owned
                        )
                    )
                ),
            )
            for name, owned in self.members.items()
        )
        return DescribeGroupsResponse(
            groups=(
                DescribedGroup(
                    group_id=request.groups[0],
                    state="Stable" if members else self.state,
                    protocol_type="consumer",
                    protocol="range",
                    members=members,
                ),
            )
        )


def run(broker: KraftBroker, scenario: Callable[[ClusterAccess], Awaitable[None]]) -> None:
    """Play a scenario with an open cluster, on virtual time."""
    network = FakeNetwork()
    network.brokers = {ONE.address: broker}

    async def play() -> None:
        loop = asyncio.get_running_loop()
        dialer = Dialer(network, client_id="t", now=loop.time)
        async with ConnectionPool(dialer, now=loop.time, random=lambda: 0.0) as pool:
            cluster = ClusterConnections(
                address=ClusterAddress(bootstrap="broker-1:9092", client_id="t"),
                pool=pool,
                session=None,
                hooks=Hooks(),
                generation=Generation.MODERN,
                identities=ClusterIdentities(),
            )
            async with open_access(cluster) as access:
                await scenario(access)

    virtual_time.run(play())


def test_topics_have_their_ids() -> None:
    """In the text form of Kafka's tools."""

    async def scenario(access: ClusterAccess) -> None:
        (internal, orders) = await find_topics(access, ())
        partitions = await find_partitions(access, ["orders"])

        assert (internal.topic, orders.topic, orders.incarnation) == ("__consumer_offsets", "orders", TOPIC_ID)
        assert [(one.partition, one.leader, one.earliest, one.latest) for one in partitions] == [
            ("0", 1, 10, LOG_END),
            ("1", 1, 10, LOG_END),
        ]
        assert explain_incarnations(access) == []
        with pytest.raises(ConfigError, match="there is no topic order; did you mean orders"):
            await find_topics(access, ["order"])

    run(KraftBroker(), scenario)


def test_brokers_without_topic_ids_leave_the_incarnation_unknown() -> None:
    """It is said once, and positions count all the same."""
    broker = KraftBroker(newest_metadata=8)
    broker.offsets = {P: 40}
    broker.metadata = {P: format_metadata(Incarnation(7), "ab")}

    async def scenario(access: ClusterAccess) -> None:
        (orders,) = await find_topics(access, ["orders"])
        lag = await find_lag(access, "g", ())

        assert orders.incarnation == "unknown"
        assert [row.position for row in lag.rows] == [40, None]
        assert len(lag.notes) == 1
        assert "no topic ids" in lag.notes[0]

    run(broker, scenario)


def test_lag_counts_from_positions_in_kafka_and_names_members() -> None:
    """A partition without a position counts from its first offset."""
    broker = KraftBroker()
    broker.offsets, broker.members = {P: 40}, {"app": (P,)}

    async def scenario(access: ClusterAccess) -> None:
        found = await find_lag(access, "g", (), KAFKA_ONLY)

        assert [(row.owner, row.position, row.lag) for row in found.rows] == [
            ("app/10.0.0.1", 40, 60),
            (None, None, 90),
        ]
        assert found.notes == []

    run(broker, scenario)


def test_a_group_that_nobody_knows_is_not_found() -> None:
    """A misspelt name must not look like a group without lag; a member alone makes a group."""
    broker = KraftBroker()

    async def scenario(access: ClusterAccess) -> None:
        with pytest.raises(NotFound, match="Kafka has no positions of group 'g', and its coordinator knows no members"):
            await find_lag(access, "g", ())
        broker.members = {"app": (P,)}
        assert len((await find_lag(access, "g", ())).rows) == 2

    run(broker, scenario)


def test_without_the_topic_of_positions_no_coordinator_is_asked() -> None:
    """The question would create it."""
    broker = KraftBroker()
    del broker.ids["__consumer_offsets"]

    async def scenario(access: ClusterAccess) -> None:
        with pytest.raises(NotFound):
            await find_lag(access, "g", ())

    run(broker, scenario)
    assert not [one for one, _ in broker.requests if one.api is ApiKey.FIND_COORDINATOR]


def test_positions_are_shown_and_exported_with_their_topics_ids() -> None:
    """One of an earlier topic of the same name is left out."""
    broker = KraftBroker()
    broker.offsets = {P: 40, Q: 50}
    broker.metadata = {
        P: format_metadata(Incarnation.of_topic_id(ID), "ab"),
        Q: format_metadata(Incarnation.of_topic_id(uuid.uuid4()), "cd"),
    }

    async def scenario(access: ClusterAccess) -> None:
        shown = await find_offsets(access, "g", (), KAFKA_ONLY)
        exported = await export_offsets(access, "g", (), KAFKA_ONLY, now_ms=1)
        named = await find_named(access, ["orders"])

        assert [(row.position, row.validity) for row in shown.rows] == [(40, "valid"), (50, "of another incarnation")]
        assert [(one.position, one.incarnation) for one in exported.document.offsets] == [(40, TOPIC_ID)]
        assert list(exported.left_out) == [Q]
        assert (named.cluster, exported.document.cluster, named.incarnations) == (
            "the-cluster",
            "the-cluster",
            {"orders": TOPIC_ID},
        )

    run(broker, scenario)


def test_stop_and_set_position_are_told_with_the_position() -> None:
    """Nothing else has them without ZooKeeper, and the positions themselves look valid."""
    broker = KraftBroker()
    topic, lost = Incarnation.of_topic_id(ID), LostEnd(number=1, position=80, earliest=0, latest=60)
    broker.offsets = {P: 80, Q: 50}
    broker.metadata = {
        P: CommitMetadata(incarnation=topic, lost_end=lost, voids=True).encode("ab"),
        Q: CommitMetadata(incarnation=topic, lost_end=lost, request_id="0b").encode("cd"),
    }

    async def show(access: ClusterAccess) -> list[str]:
        return [row.note for row in (await find_offsets(access, "g", (), KAFKA_ONLY)).rows]

    async def scenario(access: ClusterAccess) -> None:
        stopped, asked = await show(access)
        assert stopped.startswith("stopped: the log ended below the position. It was [0, 60) and the position 80")
        assert "consumerd offsets reset -g g orders/0" in stopped
        assert asked.startswith("set by an operator")
        facts, _ = await read_kafka_facts(access, "g", required=False)
        assert {P: lost} == {partition: stop.lost for partition, stop in facts.stops.items()}
        (found,) = (
            one
            for one in check_positions(facts, LogFacts(ranges={}, asked=frozenset()), None)
            if one.kind == "stopped-above-log"
        )
        assert ("orders/0", True) == (found.where, found.detail.endswith("since are others"))

        broker.metadata[P] = CommitMetadata(incarnation=topic.truncated(1), lost_end=lost).encode("ef")
        broker.metadata[Q] = ""
        assert await show(access) == ["", "position of unknown age: it may be of a deleted topic of the same name"]

    run(broker, scenario)


def test_positions_of_a_group_without_members_are_written_directly() -> None:
    """With the topic's id, so that they can be told from those of a later topic."""
    broker = KraftBroker()
    broker.offsets, broker.state = {P: 40}, "Empty"

    async def scenario(access: ClusterAccess) -> None:
        reset = await find_reset_targets(access, "g", (), "latest")
        positions = open_positions(access.cluster, "g")
        plan = await plan_kafka_moves(positions, await find_coordinated(access, "g"), reset.targets)
        shown: list[PositionMoveRow] = []

        assert plan.refusal() is None
        assert [(move.partition, move.way, move.effect) for move in plan.moves] == [
            (P, Way.DIRECTLY, "skips 60"),
            (Q, Way.DIRECTLY, "first position"),
        ]
        assert await move_in_kafka(open_kafka_writer(access.cluster, "g"), plan, shown.append) == ()
        assert [row.outcome for row in shown] == ["written to Kafka"] * 2

    run(broker, scenario)
    assert {P: LOG_END, Q: LOG_END} == broker.offsets
    assert all(f"topic_id={TOPIC_ID} " in text for text in broker.metadata.values())


def test_new_chain_is_not_promised(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no request that could ask for it, whatever has been landed."""
    broker = KraftBroker()
    broker.offsets, broker.state = {P: 40}, "Empty"
    settings = InspectionSettings.model_validate({"cluster": {"bootstrap": "broker-1:9092"}, "group": {"id": "g"}})
    args = argparse.Namespace(force=False, dry_run=False, yes=True, timeout=5.0, json=True, wait=1.0, new_chain=True)

    async def scenario(access: ClusterAccess) -> None:
        assert await move(access, settings, [Target(partition=P, position=60)], args) == 0

    run(broker, scenario)
    assert "--new-chain says nothing without ZooKeeper" in capsys.readouterr().err


def test_positions_of_a_group_with_members_are_not_moved() -> None:
    """What to do is said; and a member that joins in between has the commit refused by the coordinator."""
    broker = KraftBroker()
    broker.offsets, broker.members = {P: 40}, {"app": (P,)}
    targets = [Target(partition=P, position=10), Target(partition=Q, position=10)]

    async def scenario(access: ClusterAccess) -> None:
        positions = open_positions(access.cluster, "g")
        refused = (await plan_kafka_moves(positions, await find_coordinated(access, "g"), targets)).refusal()
        assert refused is not None
        assert "group g has 1 member (Stable)" in refused
        assert "stop them" in refused

        broker.members = {}
        plan = await plan_kafka_moves(positions, await find_coordinated(access, "g"), targets)
        broker.commit_codes = {Q: [ErrorCode.UNKNOWN_MEMBER_ID]}
        with pytest.raises(OffsetError, match=r"orders/1: not written, and 1 position before.*a member has joined"):
            await move_in_kafka(open_kafka_writer(access.cluster, "g"), plan, lambda _row: None)

    run(broker, scenario)
    assert {P: 10} == broker.offsets


def test_present_assignment_is_explained_and_another_members_share_is_not_guessed() -> None:
    """Its leader assigns, by an assignor of the members' choice."""
    broker = KraftBroker()
    broker.members = {"app": (P,)}
    java = JavaPatience(retries=4, backoff_ms=2000, session_ms=6000)

    async def scenario(access: ClusterAccess) -> None:
        plan = await explain(access, SETTINGS, replicas=0, streams=1, java=java)

        assert [(row.owner, row.assigned) for row in plan.rows] == [("app/10.0.0.1",) * 2, (None, None)]
        assert (plan.members, plan.problems) == (1, ["orders/1: no member has it"])
        with pytest.raises(ConfigError, match="--replicas"):
            await explain(access, SETTINGS, replicas=1, streams=1, java=java)
        with pytest.raises(ConfigError, match="nothing to cancel"):
            await cancel_requests(access, "g", ())

    run(broker, scenario)


def test_doctor_finds_partitions_without_a_member() -> None:
    """And a group without members at all."""
    broker = KraftBroker()
    broker.offsets, broker.members = {P: 40}, {"app": (P,)}

    async def scenario(access: ClusterAccess) -> None:
        facts, found = await read_kafka_facts(access, "g")
        assert [one.kind for one in found] == ["partitions-unowned"]
        assert [(where, position.believed) for where, position in facts.list_counting().values()] == [
            ("__consumer_offsets orders/0", 40)
        ]
        assert facts.has(P)
        broker.members, broker.state = {}, "Empty"
        assert [one.kind for one in (await read_kafka_facts(access, "g"))[1]] == ["no-members"]

    run(broker, scenario)


def test_czxid_and_topic_id_are_never_compared() -> None:
    """A position that was committed through ZooKeeper is of unknown age by a topic id, and the other way round."""
    by_czxid, by_id = Incarnation(7), Incarnation.of_topic_id(ID)
    of_czxid = KafkaOffsetToken(offset=1, metadata=format_metadata(by_czxid, "ab"))
    of_id = KafkaOffsetToken(offset=1, metadata=format_metadata(by_id, "ab"))
    of_unknown = KafkaOffsetToken(offset=1, metadata=format_metadata(UNKNOWN_INCARNATION, "ab"))

    assert by_czxid != by_id
    assert (str(by_czxid), str(by_id), str(Incarnation(0, 2, by_id.topic_id))) == ("7", TOPIC_ID, f"{TOPIC_ID}.2")
    assert [of_czxid.is_newer_than(one) for one in (by_czxid, Incarnation(8), by_id, UNKNOWN_INCARNATION)] == [
        True,
        False,
        None,
        None,
    ]
    assert [of_id.is_newer_than(one) for one in (by_id, Incarnation.of_topic_id(uuid.uuid4()), by_czxid)] == [
        True,
        False,
        None,
    ]
    assert [of_unknown.is_newer_than(one) for one in (by_id, by_czxid, UNKNOWN_INCARNATION)] == [None] * 3


KAFKA = {"storage": "kafka", "dual_commit": False}


@pytest.mark.parametrize(
    ("membership", "offsets", "refusal"),
    [
        ("zookeeper", {}, r"cluster\.bootstrap.*needs group\.membership: kafka, offsets\.storage: kafka and"),
        ("zookeeper", KAFKA, r"cluster\.bootstrap.*needs group\.membership: kafka"),
        ("kafka", {}, r"needs offsets\.storage: kafka"),
        ("kafka", {"storage": "kafka"}, r"needs offsets\.dual_commit: false"),
        ("kafka", KAFKA, None),
    ],
)
def test_daemon_without_zookeeper_needs_group_and_positions_in_kafka(
    membership: str, offsets: dict[str, object], refusal: str | None
) -> None:
    """Each other combination is refused, with the keys."""
    settings = {
        "cluster": {"bootstrap": "b:1"},
        "group": {"id": "g", "membership": membership},
        "subscriptions": [{"topics": ["orders"], "sink": "out"}],
        "sinks": {"out": {"type": "stdout"}},
        "offsets": offsets,
    }
    if refusal is None:
        assert Settings.model_validate(settings).offsets.places == KAFKA_ONLY
        return
    with pytest.raises(ValueError, match=refusal):
        Settings.model_validate(settings)


def test_settings_have_one_address_and_then_kafkas_positions() -> None:
    """Both together would leave open where a group is."""
    assert SETTINGS.places == frozenset({Place.KAFKA})
    with pytest.raises(ValueError, match="bootstrap is for a cluster without ZooKeeper: remove it, or zookeeper"):
        InspectionSettings.model_validate({"cluster": {"bootstrap": "b:1", "zookeeper": "z:1"}})
    with pytest.raises(ValueError, match="expected host:port, got 'b'"):
        InspectionSettings.model_validate({"cluster": {"bootstrap": "b"}})
