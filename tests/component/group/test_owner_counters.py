# SPDX-License-Identifier: Apache-2.0
"""Whether the counter of a real ZooKeeper's node counts what the looks at owner nodes take it to count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.group import events as ev
from consumerd.group.events import Look
from consumerd.group.owners import PartitionOwners
from consumerd.group.plan import Grant
from consumerd.model import Incarnation, ThreadId, TopicPartition
from consumerd.zk.layout import owner_path, owners_path
from consumerd.zk.port import Create, Delete, MultiFailed, ZkClient
from tests.support.zookeeper import make_client, run_server


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server for the module; each test has a group of its own."""
    with run_server() as zookeeper:
        yield zookeeper


async def own(zk: ZkClient, group: str) -> tuple[PartitionOwners, list[TopicPartition]]:
    """Own 40 partitions of 50."""
    await zk.ensure_path("/consumers")  # there is a session now
    owners = PartitionOwners(zk, group)
    ours = [TopicPartition.modern("t", number) for number in range(40)]
    grants = {partition: Grant(ThreadId("g_m-0"), Incarnation(1)) for partition in ours}
    assert set((await owners.claim(grants, zk.state.epoch, first=ours)).values()) == {ev.Created()}
    return owners, ours


async def test_each_creation_and_each_deletion_counts_one(server: EmbeddedZooKeeper) -> None:
    """Alone and in a multi, of a session that ends, and not in a multi that fails."""
    async with make_client(server.connect_string) as zk:
        owners, ours = await own(zk, "counts")
        folder = owners_path("counts", "t")
        others = [owner_path("counts", TopicPartition.modern("t", number)) for number in range(40, 50)]
        counted = (await zk.children(folder))[1].cversion
        assert counted == 40

        async def expect(changes: int) -> None:
            nonlocal counted
            counted += changes
            assert (await zk.children(folder))[1].cversion == counted
            found = await owners.inspect(ours, Look.REMADE)
            assert (found.there, found.doubtful) == (frozenset(ours), frozenset())

        await expect(0)
        async with make_client(server.connect_string) as stranger:
            await stranger.multi([Create(path, b"x", ephemeral=True) for path in others[:5]])
            await expect(5)
            with pytest.raises(MultiFailed):
                await stranger.multi([Delete(others[0]), Create(others[6], b"x"), Create(others[1], b"x")])
            await expect(0)
            await stranger.multi([Delete(others[0]), Create(others[6], b"x", ephemeral=True)])
            await expect(2)
            await stranger.delete(others[1])
            await expect(1)
            await stranger.set(others[2], b"y")
            await expect(0)
        await expect(4)


async def test_one_that_was_made_again_is_found_among_all_that_were_not(server: EmbeddedZooKeeper) -> None:
    """Its name is there before and after."""
    async with make_client(server.connect_string) as zk, make_client(server.connect_string) as stranger:
        owners, ours = await own(zk, "remade")
        await owners.inspect(ours, Look.REMADE)
        path = owner_path("remade", ours[7])
        await stranger.multi([Delete(path), Create(path, b"g_m-0", ephemeral=True)])
        assert (await owners.inspect(ours, Look.NAMES)).doubtful == frozenset(ours)
        found = await owners.inspect(ours, Look.REMADE)
        mine, theirs = zk.state.session_id, stranger.state.session_id
        sessions = {one: node.session_id for one, node in found.nodes.items() if node is not None}
        assert sessions == {**dict.fromkeys(ours, mine), ours[7]: theirs}
        assert found.doubtful == frozenset()
