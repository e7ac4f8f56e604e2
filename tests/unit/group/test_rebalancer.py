# SPDX-License-Identifier: Apache-2.0
"""Members over a ZooKeeper in memory, on virtual time: one thing at a time, where the simulation does them all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
import structlog
from structlog.testing import LogCapture

from consumerd.errors import IncarnationChanged, LeasePaused, OwnershipLost
from consumerd.group.assignors import Strategy
from consumerd.group.plan import DisagreementKind
from consumerd.group.settings import RebalanceSettings
from consumerd.group.subscription import Subscription
from consumerd.group.transitions import MemberState, PartitionState
from consumerd.model import ConsumerId, TopicPartition
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.layout import BROKER_TOPICS, id_path, ids_path, owner_path
from consumerd.zk.znodes import encode_registration
from tests.support.group_simulation import GROUP, SimulatedGroup
from tests.support.virtual_time import run

Scenario = Callable[[SimulatedGroup], Awaitable[None]]


@pytest.fixture(autouse=True)
def logs() -> Iterator[LogCapture]:
    capture = LogCapture()
    structlog.configure(processors=[capture])
    yield capture
    structlog.reset_defaults()


def play(scenario: Scenario, **options: object) -> None:
    async def live() -> None:
        async with SimulatedGroup(1, **options) as group:  # type: ignore[arg-type]  # passed on
            await scenario(group)

    run(live())


def names(partitions: object) -> list[str]:
    return [str(partition) for partition in partitions]  # type: ignore[attr-defined]  # any iterable


def test_a_lone_member_owns_everything_and_says_so() -> None:
    """Registered as Java registers, owners with thread ids, ready."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 3)
        member = group.join({"t": 2}, name="m")
        assert not member.rebalancer.status.ready
        await asyncio.sleep(1)
        status = member.rebalancer.status
        assert status.ready
        assert status.unready_reason is None
        assert status.consumer is not None
        node = group.server.read(id_path(GROUP, status.consumer))
        assert node is not None
        assert node[0].startswith(b'{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"')
        assert node[1].ephemeral_owner == member.client.state.session_id
        assert {str(p): thread.removeprefix(status.consumer) for p, thread in group.owners().items()} == {
            "t/0": "-0",
            "t/1": "-0",
            "t/2": "-1",
        }
        assert names(status.desired) == names(status.owned) == ["t/0", "t/1", "t/2"]
        (past,) = status.rebalances
        assert (past.rebalance.gained, past.rebalance.lost) == (3, 0)
        assert set(past.rebalance.phases) == {"settle", "snapshot", "claim"}

    play(scenario)


def test_a_topic_that_comes_later_is_claimed_when_it_comes_and_when_it_grows() -> None:
    """Waiting for a topic is not an error."""

    async def scenario(group: SimulatedGroup) -> None:
        member = group.join({"t": 1})
        await asyncio.sleep(2)
        assert member.rebalancer.status.ready
        group.make_topic("t", 2)
        await asyncio.sleep(1)
        assert names(member.listener.held) == ["t/0", "t/1"]
        group.make_topic("t", 4)
        await asyncio.sleep(1)
        assert len(member.listener.held) == 4
        assert member.listener.drained == []

    play(scenario)


def test_only_what_moves_stops_when_a_member_joins() -> None:
    """Promise 6; and what stays keeps its very claim."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 6)
        first = group.join({"t": 1}, name="a")
        await asyncio.sleep(1)
        before = dict(first.listener.held)
        group.join({"t": 1}, name="b")
        await asyncio.sleep(6)
        assert names(first.listener.drained) == ["t/3", "t/4", "t/5"]
        assert first.listener.lost_ones == []
        assert all(first.listener.held[partition] is before[partition] for partition in first.listener.held)
        assert group.judge.repeated == 0

    play(scenario)


def test_what_was_claimed_by_an_old_view_is_never_begun_with() -> None:
    """A member that came between the view and the claims gets its share at once, not after a drain."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 4)
        look = group.server.on_change

        def register_another(path: str) -> None:
            look(path)
            if path.startswith(f"/consumers/{GROUP}/owners/t/"):
                group.server.on_change = look
                payload = b'{"version":1,"subscription":{"t":1},"pattern":"static"}'
                group.server.put(id_path(GROUP, ConsumerId("zzz")), payload)

        group.server.on_change = register_another
        member = group.join({"t": 1}, name="m")
        await asyncio.sleep(3)
        assert names(member.listener.held) == ["t/0", "t/1"]
        assert member.listener.drained == []
        assert [str(partition) for partition in group.owners()] == ["t/0", "t/1"]

    play(scenario)


