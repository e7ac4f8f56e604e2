# SPDX-License-Identifier: Apache-2.0
"""Requests of a member to its coordinator, an embedded broker of several releases."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.client.coordinator import CoordinatorFinder
from consumerd.client.group_coordinator import CoordinatorClient, JoinedGroup
from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster

SESSION_S: Final = 7.0
REBALANCE_S: Final = 45.0


async def join(release: str) -> JoinedGroup:
    """Join a group that a broker of a release coordinates."""
    make = partial(BrokerSettings, as_release=release)
    async with (
        EmbeddedCluster(make_broker=make) as cluster,
        open_cluster(ClusterAddress(zookeeper=cluster.zookeeper, client_id="test"), wait_s=30) as opened,
    ):
        finder = CoordinatorFinder(
            opened.pool, "g", opened.find_brokers, random=random.random, patience_s=20, request_timeout_s=10
        )
        client = CoordinatorClient(
            finder, finder, "g", session_timeout_s=SESSION_S, rebalance_timeout_s=REBALANCE_S, request_timeout_s=10
        )
        await client.describe_patiently()  # its coordinator has loaded its groups then
        return await client.join("", [("range", b"")])


@pytest.mark.parametrize(("release", "waits_s"), [("0.9", SESSION_S), ("1.1", REBALANCE_S)])
async def test_a_coordinator_without_rebalance_timeouts_waits_for_a_session_timeout(
    release: str, waits_s: float
) -> None:
    """JoinGroup of version 0 has no such field. A member that counted on it would keep claims that others have."""
    joined = await join(release)
    assert joined.answer.generation_id == 1
    assert joined.rebalance_timeout_s == waits_s
