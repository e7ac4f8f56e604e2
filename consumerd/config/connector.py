# SPDX-License-Identifier: Apache-2.0
"""Settings of a program that joins a consumer group (``consumerd.api.ConsumerConnector``).

The keys are the daemon's, with the same meanings and defaults. There are none for sinks, subscriptions, HTTP and
logging, which are the program's own concern. ``offsets.auto_commit`` is the one key that the daemon does not have.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from consumerd.config.cluster_section import ClusterSection
from consumerd.config.member_settings import find_unfit_generation, find_unfit_membership, find_unfit_times
from consumerd.config.section import Section, SettingFault, refuse
from consumerd.config.settings import FetchSection, GroupSection, OffsetsSection, RebalanceSection, Shutdown


class ConnectorOffsets(OffsetsSection):
    """Settings of storing and committing positions, for a program that joins a group.

    With ``auto_commit``, positions are committed every ``commit_interval_ms``, and when a partition is released.
    Without it, they are committed when the program calls ``commit_offsets``; only the start of a partition that has no
    position is committed at once.
    """

    auto_commit: bool = True


class ConnectorSettings(Section):
    """Settings of a program that joins a consumer group.

    Created by :func:`consumerd.config.load.read_connector_settings`.
    """

    cluster: ClusterSection
    group: GroupSection
    rebalance: RebalanceSection = RebalanceSection()
    offsets: ConnectorOffsets = ConnectorOffsets()
    fetch: FetchSection = FetchSection()
    shutdown: Shutdown = Shutdown()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        homeless = "a connector has no quarantine: write stop or skip"
        faults = [
            *find_unfit_times(self),
            *find_unfit_membership(self),
            *find_unfit_generation(self, self.cluster.expected_generation),
            *(
                SettingFault((f"fetch.{key}",), homeless)
                for key in ("on_corrupt", "on_oversized")
                if getattr(self.fetch, key) == "quarantine"
            ),
        ]
        if "streams" in self.group.model_fields_set:
            message = "the number of streams is an argument of create_message_streams: remove it"
            faults.append(SettingFault(("group.streams",), message))
        refuse(faults)
        return self