def test_a_deleted_topic_is_released_in_order() -> None:
    """Flushed and committed as far as it goes, and nothing is left behind."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        group.delete_topic("t")
        await asyncio.sleep(4)
        assert names(member.listener.drained) == ["t/0", "t/1"]
        assert member.listener.lost_ones == []
        assert group.owners() == {}
        assert member.rebalancer.status.ready

    play(scenario)


def test_a_topic_made_again_is_lost_and_claimed_with_its_new_incarnation() -> None:
    """A claim of the old one must not publish into the new one: confirm() tells them apart at once."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 1)
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        (old,) = member.listener.held.values()
        await old.confirm()
        group.delete_topic("t")
        with pytest.raises(IncarnationChanged, match="deleted"):
            await old.confirm()
        group.make_topic("t", 1)
        with pytest.raises(IncarnationChanged, match="re-created"):
            await old.confirm()
        await asyncio.sleep(2)
        assert names(member.listener.lost_ones) == ["t/0"]
        (new,) = member.listener.held.values()
        assert new.incarnation != old.incarnation
        await new.confirm()
        with pytest.raises(OwnershipLost, match="re-created"):
            old.check()

    play(scenario)


def test_a_claim_that_delivery_found_to_be_void_is_made_anew() -> None:
    """The topic was made again between two of its publishes, before any watch of ours fired: it is claimed as what it is
    now, and a second report of the same claim changes nothing.
    """

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        old = dict(member.listener.held)
        found = next(claim for claim in old.values() if str(claim.partition) == "t/0")
        for _ in range(2):
            member.rebalancer.report_lost(found, "the topic was re-created")
            await asyncio.sleep(2)
        new = member.listener.held
        assert names(member.listener.lost_ones) == ["t/0"]
        assert sorted(names(new)) == ["t/0", "t/1"]
        assert new[found.partition] is not found
        await new[found.partition].confirm()
        with pytest.raises(OwnershipLost, match="re-created"):
            found.check()
        assert [one for one in new if new[one] is old[one]] == [one for one in old if old[one] is not found]

    play(scenario)


def test_a_silence_short_of_the_session_repeats_nothing() -> None:
    """Half a timeout pauses, two thirds suspend, and the same session goes on as if nothing had been."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        claims = list(member.listener.held.values())
        rebalances = member.rebalancer.status.rebalances
        member.client.cut(heard_ago_s=0.0)
        await asyncio.sleep(2.9)
        assert all(claim.usable for claim in claims)
        await asyncio.sleep(0.2)
        with pytest.raises(LeasePaused):
            claims[0].check()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(claims[0].wait_usable())
            await asyncio.sleep(1.5)
            assert member.rebalancer.status.state is MemberState.SUSPENDED
            assert "does not answer" in (member.rebalancer.status.unready_reason or "")
            assert not waiting.done()
            member.client.heal()
        assert all(claim.usable for claim in claims)
        await asyncio.sleep(5)
        assert list(member.listener.held.values()) == claims
        assert member.listener.drained == member.listener.lost_ones == []
        assert member.rebalancer.status.rebalances == rebalances

    play(scenario)


def test_after_a_suspension_nothing_is_used_before_its_owner_node_was_seen() -> None:
    """The session answers again, but somebody may have taken the node away meanwhile."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        claims = list(member.listener.held.values())
        member.client.cut(heard_ago_s=0.0)
        await asyncio.sleep(4.5)
        assert member.rebalancer.status.state is MemberState.SUSPENDED
        member.client.heal()
        assert not any(claim.usable for claim in claims)
        with pytest.raises(LeasePaused):
            claims[0].check()
        await asyncio.sleep(0.5)
        assert all(claim.usable for claim in claims)

    play(scenario)


