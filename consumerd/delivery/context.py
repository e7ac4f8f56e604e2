# SPDX-License-Identifier: Apache-2.0
"""Values shared within delivery: the tools of a process, and the context of one claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from consumerd.delivery.calls import GuardedCalls
from consumerd.delivery.committer import Committer
from consumerd.delivery.condition import BoundLogger, Condition
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
    """One claim, and the objects that its pipeline and flow share."""

    def __init__(self, claim: Claim, route: SinkRoute, tools: DeliveryTools) -> None:
        self.claim = claim
        self.partition: TopicPartition = claim.partition
        self.route = route
        self.tools = tools
        self.settings = tools.settings
        self.hooks = tools.hooks
        self.now = tools.now
        self.log: BoundLogger = _log.bind(
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
