# SPDX-License-Identifier: Apache-2.0
"""Settings of the coordinator, and its formats and names for each imitated release. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from consumerd.embedded.coordinator.exchange import GroupState
from consumerd.net.versions import Release

_HOUR_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Settings of the embedded broker's group coordinator; each docstring has Kafka's name for it."""

    release: Release = (1, 1)
    """The imitated release, which decides on formats and names."""
    min_session_timeout_ms: int = 6000
    """``group.min.session.timeout.ms``"""
    max_session_timeout_ms: int = 300_000
    """``group.max.session.timeout.ms``"""
    initial_rebalance_delay_ms: int = 0
    """``group.initial.rebalance.delay.ms``: 0 in Kafka's own settings file, 3000 without it."""
    offsets_topic_partitions: int = 4
    """``offsets.topic.num.partitions``: 50 in Kafka, which is many for one node on a laptop."""
    offsets_topic_segment_bytes: int = 100 << 20
    """``offsets.topic.segment.bytes``"""
    offsets_retention_ms: int = 24 * _HOUR_MS
    """``offsets.retention.minutes``: a day until 1.1, a week from 2.0 on."""
    offsets_check_interval_s: float = 600.0
    """``offsets.retention.check.interval.ms``"""
    max_metadata_characters: int = 4096
    """``offset.metadata.max.bytes``, which counts characters"""

    @property
    def offset_version(self) -> int:
        """Version of offset keys and values in ``__consumer_offsets``."""
        return 1 if self.release >= (0, 9) else 0

    @property
    def group_version(self) -> int:
        """Version of group values in ``__consumer_offsets``."""
        return 1 if self.release >= (0, 10, 1) else 0

    def name_state(self, state: GroupState) -> str:
        """Return the name of a group's state in DescribeGroups of the imitated release.

        Before 0.10.1, an empty group did not exist.
        """
        if state is GroupState.EMPTY and self.release < (0, 10, 1):
            return GroupState.DEAD.value
        if state is GroupState.COMPLETING_REBALANCE and self.release < (1, 1):
            return "AwaitingSync"
        return state.value