def test_a_lost_partition_is_told_to_the_log_and_to_the_hooks(logs: LogCapture) -> None:
    """Whoever is on call must see that a partition was dropped, and why."""
    told: list[tuple[str, str]] = []

    class Listening(Hooks):
        def ownership_lost(self, partition: TopicPartition, reason: str) -> None:
            told.append((str(partition), reason))

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 1)
        group.join({"t": 1}, hooks=Listening())
        await asyncio.sleep(1)
        path = owner_path(GROUP, TopicPartition.modern("t", 0))
        group.judge.tampered.add(path)
        group.server.remove(path)
        await asyncio.sleep(1)

    play(scenario)
    assert told == [("t/0", "its owner node was deleted")]
    assert [entry["partition"] for entry in logs.entries if entry["event"] == "ownership_lost"] == ["t/0"]


def test_a_new_session_loses_all_and_registers_under_a_new_id() -> None:
    """The old node lingers until its session ends: it is another member's, as far as we are concerned."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        before = member.rebalancer.status.consumer
        claims = list(member.listener.held.values())
        member.client.expire()
        assert not any(claim.usable for claim in claims)
        async with asyncio.TaskGroup() as tasks:
            lost = tasks.create_task(wait_lost(claims[0]))
        assert "session" in lost.result()
        await asyncio.sleep(2)
        assert names(member.listener.lost_ones) == ["t/0", "t/1"]
        assert member.rebalancer.status.consumer != before
        assert all(claim.epoch == 2 for claim in member.listener.held.values())
        assert len(member.listener.held) == 2

    async def wait_lost(claim: object) -> str:
        with pytest.raises(OwnershipLost) as caught:
            await claim.wait_usable()  # type: ignore[attr-defined]  # a claim
        return str(caught.value)

    play(scenario)


@pytest.mark.parametrize(("after_s", "noticed_s"), [(10.0, 0.2), (1.0, 5.2)], ids=["at rest", "in a handover"])
def test_our_owner_node_in_other_hands_is_lost_at_once(after_s: float, noticed_s: float) -> None:
    """Somebody deleted it and made it again: what tells is the session, not the text. Where others may be handing over
    partitions, nodes that are made again are read when that should be over."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 100)
        member = group.join({"t": 1})
        await asyncio.sleep(after_s)
        thread = next(iter(member.rebalancer.status.owned.values()))
        stranger = group.server.client("stranger")
        stranger.connect()
        path = owner_path(GROUP, TopicPartition.modern("t", 0))
        group.judge.tampered.add(path)
        group.server.remove(path)
        group.server.apply_create(path, thread.encode(), stranger.state.session_id)
        await asyncio.sleep(noticed_s)
        assert names(member.listener.lost_ones) == ["t/0"]
        (conflict,) = member.rebalancer.status.conflicts
        assert conflict.holder is not None
        assert conflict.holder.session_id == stranger.state.session_id
        stranger.close()
        await asyncio.sleep(0.2)
        assert member.rebalancer.status.ready

    play(scenario)


def test_a_registration_that_was_written_over_is_seen_in_the_first_view_after_a_pass() -> None:
    """No counter tells of it; registrations are kept from view to view only while one follows the other."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        stranger = group.server.client("stranger")
        stranger.connect()
        path = id_path(GROUP, ConsumerId(f"{GROUP}_zz"))
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        data = encode_registration(Subscription.to_topics({"t": 1}).register(7))
        group.server.apply_create(path, data, stranger.state.session_id)
        await asyncio.sleep(1)
        assert len(member.rebalancer.status.desired) == 1
        group.server.put(path, encode_registration(Subscription.to_topics({"other": 1}).register(7)))
        await asyncio.sleep(6)
        group.make_topic("t", 4)
        await asyncio.sleep(1)
        assert len(member.rebalancer.status.desired) == 4
        stranger.close()

    play(scenario)


def test_a_partition_held_by_others_makes_the_member_unready_but_not_idle(logs: LogCapture) -> None:
    """After its retries it says who holds the node, and goes on trying; what it owns flows."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        path = owner_path(GROUP, TopicPartition.modern("t", 0))
        group.server.put(path, b"forgotten")
        member = group.join({"t": 1})
        await asyncio.sleep(3)
        reason = member.rebalancer.status.unready_reason
        assert reason == "1 of 2 assigned partitions are not claimed yet"
        await asyncio.sleep(15)
        reason = member.rebalancer.status.unready_reason
        assert reason == "partitions held by others: 1, t/0 by forgotten"
        assert names(member.listener.held) == ["t/1"]
        (warning,) = [e for e in logs.entries if e["event"] == "claim_conflicted" and e["log_level"] == "warning"]
        assert (warning["holder"], warning["partition"]) == ("forgotten", "t/0")
        group.server.remove(path)
        await asyncio.sleep(0.5)
        assert member.rebalancer.status.ready

    play(scenario)


