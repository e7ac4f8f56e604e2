# SPDX-License-Identifier: Apache-2.0
"""Partitions and own settings of a topic, for those who make one like it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from consumerd.model import PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic: its partitions, replicas and own settings.

    Attributes:
        partitions: Keys of its partitions, in order. For Kafka 0.6 and 0.7 they are those of the brokers that are
            there.
        replication_factor: Largest number of replicas of a partition; None if it has none (Kafka 0.6 and 0.7).
        settings: Settings of the topic's own, by Kafka's names, such as ``retention.ms``. Those of the brokers are not
            among them.
        untold: Reason why the settings are not known, such as a missing right; None if they are.
    """

    name: str
    partitions: tuple[PartitionKey, ...]
    replication_factor: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    untold: str | None = None


class TopicDescriptions(Protocol):
    """Reader of the descriptions of a cluster's topics."""

    async def find_cluster_id(self) -> str | None:
        """Return the cluster's id; None for releases before 0.10.1, which have none.

        Raises CoordinationError (ZooKeeper) or ConnectionLost (brokers).
        """

    async def describe(self, topic: str) -> TopicDescription | None:
        """Return the description of a topic; None if the topic does not exist.

        Raises CoordinationError (ZooKeeper) or ConnectionLost (brokers).
        """
