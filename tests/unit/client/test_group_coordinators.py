# SPDX-License-Identifier: Apache-2.0
"""Groups as brokers list and describe them; what a broker does not tell is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from consumerd.client.coordinator import choose_offsets_partition
from consumerd.client.group_coordinators import (
    GroupCoordinators,
    ListedGroup,
    ListedGroups,
    find_owners,
    read_description,
)
from consumerd.model import TopicPartition
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.modern.consumer_protocol import (
    AssignedTopic,
    Assignment,
    ConsumerSubscription,
    encode_assignment,
    encode_subscription,
)
from consumerd.wire.modern.groups import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupListing,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.scripted_broker import FakeNetwork, Reaction, ScriptedBroker

PATIENCE_S = 4.0
LOADING, NOT_AVAILABLE, NOT_COORDINATOR, NOT_ALLOWED, NO_GROUP_RIGHT = 14, 15, 16, 31, 30
A, B = TopicPartition.modern("orders", 0), TopicPartition.modern("orders", 1)


class GroupBroker(ScriptedBroker):
    """Lists and describes groups; ``codes`` are the errors of its next lists."""

    def __init__(self, groups: Mapping[str, str], *, join: int = 2, codes: tuple[int, ...] = ()) -> None:
        ranges = {ApiKey.LIST_GROUPS: (0, 1), ApiKey.DESCRIBE_GROUPS: (0, 1), ApiKey.JOIN_GROUP: (0, join)}
        super().__init__({ListGroupsRequest: self.list, DescribeGroupsRequest: self.describe}, ranges=ranges)
        self.groups = groups
        self.codes = list(codes)
        self.silent = False

    def list(self, _request: ListGroupsRequest, _version: int) -> object:
        if self.silent:
            return Reaction.SILENT
        code = self.codes.pop(0) if self.codes else 0
        listed = tuple(GroupListing(group_id=name, protocol_type=kind) for name, kind in self.groups.items())
        return ListGroupsResponse(error_code=code, groups=() if code in {NOT_ALLOWED, NOT_AVAILABLE} else listed)

    def describe(self, request: DescribeGroupsRequest, _version: int) -> object:
        groups = tuple(make_group(group_id=name, protocol_type=self.groups[name]) for name in request.groups)
        return DescribeGroupsResponse(groups=groups)


def make_group(**values: Any) -> DescribedGroup:
    return DescribedGroup(
        **{"group_id": "web", "state": "Stable", "protocol_type": "consumer", "protocol": "range", "members": ()}
        | values
    )


def make_member(metadata: bytes, assignment: bytes) -> DescribedMember:
    return DescribedMember(
        member_id="m-1", client_id="app", client_host="/10.0.0.7", metadata=metadata, assignment=assignment
    )


def run(brokers: Mapping[int, ScriptedBroker], scenario: Callable[[GroupCoordinators], Awaitable[None]]) -> float:
    """Run a scenario on virtual time; return how long it took."""
    network = FakeNetwork()
    network.brokers = {make_broker(number).address: broker for number, broker in brokers.items()}

    async def play() -> float:
        now = asyncio.get_running_loop().time
        started = now()
        dialer = Dialer(network, client_id="t", now=now)
        async with ConnectionPool(dialer, now=now, random=lambda: 0.0) as pool:
            await scenario(
                GroupCoordinators(pool, random=lambda: 0.0, request_timeout_s=PATIENCE_S, patience_s=PATIENCE_S)
            )
        return now() - started

    return virtual_time.run(play())


def list_groups(brokers: Mapping[int, ScriptedBroker], asked: tuple[int, ...]) -> ListedGroups:
    found: list[ListedGroups] = []

    async def scenario(coordinators: GroupCoordinators) -> None:
        found.append(await coordinators.list_groups(map(make_broker, asked)))

    assert run(brokers, scenario) <= PATIENCE_S + 0.1
    return found[0]


def test_each_broker_lists_its_own_groups() -> None:
    """A group is at one coordinator, and any broker may be one."""
    one, two = GroupBroker({"web": "consumer", "lake": ""}), GroupBroker({"sync": "connect"})

    listed = list_groups({1: one, 2: two}, (1, 2))

    expected = {"lake": ("", 1), "sync": ("connect", 2), "web": ("consumer", 1)}
    assert expected == {name: (found.protocol_type, found.coordinator.id) for name, found in listed.groups.items()}
    assert ({}, {1, 2}) == (listed.problems, listed.complete)


def test_a_broker_that_has_just_been_replaced_does_not_hide_the_members() -> None:
    """The old coordinator may list the group without its members for a moment."""
    old, new = GroupBroker({"web": ""}), GroupBroker({"web": "consumer"})

    assert 2 == list_groups({1: old, 2: new}, (1, 2)).groups["web"].coordinator.id
    assert 1 == list_groups({1: new, 2: old}, (1, 2)).groups["web"].coordinator.id


@pytest.mark.parametrize("is_hung", [True, False], ids=["hangs", "down"])
def test_a_broker_that_does_not_answer_is_named_and_the_others_are_listed(is_hung: bool) -> None:
    """Its groups are missing, which the list alone would not show."""
    hung = GroupBroker({"lost": "consumer"})
    hung.silent = True

    listed = list_groups({1: GroupBroker({"web": "consumer"}), **({2: hung} if is_hung else {})}, (1, 2))

    assert {"web"} == listed.groups.keys()
    assert ({2}, {1}) == (listed.silent, listed.complete)
    assert listed.problems[make_broker(2).id].startswith("broker 2 at broker-2:9092: ")


def test_a_loading_broker_is_asked_again() -> None:
    """It lists the groups that it has loaded already, with code 14."""
    broker = GroupBroker({"web": "consumer"}, codes=(LOADING, LOADING, NOT_AVAILABLE))

    listed = list_groups({1: broker}, (1,))

    assert ({"web"}, {}) == (listed.groups.keys(), listed.problems)
    assert 4 == len(broker.asked(ListGroupsRequest))


def test_a_broker_that_goes_on_loading_is_a_problem_and_its_groups_are_shown() -> None:
    """Some are known, and some may be missing."""
    listed = list_groups({1: GroupBroker({"web": "consumer"}, codes=(LOADING,) * 1000)}, (1,))

    assert {"web"} == listed.groups.keys()
    assert "COORDINATOR_LOAD_IN_PROGRESS" in listed.problems[make_broker(1).id]
    assert not listed.complete


def test_a_refusal_says_which_right_is_missing() -> None:
    """Code 31 is not retriable, so it is asked once."""
    broker = GroupBroker({}, codes=(NOT_ALLOWED,) * 9)

    listed = list_groups({1: broker}, (1,))

    assert "allow `Describe` on `Cluster:kafka-cluster`" in listed.problems[make_broker(1).id]
    assert 1 == len(broker.asked(ListGroupsRequest))
    assert not listed.silent


def test_brokers_before_0_9_know_no_groups_and_those_before_0_10_1_leave_empty_ones_out() -> None:
    """Neither is a failure; both have groups that they do not list."""
    ancient = ScriptedBroker({}, ranges={ApiKey.FETCH: (0, 0)})

    listed = list_groups({1: ancient, 2: GroupBroker({"web": "consumer"}, join=0)}, (1, 2))

    assert ({1}, set(), {}) == (listed.too_old, listed.complete, listed.problems)
    assert {"web"} == listed.groups.keys()


def test_groups_are_described_by_their_coordinators_a_hundred_in_a_request() -> None:
    """A thousand groups are ten requests."""
    brokers = {number: GroupBroker({f"g{number}-{at}": "consumer" for at in range(250)}) for number in (1, 2)}

    async def scenario(coordinators: GroupCoordinators) -> None:
        listed = await coordinators.list_groups(map(make_broker, brokers))
        described = await coordinators.describe_groups(listed.groups.values())
        assert 500 == len(described)
        assert {"Stable"} == {one.state for one in described.values()}
        assert {"g1": 1, "g2": 2} == {name[:2]: int(one.coordinator.id) for name, one in described.items()}

    run(brokers, scenario)
    assert [100, 100, 50] == [len(request.groups) for request, _ in brokers[1].asked(DescribeGroupsRequest)]


def test_groups_of_a_coordinator_that_has_gone_since_are_not_described() -> None:
    """They are listed, and their details are unknown."""

    async def scenario(coordinators: GroupCoordinators) -> None:
        gone = ListedGroup(group="web", protocol_type="consumer", coordinator=make_broker(2))
        described = (await coordinators.describe_groups([gone]))["web"]
        assert described.is_silent
        assert "refused" in described.failure

    run({}, scenario)


def test_members_have_their_subscriptions_and_assignments() -> None:
    """As Kafka's own tool shows them; a host has no leading slash here."""
    subscription = encode_subscription(ConsumerSubscription(topics=("orders", "clicks")))
    assignment = encode_assignment(Assignment(topics=(AssignedTopic(topic="orders", partitions=(1, 0)),)))
    group = make_group(members=(make_member(subscription, assignment),))

    found = read_description(group, "web", make_broker(1))

    assert ("Stable", "consumer", "range", "") == (found.state, found.protocol_type, found.protocol, found.failure)
    (member,) = found.members
    assert ("m-1", "app", "10.0.0.7") == (member.member_id, member.client_id, member.host)
    assert (("clicks", "orders"), (A, B)) == (member.topics, member.partitions)
    assert {A: "m-1", B: "m-1"} == find_owners(found.members)


