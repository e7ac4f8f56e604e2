# SPDX-License-Identifier: Apache-2.0
"""Ours and the real Java high-level consumer in one group: who owns what, who delivers what, and from where they go on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from tests.interop.conftest import MAIN_RELEASE, ClusterFactory, Figure
from tests.support.daemon import Daemon
from tests.support.kafka import CODECS, JavaConsumer, Sent, has_headers, parse_release
from tests.support.load import SteadyLoad
from tests.support.mixed_group import MixedGroup, Place, takeovers_of_java, takeovers_of_ours, wait_acknowledged

pytestmark = [pytest.mark.records, pytest.mark.drawn]

PARTITIONS = 12
MEBIBYTE = 1 << 20

M = TypeVar("M", Daemon, JavaConsumer)


def make_records(topics: Mapping[str, int], codec: str, *, headers: bool, large_on: int) -> list[Sent]:
    """Return every shape of record for each partition, and one of a mebibyte on partition ``large_on`` of each topic."""
    shapes: list[tuple[bytes | None, bytes | None]] = [
        (b"key", b"value"),
        (None, b"without a key"),
        (b"deleted", None),
        (b"empty", b""),
        (b"", b"with an empty key"),
        (b"\x00\xff\xfe", bytes(range(256))),
        ("Schlüssel".encode(), 'quote " backslash \\ line \n \u2028 𝄞 nul \x00'.encode()),
        (b"long", f"{codec} ".encode() * 500),
    ]
    records = [
        Sent(topic, partition, key, value)
        for topic, count in topics.items()
        for partition in range(count)
        for key, value in shapes
    ]
    for topic in topics:
        noise = random.Random(f"{codec}/{topic}").randbytes(MEBIBYTE)
        records.append(Sent(topic, large_on, b"noise", noise))
        records.append(Sent(topic, large_on, b"repeated", b"0123456789abcdef" * (MEBIBYTE // 16)))
    if headers:
        several = (("trace", b"\x00\xff"), ("empty", b""), ("none", None), ("trace", "again é".encode()))
        records += [
            Sent(topic, partition, b"with headers", b"value", several)
            for topic, count in topics.items()
            for partition in range(count)
        ]
    return records


def expect_owners_deliver(group: MixedGroup, places: set[Place]) -> None:
    """Check that each of these was delivered once, by the member that owns its partition, and each of ours agrees."""
    names = group.names()
    owners = {partition: names[owner] for partition, owner in group.owners().items()}
    wrong = [(place, member) for member, place in group.deliveries() if place in places and member != owners[place[:2]]]
    counts = group.count_deliveries()

    for daemon in group.daemons:
        if daemon.process.poll() is None:
            assert {partition for partition, owner in owners.items() if owner == daemon.name} == daemon.owned()
    assert wrong == []
    assert {place: counts[place] for place in places if counts[place] != 1} == {}


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_members_of_both_kinds_share_two_topics(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """The promise of a mixed group, through joins, a clean departure and a crash, with every kind of record there is."""
    cluster = shared_clusters(release)
    topics = {unique("plain"): PARTITIONS, unique("other"): PARTITIONS}
    for topic in topics:
        cluster.create_topic(topic, PARTITIONS)
    producers = {codec: cluster.ledger_producer(codec) for codec in CODECS[release]}
    large = itertools.cycle(range(PARTITIONS))
    ledger: dict[Place, Sent] = {}

    def produce() -> set[Place]:
        before = set(ledger)
        for codec, producer in producers.items():
            producer.send(make_records(topics, codec, headers=has_headers(release), large_on=next(large)))
        ledger.update(wait_acknowledged(producers.values()))
        return set(ledger) - before

    with MixedGroup(cluster, tmp_path, unique("mixed"), topics) as group:
        early = produce()
        group.start(streams=1)
        leaver = group.start(streams=2)
        figure("ours settled after, s", group.settle(2))
        group.start_java(streams=2)
        victim = group.start(streams=1)
        figure("java and a third of ours settled after, s", group.settle(4))
        group.wait_delivered(early)

        settled = produce()
        group.wait_delivered(settled)
        expect_owners_deliver(group, settled)

        figure("settled after a clean departure, s", group.end_cleanly(leaver.terminate, 3))
        left = produce()
        group.wait_delivered(left)
        expect_owners_deliver(group, left)
        assert group.given_up() == []

        figure("repeated before the crash", len(group.find_repeats()))
        victim.kill()
        figure("settled after a crash, s", group.settle(2))
        recovered = produce()
        group.wait_delivered(recovered)
        expect_owners_deliver(group, recovered)
        figure("java gave up after the crash", len(group.given_up()))

        figure("records", len(ledger))
        figure("repeated after all", len(group.find_repeats()))
        assert set(ledger) == set(group.count_deliveries())
        assert group.find_corrupted(ledger) == []


def find_runs(group: MixedGroup, topics: Mapping[str, int]) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Return, for each partition, where members began to deliver it: the first offset of each run, and whose it is."""
    by_partition: dict[tuple[str, int], list[tuple[int, str]]] = {
        (topic, partition): [] for topic, count in topics.items() for partition in range(count)
    }
    for member, (topic, partition, offset) in group.deliveries():
        by_partition[topic, partition].append((offset, member))
    return {
        partition: [next(run) for _, run in itertools.groupby(sorted(places), key=lambda place: place[1])]
        for partition, places in by_partition.items()
    }


