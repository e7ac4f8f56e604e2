# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks over facts that a test makes: what a real cluster shows too seldom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from consumerd.admin.doctor.facts import HiddenLeftover, LandingFacts, LogFacts, PartitionNode, RegistryFacts
from consumerd.admin.doctor.findings import Finding, Severity, join_few, sort_findings
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
from consumerd.landing.publish import Chain
from consumerd.model import ConsumerId, Generation, Incarnation, LogRange, PartitionKey, TopicPartition
from consumerd.zk.port import Stat
from consumerd.zk.znodes import MemberRegistration, Pattern

P = TopicPartition.modern("orders", 0)
ORDERS = GroupTopic(czxid=100, version=0, partitions=(PartitionKey(0), PartitionKey(1)))
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
    return RegistryFacts(
        group="g",
        cluster_id="2-17",
        snapshot=GroupSnapshot(
            stamp=Stamp(ids=(1, 1), names=None, topics={}),
            members=() if member_session is None and not legacy_member else (member,),
            topics={"orders": ORDERS},
        ),
        topics={"orders": ORDERS} if topics is None else topics,
        owners=owners,
        offsets=offsets,
        requests=requests,
        our_sessions=ours,
        message_limits=limits or {},
        landed_ends=landed_ends,
        wall_ms=wall_ms,
        generation=generation,
    )


def names(found: list[Finding]) -> list[str]:
    return [one.check for one in found]


# -- positions


@pytest.mark.parametrize(
    ("position", "policy", "check", "said"),
    [
        (
            b"5",
            OffsetPolicy(on_below="stop"),
            "position-below-log",
            "on_below is stop: whoever claims the partition stops",
        ),
        (b"5", OffsetPolicy(on_below="earliest"), "position-below-log", "goes on at 10"),
        (b"5", OffsetPolicy(on_below="nearest"), "position-below-log", "goes on at 10"),
        (b"5", OffsetPolicy(on_below="latest"), "position-below-log", "goes on at 20"),
        (b"25", OffsetPolicy(on_above="nearest"), "position-above-log", "goes on at 20"),
        (b"25", OffsetPolicy(on_above="earliest"), "position-above-log", "goes on at 10"),
        (b"25", None, "position-above-log", "offsets.on_above of the member that claims it decides"),
    ],
)
def test_a_position_outside_of_the_log_is_told_with_what_the_settings_would_do(
    position: bytes, policy: OffsetPolicy | None, check: str, said: str
) -> None:
    """Before a start, while it can still be decided."""
    logs = LogFacts(asked=frozenset({P}), ranges={P: LogRange(10, 20)})
    (found,) = check_positions(facts(offsets=(node("offsets", position),)), logs, policy)
    assert found.check == check
    assert said in found.what


@pytest.mark.parametrize("at", [stat(mzxid=50), stat()], ids=["of an older topic", "in the log"])
def test_a_position_that_is_in_the_log_or_does_not_count_is_not_told(at: Stat) -> None:
    """The end of the log is in it; what is about a deleted topic is told elsewhere."""
    logs = LogFacts(asked=frozenset({P}), ranges={P: LogRange(10, 20)})
    position = b"5" if at.mzxid == 50 else b"20"
    assert check_positions(facts(offsets=(node("offsets", position, at),)), logs, None) == []


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
    assert found.check == "request-pending"
    assert "waits for 99 s" in found.what
    assert "session 0x7, which registered g_a" in found.what
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
    assert "shared by 2 sinks, hold the copies of a message of 33554432 bytes" in " ".join(one.what for one in two)


def test_patience_matters_more_where_there_are_members_that_need_it(tmp_path: Path) -> None:
    """Without a Java member it is good to know, and no reason to fail."""
    chosen = settings(tmp_path, "group.session_timeout_ms=9000")
    ours = facts(member_session=7, ours=frozenset({7}))
    java = facts(member_session=7)
    (alone,), (beside,) = check_settings(chosen, ours, 9.0), check_settings(chosen, java, 9.0)
    assert (alone.severity, beside.severity) == (Severity.NOTICE, Severity.WARNING)
    assert not alone.counts


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
        Finding(severity=severity, check="c", where="w", what="x", advice="a")
        for severity in (Severity.NOTICE, Severity.ERROR, Severity.WARNING)
    ]
    assert [one.severity for one in sort_findings(made)] == [Severity.ERROR, Severity.WARNING, Severity.NOTICE]
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
    assert found.check == "generation-unknown"
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
    assert {one.check for one in told} == {"stored-position-of-older-kafka", "owner-of-older-kafka"}
    assert not any(one.counts or "delete" in one.advice for one in told)


def test_a_topic_that_cannot_be_read_is_told_and_its_partitions_are_not_called_missing() -> None:
    """What the topic has is unknown; a position that is deleted for it is lost."""
    spoilt = GroupTopic(czxid=100, version=1, partitions=(), problem="expected a JSON object")
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
    assert all(one.severity is Severity.ERROR for one in checks if one.check == "landed-file-missing")


def test_what_was_landed_below_another_root_is_another_paths() -> None:
    """A replica's own path, or a volume that was given up."""
    seen = facts(landed_ends={("other", P): LANDED})
    assert check_landing(seen, landing(chains={P: chain(10)})) == []
