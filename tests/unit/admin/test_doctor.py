# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks over facts that a test makes: what a real cluster shows too seldom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from consumerd.admin.doctor.facts import HiddenLeftover, LandingFacts, LogFacts, PartitionNode, RegistryFacts
from consumerd.admin.doctor.findings import join_few
from consumerd.admin.doctor.kafka_checks import check_kafka_positions
from consumerd.admin.doctor.landing_checks import check_landing
from consumerd.admin.doctor.position_checks import check_positions
from consumerd.admin.doctor.registry_checks import check_registry
from consumerd.admin.doctor.settings_checks import check_settings
from consumerd.config.load import load_settings
from consumerd.config.settings import Settings
from consumerd.delivery.policy import OffsetPolicy
from consumerd.group.assignors import Strategy
from consumerd.group.plan import GroupSnapshot, GroupTopic, MemberView, Stamp
from consumerd.landing.chain import ChainRecord, LandedEnd, RootRecord
from consumerd.landing.findings import Finding, Severity, sort_findings
from consumerd.landing.publish import Chain
from consumerd.model import BrokerId, ConsumerId, Generation, Incarnation, LogRange, PartitionKey, TopicPartition
from consumerd.offsets.positions import KeptPositions, Place, Position, StoredEntry, read_position
from consumerd.offsets.requests import encode_request
from consumerd.offsets.store import ZOOKEEPER_ONLY, OffsetRequest, Validity
from consumerd.zk.port import Stat
from consumerd.zk.znodes import MemberRegistration, Pattern

P = TopicPartition.modern("orders", 0)
ORDERS = GroupTopic(czxid=100, stamp=(100, 0), partitions=(PartitionKey(0), PartitionKey(1)))
PATH = Path("/data/landing")


def stat(*, mzxid: int = 200, session: int = 0, ctime_ms: int = 1000, mtime_ms: int = 1000) -> Stat:
    return Stat(
        czxid=mzxid, mzxid=mzxid, pzxid=mzxid, ctime_ms=ctime_ms, mtime_ms=mtime_ms, version=0, cversion=0,
        ephemeral_owner=session, data_length=0, num_children=0,
    )  # fmt: skip


def node(kind: str, data: bytes, at: Stat | None = None, partition: TopicPartition = P) -> PartitionNode:
    return PartitionNode(
        path=f"/consumers/g/{kind}/{partition}",
        data=data,
        stat=at or stat(),
        topic=partition.topic,
        partition=partition,
    )


def stored(node: PartitionNode, topic: GroupTopic | None) -> StoredEntry:
    """An offset node as the reader of positions gives it."""
    return StoredEntry(
        path=node.path,
        topic=node.topic,
        partition=node.partition,
        session_id=node.session_id,
        position=read_position((node.data, node.stat), None if topic is None else Incarnation(topic.czxid)),
    )


def facts(
    *,
    owners: tuple[PartitionNode, ...] = (),
    offsets: tuple[PartitionNode, ...] = (),
    requests: tuple[PartitionNode, ...] = (),
    limits: dict[str, int] | None = None,
    member_session: int | None = None,
    ours: frozenset[int] = frozenset(),
    landed_ends: Mapping[tuple[str, TopicPartition], LandedEnd] = MappingProxyType({}),
    wall_ms: int = 0,
    generation: Generation | None = Generation.MODERN,
    topics: dict[str, GroupTopic | None] | None = None,
    legacy_member: bool = False,
) -> RegistryFacts:
    registration = MemberRegistration(pattern=Pattern.STATIC, subscription={"orders": 1}, timestamp_ms=1)
    member = MemberView(consumer=ConsumerId("g_a"), session_id=member_session or 0, registration=registration)
    if legacy_member:
        member = MemberView(
            consumer=ConsumerId("g_a"), session_id=17, registration=None, problem="a form of Kafka 0.7", legacy=True
        )
    named: dict[str, GroupTopic | None] = {"orders": ORDERS} if topics is None else topics
    return RegistryFacts(
        group="g",
        cluster_id="2-17",
        snapshot=GroupSnapshot(
            stamp=Stamp(ids=(1, 1), names=None, topics={}),
            members=() if member_session is None and not legacy_member else (member,),
            topics={"orders": ORDERS},
        ),
        topics=named,
        owners=owners,
        offsets=tuple(stored(node, named.get(node.topic)) for node in offsets),
        requests=requests,
        our_sessions=ours,
        message_limits=limits or {},
        landed_ends=landed_ends,
        wall_ms=wall_ms,
        generation=generation,
    )


