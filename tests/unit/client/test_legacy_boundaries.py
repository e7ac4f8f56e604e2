# SPDX-License-Identifier: Apache-2.0
"""Message boundaries in logs of Kafka 0.7: found by reading lengths, never calculated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from consumerd.client.legacy_boundaries import Boundary, find_boundary
from consumerd.client.legacy_offsets import LegacyOffsetLookup
from consumerd.errors import BrokerError, CorruptMessageError
from consumerd.wire.legacy.messages import LegacyMultiFetchRequest
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.legacy_peer import LegacyCluster, LegacyLog, LegacyPeer, encode_messages, legacy_partition

P = legacy_partition("orders", 0)
BROKER = make_broker(0)
SIZES = (0, 1, 50, 9000, 3, 100_000, 7, *[20] * 800, 5)


def make_cluster(
    sizes: Sequence[int], *, start: int = 0, segment: int | None = None
) -> tuple[LegacyCluster, list[int]]:
    """Return a broker with messages of these sizes, a new segment before one of them, and all message boundaries."""
    peer = LegacyPeer()
    log = peer.logs[P.topic, P.partition.number] = LegacyLog(start=start)
    bounds = [start]
    for number, size in enumerate(sizes):
        if number == segment:
            log.roll()
        log.append(encode_messages([b"x" * size]))
        bounds.append(log.end)
    return LegacyCluster(peer), bounds


async def find(cluster: LegacyCluster, target: int, *, known: int, end: int) -> Boundary:
    async with cluster.connect() as pool:
        return await find_boundary(pool, BROKER, P, target, known=known, end=end)


@pytest.mark.parametrize("segment", [None, 4, 400])
def test_the_boundaries_around_an_offset_are_found(segment: int | None) -> None:
    """From each boundary, for offsets at messages, just behind them and just before them; messages of all sizes."""
    cluster, bounds = make_cluster(SIZES, start=300, segment=segment)
    places = [*range(12), 400, len(bounds) - 2]

    async def scenario() -> None:
        for known, at in itertools.combinations_with_replacement(places, 2):
            for target in (bounds[at], bounds[at] + 1, bounds[at + 1] - 1):
                before, after = max(one for one in bounds if one <= target), min(one for one in bounds if one >= target)
                assert await find(cluster, target, known=bounds[known], end=bounds[-1]) == (before, after)

    virtual_time.run(scenario())


def test_the_content_of_large_messages_is_not_fetched() -> None:
    """Their lengths are all that is wanted."""
    cluster, bounds = make_cluster([1 << 20] * 8)
    virtual_time.run(find(cluster, bounds[7], known=0, end=bounds[8]))
    asked = [one for request in cluster.peers[0].asked(LegacyMultiFetchRequest) for one in request.requests]
    assert [one.offset for one in asked] == bounds[:7]
    assert sum(one.max_size for one in asked) < 100_000


def test_bytes_that_are_no_message_are_told_with_their_place() -> None:
    """A trigger must not end there."""
    cluster, bounds = make_cluster([20] * 3)
    cluster.peers[0].logs[P.topic, P.partition.number].append(b"\0" * 100)
    with pytest.raises(CorruptMessageError, match=r"^orders/0-0: the message at or after byte offset 0: ") as caught:
        virtual_time.run(find(cluster, bounds[3] + 50, known=0, end=bounds[3] + 100))
    assert caught.value.partition == P


def test_an_offset_that_retention_has_removed_meanwhile_is_the_brokers_error() -> None:
    """It is no reason to go on with garbage."""
    cluster, bounds = make_cluster([20] * 3, start=500)
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        virtual_time.run(find(cluster, bounds[2], known=100, end=bounds[3]))


def test_segments_are_listed_with_the_end_of_the_log() -> None:
    """In order, where the broker tells the newest first."""
    cluster, bounds = make_cluster([20] * 6, segment=4)

    async def scenario() -> None:
        async with cluster.connect() as pool:
            assert await LegacyOffsetLookup(pool).list_segments(BROKER, P) == (0, bounds[4], bounds[6])

    virtual_time.run(scenario())