def test_a_pattern_follows_the_topics_that_come_and_go() -> None:
    """And never takes internal ones."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("web.a", 1)
        group.make_topic("web.debug", 1)
        group.make_topic("__consumer_offsets", 3)
        subscription = Subscription.to_white_list(["web.*|__.*"], 1, exclude=["web[.]debug"])
        member = group.join({}, subscription=subscription)
        await asyncio.sleep(1)
        assert names(member.listener.held) == ["web.a/0"]
        group.make_topic("web.b", 2)
        await asyncio.sleep(1)
        assert names(member.listener.held) == ["web.a/0", "web.b/0", "web.b/1"]
        group.delete_topic("web.a")
        await asyncio.sleep(4)
        assert names(member.listener.held) == ["web.b/0", "web.b/1"]

    play(scenario)


def test_a_changed_thread_is_written_without_a_pause() -> None:
    """Owners are the Java algorithm's, thread by thread, while records flow."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        member = group.join({"t": 2})
        await asyncio.sleep(1)
        claims = dict(member.listener.held)
        group.make_topic("t", 6)
        await asyncio.sleep(1)
        consumer = member.rebalancer.status.consumer
        assert [owner for _, owner in sorted(group.owners().items())] == [f"{consumer}-0"] * 3 + [f"{consumer}-1"] * 3
        assert all(member.listener.held[partition] is claim for partition, claim in claims.items())
        assert claims[TopicPartition.modern("t", 1)].thread == f"{consumer}-0"

    play(scenario)


def test_members_of_different_strategies_are_told_apart(logs: LogCapture) -> None:
    """Nobody can be asked for the assignor; owners that are not the plan's show it once the group is at rest."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("orders", 12)
        group.make_topic("t", 7)
        topics = {"orders": 2, "t": 2}
        first = group.join(topics, name="a")
        await asyncio.sleep(1)
        group.strategy = Strategy.ROUNDROBIN_1_0
        second = group.join(topics, name="b")
        await asyncio.sleep(80)
        assert not (first.rebalancer.status.ready and second.rebalancer.status.ready)
        for member in (first, second):
            assert member.rebalancer.status.disagreements

    play(scenario)
    found = [entry for entry in logs.entries if entry["event"] == "members_disagree"]
    assert DisagreementKind.STRATEGY.value in {entry["kind"] for entry in found}


def test_a_member_that_cannot_be_read_is_reported_and_does_not_stop_us(logs: LogCapture) -> None:
    """It does stop every Java member: somebody has to be told which node it is."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 1)
        group.server.put(f"{ids_path(GROUP)}/g_junk", b"not json")
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        assert member.rebalancer.status.ready
        (found,) = member.rebalancer.status.disagreements
        assert (found.kind, found.member) == (DisagreementKind.UNREADABLE, "g_junk")

    play(scenario)
    assert [entry["member"] for entry in logs.entries if entry["event"] == "members_disagree"] == ["g_junk"]


def test_a_stray_owner_node_of_our_session_is_found_and_released() -> None:
    """The ghost of a claim whose outcome nobody knew would keep a partition from everybody."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 4)
        first, second = group.join({"t": 1}, name="a"), group.join({"t": 1}, name="b")
        await asyncio.sleep(5)
        partition = next(iter(second.listener.held))
        path = owner_path(GROUP, partition)
        group.judge.tampered.add(path)
        group.server.remove(path)
        group.server.apply_create(path, b"ghost", first.client.state.session_id)
        await asyncio.sleep(120)
        assert second.rebalancer.status.ready
        assert group.owners()[partition] == second.rebalancer.status.owned[partition]

    play(scenario)


def test_a_slow_drain_is_cut_off_and_the_partition_goes_all_the_same(logs: LogCapture) -> None:
    """A Java member waits 6 s, whatever our sink does; its claim is useless before the node goes."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        first = group.join({"t": 1}, name="a")
        await asyncio.sleep(1)
        claim = first.listener.held[TopicPartition.modern("t", 1)]
        second = group.join({"t": 1}, name="b")
        await asyncio.sleep(1.5)
        assert second.rebalancer.status.ready
        with pytest.raises(OwnershipLost, match="took too long"):
            claim.check()

    play(scenario, settings=RebalanceSettings(drain_timeout_ms=300), slowest_drain_s=1000.0)
    assert any(entry["event"] == "drain_overran" for entry in logs.entries)


