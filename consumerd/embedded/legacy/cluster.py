# SPDX-License-Identifier: Apache-2.0
"""An embedded ZooKeeper and brokers of Kafka 0.6 or 0.7: for tests and development."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from consumerd.embedded.brokers import BrokerCluster
from consumerd.embedded.legacy.broker import LegacyBroker, LegacyBrokerSettings


class LegacyCluster(BrokerCluster[LegacyBrokerSettings, LegacyBroker]):
    """A cluster of Kafka 0.6 or 0.7; ``async with`` starts and stops it.

    ZooKeeper is started first and stopped last. Nothing is left behind if starting fails or is cancelled. A failure of
    a broker in the background cancels the block, which then raises an ExceptionGroup. A topic is created by the first
    PRODUCE request for it, on the broker that gets the request. The partitions of a stopped broker are away.

    Args:
        directory: Keeps logs and ZooKeeper's data between runs. Without it, a temporary folder is created, and removed
            on leaving.
        zookeeper: Connect string of a running ZooKeeper. Without it, one is started.
        nodes: The number of brokers. Their ids go up by one from that of the settings, and so do their ports, unless
            those are free ones.
        make_broker: Creates the settings of the first broker from ``directory`` and ``zookeeper``, such as
            ``partial(LegacyBrokerSettings, num_partitions=3)``.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        zookeeper: str | None = None,
        nodes: int = 1,
        make_broker: Callable[..., LegacyBrokerSettings] = LegacyBrokerSettings,
    ) -> None:
        super().__init__(directory, zookeeper=zookeeper, nodes=nodes, make_settings=make_broker)

    async def wipe_broker(self, number: int = 0) -> None:
        """Stop a broker, delete its logs, and start it again.

        Its offsets then begin at 0. Must be called in the task that entered the cluster's ``async with`` block.
        """
        await self.stop_broker(number)
        await asyncio.to_thread(shutil.rmtree, self._settings[number].directory)
        await self.start_broker(number)

    def _make_broker(self, settings: LegacyBrokerSettings) -> LegacyBroker:
        return LegacyBroker(settings)

    async def _prepare(self, stack: AsyncExitStack, directory: Path) -> None:  # noqa: ARG002 - nothing has to end
        """Give each broker a directory: they share nothing."""
        self._settings = [replace(one, directory=directory / f"legacy-logs-{one.broker_id}") for one in self._settings]

    async def _complete(self) -> None:
        """Do nothing: a topic is created by its first message."""
