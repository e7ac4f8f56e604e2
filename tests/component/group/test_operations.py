# SPDX-License-Identifier: Apache-2.0
"""How much is asked of a real ZooKeeper: in proportion to what moves, whatever there is besides."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.group.settings import RebalanceSettings
from consumerd.model import TopicPartition
from consumerd.zk.layout import topic_path
from tests.support.delivering_member import DeliveringMember, MadeUpLogs, join_delivering
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import make_client, make_server, run_server
from tests.support.zookeeper_operations import OperationCounter

SELDOM = RebalanceSettings(reconcile_ms=600_000)
"""Without passes by the clock, so that what is counted is the rebalance and nothing else."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server for the module; each world has a group and topics of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@dataclass
class World:
    """Topics, and members behind a proxy that counts."""

    proxy: TcpProxy
    group: str
    topics: Mapping[str, int]
    counter: OperationCounter
    brokers: MadeUpLogs
    stack: contextlib.AsyncExitStack

    async def join(
        self, name: str, topics: tuple[str, ...] | None = None, settings: RebalanceSettings = SELDOM
    ) -> DeliveringMember:
        """Have a member join, by default for all topics; it leaves at the end."""
        streams = dict.fromkeys(self.topics if topics is None else topics, 1)
        joining = join_delivering(
            self.proxy.connect_string,
            self.group,
            streams,
            brokers=self.brokers,
            consumer_id=name,
            settings=settings,
            session_timeout_s=30.0,
            commit_interval_ms=200,
        )
        return await self.stack.enter_async_context(joining)

    async def settle(self, *members: DeliveringMember) -> None:
        """Wait until they own everything and deliver it."""
        total = sum(self.topics.values())

        def settled() -> bool:
            owned = sum(len(member.owned) for member in members)
            return owned == total and all(member.at_rest and member.delivering for member in members)

        await until(settled, within_s=40)


@contextlib.asynccontextmanager
async def open_world(server: EmbeddedZooKeeper, group: str, topics: Mapping[str, int]) -> AsyncIterator[World]:
    """Make topics named after the group, and a proxy."""
    named = {f"{group}-{name}": count for name, count in topics.items()}
    async with make_client(server.connect_string) as zk:
        await zk.ensure_path("/brokers/topics")
        for topic, count in named.items():
            body = {"version": 1, "partitions": {str(number): [0] for number in range(count)}}
            await zk.ensure_path(topic_path(topic), json.dumps(body).encode())
    async with TcpProxy(server.port) as proxy, contextlib.AsyncExitStack() as stack:
        counter = proxy.on_frame = OperationCounter()
        yield World(proxy, group, named, counter, MadeUpLogs(), stack)


async def count_a_join(server: EmbeddedZooKeeper, staying: int) -> OperationCounter:
    """Have a third member join for a small topic, while two have a large one besides, and return what that took."""
    async with open_world(server, f"stay-{staying}", {"large": staying, "small": 12}) as world:
        first, second = await world.join("a"), await world.join("b")
        await world.settle(first, second)
        before = {partition for member in (first, second) for partition in member.owned}
        world.counter.clear()
        third = await world.join("c", (f"{world.group}-small",))
        await world.settle(first, second, third)
        taken = OperationCounter(world.counter.requests.copy(), world.counter.inside.copy())
        assert len(third.owned) == 4
        assert before == first.owned | second.owned | third.owned
        return taken


async def test_what_stays_costs_nothing(server: EmbeddedZooKeeper) -> None:
    """Ten times as many partitions that do not move, and the rebalance asks no more."""
    few, many = await count_a_join(server, 30), await count_a_join(server, 300)
    assert abs(many.total - few.total) < 60, f"{few}; with ten times as many that stay: {many}"
    assert many.total < 250, str(many)


async def test_what_moves_costs_a_few_requests_each(server: EmbeddedZooKeeper) -> None:
    """One read before it is released and one of its position; claims and releases go together. Those beside it that stay,
    in the same topic, are not read again."""
    async with open_world(server, "move", {"t": 240}) as world:
        members = [await world.join(name) for name in "abc"]
        await world.settle(*members)
        before = {partition: member for member in members for partition in member.owned}
        world.counter.clear()
        members.append(await world.join("d"))
        await world.settle(*members)
        moved = sum(before[partition] is not member for member in members for partition in member.owned)
        counter = world.counter
        assert moved == 120
        assert counter.inside["delete"] == moved, str(counter)
        # some come too early, and are left out of the next multi: more of them, the slower the members that release
        assert counter.inside["create"] < 4 * moved, str(counter)
        assert counter.reads < 3 * moved + 150, str(counter)
        # before it registers a member reads who may write each position of its topics, once
        assert counter.requests["get acl"] < 240 + 20, str(counter)
        assert counter.total - counter.reads - counter.requests["get acl"] < 60, str(counter)


async def test_a_group_at_rest_reads_only_what_its_partitions_hang_on(server: EmbeddedZooKeeper) -> None:
    """Passes by the clock look at parents; once nothing has changed for a while they read no node of a partition."""
    often = RebalanceSettings(reconcile_ms=100)
    async with open_world(server, "rest", {"t": 100}) as world:
        member = await world.join("a", settings=often)
        await world.settle(member)
        await until(lambda: all(one.committed == one.acknowledged for one in member.deliveries.statuses), within_s=40)

        async def let_pass(passes: int) -> None:
            world.counter.clear()
            await until(lambda: world.counter.requests["children"] >= passes, within_s=30)

        async def reads_no_more() -> bool:
            await let_pass(5)
            return world.counter.requests["get"] == 0

        await until(reads_no_more, within_s=40)
        await let_pass(10)
        assert world.counter.requests.keys() <= {"exists", "children"}, str(world.counter)
        assert world.counter.total < 60, str(world.counter)


async def test_positions_of_many_partitions_go_out_together(server: EmbeddedZooKeeper) -> None:
    """One write to the ensemble's disks, not one a partition."""
    async with open_world(server, "commit", {"t": 300}) as world:
        member = await world.join("a")
        await world.settle(member)
        await until(lambda: all(one.committed == one.acknowledged for one in member.deliveries.statuses))
        world.counter.clear()
        for number in range(300):
            world.brokers.logs[TopicPartition.modern("commit-t", number)].append(7)
        await until(lambda: all(one.committed == 17 for one in member.deliveries.statuses), within_s=30)
        assert world.counter.inside["set"] <= 600
        assert world.counter.requests["multi"] <= 6, str(world.counter)
        assert world.counter.requests["get"] == 0, str(world.counter)


async def test_a_member_of_its_own_server_is_counted_whole() -> None:
    """The counter knows each request by its kind: what it counts is what a member is known to do."""
    async with make_server(tick_ms=250) as own, open_world(own, "count", {"t": 5}) as world:
        member = await world.join("a")
        await world.settle(member)
        assert world.counter.inside["create"] >= 10, "owners and positions"
        assert not [kind for kind in world.counter.requests if kind.startswith("opcode")]
