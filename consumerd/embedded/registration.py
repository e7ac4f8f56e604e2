"""The embedded broker in ZooKeeper: its registration, the controller's nodes, and what it watches there."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from consumerd.errors import ConsumerdError
from consumerd.zk.port import ZkClient


class BrokerIdTaken(ConsumerdError):
    """Another process is registered under our broker id."""


class Registration:
    """Registers on entering, and keeps it so until left: ``async with Registration(...)``, once the broker listens.

    What was registered goes when the ZooKeeper session ends, or on leaving.
    """

    def __init__(self, zk: ZkClient, *, broker_id: int, host: str, port: int, release: str) -> None:
        self._zk = zk

    async def __aenter__(self) -> Self:
        """Raises BrokerIdTaken, CoordinationError."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None
