# SPDX-License-Identifier: Apache-2.0
"""Objects shared within delivery: those of the process, and those of one claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from structlog.typing import FilteringBoundLogger

from consumerd.client.log_range import LogRanges
from consumerd.delivery.calls import GuardedCalls
from consumerd.delivery.committer import Committer
from consumerd.delivery.condition import Condition
from consumerd.delivery.gate import StartGate
from consumerd.delivery.ports import DeliveryReports, DeliverySettings, FeedSource, SinkRoute
from consumerd.delivery.signals import PipelineSignals
from consumerd.delivery.start import StartFinder
from consumerd.model import Claim, TopicPartition
from consumerd.offsets.store import OffsetRequests
from consumerd.sinks.base import Quarantine
from consumerd.telemetry.hooks import Hooks

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeliveryTools:
    """The objects that all pipelines of a process share.

    ``now`` is the event loop's clock in seconds; ``random`` returns numbers from 0 to 1, for backoff jitter.
    """

    feeds: FeedSource
    starts: StartFinder
    ranges: LogRanges
    requests: OffsetRequests
    quarantine: Quarantine | None
    committer: Committer
    settings: DeliverySettings
    reports: DeliveryReports
    hooks: Hooks
    now: Callable[[], float]
    random: Callable[[], float]
    gate: StartGate = field(default_factory=StartGate)


class ClaimContext:
    """One claim of a partition, and the objects that exist once per claim.

    They are used by the partition's pipeline and by its :class:`~consumerd.delivery.flow.Flow`.
    """

    def __init__(self, claim: Claim, route: SinkRoute, tools: DeliveryTools) -> None:
        self.claim = claim
        self.partition: TopicPartition = claim.partition
        self.route = route
        self.tools = tools
        self.log: FilteringBoundLogger = _log.bind(
            topic=self.partition.topic, partition=str(self.partition.partition), sink=route.name
        )
        self.signals = PipelineSignals()
        self.condition = Condition(self.partition, route.name, hooks=tools.hooks, log=self.log, now=tools.now)
        self.calls = GuardedCalls(
            claim,
            route.name,
            signals=self.signals,
            condition=self.condition,
            settings=tools.settings,
            random=tools.random,
        )
