# SPDX-License-Identifier: Apache-2.0
"""Members over the real client and a real ZooKeeper: what the server itself says of their nodes."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.group.plan import Holder
from consumerd.group.subscription import Subscription
from consumerd.group.transitions import MemberState
from consumerd.model import TopicPartition
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import ids_path, topic_path
from consumerd.zk.znodes import parse_registration
from tests.support.group_member import GroupMember, join_group, start_member
from tests.support.owner_nodes import read_owners
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import make_client, make_server, run_server

SESSION_S = 2.0


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server for the module; each test has a group and a topic of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
async def onlooker(server: EmbeddedZooKeeper) -> AsyncIterator[AiozkClient]:
    """A session of nobody's."""
    async with make_client(server.connect_string) as zk:
        await zk.wait_connected()
        yield zk


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group that no other test uses; its topic has the same name."""
    return str(request.node.originalname)[:60]


async def make_topic(zk: AiozkClient, topic: str, partitions: int) -> None:
    body = {"version": 1, "partitions": {str(number): [0] for number in range(partitions)}}
    await zk.ensure_path("/brokers/topics")
    await zk.ensure_path(topic_path(topic), json.dumps(body).encode())


async def owners_of(zk: AiozkClient, group: str, topic: str) -> dict[int, Holder]:
    return {partition.partition.number: one for partition, one in (await read_owners(zk, group, topic)).items()}


def at_rest(*members: GroupMember, owning: int) -> Callable[[], bool]:
    def look() -> bool:
        return (
            all(member.status.ready and not member.status.moving for member in members)
            and sum(len(member.status.owned) for member in members) == owning
        )

    return look


async def test_members_share_a_topic_and_leave_nothing_behind(
    server: EmbeddedZooKeeper, onlooker: AiozkClient, group: str
) -> None:
    """Each owner node holds a thread id and belongs to its owner's session; who leaves takes all of its nodes along."""
    await make_topic(onlooker, group, 10)
    async with make_client(server.connect_string) as zk_a, make_client(server.connect_string) as zk_b:
        async with join_group(zk_a, group, Subscription.to_topics({group: 2}), consumer_id="a") as a:
            await until(at_rest(a, owning=10))
            async with join_group(zk_b, group, Subscription.to_topics({group: 2}), consumer_id="b") as b:
                await until(at_rest(a, b, owning=10))
                owners = await owners_of(onlooker, group, group)
                threads = [f"{group}_a-0"] * 3 + [f"{group}_a-1"] * 3 + [f"{group}_b-0"] * 2 + [f"{group}_b-1"] * 2
                assert [owners[number].thread for number in range(10)] == threads
                assert {owners[0].session_id, owners[9].session_id} == {zk_a.state.session_id, zk_b.state.session_id}
                data, stat = await onlooker.get(f"{ids_path(group)}/{group}_b")
                assert parse_registration(data).subscription == {group: 2}
                assert stat.ephemeral_owner == zk_b.state.session_id
                assert len(a.listener.drained) == 4
            await until(at_rest(a, owning=10))
            assert a.listener.lost_ones == b.listener.lost_ones == []
        assert await owners_of(onlooker, group, group) == {}
        assert (await onlooker.children(ids_path(group)))[0] == []
        # what Java makes on the way: nodes without data
        assert (await onlooker.get(f"/consumers/{group}"))[0] == b""


async def test_a_cut_shorter_than_the_session_moves_nothing(
    server: EmbeddedZooKeeper, onlooker: AiozkClient, group: str
) -> None:
    """The same session goes on: no claim is lost, no partition is drained, no rebalance is counted."""
    await make_topic(onlooker, group, 4)
    async with (
        TcpProxy(server.port) as proxy,
        make_client(f"127.0.0.1:{proxy.port}", session_timeout_s=4.0) as zk,
        join_group(zk, group, Subscription.to_topics({group: 1})) as member,
    ):
        await until(at_rest(member, owning=4))
        claims, rebalances = dict(member.listener.held), member.status.rebalances
        session = zk.state.session_id
        proxy.blackhole()
        await until(lambda: member.status.state is MemberState.SUSPENDED)
        assert not any(claim.usable for claim in claims.values())
        proxy.heal()
        await until(lambda: all(claim.usable for claim in claims.values()))
        await until(at_rest(member, owning=4))
        assert zk.state.session_id == session
        assert member.listener.held == claims
        assert member.listener.drained == member.listener.lost_ones == []
        assert member.status.rebalances == rebalances


