# SPDX-License-Identifier: Apache-2.0
"""Joining the group in a new session: only on the same cluster, and with a sign that goes with the session."""

import asyncio
import random

import pytest

from consumerd.errors import ClusterChanged
from consumerd.group.admission import Admission, describe_cluster, find_our_sessions
from consumerd.group.identity import MemberIdentity
from consumerd.group.rebalancer import Rebalancer
from consumerd.group.subscription import Subscription
from consumerd.model import TopicPartition
from consumerd.zk.layout import BROKER_TOPICS, ids_path, members_root, owner_path, topic_path
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import NotConnected
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.group_member import RecordingListener
from tests.support.virtual_time import run

G = "lake"
P = TopicPartition.modern("t", 0)


class Member:
    """A member over a ZooKeeper in memory; its next ``failing`` admissions fail as if there were no connection."""

    def __init__(self):
        self.server = FakeZooKeeper()
        self.server.put(topic_path("t"), b'{"version":1,"partitions":{"0":[0]}}')
        self.zk = self.server.client("member")
        self.zk.connect()
        self.failing = 0
        self.listener = RecordingListener()
        self.admission = Admission(
            self.zk, G, cluster_id=describe_cluster(self.server.read(BROKER_TOPICS)[1]), about={"host": "h"}
        )
        self.rebalancer = Rebalancer(
            self.zk,
            identity=MemberIdentity(group=G, host="h"),
            subscription=Subscription.to_topics({"t": 1}),
            listener=self.listener,
            now=asyncio.get_running_loop().time,
            wall_ms=lambda: 0,
            random=random.Random(0),
            admit=self.admit,
            layout=MODERN,
        )

    async def admit(self, epoch):
        if self.failing:
            self.failing -= 1
            raise NotConnected("no connection")
        await self.admission.admit(epoch)


def with_member(scenario):
    async def play():
        await scenario(Member())

    run(play())


def test_each_session_has_its_sign_and_a_failure_that_may_pass_is_tried_again():
    """The sign is of the session that holds the owner nodes: by that others know who carries requests out."""

    async def scenario(member):
        member.failing = 2
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(member.rebalancer.run())
            for _ in range(2):
                await asyncio.sleep(20)
                assert list(member.listener.held) == [P]
                assert await find_our_sessions(member.zk, G) == {member.zk.state.session_id}
                owner = member.server.read(owner_path(G, P))[1].ephemeral_owner
                assert owner == member.zk.state.session_id
                member.zk.expire()
            await asyncio.sleep(20)
            await member.rebalancer.leave()
        member.zk.close()
        assert member.server.names(members_root(G)) == []

    with_member(scenario)


@pytest.mark.parametrize("remade", [True, False])
def test_a_session_with_another_cluster_ends_the_member_before_it_registers(remade):
    """Whether its brokers have come back already or not."""

    async def scenario(member):
        with pytest.raises(ExceptionGroup) as failed:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(member.rebalancer.run())
                await asyncio.sleep(20)
                member.server.remove("/consumers")
                member.server.remove("/brokers")
                if remade:
                    member.server.put(topic_path("t"), b'{"version":1,"partitions":{"0":[0]}}')
                member.zk.expire()
                await asyncio.sleep(20)
        assert failed.group_contains(ClusterChanged)
        assert member.listener.held == {}
        assert member.server.names(ids_path(G)) == []
        assert member.server.names(members_root(G)) == []

    with_member(scenario)


def test_clusters_that_were_made_the_same_way_are_told_by_when():
    """Set up by one script, each makes its topics' node in the same transaction."""

    async def scenario(member):
        await member.admission.admit(member.zk.state.epoch)
        member.server.get_node(BROKER_TOPICS).ctime_ms += 1
        with pytest.raises(ClusterChanged, match="this is another cluster"):
            await member.admission.admit(member.zk.state.epoch)

    with_member(scenario)


def test_what_is_no_sign_is_passed_over():
    """Somebody's own node, there."""

    async def scenario(member):
        member.server.put(f"{members_root(G)}/notes")
        assert await find_our_sessions(member.zk, G) == set()

    with_member(scenario)
