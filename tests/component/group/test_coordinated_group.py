# SPDX-License-Identifier: Apache-2.0
"""Members that the embedded broker coordinates: joins, leaves, kills, and every answer that a coordinator gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from consumerd.embedded.broker import BrokerSettings
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import LeasePaused, OwnershipLost
from consumerd.model import ConsumerId, TopicPartition
from consumerd.offsets.store import CommitOutcome
from consumerd.telemetry.hooks import Trouble
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.zk.layout import id_path, ids_path
from consumerd.zk.port import LeasePhase
from tests.support.coordinated_member import join_coordinated, make_settings, settle
from tests.support.delivery import FakeClaim
from tests.support.waiting import until
from tests.support.zookeeper import run_server

pytestmark = pytest.mark.timeout(120)

ALWAYS = 1_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """One ZooKeeper for the module; each test has a chroot of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture(params=["1.1"])
async def cluster(
    request: pytest.FixtureRequest, server: EmbeddedZooKeeper, tmp_path: Path
) -> AsyncIterator[EmbeddedCluster]:
    """A broker with topic ``t`` of four partitions and ``u`` of one."""
    chroot = f"{server.connect_string}/{abs(hash(request.node.name))}"
    make = partial(BrokerSettings, min_group_session_timeout_ms=1000, as_release=request.param)
    async with EmbeddedCluster(tmp_path, zookeeper=chroot, topics={"t": 4, "u": 1}, make_broker=make) as made:
        yield made


every_release = pytest.mark.parametrize("cluster", ["0.9", "0.10", "1.1"], indirect=True)


@every_release
async def test_members_share_and_take_over(cluster: EmbeddedCluster) -> None:
    """Alone, two, one again: each partition has one owner, and the second begins where the first has committed."""
    settings = make_settings(cluster.zookeeper, "g", ["t", "u"])
    async with join_coordinated(settings) as first:
        await settle(first, partitions=5)
        assert await first.commit("t/3", 7) is CommitOutcome.WRITTEN
        assert first.coordination.leader
        assert first.status.ready
        generation = first.coordination.generation
        async with join_coordinated(settings) as second:
            await settle(first, second, partitions=5)
            assert {"t/2", "t/3"} in ({*first.held}, {*second.held})  # range: T in two chunks
            assert [first.membership.members, first.coordination.leader, second.coordination.leader].count(True) == 1
            owner = first if "t/3" in first.held else second
            assert await owner.position("t/3") == 7
            assert await owner.commit("t/3", 9) is CommitOutcome.WRITTEN
            assert first.coordination.generation > generation
            await until(lambda: (first.membership.members, second.membership.members) == (2, 2))
        await settle(first, partitions=5)
        assert await first.position("t/3") == 9
        assert first.listener.lost_ones == []
        assert first.listener.claimed_ones[:5] == sorted(first.listener.drained[:5])


async def test_a_killed_member_is_replaced_after_its_session_timeout(cluster: EmbeddedCluster) -> None:
    """Its partitions go to the other one, and no earlier than its own claims have paused."""
    settings = make_settings(cluster.zookeeper, "g", ["t"], assignor="roundrobin")
    async with join_coordinated(settings) as staying, join_coordinated(settings) as killed:
        await settle(staying, killed, partitions=4)
        assert staying.coordination.assignor == "roundrobin"
        await killed.kill()
        await settle(staying, partitions=4)
        assert staying.listener.lost_ones == []


async def test_the_lease_ends_claims_before_anybody_else_can_have_them(cluster: EmbeddedCluster) -> None:
    """Unanswered heartbeats: a pause at half the timeout, no commit, and a drop when the coordinator says so."""
    settings = make_settings(cluster.zookeeper, "g", ["t"])
    async with join_coordinated(settings) as member:
        await settle(member, partitions=4)
        claim, member_id = member.claim("t/0"), member.coordination.member_id
        assert await member.commit("t/0", 5) is CommitOutcome.WRITTEN
        silence = cluster.broker.faults.error(ApiKey.HEARTBEAT, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=ALWAYS)
        await until(lambda: member.coordination.phase is LeasePhase.PAUSED)
        with pytest.raises(LeasePaused, match="coordinator has not answered"):
            claim.check()
        assert await member.commit_by(claim, 6) is CommitOutcome.FAILED
        assert "coordinator does not answer" in (member.status.unready_reason or "")
        assert "COORDINATOR_NOT_AVAILABLE" in (member.status.unready_reason or "")
        await until(member.is_removed)
        silence.remove()
        with pytest.raises(OwnershipLost, match="removed this member"):
            await claim.wait_usable()
        await until(lambda: len(member.listener.lost_ones) == 4)
        assert await member.commit_by(claim, 8) is CommitOutcome.NOT_OWNER
        await settle(member, partitions=4)
        assert member.coordination.member_id != member_id
        assert await member.position("t/0") == 5
        assert Trouble.COORDINATOR_SILENT in {kind for kind, _ in member.hooks.troubles}


