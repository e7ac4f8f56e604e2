# SPDX-License-Identifier: Apache-2.0
"""An embedded ZooKeeper and one broker: for the demo, tests and development, not production."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from consumerd.embedded.broker import BrokerSettings, EmbeddedBroker
from consumerd.embedded.zookeeper import EmbeddedZooKeeper

_NO_TOPICS: Final[Mapping[str, int]] = MappingProxyType({})


class EmbeddedCluster:
    """A cluster of one broker; ``async with`` starts and stops it.

    ZooKeeper is started first and stopped last. Nothing is left behind if starting fails or is cancelled. A failure of
    the broker in the background cancels the block, which then raises an ExceptionGroup.

    Args:
        directory: Keeps logs and ZooKeeper's data between runs. Without it, a temporary folder is created, and removed
            on leaving.
        zookeeper: Connect string of a running ZooKeeper. Without it, one is started.
        topics: Topics to exist when the block begins, with their numbers of partitions; missing ones are created.
        make_broker: Creates the broker's settings from ``directory`` and ``zookeeper``, such as
            ``partial(BrokerSettings, as_release="0.9")``.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        zookeeper: str | None = None,
        topics: Mapping[str, int] = _NO_TOPICS,
        make_broker: Callable[..., BrokerSettings] = BrokerSettings,
    ) -> None:
        self._given = directory
        self._existing = zookeeper
        self._topics = topics
        self._make_broker = make_broker
        self._stack = AsyncExitStack()
        self._server: EmbeddedZooKeeper | None = None
        self._settings: BrokerSettings | None = None
        self._broker: EmbeddedBroker | None = None

    async def __aenter__(self) -> Self:
        """Start. Raises ConfigError, ZooKeeperFailed, and the errors of a broker that cannot start."""
        async with AsyncExitStack() as stack:
            directory = self._given
            if directory is None:
                directory = Path(tempfile.mkdtemp(prefix="consumerd-cluster-"))
                stack.callback(shutil.rmtree, directory, ignore_errors=True)
            if self._existing is None:
                self._server = await stack.enter_async_context(EmbeddedZooKeeper(directory / "zookeeper"))
            self._settings = self._make_broker(directory=directory / "logs", zookeeper=self.zookeeper)
            stack.push_async_exit(self._leave_broker)
            await self.start_broker()
            for name, partitions in self._topics.items():
                if self.broker.topics.partitions(name) is None:
                    await self.broker.create_topic(name, partitions)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connect string."""
        if self._existing is not None:
            return self._existing
        return self.zookeeper_server.connect_string

    @property
    def zookeeper_server(self) -> EmbeddedZooKeeper:
        """The ZooKeeper started here. Raises RuntimeError if there is none.

        Tests kill, pause and restart it.
        """
        if self._server is None:
            raise RuntimeError("no ZooKeeper was started here")
        return self._server

    @property
    def broker(self) -> EmbeddedBroker:
        """The broker. Raises RuntimeError while it does not run."""
        if self._broker is None:
            raise RuntimeError("the broker does not run")
        return self._broker

    @property
    def bootstrap(self) -> str:
        """The address for clients: ``host:port``."""
        return self.broker.bootstrap

    async def start_broker(self) -> None:
        """Start the broker again, with its previous port and logs.

        Must be called in the task that entered the cluster. Raises RuntimeError if it runs, and the errors of a broker
        that cannot start.
        """
        if self._broker is not None:
            raise RuntimeError("the broker runs already")
        assert self._settings is not None
        broker = EmbeddedBroker(self._settings)
        await broker.__aenter__()
        self._broker = broker
        self._settings = replace(self._settings, port=broker.port)

    async def stop_broker(self) -> None:
        """Stop the broker in order, but not ZooKeeper. Idempotent.

        Must be called in the task that entered the cluster.
        """
        await self._leave_broker(None, None, None)

    async def _leave_broker(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.__aexit__(kind, error, traceback)