async def test_a_lost_session_loses_every_claim_before_another_member_has_them(
    server: EmbeddedZooKeeper, onlooker: AiozkClient, group: str
) -> None:
    """And both sides come to rest again by themselves."""
    await make_topic(onlooker, group, 4)
    async with (
        TcpProxy(server.port) as proxy,
        make_client(f"127.0.0.1:{proxy.port}", session_timeout_s=SESSION_S) as zk_a,
        make_client(server.connect_string) as zk_b,
        join_group(zk_a, group, Subscription.to_topics({group: 1})) as a,
    ):
        await until(at_rest(a, owning=4))
        async with join_group(zk_b, group, Subscription.to_topics({group: 1})) as b:
            await until(at_rest(a, b, owning=4))
            before = a.status.consumer
            claims = list(a.listener.held.values())
            proxy.blackhole()

            def taken_over() -> bool:
                assert not (len(b.listener.held) == 4 and any(claim.usable for claim in claims))
                return len(b.listener.held) == 4

            await until(taken_over, within_s=15)
            proxy.heal()
            await until(at_rest(a, b, owning=4), within_s=20)
            await until(lambda: len(a.status.owned) == len(b.status.owned) == 2)
            assert a.status.consumer != before
            assert sorted(a.listener.lost_ones) == sorted(claim.partition for claim in claims)
            assert not any(claim.usable for claim in claims)


async def test_a_killed_member_is_inherited_when_its_session_ends(
    server: EmbeddedZooKeeper, onlooker: AiozkClient, group: str
) -> None:
    """Its owner nodes are watched, and claimed as they go."""
    await make_topic(onlooker, group, 6)
    async with (
        make_client(server.connect_string) as zk,
        join_group(zk, group, Subscription.to_topics({group: 1})) as member,
    ):
        await until(at_rest(member, owning=6))
        with start_member(server.connect_string, group, {group: 1}, session_timeout_s=SESSION_S) as other:
            await until(at_rest(member, owning=3), within_s=20)

            async def all_owned() -> bool:
                return len(await owners_of(onlooker, group, group)) == 6

            await until(all_owned)
            other.kill()
        await until(at_rest(member, owning=6), within_s=20)
        assert member.listener.lost_ones == []


async def test_a_terminated_member_hands_over_at_once(
    server: EmbeddedZooKeeper, onlooker: AiozkClient, group: str
) -> None:
    """SIGTERM releases: nobody waits for a session to end."""
    await make_topic(onlooker, group, 6)
    async with (
        make_client(server.connect_string) as zk,
        join_group(zk, group, Subscription.to_topics({group: 1})) as member,
    ):
        with start_member(server.connect_string, group, {group: 1}) as other:
            await until(at_rest(member, owning=3), within_s=20)
            other.send_signal(signal.SIGTERM)
            await until(at_rest(member, owning=6), within_s=4)


async def test_a_lingering_node_of_a_configured_id_is_stepped_around(
    server: EmbeddedZooKeeper, onlooker: AiozkClient, group: str
) -> None:
    """It belongs to a session of our past: a suffix tells the two apart until it is gone."""
    await make_topic(onlooker, group, 2)
    await onlooker.ensure_path(ids_path(group))
    past = f"{ids_path(group)}/{group}_r1"
    body = b'{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}' % group.encode()
    await onlooker.create(past, body, ephemeral=True)
    async with (
        make_client(server.connect_string) as zk,
        join_group(zk, group, Subscription.to_topics({group: 1}), consumer_id="r1") as member,
    ):
        await until(at_rest(member, owning=1))
        assert (member.status.consumer or "").startswith(f"{group}_r1-")
        await onlooker.delete(past)
        await until(at_rest(member, owning=2))


async def test_a_restarted_server_is_followed(onlooker: AiozkClient, group: str) -> None:
    """Sessions outlive the server's restart: nothing moves, and watches work again."""
    async with make_server(tick_ms=250) as own, make_client(own.connect_string, session_timeout_s=8.0) as zk:
        await make_topic(zk, group, 3)
        async with join_group(zk, group, Subscription.to_topics({group: 1})) as member:
            await until(at_rest(member, owning=3))
            claims = dict(member.listener.held)
            await own.kill()
            await own.start()
            await until(lambda: zk.state.connected, within_s=20)
            body = {"version": 1, "partitions": {str(number): [0] for number in range(5)}}
            await zk.set(topic_path(group), json.dumps(body).encode())
            await until(at_rest(member, owning=5), within_s=20)
            assert member.listener.lost_ones == member.listener.drained == []
            assert claims.items() <= member.listener.held.items()
            assert TopicPartition.modern(group, 4) in member.listener.held
