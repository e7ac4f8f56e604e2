# SPDX-License-Identifier: Apache-2.0
"""What others leave in a group's registry, on a real ZooKeeper: nothing of it stops, doubles or skips a partition of ours.

Payloads of other clients are those that their sources write: pykafka (``balancedconsumer.py``), the Go consumer group of
wvanbergen (``kazoo-go``, ``consumergroup.go``), Kafka 0.7 (``TopicCount.scala``), and registries recorded from Kafka.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.group.plan import DisagreementKind
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.model import TopicPartition
from consumerd.offsets.store import Commit, CommitOutcome
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import group_path, id_path, ids_path, offset_path, owner_path, owners_path, topic_path
from tests.support.group_member import GroupMember, join_group
from tests.support.waiting import until
from tests.support.zookeeper import make_client, run_server

#: quick, and a starved conflict is told after the second try
QUICK: Final = RebalanceSettings(settle_ms=50, backoff_ms=200, max_retries=2, release_grace_ms=50, reconcile_ms=500)

UNREADABLE: Final = {
    "empty": b"",
    "no-json": b"{",
    "no-text": b"\xff\xfe",
    "list": b"[]",
    "pykafka": b"t",
    "kafka-0.7-topics": b'{ "t": 1,"u": 1 }',
    "kafka-0.7-list": b"*1*t.*",
    "no-pattern": b'{"subscription":{"t":1}}',
    "no-streams": b'{"pattern":"static","subscription":{"t":0}}',
    "deep": b"[" * 50_000,
    "huge-number": b'{"pattern":"static","subscription":{"t":' + b"9" * 5000 + b"}}",
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server for the module; each test has a group and a topic of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
async def foreign(server: EmbeddedZooKeeper) -> AsyncIterator[AiozkClient]:
    """The session of somebody else."""
    async with make_client(server.connect_string) as zk:
        await zk.wait_connected()
        yield zk


@pytest.fixture
async def ours(server: EmbeddedZooKeeper) -> AsyncIterator[AiozkClient]:
    """The session of our member."""
    async with make_client(server.connect_string) as zk:
        yield zk


@pytest.fixture
async def group(request: pytest.FixtureRequest, foreign: AiozkClient) -> str:
    """A group that no other test uses; its topic, of four partitions, has the same name."""
    name = re.sub("[^a-z0-9_]+", "-", str(request.node.name))[-80:]
    body = {"version": 1, "partitions": {str(number): [0] for number in range(4)}}
    await foreign.ensure_path("/brokers/topics")
    await foreign.create(topic_path(name), json.dumps(body).encode())
    await foreign.ensure_path(ids_path(name))
    await foreign.ensure_path(owners_path(name, name))
    return name


def owning(member: GroupMember, *numbers: int) -> bool:
    """Whether the member is at rest and owns exactly these."""
    status = member.status
    return not status.moving and {one.partition.number for one in status.owned} == set(numbers)


async def register(zk: AiozkClient, group: str, consumer: str, fields: dict[str, object]) -> None:
    await zk.create(f"{ids_path(group)}/{consumer}", json.dumps(fields).encode(), ephemeral=True)


async def test_members_that_cannot_be_read_take_no_part_and_are_told(
    foreign: AiozkClient, ours: AiozkClient, group: str
) -> None:
    """One such node stops every Java member of the group; ours own everything, and say what is there."""
    for name, data in UNREADABLE.items():
        await foreign.create(f"{ids_path(group)}/{name}", data, ephemeral=True)
    async with join_group(ours, group, Subscription.to_topics({group: 1}), settings=QUICK) as member:
        await until(lambda: owning(member, 0, 1, 2, 3))
        told = {one.member for one in member.status.disagreements if one.kind is DisagreementKind.UNREADABLE}
        assert told == set(UNREADABLE)
        for name in UNREADABLE:
            await foreign.delete(f"{ids_path(group)}/{name}")
        await until(lambda: member.status.disagreements == ())
        assert member.listener.lost_ones == member.listener.drained == []


@pytest.mark.parametrize(
    ("consumer", "fields"),
    [
        # what comes before "zz" in the order of ids has the first half
        ("host:aa", {"pattern": "static", "subscription": {"T": 1}, "timestamp": "1500000000", "version": 1}),
        ("host:ab", {"pattern": "static", "subscription": {"T": 1}, "timestamp": 1500000000}),
        ("ac", {"pattern": "static", "subscription": {"T": "1"}, "added by a later release": [1]}),
        ("ad", {"pattern": "something new", "subscription": {"T": 1, "no-such-topic": 3}}),
        ("ae", {"version": 1, "subscription": {"T|other": 1}, "pattern": "white_list", "timestamp": "1"}),
        ("af", {"version": 1, "subscription": {"other.*": 1}, "pattern": "black_list", "timestamp": "1"}),
    ],
    ids=["kazoo-go", "timestamp a number", "no version", "unknown pattern", "white list", "black list"],
)
async def test_a_member_of_another_client_is_left_its_share(
    foreign: AiozkClient, ours: AiozkClient, group: str, consumer: str, fields: dict[str, object]
) -> None:
    """Whatever a Java member reads as a member is one: two that claim the same would deliver it twice."""
    text = json.dumps(fields).replace("T", group)
    await foreign.create(f"{ids_path(group)}/{consumer}", text.encode(), ephemeral=True)
    # kazoo-go writes the bare id of the member, without a thread
    for number in (0, 1):
        await foreign.create(owner_path(group, TopicPartition.modern(group, number)), consumer.encode(), ephemeral=True)
    async with join_group(ours, group, Subscription.to_topics({group: 1}), consumer_id="zz", settings=QUICK) as member:
        await until(lambda: owning(member, 2, 3) and member.status.ready)
        assert member.status.conflicts == ()
        await foreign.delete(f"{ids_path(group)}/{consumer}")
        for number in (0, 1):
            await foreign.delete(owner_path(group, TopicPartition.modern(group, number)))
        await until(lambda: owning(member, 0, 1, 2, 3))


async def test_junk_among_owners_is_passed_over_and_left_where_it_is(
    foreign: AiozkClient, ours: AiozkClient, group: str
) -> None:
    """Locks and notes of other tools, pykafka's ``<broker>-<partition>``, partitions that are none: none of them is ours
    to delete.
    """
    names = ["lock", "0-1", "-1", "00", "99", "1.5", "two words", "0/child"]
    for name in names[:-1]:
        await foreign.create(f"{owners_path(group, group)}/{name}", b"junk \xff", ephemeral=True)
    await foreign.ensure_path(f"{group_path(group)}/owners/{group}.other/notes")
    async with join_group(ours, group, Subscription.to_topics({group: 1}), settings=QUICK) as member:
        await until(lambda: owning(member, 0, 1, 2, 3) and member.status.ready)
    found, _ = await foreign.children(owners_path(group, group))
    assert sorted(found) == sorted(names[:-1])


async def test_an_owner_that_never_goes_is_named_and_stops_nothing_else(
    foreign: AiozkClient, ours: AiozkClient, group: str
) -> None:
    """A persistent owner node, as a restored backup or a broken tool leaves it: the other partitions flow, and the
    one is claimed as soon as somebody deletes the node.
    """
    stuck = owner_path(group, TopicPartition.modern(group, 2))
    await foreign.create(stuck, b"\xff no thread")
    await foreign.create(f"{stuck}/child", b"")
    async with join_group(ours, group, Subscription.to_topics({group: 1}), settings=QUICK) as member:
        await until(lambda: any(one.starved for one in member.status.conflicts))
        assert {one.partition.number for one in member.status.owned} == {0, 1, 3}
        (conflict,) = member.status.conflicts
        assert conflict.holder is not None
        assert (conflict.partition.partition.number, conflict.holder.session_id) == (2, 0)
        assert "held by others" in (member.status.unready_reason or "")
        await foreign.delete(f"{stuck}/child")
        await foreign.delete(stuck)
        await until(lambda: owning(member, 0, 1, 2, 3) and member.status.ready)
        assert member.listener.lost_ones == member.listener.drained == []


async def test_an_owner_node_that_somebody_deletes_is_noticed_and_claimed_anew(
    foreign: AiozkClient, ours: AiozkClient, group: str
) -> None:
    """The claim is void from then on: another member may have it. What has not been deleted keeps flowing."""
    async with join_group(ours, group, Subscription.to_topics({group: 1}), settings=QUICK) as member:
        await until(lambda: owning(member, 0, 1, 2, 3))
        held = dict(member.listener.held)
        victim = TopicPartition.modern(group, 1)
        await foreign.delete(owner_path(group, victim))
        await until(lambda: member.listener.claimed_ones.count(victim) == 2 and owning(member, 0, 1, 2, 3))
        assert member.listener.lost_ones == [victim]
        assert not held[victim].usable
        assert {one for one, claim in held.items() if claim.usable} == held.keys() - {victim}


async def test_an_owner_node_that_somebody_rewrites_stays_ours(
    foreign: AiozkClient, ours: AiozkClient, group: str
) -> None:
    """Ownership is told by the session that keeps the node: its text is for others to read."""
    async with join_group(ours, group, Subscription.to_topics({group: 1}), settings=QUICK) as member:
        await until(lambda: owning(member, 0, 1, 2, 3))
        victim = TopicPartition.modern(group, 1)
        await foreign.set(owner_path(group, victim), b"mine now")
        store = ZooKeeperOffsetStore(ours, group)
        (outcome,) = (await store.commit([Commit(member.listener.held[victim], 7)])).values()
        assert outcome is CommitOutcome.WRITTEN
        assert member.listener.held[victim].usable
        assert member.listener.lost_ones == []


async def test_a_registration_that_somebody_deletes_or_spoils_is_made_anew(
    foreign: AiozkClient, ours: AiozkClient, group: str
) -> None:
    """Without it Java members deal our partitions out among themselves, and cannot claim them."""
    async with join_group(ours, group, Subscription.to_topics({group: 1}), consumer_id="r", settings=QUICK) as member:
        await until(lambda: owning(member, 0, 1, 2, 3) and member.status.ready)
        consumer = member.status.consumer
        assert consumer is not None
        good, _ = await foreign.get(id_path(group, consumer))
        await foreign.delete(id_path(group, consumer))
        await until(lambda: _is_registered(foreign, group, member))
        await until(lambda: owning(member, 0, 1, 2, 3) and member.status.ready)
        again = member.status.consumer
        assert again is not None
        claimed = len(member.listener.claimed_ones)
        await foreign.set(id_path(group, again), b"spoilt")
        # nobody watches the data of such a node: it is seen when the group changes, before anything follows from it
        await register(foreign, group, "onlooker", {"pattern": "static", "subscription": {"elsewhere": 1}})
        await until(lambda: _is_registered(foreign, group, member))
        await until(lambda: owning(member, 0, 1, 2, 3) and member.status.ready)
        assert json.loads(good)["subscription"] == {group: 1}
        assert len(member.listener.claimed_ones) == claimed


async def _is_registered(zk: AiozkClient, group: str, member: GroupMember) -> bool:
    found = None if member.status.consumer is None else await zk.find(id_path(group, member.status.consumer))
    return found is not None and found[0].startswith(b'{"version":1')


async def test_a_configured_id_that_a_living_process_uses_is_shared_by_none(
    foreign: AiozkClient, ours: AiozkClient, group: str, server: EmbeddedZooKeeper
) -> None:
    """Two processes with one setting: the second takes a suffix, and they share as any two members do."""
    subscription = Subscription.to_topics({group: 1})
    async with make_client(server.connect_string) as zk, join_group(zk, group, subscription, consumer_id="r") as first:
        await until(lambda: owning(first, 0, 1, 2, 3))
        async with join_group(ours, group, subscription, consumer_id="r", settings=QUICK) as second:
            await until(lambda: owning(first, 0, 1) and owning(second, 2, 3))
            assert first.status.consumer == f"{group}_r"
            assert (second.status.consumer or "").startswith(f"{group}_r-")
            listed, _ = await foreign.children(ids_path(group))
            assert len(listed) == 2
        await until(lambda: owning(first, 0, 1, 2, 3))


@pytest.mark.parametrize("written", [b"999", b"junk \xff", b"", b"-5", b"1e3", None], ids=str)
async def test_positions_that_somebody_writes_while_we_own_are_written_over(
    foreign: AiozkClient, ours: AiozkClient, group: str, written: bytes | None
) -> None:
    """The owner's position is the one that counts; what was there is counted as foreign, and a node that was deleted
    is made again.
    """
    partition = TopicPartition.modern(group, 0)
    node = offset_path(group, partition)
    async with join_group(ours, group, Subscription.to_topics({group: 1}), settings=QUICK) as member:
        await until(lambda: owning(member, 0, 1, 2, 3))
        store, claim = ZooKeeperOffsetStore(ours, group), member.listener.held[partition]
        await store.load([partition])
        assert (await store.commit([Commit(claim, 5)]))[partition] is CommitOutcome.WRITTEN
        if written is None:
            await foreign.delete(node)
        else:
            await foreign.set(node, written)
        outcome = (await store.commit([Commit(claim, 6)]))[partition]
        assert outcome is CommitOutcome.FOREIGN_OVERWRITTEN
        assert (await foreign.get(node))[0] == b"6"


async def test_junk_among_positions_is_read_past(foreign: AiozkClient, ours: AiozkClient, group: str) -> None:
    """Each partition has what its own node says, or the text of what it says instead; other names are nobody's."""
    root = f"{group_path(group)}/offsets/{group}"
    for name, data in {"0": b"12", "1": b"twelve", "lock": b"x", "0-1": b"5", "3/child": b"y"}.items():
        await foreign.ensure_path(f"{root}/{name}", data)
    partitions = [TopicPartition.modern(group, number) for number in range(4)]
    stored = await ZooKeeperOffsetStore(ours, group).load(partitions)
    found = {one.partition.number: entry for one, entry in stored.items()}
    assert found[0] is not None
    assert (found[0].position, found[0].malformed) == (12, None)
    assert found[1] is not None
    assert (found[1].position, found[1].malformed) == (-1, "twelve")
    assert found[2] is None
    assert found[3] is not None
    assert found[3].malformed == ""


async def test_members_of_other_versions_of_ours_share_the_group(
    foreign: AiozkClient, ours: AiozkClient, group: str
) -> None:
    """A later release may say more in any node: what is not known is passed over."""
    fields = {"version": 2, "subscription": {group: 1}, "pattern": "static", "timestamp": "1", "rack": "r1"}
    await register(foreign, group, f"{group}_a", fields)
    await foreign.ensure_path(f"{group_path(group)}/consumerd/members/unlike-ours", b'{"version":9}')
    await foreign.ensure_path(f"{group_path(group)}/consumerd/something-new/x")
    async with join_group(ours, group, Subscription.to_topics({group: 1}), consumer_id="b", settings=QUICK) as member:
        await until(lambda: owning(member, 2, 3) and member.status.ready)
