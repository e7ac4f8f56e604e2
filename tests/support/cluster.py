# SPDX-License-Identifier: Apache-2.0
"""Builders of cluster views, and a directory by script."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from consumerd.cluster.directory import ClusterDirectory
from consumerd.cluster.view import NO_EPOCH, Broker, ClusterView, PartitionView, TopicView
from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition


def make_broker(number: int) -> Broker:
    """Return a broker at a host named after it."""
    return Broker(id=BrokerId(number), host=f"broker-{number}", port=9092)


def make_view(
    brokers: Collection[int],
    topics: Mapping[str, Sequence[int | None]],
    *,
    epoch: int = NO_EPOCH,
    incarnation: int | None = None,
) -> ClusterView:
    """Return a view of ``topics``, each given as its partitions' leaders."""
    return ClusterView(
        brokers={BrokerId(number): make_broker(number) for number in sorted(brokers)},
        topics={
            name: TopicView(
                name=name,
                partitions={
                    PartitionKey(number): PartitionView(
                        leader=None if leader is None else BrokerId(leader), leader_epoch=epoch
                    )
                    for number, leader in enumerate(leaders)
                },
                incarnation=None if incarnation is None else Incarnation(incarnation),
            )
            for name, leaders in topics.items()
        },
    )


async def wait_leader(directory: ClusterDirectory, partition: TopicPartition) -> Broker:
    """Return the broker to ask for a partition, once there is one. Unbounded."""
    if directory.find_leader(partition) is None:
        directory.request_refresh(f"no leader of {partition}")
    view = await directory.views.wait(lambda view: view.find_leader(partition) is not None)
    leader = view.find_leader(partition)
    assert leader is not None
    return leader


class ScriptedLeaders:
    """A ``client.leaders.Leaders`` whose next views are given; each refresh takes a moment."""

    def __init__(self, *views: ClusterView) -> None:
        self.views = list(views)
        self.reasons: list[str] = []

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the leader as of the view that it is at."""
        return self.views[0].find_leader(partition)

    async def refresh(self, reason: str) -> ClusterView:
        """Go to the next view; stay at the last."""
        self.reasons.append(reason)
        await asyncio.sleep(0.1)
        if len(self.views) > 1:
            self.views.pop(0)
        return self.views[0]


class ScriptedRegistry:
    """A ``cluster.view.RegistrySource`` whose account is given."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view

    async def read(self, topics: Collection[str] | None, *, leaders: bool = True) -> ClusterView:
        """Return the account as it is now."""
        return self.view