def names(found: list[Finding]) -> list[str]:
    return [one.kind for one in found]


# -- positions


@pytest.mark.parametrize(
    ("position", "policy", "check", "said"),
    [
        (
            b"5",
            OffsetPolicy(on_below="stop"),
            "position-below-log",
            "on_below is stop: the next owner stops the partition",
        ),
        (b"5", OffsetPolicy(on_below="earliest"), "position-below-log", "continues at 10"),
        (b"5", OffsetPolicy(on_below="nearest"), "position-below-log", "continues at 10"),
        (b"5", OffsetPolicy(on_below="latest"), "position-below-log", "continues at 20"),
        (b"25", OffsetPolicy(on_above="nearest"), "position-above-log", "continues at 20"),
        (b"25", OffsetPolicy(on_above="earliest"), "position-above-log", "continues at 10"),
        (b"25", None, "position-above-log", "offsets.on_above of the member that claims it decides"),
    ],
)
def test_a_position_outside_of_the_log_is_told_with_what_the_settings_would_do(
    position: bytes, policy: OffsetPolicy | None, check: str, said: str
) -> None:
    """Before a start, while it can still be decided."""
    logs = LogFacts(asked=frozenset({P}), ranges={P: LogRange(10, 20)})
    (found,) = check_positions(facts(offsets=(node("offsets", position),)), logs, policy)
    assert found.kind == check
    assert said in found.detail


@pytest.mark.parametrize("at", [stat(mzxid=50), stat()], ids=["of an older topic", "in the log"])
def test_a_position_that_is_in_the_log_or_does_not_count_is_not_told(at: Stat) -> None:
    """The end of the log is in it; what is about a deleted topic is told elsewhere."""
    logs = LogFacts(asked=frozenset({P}), ranges={P: LogRange(10, 20)})
    position = b"5" if at.mzxid == 50 else b"20"
    assert check_positions(facts(offsets=(node("offsets", position, at),)), logs, None) == []


# -- positions in Kafka

BOTH, KAFKA = frozenset(Place), frozenset({Place.KAFKA})


def check_in_kafka(
    kept: KeptPositions,
    places: frozenset[Place] = ZOOKEEPER_ONLY,
    *,
    ignored: bool = False,
    landed_ends: Mapping[tuple[str, TopicPartition], LandedEnd] = MappingProxyType({}),
) -> list[Finding]:
    known = replace(facts(landed_ends=landed_ends), kept=kept, places=places)
    return check_kafka_positions(known, ignored=ignored)


def test_the_position_that_counts_is_compared_with_the_log() -> None:
    """Kafka's is gone from the log, and ZooKeeper's, which nobody reads, is in it."""
    logs = LogFacts(asked=frozenset({P}), ranges={P: LogRange(10, 20)})
    kept = KeptPositions(zookeeper={P: in_zookeeper(15)}, kafka={P: in_kafka(5)})

    (found,) = check_positions(replace(facts(), kept=kept, places=KAFKA), logs, None)

    assert ("position-below-log", "__consumer_offsets orders/0") == (found.kind, found.where)
    assert [] == check_positions(replace(facts(), kept=kept, places=BOTH), logs, None)


def in_kafka(value: int) -> Position:
    return Position(value=value, validity=Validity.UNKNOWN_AGE, place=Place.KAFKA, incarnation=Incarnation(100))


def in_zookeeper(value: int) -> Position:
    return Position(value=value, validity=Validity.VALID, incarnation=Incarnation(100))


@pytest.mark.parametrize(
    ("ignored", "severity", "said"),
    [(False, Severity.CRITICAL, "consumerd run refuses to start"), (True, Severity.WARNING, "begins at those in Zoo")],
)
def test_a_larger_position_in_kafka_is_told_with_what_a_start_would_do(
    ignored: bool, severity: Severity, said: str
) -> None:
    """``doctor`` found nothing while the group's members stood further on."""
    kept = KeptPositions(zookeeper={P: in_zookeeper(0)}, kafka={P: in_kafka(300)})

    (found,) = check_in_kafka(kept, ignored=ignored)

    assert ("position-larger-in-kafka", severity) == (found.kind, found.severity)
    assert "orders/0 (300 in Kafka, 0 in ZooKeeper)" in found.detail
    assert said in found.detail


