# SPDX-License-Identifier: Apache-2.0
"""Topics that a member may not claim or commit: left out of what it registers, told, and taken in again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from consumerd.group.assignors import Strategy
from consumerd.group.rights import GroupRights, MemberNotPermitted
from consumerd.group.subscription import Subscription
from consumerd.model import TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import offset_path, offsets_path, owners_path
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import Right
from tests.support.group_simulation import GROUP, SimulatedGroup
from tests.support.virtual_time import run

WRITING = Right.WRITE | Right.CREATE | Right.DELETE
LONG_S = 60.0
"""Longer than rights are polled for."""


class Heard(Hooks):
    """Keeps the troubles that it hears of."""

    def __init__(self) -> None:
        self.troubles: list[tuple[Trouble, str]] = []

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        self.troubles.append((kind, detail))


def play(scenario: Callable[[SimulatedGroup], Awaitable[None]]) -> None:
    async def live() -> None:
        async with SimulatedGroup(1) as group:
            for topic in ("a", "b"):
                group.make_topic(topic, 2)
            await scenario(group)

    run(live())


def topics_owned(group: SimulatedGroup, name: str) -> set[str]:
    return {partition.topic for partition, thread in group.owners().items() if name in thread}


@pytest.mark.parametrize("folder", [owners_path(GROUP, "a"), offsets_path(GROUP, "a")], ids=["owners", "offsets"])
def test_a_topic_that_is_denied_is_left_to_a_java_member_and_taken_in_when_it_is_granted(folder: str) -> None:
    """Registered, it would be given half of the partitions, which nobody consumes then."""

    async def scenario(group: SimulatedGroup) -> None:
        group.server.put(folder)
        group.server.deny(folder, WRITING, "ours")
        heard = Heard()
        java = group.join_java({"a": 1, "b": 1}, name="java")
        ours = group.join({"a": 1, "b": 1}, name="ours", hooks=heard)
        await asyncio.sleep(LONG_S)

        assert {"a/0", "a/1"} <= {str(one) for one in java.owned}
        assert 0 == java.gave_up
        assert {"b"} == topics_owned(group, "ours")
        assert ours.rebalancer.status.ready
        [reason] = ours.rebalancer.denied.values()
        for said in (folder, "its ACL is sasl:owner:cdrwa,world:anyone:ra", "our identity is sasl:ours", "setAcl"):
            assert said in reason
        assert [Trouble.TOPIC_NOT_PERMITTED] == [kind for kind, _ in heard.troubles]

        group.server.grant(folder)
        await asyncio.sleep(LONG_S)

        assert {"a", "b"} == topics_owned(group, "ours")
        assert {} == ours.rebalancer.denied

    play(scenario)


def test_a_right_that_is_taken_away_gives_the_topic_to_a_member_that_has_it() -> None:
    """The refused commit reports it; without that nothing tells of an ACL that changed."""

    async def scenario(group: SimulatedGroup) -> None:
        ours = group.join({"a": 1, "b": 1}, name="ours")
        java = group.join_java({"a": 1, "b": 1}, name="java")
        await asyncio.sleep(LONG_S)
        assert {"a", "b"} == topics_owned(group, "ours")

        group.server.put(offsets_path(GROUP, "a"))
        group.server.deny(offsets_path(GROUP, "a"), WRITING, "ours")
        ours.rebalancer.report_denied("a")
        await asyncio.sleep(LONG_S)

        assert {"b"} == topics_owned(group, "ours")
        assert {"a/0", "a/1"} <= {str(one) for one in java.owned}
        assert 0 == java.gave_up

    play(scenario)


PATTERNS = pytest.mark.parametrize(
    "subscription",
    [Subscription.to_white_list(["a|b|new.*"], 1), Subscription.to_black_list(["c"], 1)],
    ids=["white list", "black list"],
)


@PATTERNS
@pytest.mark.parametrize("path", [owners_path(GROUP, "a"), offsets_path(GROUP, "a")], ids=["owners", "offsets"])
def test_a_pattern_leaves_a_denied_topic_to_java_members_and_takes_it_in_again(
    subscription: Subscription, path: str
) -> None:
    """They compute our topics from the expression; with it as it was, they leave us half of a topic that we cannot claim."""

    async def scenario(group: SimulatedGroup) -> None:
        group.server.put(path)
        group.server.deny(path, WRITING, "ours")
        java = group.join_java({"a": 1, "b": 1}, name="java")
        ours = group.join({}, subscription=subscription, name="ours")
        await asyncio.sleep(LONG_S)

        assert {"a/0", "a/1"} <= {str(one) for one in java.owned}
        assert 0 == java.gave_up
        assert {"b"} == topics_owned(group, "ours")
        assert ours.rebalancer.status.ready
        assert {"a"} == ours.rebalancer.denied.keys()

        group.make_topic("newer", 1)
        await asyncio.sleep(LONG_S)
        assert {"b", "newer"} == topics_owned(group, "ours")

        group.server.grant(path)
        await asyncio.sleep(LONG_S)
        assert {"a", "b", "newer"} == topics_owned(group, "ours")
        assert {} == ours.rebalancer.denied
        assert 0 == java.gave_up

    play(scenario)


@PATTERNS
def test_a_pattern_gives_up_a_topic_whose_right_is_taken_away(subscription: Subscription) -> None:
    """Members that have the right get its partitions, those of ours included, which see no disagreement in it."""

    async def scenario(group: SimulatedGroup) -> None:
        java = group.join_java({"a": 1, "b": 1}, name="java")
        ours = group.join({}, subscription=subscription, name="ours")
        group.join({}, subscription=subscription, name="other")
        await asyncio.sleep(LONG_S)
        group.server.put(offsets_path(GROUP, "a"))
        group.server.deny(offsets_path(GROUP, "a"), WRITING, "ours")
        ours.rebalancer.report_denied("a")
        await asyncio.sleep(LONG_S)

        assert "a" not in topics_owned(group, "ours")
        assert {"a/0", "a/1"} == {str(one) for one in group.owners() if one.topic == "a"}
        assert () == group.members["other"].rebalancer.status.disagreements
        assert {"b"} <= topics_owned(group, "ours") | topics_owned(group, "other") | {one.topic for one in java.owned}
        assert 0 == java.gave_up

    play(scenario)


@pytest.mark.parametrize(
    ("subscription", "why", "strategy"),
    [
        (Subscription.to_topics({"a": 1}), "no topic is left to subscribe to", Strategy.RANGE),
        (Subscription.to_white_list(["a"], 1), "no topic is left to subscribe to", Strategy.RANGE),
        (
            Subscription.to_white_list(["a|b"], 1),
            "with roundrobin all members need the same topics",
            Strategy.ROUNDROBIN_0_8,
        ),
    ],
    ids=["topics", "pattern", "round robin"],
)
def test_a_member_that_cannot_leave_a_topic_out_does_not_join(
    subscription: Subscription, why: str, strategy: Strategy
) -> None:
    """It leaves no trace in the group: Java members go on as if it had not been started."""

    async def scenario(group: SimulatedGroup) -> None:
        group.strategy = strategy
        group.server.put(owners_path(GROUP, "a"))
        group.server.deny(owners_path(GROUP, "a"), WRITING, "ours")
        java = group.join_java({"a": 1, "b": 1}, name="java")
        await asyncio.sleep(LONG_S)
        before = group.server.names(f"/consumers/{GROUP}/ids")
        client = group.server.client("ours")
        client.connect()
        member = group.make(client, subscription)

        with pytest.raises(ExceptionGroup) as caught:
            await member.run()

        [error] = caught.value.exceptions
        assert isinstance(error, MemberNotPermitted)
        assert why in str(error)
        assert "its ACL is sasl:owner:cdrwa,world:anyone:ra, our identity is sasl:ours" in str(error)
        assert before == group.server.names(f"/consumers/{GROUP}/ids")
        assert 4 == len(java.owned)
        client.close()

    play(scenario)


def test_what_is_denied_is_found_without_a_trace() -> None:
    """A probe that others could see would make them rebalance, and one that wrote would be a commit."""

    async def scenario() -> None:
        server = SimulatedGroup(1).server
        for path in (owners_path("g", "a"), offsets_path("g", "a"), owners_path("g", "c")):
            server.put(path)
        server.put(f"{offsets_path('g', 'b')}/0", b"5")
        server.put(f"{offsets_path('g', 'b')}/1", b"6")
        server.put_topic("b", 10)
        server.put("/brokers/topics/b", b'{"version":1,"partitions":{"0":[0],"1":[0]}}')
        server.deny(owners_path("g", "a"), Right.DELETE)
        server.deny(f"{offsets_path('g', 'b')}/1", Right.WRITE)
        server.deny(owners_path("g", "c"), Right.READ)
        changed: list[str] = []
        server.on_change = changed.append
        client = server.client("ours")
        client.connect()

        denied = await GroupRights(client, "g", layout=MODERN).find_denied(["a", "b", "c", "d"])

        assert {
            "a": (owners_path("g", "a"), Right.DELETE),
            "b": (offset_path("g", TopicPartition.modern("b", 1)), Right.WRITE),
        } == {topic: (denial.path, denial.right) for topic, denial in denied.items()}
        assert [] == changed

        # with a node for each partition nothing has to be created
        server.grant(f"{offsets_path('g', 'b')}/1")
        server.deny(offsets_path("g", "b"), Right.CREATE)
        assert {} == await GroupRights(client, "g", layout=MODERN).find_denied(["b"])

        server.put("/brokers/topics/b", b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}')
        [denial] = (await GroupRights(client, "g", layout=MODERN).find_denied(["b"])).values()
        assert (offsets_path("g", "b"), Right.CREATE) == (denial.path, denial.right)

        # a group that is still to be made belongs to whoever makes it, if it may
        server.deny("/consumers", Right.CREATE)
        [denial] = (await GroupRights(client, "new", layout=MODERN).find_denied(["b"])).values()
        assert ("/consumers", Right.CREATE) == (denial.path, denial.right)
        client.close()

    run(scenario())


def test_a_claim_that_is_refused_soon_after_joining_gives_the_topic_up_at_once() -> None:
    """Another user made the folder first: until we register without the topic, Java members try in vain and give up."""

    async def scenario(group: SimulatedGroup) -> None:
        ours = group.join({"a": 1, "b": 1}, name="ours")
        await asyncio.sleep(3.0)
        group.server.deny(owners_path(GROUP, "a"), Right.CREATE, "ours")
        ours.rebalancer.report_denied("a")
        await asyncio.sleep(1.0)
        assert {"a"} == ours.rebalancer.denied.keys()

        await asyncio.sleep(LONG_S)
        assert {"b"} == topics_owned(group, "ours")

    play(scenario)
