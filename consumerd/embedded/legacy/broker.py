# SPDX-License-Identifier: Apache-2.0
"""An embedded broker of Kafka 0.6 or 0.7: assembles logs, network, request handlers and registration.

For tests and development: no security. Brokers of a cluster share nothing but ZooKeeper. Each has its own directory,
and its own partitions of each topic: there are no replicas, no controller and no coordinator.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from consumerd.aio.tasks import alongside
from consumerd.embedded.appending import Appender
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.housekeeping import Housekeeper
from consumerd.embedded.legacy.byte_log import DEFAULT_SETTINGS
from consumerd.embedded.legacy.byte_logs import ByteLogs
from consumerd.embedded.legacy.dispatch import LegacyDispatcher
from consumerd.embedded.legacy.registration import LegacyBrokerNode
from consumerd.embedded.legacy.requests import LegacyHandlers, PartitionCounts
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.server import BrokerServer
from consumerd.embedded.serving import ServingBroker, ServingSettings, connect
from consumerd.embedded.storage import open_in_thread
from consumerd.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyBrokerSettings(ServingSettings):
    """The settings of an embedded broker of Kafka 0.6 or 0.7.

    It needs a ``directory`` of its own. Without ``zookeeper`` it is not registered. Raises ConfigError for an invalid
    port or number of partitions.
    """

    magic: Literal[0, 1] = 1
    """The newest version of the message format that it accepts: 1 for Kafka 0.7, 0 for 0.6."""
    num_partitions: int = 1
    """Partitions that the broker has of each topic."""
    topic_partitions: Mapping[str, int] = field(default_factory=dict)
    """Other numbers of partitions, by topic: Kafka's ``topic.partition.count.map``."""
    log: LogSettings = DEFAULT_SETTINGS
    """Settings of the logs; their ``message_format`` is replaced by ``magic``."""

    def __post_init__(self) -> None:
        ServingSettings.__post_init__(self)
        if min((self.num_partitions, *self.topic_partitions.values())) < 1:
            raise ConfigError("num_partitions, topic_partitions: expected at least 1 for each topic")

    @property
    def log_settings(self) -> LogSettings:
        """The settings of the logs."""
        return replace(self.log, message_format=self.magic)


class LegacyBroker(ServingBroker[LegacyBrokerSettings]):
    """A broker that serves while its ``async with`` block runs, which can be entered once.

    A failure in the background (another process takes the broker's id) cancels the block, which then raises an
    ExceptionGroup.

    Args:
        choose: Returns a random number from 0 to below its argument.
        now_ms: Returns the time in ms since the epoch.
    """

    def __init__(
        self,
        settings: LegacyBrokerSettings,
        *,
        choose: Callable[[int], int] = random.randrange,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(settings, BrokerFaults())  # legacy.dispatch tells which requests an API stands for
        self._choose = choose
        self._now_ms = now_ms
        self._logs: ByteLogs | None = None
        self._housekeeper: Housekeeper | None = None
        self._node: LegacyBrokerNode | None = None

    @property
    def logs(self) -> ByteLogs:
        """The open logs of the broker's partitions."""
        return self._running(self._logs)

    async def clean(self) -> None:
        """Apply retention to all logs now, as is done periodically anyway.

        Takes as long as the disk.
        """
        await self._running(self._housekeeper).clean()

    async def flush(self) -> None:
        """Flush all logs now, so that consumers see all messages.

        Takes as long as the disk. Raises LogFailed.
        """
        for log in self.logs.logs():
            await asyncio.to_thread(log.flush)

    async def _start(self, stack: AsyncExitStack, server: BrokerServer) -> None:
        settings = self._settings
        opening = partial(
            ByteLogs.open,
            settings.directory,
            self.address.broker_id,
            settings=settings.log_settings,
            files=self.faults.files,
            now_ms=self._now_ms,
        )
        self._logs = logs = await open_in_thread(opening, ByteLogs.close)
        stack.push_async_callback(asyncio.to_thread, logs.close)
        appender = await stack.enter_async_context(Appender())
        counts = PartitionCounts(settings.num_partitions, settings.topic_partitions)
        handlers = LegacyHandlers(logs, counts, appender, choose=self._choose, has_topic=self._note_topic)
        if settings.zookeeper is not None:
            zk = await stack.enter_async_context(await connect(settings))
            self._node = LegacyBrokerNode(
                zk,
                address=self.address,
                count=counts.get,
                topics=logs.topics(),
                started_ms=self._now_ms(),
            )
            self._zk, self._registration = zk, self._node
        await stack.enter_async_context(server.serving(LegacyDispatcher(handlers, self.faults)))
        self._housekeeper = Housekeeper(
            logs,
            appender,
            retention_check_interval_s=settings.retention_check_interval_s,
            write_checkpoints=lambda: None,
        )
        await stack.enter_async_context(alongside(self._housekeeper.run(), name="housekeeping"))
        if self._node is not None:
            await stack.enter_async_context(self._node)

    def _note_topic(self, topic: str) -> None:
        if self._node is not None:
            self._node.add_topic(topic)