def test_a_group_that_commits_to_both_gets_a_notice_and_one_in_zookeeper_nothing() -> None:
    """A notice is no reason to act, and nothing is what it always was."""
    kept = KeptPositions(zookeeper={P: in_zookeeper(300)}, kafka={P: in_kafka(300)})

    assert [("positions-in-kafka", Severity.NOTICE)] == [(one.kind, one.severity) for one in check_in_kafka(kept)]
    assert [] == check_in_kafka(KeptPositions(zookeeper={}))


def test_a_larger_position_in_zookeeper_is_told_where_kafka_alone_is_read() -> None:
    """The group went to Kafka without the step that commits to both."""
    kept = KeptPositions(zookeeper={P: in_zookeeper(300)}, kafka={P: in_kafka(0)})

    (found, _) = check_in_kafka(kept, KAFKA)

    assert ("position-larger-in-zookeeper", Severity.CRITICAL) == (found.kind, found.severity)
    assert "orders/0 (300 in ZooKeeper, 0 in Kafka)" in found.detail
    assert "dual_commit: true" in (found.advice or "")
    assert [] == check_in_kafka(kept, BOTH)


def test_positions_of_unknown_age_are_named_where_they_count() -> None:
    """0.8.2 keeps the positions of deleted topics; those that do not count harm nobody."""
    kept = KeptPositions(zookeeper={P: in_zookeeper(200)}, kafka={P: in_kafka(300)})

    for places in (BOTH, KAFKA):
        (found,) = check_in_kafka(kept, places)
        assert ("position-of-unknown-age", Severity.NOTICE) == (found.kind, found.severity)
        assert "orders/0" in found.detail
    ours = replace(in_kafka(300), validity=Validity.VALID)
    assert [] == check_in_kafka(replace(kept, kafka={P: ours}), KAFKA)


def test_landed_data_without_a_position_in_kafka_is_named() -> None:
    """The broker has forgotten it."""
    landed = {("root", P): LandedEnd(incarnation=Incarnation(100), chain=1, origin=0, next_offset=7)}

    (found,) = check_in_kafka(KeptPositions(zookeeper={}), KAFKA, landed_ends=landed)

    assert ("position-missing-in-kafka", Severity.WARNING) == (found.kind, found.severity)
    assert [] == check_in_kafka(KeptPositions(zookeeper={}), landed_ends=landed)
    unknown = check_in_kafka(KeptPositions(zookeeper={}, unknown="away"), KAFKA, landed_ends=landed)
    assert ["kafka-positions-unknown"] == [one.kind for one in unknown]


def test_unknown_positions_in_kafka_are_a_warning() -> None:
    """A broker that refuses must not look like one without positions."""
    kept = KeptPositions(zookeeper={}, unknown="broker answered error 30")

    (found,) = check_in_kafka(kept)

    assert ("kafka-positions-unknown", Severity.WARNING) == (found.kind, found.severity)
    assert "error 30" in found.detail


# -- requests


def test_a_request_that_waits_is_told_with_who_holds_the_partition() -> None:
    """A Java member never carries it out; ours will, and says on its page why not yet."""
    wish = b'{"version":1,"id":"r","position":5,"new_chain":false,"author":"joe","created_ms":1}'
    waiting = (node("requests", wish),)
    held = (
        node("owners", b"g_a-0", stat(session=7)),
        node("owners", b"g_a-0", stat(session=7), TopicPartition.modern("orders", 1)),
    )
    java = facts(requests=waiting, owners=held, member_session=7, wall_ms=100_000)
    (found,) = check_registry(java, Strategy.RANGE)
    assert found.kind == "request-pending"
    assert "waits for 99 s" in found.detail
    assert "session 0x7, which registered g_a" in found.detail
    assert found.advice.startswith("a Java member carries no request out")
    ours = facts(requests=waiting, owners=held, member_session=7, ours=frozenset({7}), wall_ms=100_000)
    assert check_registry(ours, Strategy.RANGE)[0].advice.startswith("the owner carries it out")
    fresh = facts(requests=waiting, owners=held, member_session=7, wall_ms=2_000)
    assert check_registry(fresh, Strategy.RANGE) == []


