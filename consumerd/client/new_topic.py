# SPDX-License-Identifier: Apache-2.0
"""Partitions, replicas and settings of a topic to create. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from consumerd.wire.modern.topic_administration import BROKERS_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create.

    Attributes:
        partitions: Partition count; -1 for the brokers' default, which needs brokers of 2.4.
        replication_factor: Replicas of each partition; -1 as above.
        configs: Settings of the topic's own, by Kafka's names.
    """

    name: str
    partitions: int = BROKERS_DEFAULT
    replication_factor: int = BROKERS_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)
