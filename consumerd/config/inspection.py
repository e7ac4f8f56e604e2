# SPDX-License-Identifier: Apache-2.0
"""Settings that one-shot commands use. Other keys of a configuration file are ignored."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from consumerd.config.cluster_section import ClusterSection
from consumerd.config.section import Name
from consumerd.config.settings import Assignor, FetchSection, RebalanceSection, SessionTimeout, find_places
from consumerd.offsets.store import KAFKA_ONLY, Place


class InspectionGroup(BaseModel):
    """Part of the settings section ``group`` that one-shot commands use; other keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: Name
    membership: Literal["zookeeper", "kafka"] = "zookeeper"
    assignor: Assignor = "range"
    session_timeout_ms: SessionTimeout = 6000


class InspectionOffsets(BaseModel):
    """Part of the settings section ``offsets`` that one-shot commands use; other keys are ignored.

    It tells in which stores members read committed positions.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    storage: Literal["zookeeper", "kafka"] = "zookeeper"
    dual_commit: bool | None = None

    @property
    def places(self) -> frozenset[Place]:
        """Stores in which members read committed positions: ZooKeeper, Kafka, or both."""
        return find_places(self.storage, dual_commit=self.dual_commit)


class InspectionSettings(BaseModel):
    """Settings that one-shot commands use: the cluster, and perhaps a group."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    cluster: ClusterSection
    group: InspectionGroup | None = None
    offsets: InspectionOffsets = InspectionOffsets()
    rebalance: RebalanceSection = RebalanceSection()
    fetch: FetchSection = FetchSection()

    @property
    def places(self) -> frozenset[Place]:
        """Stores in which members read committed positions: ZooKeeper, Kafka, or both.

        Kafka alone in a cluster without ZooKeeper.
        """
        return self.offsets.places if self.cluster.bootstrap is None else KAFKA_ONLY