# -- settings


def settings(tmp_path: Path, *overrides: str, second: bool = False) -> Settings:
    """Return settings with one sink, or two."""
    config = tmp_path / "config.yaml"
    other, out = (", {topics: [clicks], sink: out}", ", out: {type: 'null'}") if second else ("", "")
    config.write_text(
        f"cluster: {{zookeeper: 'localhost:1'}}\ngroup: {{id: g}}\nsubscriptions: [{{topics: [orders], sink: lake}}{other}]\n"
        f"sinks: {{lake: {{type: jsonl, path: {tmp_path / 'landing'}}}{out}}}\n"
    )
    return load_settings(config=config, properties=None, overrides=overrides, extra={})


def test_settings_that_go_together_are_not_told(tmp_path: Path) -> None:
    """The defaults, in a small group; and just enough memory for Arrow."""
    assert check_settings(settings(tmp_path), facts(), 6.0) == []
    enough = settings(
        tmp_path,
        "fetch.memory_budget_bytes=134217728",
        "fetch.max_message_bytes=33554432",
        "sinks.lake.type=parquet",
    )
    assert check_settings(enough, facts(), 6.0) == []


@pytest.mark.parametrize(
    ("overrides", "limits", "negotiated_s", "check"),
    [
        ((), {}, 4.0, "session-timeout-not-granted"),
        (("group.session_timeout_ms=9000",), {}, 9.0, "java-patience"),
        (("fetch.memory_budget_bytes=8388608",), {}, 6.0, "memory-for-fewer-partitions"),
        (("fetch.memory_budget_bytes=8388608",), {}, 6.0, "memory-below-message"),
        (("fetch.memory_budget_bytes=134217727", "sinks.lake.type=parquet"), {}, 6.0, "memory-below-libraries"),
        ((), {"orders": 1 << 30}, 6.0, "messages-larger-than-fetch"),
    ],
)
def test_settings_that_do_not_go_together_are_told(
    tmp_path: Path, overrides: tuple[str, ...], limits: dict[str, int], negotiated_s: float, check: str
) -> None:
    """Each works until the day on which it matters."""
    assert check in names(check_settings(settings(tmp_path, *overrides), facts(limits=limits), negotiated_s))


def test_a_message_must_fit_into_the_smallest_sinks_part_of_the_memory(tmp_path: Path) -> None:
    """A second sink halves what there is for each."""
    limits = {"orders": 40 << 20}
    assert names(check_settings(settings(tmp_path), facts(limits=limits), 6.0)) == []
    two = check_settings(settings(tmp_path, second=True), facts(limits=limits), 6.0)
    assert {"memory-below-message", "messages-larger-than-fetch"} <= set(names(two))
    assert "shared by 2 sinks, holds the copies of a message of 33554432 bytes" in " ".join(one.detail for one in two)


@pytest.mark.parametrize(
    ("overrides", "severity"),
    [
        ((), Severity.NOTICE),
        (
            ("fetch.max_message_bytes=67108864",),
            Severity.NOTICE,
        ),  # the default, as copies of config.example.yaml have it
        (("fetch.max_message_bytes=50331648",), Severity.WARNING),  # asked for, and stops above two thirds of it
        (("fetch.memory_budget_bytes=33554432",), Severity.WARNING),  # below the first fetch of a partition
    ],
)
def test_a_smaller_limit_than_the_default_is_no_reason_to_fail(
    tmp_path: Path, overrides: tuple[str, ...], severity: Severity
) -> None:
    """Two sinks with all defaults are in order; topics with larger messages are a finding of their own."""
    chosen = settings(tmp_path, *overrides, second=True)
    (found,) = (one for one in check_settings(chosen, facts(), 6.0) if one.kind == "memory-below-message")
    assert found.severity is severity


def test_patience_matters_more_where_there_are_members_that_need_it(tmp_path: Path) -> None:
    """Without a Java member it is good to know, and no reason to fail."""
    chosen = settings(tmp_path, "group.session_timeout_ms=9000")
    ours = facts(member_session=7, ours=frozenset({7}))
    java = facts(member_session=7)
    (alone,), (beside,) = check_settings(chosen, ours, 9.0), check_settings(chosen, java, 9.0)
    assert (alone.severity, beside.severity) == (Severity.NOTICE, Severity.WARNING)
    assert not alone.needs_look


