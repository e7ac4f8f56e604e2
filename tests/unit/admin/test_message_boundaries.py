# SPDX-License-Identifier: Apache-2.0
"""New positions in Kafka 0.7: only where a message begins."""

from __future__ import annotations

import pytest

from consumerd.admin.message_boundaries import check_boundaries, find_boundaries
from consumerd.client.legacy_boundaries import Boundary
from consumerd.errors import ConfigError, ConnectionLost
from tests.support import virtual_time
from tests.support.legacy_peer import LegacyCluster, LegacyLog, LegacyPeer, encode_messages, legacy_partition

P = legacy_partition("t", 0)
ELSEWHERE = legacy_partition("t", 1, broker=7)


def find(cluster: LegacyCluster, position: int) -> Boundary:
    async def play() -> Boundary:
        cluster.announce(P)
        async with cluster.connect() as pool:
            return (await find_boundaries(pool, cluster, {P: position}, request_timeout_s=5))[P]

    return virtual_time.run(play())


def make_cluster() -> LegacyCluster:
    peer = LegacyPeer()
    peer.logs["t", 0] = log = LegacyLog(encode_messages([b"x" * 40]), start=100)
    log.roll()
    log.append(encode_messages([b"y" * 10, b"z" * 30]))
    return LegacyCluster(peer)


def test_messages_around_a_position_are_found_from_the_start_of_the_segment() -> None:
    """Messages begin at 100, 150 and 170, and the log ends at 210."""
    cluster = make_cluster()
    assert [(100, 100), (100, 150), (150, 150), (150, 170), (170, 170), (170, 210), (210, 210)] == [
        find(cluster, position) for position in (100, 101, 150, 151, 170, 171, 210)
    ]


def test_position_inside_of_a_message_is_refused() -> None:
    """A reader would begin with garbage, or with messages inside of a compressed one."""
    check_boundaries({P: 150}, {P: Boundary(150, 150)})
    with pytest.raises(
        ConfigError, match="t/0-0: 151 is inside of the message at 150; the next one begins at 170\ngive --force"
    ):
        check_boundaries({P: 151}, {P: Boundary(150, 170)})


def test_partition_whose_broker_is_away_cannot_be_checked() -> None:
    """The position is not set then, unless by force."""
    cluster = make_cluster()

    async def play() -> None:
        cluster.announce(P)
        async with cluster.connect() as pool:
            with pytest.raises(ConnectionLost, match="is not known"):
                await find_boundaries(pool, cluster, {ELSEWHERE: 5}, request_timeout_s=5)

    virtual_time.run(play())