async def test_a_late_commit_of_an_old_generation_is_refused_by_the_coordinator(cluster: EmbeddedCluster) -> None:
    """Even where the claim was checked before: what a stalled process sends when it goes on moves nothing."""
    settings = make_settings(cluster.zookeeper, "g", ["t"])
    async with join_coordinated(settings) as old:
        await settle(old, partitions=4)
        assert await old.commit("t/0", 5) is CommitOutcome.WRITTEN
        incarnation = old.claim("t/0").incarnation.czxid
        generation, member_id = old.generation.number, old.generation.member_id
        refused: list[ErrorCode] = []
        old.generation.refused = lambda _, error: refused.append(ErrorCode(error.code))
        async with join_coordinated(settings) as new:
            await settle(old, new, partitions=4)
            for number, name in ((generation, member_id), (old.generation.number, "nobody")):
                store, now = old.store, (old.generation.number, old.generation.member_id)
                old.generation.set(number, name)
                late = FakeClaim(TopicPartition.modern("t", 0), epoch=number, incarnation=incarnation)
                assert await old.commit_by(late, 3) is CommitOutcome.NOT_OWNER
                old.generation.set(*now)
            assert await new.position("t/0") == 5
            assert store is old.store
    assert refused == [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR],
)
async def test_a_coordinator_that_is_not_there_yet_is_asked_again(cluster: EmbeddedCluster, code: ErrorCode) -> None:
    """Loading, absent, moved: for each request of a member, and with the reason in the status."""
    settings = make_settings(cluster.zookeeper, "g", ["t"])
    joins = cluster.broker.faults.error(ApiKey.JOIN_GROUP, code, times=ALWAYS)
    async with join_coordinated(settings) as member:
        await until(lambda: code.name in (member.status.unready_reason or ""))
        syncs = cluster.broker.faults.error(ApiKey.SYNC_GROUP, code, times=2)
        joins.remove()
        await settle(member, partitions=4)
        beats = cluster.broker.faults.error(ApiKey.HEARTBEAT, code, times=2)
        await until(lambda: beats.hits == 2)
        await until(lambda: member.status.ready)
        assert syncs.hits == 2
        assert member.listener.lost_ones == []
        assert Trouble.JOIN_FAILED in {kind for kind, _ in member.hooks.troubles}


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
async def test_a_fenced_member_drops_everything_and_joins_again(cluster: EmbeddedCluster, code: ErrorCode) -> None:
    """By a heartbeat's answer."""
    settings = make_settings(cluster.zookeeper, "g", ["t"])
    async with join_coordinated(settings) as member:
        await settle(member, partitions=4)
        cluster.broker.faults.error(ApiKey.HEARTBEAT, code)
        await until(lambda: len(member.listener.lost_ones) == 4)
        await settle(member, partitions=4)


async def test_a_commit_that_is_refused_fences_the_member(cluster: EmbeddedCluster) -> None:
    """Before the next heartbeat: the claim is known to be lost."""
    settings = make_settings(cluster.zookeeper, "g", ["t"], heartbeat_interval_ms=1000)
    async with join_coordinated(settings) as member:
        await settle(member, partitions=4)
        cluster.broker.faults.error(ApiKey.OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION)
        assert await member.commit("t/0", 3) is CommitOutcome.NOT_OWNER
        await until(lambda: len(member.listener.lost_ones) == 4)
        await settle(member, partitions=4)
        assert await member.position("t/0") is None


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "partition.assignment.strategy"),
        (ErrorCode.INVALID_GROUP_ID, "group.id"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, "group.session_timeout_ms"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "allow `Read` on `Group:"),
    ],
)
async def test_a_refused_join_is_named_and_tried_again(cluster: EmbeddedCluster, code: ErrorCode, says: str) -> None:
    """What an operator has to change is in the reason."""
    refusal = cluster.broker.faults.error(ApiKey.JOIN_GROUP, code, times=ALWAYS)
    async with join_coordinated(make_settings(cluster.zookeeper, "g", ["t"])) as member:
        await until(lambda: says in (member.status.unready_reason or ""))
        refusal.remove()
        await settle(member, partitions=4)


async def test_a_broker_that_restarts_keeps_the_group(cluster: EmbeddedCluster) -> None:
    """The coordinator is dead for a moment: claims stay, and nothing is lost."""
    settings = make_settings(cluster.zookeeper, "g", ["t"], session_timeout_ms=10000)
    async with join_coordinated(settings) as member:
        await settle(member, partitions=4)
        await member.commit("t/1", 4)
        await cluster.stop_broker()
        await until(lambda: member.status.last_error is not None)
        await cluster.start_broker()
        await until(lambda: member.status.ready)
        assert await member.commit("t/1", 5) is CommitOutcome.WRITTEN
        assert await member.position("t/1") == 5


async def test_new_partitions_and_new_topics_are_assigned(cluster: EmbeddedCluster) -> None:
    """The leader sees the first, whoever has the pattern the second."""
    async with (
        join_coordinated(make_settings(cluster.zookeeper, "g", ["t.*"])) as one,
        join_coordinated(make_settings(cluster.zookeeper, "g", ["t.*"])) as two,
    ):
        await settle(one, two, partitions=4)
        await cluster.broker.create_topic("tea", 2)
        await settle(one, two, partitions=6)
        assert one.membership.topics.value == two.membership.topics.value == {"t", "tea"}


async def test_a_topic_that_does_not_exist_yet_is_waited_for(cluster: EmbeddedCluster) -> None:
    """As Java's consumer: subscribed to, without partitions."""
    async with join_coordinated(make_settings(cluster.zookeeper, "g", ["later"])) as member:
        await settle(member, partitions=0)
        await cluster.broker.create_topic("later", 2)
        await settle(member, partitions=2)


async def test_a_member_in_zookeeper_is_waited_for(cluster: EmbeddedCluster) -> None:
    """Two kinds of members of one name would read each partition twice."""
    settings = make_settings(cluster.zookeeper, "g", ["t"])
    async with join_coordinated(make_settings(cluster.zookeeper, "other", ["u"])) as helper:
        zk = helper.cluster.zk
        await zk.ensure_path(ids_path("g"))
        path = id_path("g", ConsumerId("g_java-1"))
        await zk.create(path, b"{}")
        async with join_coordinated(settings) as member:
            await until(lambda: "g_java-1" in (member.status.unready_reason or ""))
            assert "set group.membership: zookeeper" in (member.status.unready_reason or "")
            await zk.delete(path)
            await settle(member, partitions=4)
