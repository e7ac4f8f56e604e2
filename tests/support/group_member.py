# SPDX-License-Identifier: Apache-2.0
"""A member of a group that delivers nothing: in this process, or as one of its own that can be killed.

``python -m tests.support.group_member CONNECT GROUP STRATEGY SESSION_S TOPIC=STREAMS...`` takes part until SIGTERM, then leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from consumerd import failpoints
from consumerd.aio.clock import boottime
from consumerd.group.assignors import Strategy
from consumerd.group.identity import MemberIdentity
from consumerd.group.rebalancer import Rebalancer
from consumerd.group.settings import RebalanceSettings
from consumerd.group.status import GroupStatus
from consumerd.group.subscription import Subscription
from consumerd.model import Claim, TopicPartition
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import ZkClient
from tests.support.zookeeper import make_client

_ROOT = Path(__file__).parents[2]


@dataclass
class RecordingListener:
    """Keeps what it is told; its drains take ``drain_s``."""

    drain_s: float = 0.0
    held: dict[TopicPartition, Claim] = field(default_factory=dict)
    claimed_ones: list[TopicPartition] = field(default_factory=list)
    drained: list[TopicPartition] = field(default_factory=list)
    lost_ones: list[TopicPartition] = field(default_factory=list)

    async def claimed(self, claims: Sequence[Claim]) -> None:
        """Note the claims."""
        for claim in claims:
            self.held[claim.partition] = claim
            self.claimed_ones.append(claim.partition)

    async def drain(self, partitions: Collection[TopicPartition], deadline_s: float) -> None:
        """Take a while."""
        self.drained.extend(sorted(partitions))
        await asyncio.sleep(self.drain_s)
        for partition in partitions:
            self.held.pop(partition, None)

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Note it."""
        self.lost_ones.extend(sorted(partitions))
        for partition in partitions:
            self.held.pop(partition, None)


@dataclass(frozen=True)
class GroupMember:
    """A member in this process."""

    rebalancer: Rebalancer
    listener: RecordingListener
    zk: ZkClient

    @property
    def status(self) -> GroupStatus:
        """The member as it is now."""
        return self.rebalancer.status


@contextlib.asynccontextmanager
async def join_group(
    zk: ZkClient,
    group: str,
    subscription: Subscription,
    *,
    strategy: Strategy = Strategy.RANGE,
    drain_s: float = 0.0,
    consumer_id: str | None = None,
    settings: RebalanceSettings | None = None,
) -> AsyncIterator[GroupMember]:
    """Take part while the block runs; leave in order at its end (a failed block leaves everything to the session)."""
    listener = RecordingListener(drain_s)
    rebalancer = Rebalancer(
        zk,
        identity=MemberIdentity(group=group, host=socket.gethostname(), consumer_id=consumer_id),
        subscription=subscription,
        listener=listener,
        now=boottime,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        random=random.Random(),
        strategy=strategy,
        settings=settings,
        layout=MODERN,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rebalancer.run())
        yield GroupMember(rebalancer, listener, zk)
        await rebalancer.leave()


@contextlib.contextmanager
def start_member(
    connect: str,
    group: str,
    topics: Mapping[str, int],
    strategy: Strategy = Strategy.RANGE,
    *,
    session_timeout_s: float = 6.0,
    fail_points: str = "",
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a member as a process of its own; it is killed at the end of the block, if it still runs."""
    words = [f"{topic}={streams}" for topic, streams in topics.items()]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.group_member",
            connect,
            group,
            strategy.value,
            str(session_timeout_s),
            *words,
        ],
        cwd=_ROOT,
        env={**os.environ, **({failpoints.VARIABLE: fail_points} if fail_points else {})},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _main(connect: str, group: str, strategy: str, session_timeout_s: str, *topics: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    streams = {topic: int(count) for topic, count in (word.split("=") for word in topics)}
    async with (
        make_client(connect, session_timeout_s=float(session_timeout_s)) as zk,
        join_group(zk, group, Subscription.to_topics(streams), strategy=Strategy(strategy)),
    ):
        await stopping.wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
