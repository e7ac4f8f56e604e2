# SPDX-License-Identifier: Apache-2.0
"""A member of a group that a broker coordinates, in this process, that delivers nothing and commits what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from consumerd.access.opening import ClusterConnections, open_cluster
from consumerd.client.group_coordinator import list_consumers
from consumerd.client.group_coordinators import describe_group
from consumerd.config.settings import Settings
from consumerd.connector.membership import make_membership
from consumerd.daemon.routes import make_subscription
from consumerd.group.admission import describe_cluster
from consumerd.group.membership import Membership
from consumerd.group.status import Coordination, GroupStatus
from consumerd.model import Claim, TopicPartition
from consumerd.net.pool import Purpose
from consumerd.offsets.kafka_store import MemberGeneration
from consumerd.offsets.opening import open_store
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import Commit, CommitOutcome, OffsetStore, Place
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import BROKER_TOPICS
from tests.support.group_member import RecordingListener
from tests.support.waiting import until

SESSION_MS = 3000
"""Session timeout of the members; brokers of these tests must allow it."""


class TroubleHooks(Hooks):
    """Keeps the troubles."""

    def __init__(self) -> None:
        self.troubles: list[tuple[Trouble, str]] = []

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        """Keep it."""
        self.troubles.append((kind, detail))


@dataclass(frozen=True)
class CoordinatedTestMember:
    """A member that runs."""

    membership: Membership
    listener: RecordingListener
    cluster: ClusterConnections
    generation: MemberGeneration
    store: OffsetStore
    hooks: TroubleHooks
    running: asyncio.Task[None]

    @property
    def status(self) -> GroupStatus:
        """The member as it is now."""
        return self.membership.status

    @property
    def coordination(self) -> Coordination:
        """What the coordinator knows of it."""
        assert self.status.coordination is not None
        return self.status.coordination

    @property
    def held(self) -> list[str]:
        """Partitions that the listener has."""
        return sorted(map(str, self.listener.held))

    def claim(self, name: str) -> Claim:
        """Return the claim of a partition, by its name."""
        return next(claim for partition, claim in self.listener.held.items() if str(partition) == name)

    async def commit(self, name: str, position: int) -> CommitOutcome:
        """Commit a position of a partition that is held."""
        return await self.commit_by(self.claim(name), position)

    async def commit_by(self, claim: Claim, position: int) -> CommitOutcome:
        """Commit a position with a claim, which may be an old one."""
        return (await self.store.commit([Commit(claim=claim, position=position)]))[claim.partition]

    async def position(self, name: str) -> int | None:
        """Return the committed position of a partition."""
        topic, _, number = name.partition("/")
        partition = TopicPartition.modern(topic, int(number))
        stored = (await self.store.load([partition]))[partition]
        return None if stored is None else stored.position

    async def is_removed(self) -> bool:
        """Return True if the coordinator does not know this member, on another connection than the member's own."""
        (broker, *_) = await self.cluster.find_registered()
        connection = await self.cluster.pool.get(broker, Purpose.CONTROL, "test")
        found = await describe_group(connection, self.status.group, timeout_s=5)
        return self.coordination.member_id not in list_consumers(found)

    async def kill(self) -> None:
        """End it without leaving, as SIGKILL does."""
        self.running.cancel()
        await asyncio.wait([self.running])


def make_settings(zookeeper: str, group: str, topics: list[str], **of_group: object) -> Settings:
    """Return the settings of a member."""
    subscription = {"topics": topics} if all("*" not in one for one in topics) else {"pattern": topics[0]}
    return Settings.model_validate(
        {
            "cluster": {"zookeeper": zookeeper},
            "group": {"id": group, "membership": "kafka", "session_timeout_ms": SESSION_MS, **of_group},
            "offsets": {"storage": "kafka", "dual_commit": False},
            "rebalance": {"drain_timeout_ms": 1000},
            "subscriptions": [{**subscription, "sink": "out"}],
            "sinks": {"out": {"type": "null"}},
        }
    )


@contextlib.asynccontextmanager
async def join_coordinated(settings: Settings, *, drain_s: float = 0.0) -> AsyncIterator[CoordinatedTestMember]:
    """Take part while the block runs, and leave in order at its end, unless the member was killed."""
    address = settings.cluster.locate(client_id=settings.group.id, session_timeout_ms=settings.group.session_timeout_ms)
    listener, generation, hooks = RecordingListener(drain_s), MemberGeneration(), TroubleHooks()
    async with open_cluster(address, wait_s=20) as cluster:
        topics = await cluster.zk.exists(BROKER_TOPICS)
        assert topics is not None
        store = open_store(
            cluster,
            settings.group.id,
            {Place.KAFKA},
            requests=ZooKeeperOffsetRequests(cluster.zk, settings.group.id),
            hooks=hooks,
            denied=lambda _: None,
            generation=generation,
        )
        membership = make_membership(
            settings,
            cluster,
            make_subscription(settings),
            listener,
            cluster_id=describe_cluster(topics),
            generation=generation,
            hooks=hooks,
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(membership.run())
            yield CoordinatedTestMember(membership, listener, cluster, generation, store, hooks, running)
            if not running.done():
                await membership.leave()


async def settle(*members: CoordinatedTestMember, partitions: int) -> None:
    """Wait until these members together hold so many partitions, each of one member, in one generation."""

    def has_settled() -> bool:
        held = [one for member in members for one in member.held]
        generations = {member.coordination.generation for member in members}
        ready = all(member.status.ready for member in members)
        return ready and len(generations) == 1 and len(held) == len(set(held)) == partitions

    await until(has_settled)