def test_members_of_another_protocol_type_are_not_decoded() -> None:
    """Kafka Connect has payloads of its own."""
    group = make_group(protocol_type="connect", members=(make_member(b"\0\1junk", b"\0\1junk"),))

    (member,) = read_description(group, "sync", make_broker(1)).members

    assert ((), (), "") == (member.topics, member.partitions, member.problem)


@pytest.mark.parametrize(
    "assignment",
    [
        b"\0",
        b"\0\0\0\0\0\1",
        encode_assignment(Assignment(topics=(AssignedTopic(topic="a/b", partitions=(0,)),))),
        encode_assignment(Assignment(topics=(AssignedTopic(topic="a", partitions=(-1,)),))),
    ],
    ids=["short", "cut", "no topic", "negative"],
)
def test_a_payload_that_cannot_be_read_is_told_with_its_member(assignment: bytes) -> None:
    """Any client may send any bytes; the group's other members are shown."""
    group = make_group(members=(make_member(b"", assignment), make_member(b"", b"")))

    broken, whole = read_description(group, "web", make_broker(1)).members

    assert "Assignment" in broken.problem
    assert () == broken.partitions
    assert "" == whole.problem


def test_a_group_that_may_not_be_described_says_what_to_allow() -> None:
    """Code 30."""
    refused = read_description(make_group(error_code=NO_GROUP_RIGHT), "web", make_broker(1)).failure
    moved = read_description(make_group(error_code=NOT_COORDINATOR), "web", make_broker(1)).failure
    missing = read_description(None, "web", make_broker(1)).failure

    assert "GROUP_AUTHORIZATION_FAILED" in refused
    assert "allow `Describe` on `Group:web`" in refused
    assert "is moving" in moved
    assert "missing in the answer" in missing


@pytest.mark.parametrize(
    ("group", "partition"),
    # String.hashCode: "polygenelubricants" has the smallest number of 32 bits, whose absolute value is 0 to brokers
    [("", 0), ("a", 97 % 50), ("polygenelubricants", 0), ("test-group", 12)],
)
def test_the_partition_of_a_group_is_that_of_brokers(group: str, partition: int) -> None:
    """Its leader is the coordinator, so no broker needs to be asked for it."""
    assert partition == choose_offsets_partition(group, 50)
