# SPDX-License-Identifier: Apache-2.0
"""Base of the embedded clusters of both generations: ZooKeeper, and brokers that stop and start."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from consumerd.embedded.serving import ServingBroker, ServingSettings
from consumerd.embedded.zookeeper import EmbeddedZooKeeper

S = TypeVar("S", bound=ServingSettings)
B = TypeVar("B", bound=ServingBroker[Any])  # of S, which a bound cannot say


class BrokerCluster(ABC, Generic[S, B]):
    """A cluster of one or more brokers; ``async with`` starts and stops it.

    ZooKeeper is started first and stopped last. Nothing is left behind if starting fails or is cancelled. A failure of
    a broker in the background cancels the block, which then raises an ExceptionGroup.

    Args:
        directory: Keeps logs and ZooKeeper's data between runs; None for a temporary folder.
        zookeeper: Connect string of a running ZooKeeper; None to start one.
        has_zookeeper: False for a cluster without ZooKeeper.
        nodes: The number of brokers. Their ids go up by one from that of the settings, and so do their ports, unless
            those are free ones.
        make_settings: Creates the settings of the first broker from ``directory`` and ``zookeeper``.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        zookeeper: str | None,
        has_zookeeper: bool = True,
        nodes: int,
        make_settings: Callable[..., S],
    ) -> None:
        self.has_zookeeper = has_zookeeper
        self._given = directory
        self._existing = zookeeper
        self._count = nodes
        self._make_settings = make_settings
        self._stack = AsyncExitStack()
        self._server: EmbeddedZooKeeper | None = None
        self._settings: list[S] = []
        self._brokers: dict[int, B] = {}

    async def __aenter__(self) -> Self:
        """Start ZooKeeper and the brokers.

        Raises ConfigError, ZooKeeperFailed, and the errors of a broker that cannot start.
        """
        async with AsyncExitStack() as stack:
            directory = self._given
            if directory is None:
                directory = Path(tempfile.mkdtemp(prefix="consumerd-cluster-"))
                stack.callback(shutil.rmtree, directory, ignore_errors=True)
            if self._existing is None and self.has_zookeeper:
                self._server = await stack.enter_async_context(EmbeddedZooKeeper(directory / "zookeeper"))
            zookeeper = self.zookeeper if self.has_zookeeper else None
            first = self._make_settings(directory=directory / "logs", zookeeper=zookeeper)
            self._settings = [
                replace(first, broker_id=first.broker_id + number, port=first.port and first.port + number)
                for number in range(self._count)
            ]
            await self._prepare(stack, directory)
            for number in range(self._count):
                stack.push_async_exit(partial(self._leave_broker, number))
                await self.start_broker(number)
            await self._complete()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connect string. Raises RuntimeError if the cluster has none."""
        return self._existing if self._existing is not None else self.zookeeper_server.connect_string

    @property
    def zookeeper_server(self) -> EmbeddedZooKeeper:
        """The ZooKeeper started here. Raises RuntimeError if there is none.

        Tests kill, pause and restart it.
        """
        if self._server is None:
            raise RuntimeError("no ZooKeeper was started here")
        return self._server

    @property
    def brokers(self) -> Mapping[int, B]:
        """The running brokers by number, from 0.

        Number 0 is the broker whose id is that of the settings; the id of number n is greater by n.
        """
        return self._brokers

    @property
    def bootstrap(self) -> str:
        """Addresses of the running brokers for clients: ``host:port``, separated by commas."""
        if not self._brokers:
            raise RuntimeError("the broker does not run")
        return ",".join(self._brokers[number].bootstrap for number in sorted(self._brokers))

    async def start_broker(self, number: int = 0) -> None:
        """Start a stopped broker again, with its previous port and logs.

        Must be called in the task that entered the cluster's ``async with`` block. Raises RuntimeError if the broker
        runs already, and the errors of a broker that cannot start.
        """
        if number in self._brokers:
            raise RuntimeError("the broker runs already")
        broker = self._make_broker(self._settings[number])
        await broker.__aenter__()
        self._brokers[number] = broker
        self._settings[number] = replace(self._settings[number], port=broker.port)

    async def stop_broker(self, number: int = 0) -> None:
        """Stop a broker in order, but not ZooKeeper. Idempotent.

        Must be called in the task that entered the cluster's ``async with`` block.
        """
        await self._leave_broker(number, None, None, None)

    async def kill_broker(self, number: int = 0) -> None:
        """Stop a broker as a kill does.

        Its nodes stay in ZooKeeper until its session expires. Data that the broker has begun to write is written. Must
        be called in the task that entered the cluster's ``async with`` block. Raises RuntimeError if the broker does
        not run.
        """
        if number not in self._brokers:
            raise RuntimeError("the broker does not run")
        self._brokers[number].abandon()
        await self._leave_broker(number, None, None, None)

    # -- what differs

    @abstractmethod
    def _make_broker(self, settings: S) -> B:
        """Return a broker with these settings; it is not started."""

    @abstractmethod
    async def _prepare(self, stack: AsyncExitStack, directory: Path) -> None:
        """Prepare what the brokers need, when all settings are known; ``stack`` ends it."""

    @abstractmethod
    async def _complete(self) -> None:
        """Do the rest, when all brokers run."""

    async def _leave_broker(
        self,
        number: int,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        broker = self._brokers.pop(number, None)
        if broker is not None:
            await broker.__aexit__(kind, error, traceback)
