# SPDX-License-Identifier: Apache-2.0
"""A member that behaves as the Java high-level consumer does, over a ``ZkClient``: the simulation's other half.

Written after ``ZookeeperConsumerConnector.scala``: any change of ``ids`` or of a topic makes it commit, delete *all* its
owner nodes without looking whose they are, read everything again, read the committed offsets, and only then claim all or
nothing. It tries ``retries`` times, ``backoff_s`` apart, and then waits for the next change. It does not look at its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping

from consumerd.errors import CoordinationError
from consumerd.group.assignors import Strategy
from consumerd.group.plan import GroupSnapshot, plan_assignment
from consumerd.group.registry import GroupRegistry
from consumerd.model import ConsumerId, TopicPartition
from consumerd.zk.layout import id_path, ids_path, owner_path, owners_path, topic_path
from consumerd.zk.port import NodeExists, NoNode, WatchKind
from tests.support.fake_zookeeper import FakeZkClient


class JavaMember:
    """One Java-like member. ``load`` gives committed offsets, ``started`` hears where it begins, ``stopped`` commits."""

    def __init__(
        self,
        zk: FakeZkClient,
        group: str,
        name: str,
        topics: Mapping[str, int],
        registry: GroupRegistry,
        *,
        strategy: Strategy = Strategy.RANGE,
        retries: int = 4,
        backoff_s: float = 2.0,
        started: Callable[[TopicPartition, int], None],
        load: Callable[[TopicPartition], Awaitable[int]],
        stopped: Callable[[TopicPartition], Awaitable[None]],
    ) -> None:
        self.zk = zk
        self.consumer = ConsumerId(f"{group}_{name}")
        self.owned: dict[TopicPartition, str] = {}
        self.gave_up = 0
        self.settled = False
        """Whether the last rebalance succeeded."""
        self._group = group
        self._topics = topics
        self._registry = registry
        self._strategy = strategy
        self._retries = retries
        self._backoff_s = backoff_s
        self._started = started
        self._load = load
        self._stopped = stopped
        self._triggered = asyncio.Event()
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        """Take part until :meth:`leave`, or until cancelled (a crash)."""
        self.zk.connect()
        epoch = self.zk.state.epoch
        await self._register()
        for path, kind in [(ids_path(self._group), WatchKind.CHILDREN)] + [
            (topic_path(topic), WatchKind.DATA) for topic in self._topics
        ]:
            self.zk.watch(path, kind, self._triggered.set)
        self._triggered.set()
        while not self._leaving.is_set():
            await self._wait_triggered()
            if self._leaving.is_set():
                break
            if self.zk.state.epoch != epoch:
                # a new session: what was owned is forgotten, not committed
                epoch = self.zk.state.epoch
                self.owned.clear()
                await self._register()
            await self._rebalance_until_done()
        for partition in sorted(self.owned):
            await self._stopped(partition)
        self.owned.clear()
        self.zk.close()

    def leave(self) -> None:
        """Shut down as ``shutdown()`` does: commit, and close the session, with which everything goes."""
        self._leaving.set()
        self._triggered.set()

    async def _wait_triggered(self) -> None:
        await self._triggered.wait()
        self._triggered.clear()

    async def _register(self) -> None:
        subscription = json.dumps(self._topics, separators=(",", ":"))
        data = f'{{"version":1,"subscription":{subscription},"pattern":"static","timestamp":"1"}}'
        await self.zk.ensure_path(ids_path(self._group))
        while True:
            try:
                await self.zk.create(id_path(self._group, self.consumer), data.encode(), ephemeral=True)
            except NodeExists:
                await asyncio.sleep(6)  # its own past: as 0.8 does, wait for the old session to end
            except CoordinationError:
                continue
            else:
                return

    async def _rebalance_until_done(self) -> None:
        self.settled = False
        for _ in range(self._retries):
            if self._leaving.is_set():
                return
            try:
                if await self._rebalance():
                    self.settled = True
                    return
            except CoordinationError:
                pass  # logged, and tried again
            await asyncio.sleep(self._backoff_s)
        self.gave_up += 1

    async def _rebalance(self) -> bool:
        for partition in sorted(self.owned):
            await self._stopped(partition)
        for partition in sorted(self.owned):
            with contextlib.suppress(NoNode):
                await self.zk.delete(owner_path(self._group, partition))
        self.owned.clear()
        snapshot = await self._read()
        mine = {
            partition: thread
            for partition, thread in plan_assignment(snapshot, self._strategy).items()
            if thread.rpartition("-")[0] == self.consumer
        }
        offsets = {partition: await self._load(partition) for partition in mine}
        created: list[str] = []
        for partition, thread in mine.items():
            if not await self._claim(partition, thread):
                for path in created:
                    await self.zk.delete(path)
                return False
            created.append(owner_path(self._group, partition))
        for partition in mine:
            self._started(partition, offsets[partition])
        self.owned = dict(mine)
        return True

    async def _read(self) -> GroupSnapshot:
        return await self._registry.read(None, lambda topics: None)

    async def _claim(self, partition: TopicPartition, thread: str) -> bool:
        path = owner_path(self._group, partition)
        await self.zk.ensure_path(owners_path(self._group, partition.topic))
        try:
            await self.zk.create(path, thread.encode(), ephemeral=True)
        except NodeExists:
            found = await self.zk.find(path)
            return found is not None and found[0] == thread.encode()
        return True
