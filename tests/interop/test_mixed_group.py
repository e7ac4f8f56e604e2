"""Ours and the real Java high-level consumer in one group: who owns what, who delivers what, and from where they go on."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.interop.conftest import ClusterFactory, Figure
from tests.support.kafka import CODECS, Sent, has_headers
from tests.support.mixed_group import (
    MixedGroup,
    Place,
    wait_acknowledged,
)

PARTITIONS = 12
MEBIBYTE = 1 << 20


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
    owners = group.owners()
    ids = {daemon.name: daemon.status()["consumer_id"] for daemon in group.daemons if daemon.process.poll() is None}
    for daemon in group.daemons:
        if daemon.name in ids:
            assert {partition for partition, owner in owners.items() if owner == ids[daemon.name]} == daemon.owned()
    (java,) = set(group.registry.members(group.group)) - set(ids.values())
    wrong = [
        (place, member)
        for member, place in group.deliveries()
        if place in places and ids.get(member, java) != owners[place[:2]]
    ]
    counts = group.count_deliveries()

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

        began = time.monotonic()
        assert leaver.terminate() == 0
        group.settle(3)
        figure("settled after a clean departure, s", time.monotonic() - began)
        left = produce()
        group.wait_delivered(left)
        expect_owners_deliver(group, left)
        assert group.given_up() == []

        victim.kill()
        figure("settled after a crash, s", group.settle(2))
        recovered = produce()
        group.wait_delivered(recovered)
        expect_owners_deliver(group, recovered)
        figure("java gave up after the crash", len(group.given_up()))

        repeats = group.find_repeats()
        figure("records", len(ledger))
        figure("repeated", len(repeats))
        assert set(ledger) == set(group.count_deliveries())
        assert group.find_corrupted(ledger) == []