@pytest.mark.parametrize(
    ("quarantine", "told"), [("landing/q", True), (".", True), ("landing", True), ("landing-q", False), ("q", False)]
)
def test_a_quarantine_is_to_lie_beside_the_sinks(tmp_path: Path, quarantine: str, told: bool) -> None:
    """Readers of a landing folder read everything in it."""
    chosen = settings(tmp_path, f"quarantine.path={tmp_path / quarantine}")
    assert names(check_settings(chosen, facts(), 6.0)) == (["paths-overlap"] if told else [])


# -- landing


def landing(**changes: object) -> LandingFacts:
    root = RootRecord(root="r", cluster="2-17", group="g")
    fields: dict[str, object] = {"setting": "sinks.lake.path", "path": PATH, "there": True, "root": root, **changes}
    return LandingFacts(**fields)  # type: ignore[arg-type]  # a test's own names


def chain(end: int, incarnation: Incarnation = Incarnation(100)) -> Chain:  # noqa: B008 - a value
    record = ChainRecord(origin=0, incarnation=incarnation, extension="jsonl", reason="x", writer="w")
    return Chain(number=1, folder=PATH / "topic=orders" / "partition=0" / "chain=1", record=record, end=end)


@pytest.mark.parametrize(
    ("found", "committed", "owned", "told"),
    [
        (chain(10), b"10", False, []),
        (chain(10), b"12", False, ["committed-beyond-chain"]),
        (chain(10), b"8", False, ["committed-behind-chain"]),
        (chain(10), b"8", True, []),
        (chain(10), b"junk", False, []),
        (chain(10, Incarnation(99)), b"10", False, ["chain-of-older-topic"]),
        (chain(10, Incarnation(100, 1)), b"10", False, []),
        (chain(10, Incarnation(101)), b"10", False, ["chain-of-later-topic"]),
    ],
)
def test_chains_are_compared_with_the_topic_and_with_what_is_committed(
    found: Chain, committed: bytes, owned: bool, told: list[str]
) -> None:
    """Where the two differ at rest, somebody has consumed, restored or lost something."""
    owners = (node("owners", b"g_a-0", stat(session=7)),) if owned else ()
    seen = facts(offsets=(node("offsets", committed),), owners=owners)
    assert names(check_landing(seen, landing(chains={P: found}))) == told


@pytest.mark.parametrize("committed", [b"12", b"8"])
def test_a_position_of_a_deleted_topic_is_not_compared_with_a_chain(committed: bytes) -> None:
    """It counts records of another log, and delivery does not use it."""
    seen = facts(offsets=(node("offsets", committed, stat(mzxid=50)),))
    assert names(check_landing(seen, landing(chains={P: chain(10)}))) == []


def test_a_chain_of_a_topic_that_is_gone_is_left_in_peace() -> None:
    """That is what landing is for."""
    gone = TopicPartition.modern("gone", 0)
    assert check_landing(facts(), landing(chains={gone: chain(10)})) == []


@pytest.mark.parametrize(
    ("modified_ms", "owned", "told"),
    [
        (500, True, ["leftovers-older-than-claim"]),
        (1500, True, []),
        (500, False, ["leftovers"]),
    ],
)
def test_leftovers_are_told_from_files_that_are_being_written(modified_ms: int, owned: bool, told: list[str]) -> None:
    """Whoever claims a partition removes them first: older ones prove that the owner does not land here."""
    owners = (node("owners", b"g_a-0", stat(session=7, ctime_ms=1000)),) if owned else ()
    left = HiddenLeftover(path=PATH / "x", partition=P, modified_ms=modified_ms)
    assert names(check_landing(facts(owners=owners), landing(leftovers=(left,)))) == told


def test_what_lies_below_a_path_that_is_not_ours_is_not_looked_at() -> None:
    """Its chains are somebody else's business."""
    root = RootRecord(root="r", cluster="2-18", group="g")
    assert names(check_landing(facts(), landing(root=root, problems={P: "damaged"}))) == ["path-of-another"]


# -- findings


