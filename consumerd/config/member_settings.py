# SPDX-License-Identifier: Apache-2.0
"""Settings of each member of a group, and mistakes that show in several sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from consumerd.config.section import SettingFault
from consumerd.model import Generation

if TYPE_CHECKING:
    from consumerd.config.cluster_section import ClusterSection
    from consumerd.config.settings import FetchSection, GroupSection, OffsetsSection, RebalanceSection, Shutdown

_JAVA_PATIENCE_MS: Final = 5000
"""Longest handover that a Java member with default settings waits for: 4 tries, 2 s apart, less the time of a
rebalance.
"""


class MemberSettings(Protocol):
    """Settings that each member of a group has: daemons, and programs with a connector.

    A Protocol with the sections that both models of settings share.
    """

    @property
    def cluster(self) -> ClusterSection:
        """Settings of the cluster's address and connections."""

    @property
    def group(self) -> GroupSection:
        """Settings of the consumer group."""

    @property
    def rebalance(self) -> RebalanceSection:
        """Settings of the timing of rebalances."""

    @property
    def offsets(self) -> OffsetsSection:
        """Settings of the store of positions."""

    @property
    def fetch(self) -> FetchSection:
        """Settings of fetching, and its memory limits."""

    @property
    def shutdown(self) -> Shutdown:
        """Settings of the time limit of leaving the group."""


def find_unfit_times(settings: MemberSettings) -> Iterator[SettingFault]:
    """Yield the mistakes in settings of times that contradict each other.

    Example: ``fetch.max_wait_ms`` is not below ``cluster.request_timeout_ms``.
    """
    group, rebalance = settings.group, settings.rebalance
    longest_wait = settings.cluster.request_timeout_ms
    if settings.fetch.max_wait_ms >= longest_wait:
        yield SettingFault(
            ("fetch.max_wait_ms", "cluster.request_timeout_ms"),
            f"must be below cluster.request_timeout_ms ({longest_wait}), got {settings.fetch.max_wait_ms}",
        )
    drain_ms = rebalance.drain_timeout_ms + rebalance.release_grace_ms
    drain = ("rebalance.drain_timeout_ms", "rebalance.release_grace_ms")
    if group.membership == "kafka":
        least_ms = 2 * (rebalance.drain_timeout_ms + round(group.heartbeat_s * 1000))
        if group.rebalance_timeout_ms < least_ms:
            yield SettingFault(
                ("group.rebalance_timeout_ms", "rebalance.drain_timeout_ms"),
                f"must be at least twice rebalance.drain_timeout_ms and a heartbeat ({least_ms}), got "
                f"{group.rebalance_timeout_ms}: the coordinator removes members that join later, so claims pause after "
                "half of it",
            )
    elif drain_ms > _JAVA_PATIENCE_MS:
        yield SettingFault(
            drain,
            f"with rebalance.release_grace_ms it is {drain_ms}, above {_JAVA_PATIENCE_MS}: "
            "a Java member of the group gives up after 6 s of waiting for a partition",
        )
        return
    if settings.shutdown.timeout_ms <= drain_ms:
        yield SettingFault(
            ("shutdown.timeout_ms", *drain),
            f"must exceed rebalance.drain_timeout_ms and release_grace_ms together ({drain_ms}), got "
            f"{settings.shutdown.timeout_ms}",
        )


def find_unfit_membership(settings: MemberSettings) -> Iterator[SettingFault]:
    """Yield faults of settings that do not fit ``group.membership``.

    Membership ``zookeeper`` needs ``cluster.zookeeper``. Membership ``kafka`` needs positions in Kafka only: the
    coordinator refuses a late commit of a member that has lost the partition, and ZooKeeper would accept it.
    """
    if settings.cluster.bootstrap is not None and settings.group.membership != "kafka":
        yield SettingFault(
            ("cluster.bootstrap", "group.membership"),
            "a cluster without ZooKeeper needs group.membership: kafka, offsets.storage: kafka and "
            "offsets.dual_commit: false; with group.membership: zookeeper, give cluster.zookeeper in its place",
        )
    if settings.group.membership != "kafka":
        return
    if settings.offsets.storage != "kafka":
        yield SettingFault(
            ("group.membership", "offsets.storage"),
            "kafka needs offsets.storage: kafka (and offsets.dual_commit: false): the group's "
            "coordinator refuses late commits to Kafka, ZooKeeper would take them",
        )
    elif len(settings.offsets.places) > 1:
        yield SettingFault(
            ("group.membership", "offsets.dual_commit"),
            "kafka needs offsets.dual_commit: false: ZooKeeper would take late commits. Members "
            "with group.membership: zookeeper first move the positions to Kafka with dual_commit",
        )


def find_unfit_generation(settings: MemberSettings, generation: Generation | None) -> Iterator[SettingFault]:
    """Yield faults of settings that ask for something that the cluster's brokers do not have.

    Args:
        generation: Generation of the brokers; None if it is unknown, which yields nothing.
    """
    if generation is not Generation.LEGACY:
        return
    cluster, group = settings.cluster, settings.group
    unknown = {
        "cluster.bootstrap": (cluster.bootstrap is not None, "they are found in ZooKeeper: give cluster.zookeeper"),
        "cluster.tls.enabled": (cluster.tls.enabled, "they have plain text only: remove it"),
        "cluster.sasl": (cluster.sasl is not None, "they have no SASL: remove it"),
        "cluster.broker_version": (cluster.broker_version != "auto", "it is for brokers of 0.8 and later: remove it"),
        "group.membership": (group.membership == "kafka", "they coordinate no groups: write zookeeper"),
        "group.assignor": (group.assignor != "range", "their Java members have range only: write range"),
        "offsets.storage": (settings.offsets.storage == "kafka", "they keep no positions: write zookeeper"),
        "fetch.isolation": (
            settings.fetch.isolation == "read_committed",
            "they have no transactions: write read_uncommitted",
        ),
    }
    for key, (asked, advice) in unknown.items():
        if asked:
            yield SettingFault((key, "cluster.generation"), f"the cluster's brokers are of Kafka 0.6 or 0.7: {advice}")