def expect_takeovers_at_commits(group: MixedGroup, topics: Mapping[str, int]) -> int:
    """Check that whoever took a partition over began with the record at the committed offset that it read; count them."""
    committed = {
        **{daemon.name: takeovers_of_ours(daemon) for daemon in group.daemons},
        **{member.name: takeovers_of_java(member) for member in group.java},
    }
    runs = find_runs(group, topics)
    wrong = {
        (partition, offset, member): sorted(committed[member][partition])
        for partition, starts in runs.items()
        for offset, member in starts
        if not committed[member][partition] & ({offset} if offset else {0, -1})
    }

    assert wrong == {}
    return sum(len(starts) - 1 for starts in runs.values())


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_handovers_repeat_nothing_and_skip_nothing(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Both ways, again and again under load: whoever takes over goes on at the committed offset, exactly.

    The grace is longer than the default. A Java process that has just started on a busy machine may need 300 ms between
    reading the offsets and claiming by them; one that is slower than the grace repeats records, as is documented.
    """
    rounds = 5 if release == MAIN_RELEASE else 1
    cluster = shared_clusters(release)
    topics = {unique("handed"): PARTITIONS}
    cluster.create_topic(next(iter(topics)), PARTITIONS)
    producer = cluster.ledger_producer("gzip", linger_ms="20")
    joins, departures = [], []
    with MixedGroup(cluster, tmp_path, unique("handover"), topics) as group:

        def join(start: Callable[[], M]) -> M:
            member = start()
            joins.append(group.settle(2))
            group.wait_flowing()
            return member

        def leave(member: Daemon | JavaConsumer) -> None:
            departures.append(group.end_cleanly(member.terminate, 1))
            group.wait_flowing()

        with SteadyLoad(producer, topics, per_second=20, tick_s=0.2):
            java = group.start_java()
            group.settle(1)
            group.wait_flowing()
            for last in [False] * (rounds - 1) + [True]:
                ours = join(lambda: group.start(release_grace_ms=1000))
                leave(java if last else ours)
            for last in [False] * (rounds - 1) + [True]:
                java = join(group.start_java)
                leave(ours if last else java)
        ledger = producer.finish()
        group.wait_delivered(ledger)
        java.terminate()

        handed_over = expect_takeovers_at_commits(group, topics)
        figure("handovers", len(joins) + len(departures))
        figure("partitions handed over", handed_over)
        figure("longest until settled after a join, s", max(joins))
        figure("longest until settled after a departure, s", max(departures))
        figure("records", len(ledger))
        assert len(joins + departures) * PARTITIONS // 2 == handed_over
        assert group.find_repeats() == {}
        assert set(ledger) == set(group.count_deliveries())
        assert group.given_up() == []
        ends = {
            topic: {p: 1 + max(offset for t, q, offset in ledger if (t, q) == (topic, p)) for p in range(count)}
            for topic, count in topics.items()
        }
        assert ends == {topic: group.registry.offsets(group.group, topic) for topic in topics}


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_round_robin_is_dealt_as_the_release_deals_it(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Members up to 0.11 and from 1.0 on deal by different names; the settings say which, and records flow."""
    modern = parse_release(release) >= (1, 0)
    cluster = shared_clusters(release)
    topics = {unique("orders"): 7, unique("clicks"): 4}
    for topic, count in topics.items():
        cluster.create_topic(topic, count)
    producer = cluster.ledger_producer()

    with MixedGroup(cluster, tmp_path, unique("robin"), topics) as group:

        def deal() -> Mapping[str, Mapping[int, str]]:
            return group.registry.expected_roundrobin(
                group.group, topics, lambda t, p: f"{t}-{p}" if modern else f"[{t},{p}]"
            )

        group.start_java(streams=2, partition_assignment_strategy="roundrobin")
        group.settle_as(1, deal)
        # members up to 0.10.1 insist on as many streams for each
        ours = group.start(streams=2, assignor="roundrobin-1.0" if modern else "roundrobin-0.8")
        group.settle_as(2, deal)
        producer.send(
            Sent(topic, partition, b"key", b"value") for topic in topics for partition in range(topics[topic])
        )
        ledger = producer.finish()
        group.wait_delivered(ledger)
        expect_owners_deliver(group, set(ledger))
        assert ours.terminate() == 0
        group.settle_as(1, deal)

        assert group.given_up() == []
        assert ours.events("members_disagree") == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_pattern_and_the_same_white_list_share_the_topics_that_come(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """What we exclude is registered as a look-ahead, which a Java member with the same text computes as we do."""
    cluster = shared_clusters(release)
    stem = unique("web")
    topics = {f"{stem}-a": 4}
    for topic in (f"{stem}-a", f"{stem}-debug"):
        cluster.create_topic(topic, 4)
    pattern, exclude = f"{stem}-.*", ".*-debug"
    producer = cluster.ledger_producer()

    with MixedGroup(cluster, tmp_path, unique("listed"), topics) as group:
        group.start_java(whitelist=f"(?!(?:{exclude})$)(?:{pattern})")
        group.settle(1)
        ours = group.start(pattern=pattern, exclude=exclude)
        group.settle(2)
        cluster.create_topic(f"{stem}-late", 4)
        topics[f"{stem}-late"] = 4
        group.settle(2)
        sent = [
            Sent(topic, partition, b"key", b"value") for topic in (*topics, f"{stem}-debug") for partition in range(4)
        ]
        producer.send(sent)
        wanted = {place for place in producer.finish() if place[0] in topics}
        group.wait_delivered(wanted)
        expect_owners_deliver(group, wanted)

        registered = [one["subscription"] for one in group.registry.members(group.group).values()]
        assert registered == [registered[0]] * 2
        assert group.registry.owners(group.group, f"{stem}-debug") == {}
        assert set(group.count_deliveries()) == wanted
        assert group.given_up() == []
        assert ours.events("members_disagree") == []


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("first", "kind"), [("java", "strategy"), ("ours", "unowned")])
def test_members_that_disagree_on_the_strategy_are_reported(
    release: str, first: str, kind: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Whoever was first keeps what the other one wants: Java gives up without owning anything, ours says what is wrong."""
    cluster = shared_clusters(release)
    topics = {unique("disputed"): PARTITIONS}
    cluster.create_topic(next(iter(topics)), PARTITIONS)
    with MixedGroup(cluster, tmp_path, unique("disputing"), topics) as group:
        if first == "java":
            group.start_java(partition_assignment_strategy="roundrobin")
            group.settle(1)
        ours = group.start(reconcile_ms=500)
        if first == "ours":
            group.settle(1)
            group.start_java(partition_assignment_strategy="roundrobin")
        ours.wait(lambda: any(text.startswith(f"{kind}: ") for text in ours.status()["disagreements"]), "the report")
        (found,) = (text for text in ours.status()["disagreements"] if text.startswith(f"{kind}: "))

        assert ("roundrobin-1.0" if first == "java" else "partition.assignment.strategy") in found
        assert kind in {event["kind"] for event in ours.events("members_disagree")}
        assert "consumerd_group_disagreements 1.0" in ours.get("/metrics")[1]
        assert "Members disagree" in ours.get("/")[1]