def test_the_worst_comes_first_and_long_lists_are_cut() -> None:
    """What is read is the first screen."""
    made = [
        Finding(severity=severity, kind="c", where="w", detail="x", advice="a")
        for severity in (Severity.NOTICE, Severity.CRITICAL, Severity.WARNING)
    ]
    assert [one.severity for one in sort_findings(made)] == [Severity.CRITICAL, Severity.WARNING, Severity.NOTICE]
    assert join_few(range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"


LEGACY = TopicPartition("orders", PartitionKey.parse("0-1"))


@pytest.mark.parametrize(
    "of_0_7",
    [
        facts(offsets=(node("offsets", b"66", partition=LEGACY),), generation=None),
        facts(owners=(node("owners", b"g_a-0", stat(session=17), LEGACY),), generation=None),
        facts(legacy_member=True, generation=None),
    ],
    ids=["position", "owner", "member"],
)
def test_a_group_of_0_7_whose_brokers_are_down_is_left_alone(of_0_7: RegistryFacts) -> None:
    """Its nodes are what 0.7 writes; to delete the positions would have it read everything again, or nothing."""
    (found,) = check_registry(of_0_7, Strategy.RANGE)
    assert found.kind == "generation-unknown"
    assert "delete" not in found.advice
    assert "leave the nodes as they are" in found.advice


def test_names_of_0_7_beside_a_modern_cluster_are_no_missing_partitions() -> None:
    """A group of 0.7 may still use the chroot, and nothing says that its positions are of no use."""
    found = check_registry(
        facts(
            offsets=(node("offsets", b"66", partition=LEGACY), node("offsets", b"junk", partition=LEGACY)),
            owners=(node("owners", b"g_a-0", stat(session=17), LEGACY),),
            member_session=17,
        ),
        Strategy.RANGE,
    )
    told = [one for one in found if one.where.endswith("0-1")]
    assert {one.kind for one in told} == {"stored-position-of-older-kafka", "owner-of-older-kafka"}
    assert not any(one.needs_look or "delete" in one.advice for one in told)


OF_0_7 = GroupTopic(czxid=100, stamp=(100, 0), partitions=(PartitionKey(0, BrokerId(0)), PartitionKey(1, BrokerId(0))))
HERE, AWAY = (TopicPartition("orders", PartitionKey.parse(text)) for text in ("0-0", "1-0"))


def in_0_7(**changes: Any) -> RegistryFacts:
    """A cluster of 0.7 with broker 0; broker 1 is away."""
    known = facts(generation=Generation.LEGACY, topics={"orders": OF_0_7}, member_session=17, **changes)
    return replace(known, snapshot=replace(known.snapshot, topics={}, members=()), brokers={BrokerId(0)})


def test_positions_of_a_broker_of_0_7_that_is_away_are_one_finding() -> None:
    """They are needed when it comes back: the group continues at them."""
    more = TopicPartition("orders", PartitionKey.parse("1-1"))
    known = in_0_7(offsets=tuple(node("offsets", b"66", partition=one) for one in (HERE, AWAY, more)))
    (found,) = check_registry(known, Strategy.RANGE)
    assert (found.kind, found.where, found.severity) == ("partition-away", "/brokers/ids/1", Severity.CRITICAL)
    assert "broker 1 is not registered" in found.detail
    assert "2 partitions with a position: orders/1-0, orders/1-1" in found.detail
    assert found.advice.startswith("start broker 1 again")
    assert "delete" not in found.advice
    assert not check_registry(in_0_7(offsets=(node("offsets", b"66", partition=HERE),)), Strategy.RANGE)


def test_a_broker_of_0_7_without_its_logs_is_told_from_one_that_is_away() -> None:
    """Starting it again does not help."""
    known = replace(in_0_7(offsets=(node("offsets", b"66", partition=AWAY),)), brokers={BrokerId(0), BrokerId(1)})
    (found,) = check_registry(known, Strategy.RANGE)
    assert (found.kind, found.where) == ("partition-away", "/brokers/topics/orders")
    assert "has lost its logs" in found.advice


def test_owners_and_requests_of_a_partition_that_is_away_are_not_to_be_deleted() -> None:
    """The owner releases its node, and the request is carried out when the broker is back."""
    request = OffsetRequest(
        id="1", partition=AWAY, position=5, new_chain=False, author="ops@host", created_ms=1_000, version=0
    )
    known = in_0_7(
        owners=(node("owners", b"g_a-0", stat(session=17), AWAY),),
        requests=(node("requests", encode_request(request), partition=AWAY),),
        wall_ms=100_000,
    )
    found = {one.kind: one for one in check_registry(known, Strategy.RANGE)}
    assert found.keys() == {"owner-of-away-partition", "request-of-away-partition", "owner-not-registered"}
    assert not any("delete" in one.advice for one in found.values())


def test_names_of_0_8_in_a_cluster_of_0_7_are_strange() -> None:
    """There, plain numbers are what some client of another release has written."""
    known = in_0_7(offsets=(node("offsets", b"66"),), owners=(node("owners", b"g_a-0", stat(session=17)),))
    kinds = {one.kind for one in check_registry(known, Strategy.RANGE)}
    assert kinds == {"stored-position-of-newer-kafka", "owner-of-newer-kafka", "owner-not-registered"}


def test_a_malformed_position_is_told_in_a_cluster_of_0_7_too() -> None:
    """Members of ours read it there."""
    (found,) = check_registry(in_0_7(offsets=(node("offsets", b"junk", partition=HERE),)), Strategy.RANGE)
    assert found.kind == "position-malformed"


def test_a_position_above_the_log_of_0_7_is_that_of_a_broker_that_began_anew() -> None:
    """There are no elections there."""
    known = in_0_7(offsets=(node("offsets", b"66", partition=HERE),))
    (found,) = check_positions(known, LogFacts(asked=frozenset({HERE}), ranges={HERE: LogRange(0, 8)}), None)
    assert found.kind == "position-above-log"
    assert "broker 0 has lost its log and began again at 0" in found.detail


def test_a_topic_that_cannot_be_read_is_told_and_its_partitions_are_not_called_missing() -> None:
    """What the topic has is unknown; a position that is deleted for it is lost."""
    spoilt = GroupTopic(czxid=100, stamp=(100, 1), partitions=(), problem="expected a JSON object")
    found = check_registry(facts(offsets=(node("offsets", b"7"),), topics={"orders": spoilt}), Strategy.RANGE)
    assert names(found) == ["topic-unreadable"]
    assert found[0].where == "/brokers/topics/orders"


LANDED = LandedEnd(incarnation=Incarnation(100), chain=1, origin=0, next_offset=20)


@pytest.mark.parametrize(
    ("found", "noted", "committed", "told"),
    [
        (chain(20), LANDED, b"20", []),
        (chain(10), LANDED, b"20", ["landed-file-missing"]),
        (chain(10), LANDED, b"30", ["landed-file-missing", "committed-beyond-chain"]),
        (None, LANDED, b"20", ["landed-file-missing"]),
        (chain(10, Incarnation(99)), LANDED, b"20", ["landed-file-missing", "chain-of-older-topic"]),
        (chain(10), replace(LANDED, incarnation=Incarnation(99)), b"10", []),
        (replace(chain(10), number=2), LANDED, b"10", []),
    ],
)
@pytest.mark.parametrize("owned", [False, True])
def test_a_landed_file_that_was_removed_is_an_error(
    found: Chain | None, noted: LandedEnd, committed: bytes, told: list[str], owned: bool
) -> None:
    """The group has noted how far it has landed: nobody else can have consumed that."""
    owners = (node("owners", b"g_a-0", stat(session=7)),) if owned else ()
    seen = facts(offsets=(node("offsets", committed),), owners=owners, landed_ends={("r", P): noted})
    chains = {} if found is None else {P: found}
    checks = check_landing(seen, landing(chains=chains))
    assert names(checks) == [one for one in told if not (owned and one == "committed-beyond-chain")]
    assert all(one.severity is Severity.CRITICAL for one in checks if one.kind == "landed-file-missing")


def test_a_landed_file_that_was_removed_before_its_position_was_committed_is_no_error() -> None:
    """Its process was killed in between: the next owner begins at the committed position, and lands it again."""
    seen = facts(offsets=(node("offsets", b"10"),), landed_ends={("r", P): LANDED})
    (told,) = check_landing(seen, landing(chains={P: chain(10)}))

    assert (told.kind, told.severity) == ("landed-file-missing", Severity.NOTICE)
    assert "the next owner reads them again" in told.detail


def test_what_was_landed_below_another_root_is_another_paths() -> None:
    """A replica's own path, or a volume that was given up."""
    seen = facts(landed_ends={("other", P): LANDED})
    assert check_landing(seen, landing(chains={P: chain(10)})) == []