def test_leaving_is_bounded(logs: LogCapture) -> None:
    """ZooKeeper may be away for good: what is left is dropped, and the nodes go with the session."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        (claim, _) = member.listener.held.values()
        member.client.cut()
        assert not await member.rebalancer.leave(timeout_s=2.0)
        assert not claim.usable
        assert member.listener.held == {}
        assert await member.rebalancer.leave()

    play(scenario)


def test_leaving_leaves_nothing_behind() -> None:
    """Everything drained and committed, every node gone, before the session is closed."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 3)
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        assert await member.rebalancer.leave()
        assert group.owners() == {}
        assert group.server.names(ids_path(GROUP)) == []
        assert names(member.listener.drained) == ["t/0", "t/1", "t/2"]
        assert member.rebalancer.status.state is MemberState.STOPPED
        del group.members[member.name]

    play(scenario)


def test_nothing_is_watched_that_nobody_needs() -> None:
    """Watches on parents only, and none left once the member has gone."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 50)
        member = group.join({"t": 1})
        await asyncio.sleep(1)
        watched = {path for (path, _), watches in member.client.watches.items() if watches}
        assert watched == {ids_path(GROUP), f"{BROKER_TOPICS}/t", f"/consumers/{GROUP}/owners/t"}
        await member.rebalancer.leave()
        assert not any(member.client.watches.values())
        del group.members[member.name]

    play(scenario)


def test_zookeeper_away_at_the_start_is_waited_for() -> None:
    """Unready, with the reason, and no busy loop."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 1)
        member = group.join({"t": 1})
        member.client.cut(heard_ago_s=6.0)
        await asyncio.sleep(30)
        assert not member.rebalancer.status.ready
        member.client.heal()
        await asyncio.sleep(2)
        assert member.rebalancer.status.ready

    play(scenario)


def test_a_partition_under_way_is_shown() -> None:
    """The status page tells what moves and where it stands."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 2)
        first = group.join({"t": 1}, name="a")
        await asyncio.sleep(1)
        group.join({"t": 1}, name="b")
        await asyncio.sleep(0.5)
        moving = first.rebalancer.status.moving
        assert moving == {TopicPartition.modern("t", 1): PartitionState.QUIESCING}
        await asyncio.sleep(5)

    play(scenario, slowest_drain_s=2.5)


def test_a_topic_that_becomes_unreadable_keeps_its_owners_and_is_told() -> None:
    """A spoilt node must not stop delivery: no member can plan the topic, so that nobody else claims its partitions."""

    async def scenario(group: SimulatedGroup) -> None:
        group.make_topic("t", 4)
        first, second = group.join({"t": 1}, name="a"), group.join({"t": 1}, name="b")
        await asyncio.sleep(5)
        before = group.owners()
        assert len(set(before.values())) == 2
        found = group.server.read("/brokers/topics/t")
        assert found is not None
        group.server.put("/brokers/topics/t", b"[" * 100_000)
        await asyncio.sleep(30)
        assert group.owners() == before
        for member in (first, second):
            assert len(member.rebalancer.status.owned) == 2
            reason = member.rebalancer.status.unready_reason or ""
            assert reason.startswith("topics whose node in ZooKeeper cannot be read")
            assert "t: " in reason
            assert member.rebalancer.status.disagreements == ()
        third = group.join({"t": 1}, name="c")
        await asyncio.sleep(30)
        assert group.owners() == before
        group.server.put("/brokers/topics/t", found[0])
        await asyncio.sleep(10)
        assert len(set(group.owners().values())) == 3
        assert all(member.rebalancer.status.ready for member in (first, second, third))

    play(scenario)
