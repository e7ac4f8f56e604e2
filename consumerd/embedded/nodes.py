# SPDX-License-Identifier: Apache-2.0
"""The brokers of one process as they know each other: addresses, liveness, and the controller.

A broker is *live* while its registration is in ZooKeeper and it is not shutting down, as for Kafka's controller. So a
killed broker stays live, and the leader of its partitions, until its session expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from consumerd.embedded.znodes import BrokerAddress
from consumerd.model import BrokerId


class Nodes:
    """The brokers of a cluster in this process: addresses, liveness and controller.

    For use on one event loop. A single broker is always live and always the controller: it serves before it is
    registered.

    Args:
        ids: The ids of all brokers, dead ones too.
    """

    def __init__(self, ids: Sequence[BrokerId]) -> None:
        self.ids = tuple(ids)
        self.is_single = len(self.ids) == 1
        self.registered: frozenset[BrokerId] = frozenset(self.ids if self.is_single else ())
        """The brokers that are registered in ZooKeeper, as last read."""
        self._addresses: dict[BrokerId, BrokerAddress] = {}
        self.leaving: set[BrokerId] = set()
        """Brokers that shut down: they are not to lead any more."""
        self._controller: BrokerId | None = self.ids[0] if self.is_single else None
        self._controlled = asyncio.Event()
        if self.is_single:
            self._controlled.set()
        self._subscribers: list[Callable[[], None]] = []

    @property
    def live(self) -> frozenset[BrokerId]:
        """Ids of the brokers that are registered and not shutting down: they may lead partitions."""
        return self.registered.difference(self.leaving)

    @property
    def controller(self) -> BrokerId | None:
        """Id of the broker that is the controller; None until one is elected."""
        return self._controller

    def find_address(self, broker: BrokerId) -> BrokerAddress | None:
        """Return the address of a live broker; None if it is not live."""
        return self._addresses.get(broker) if broker in self.live else None

    def addresses(self) -> tuple[BrokerAddress, ...]:
        """Return the addresses of all live brokers, in the order of their ids."""
        found = (self.find_address(broker) for broker in sorted(self.ids))
        return tuple(one for one in found if one is not None)

    def start(self, address: BrokerAddress) -> None:
        """Note that a broker has started and listens at this address."""
        self.leaving.discard(address.broker_id)
        self._addresses[address.broker_id] = address

    def leave(self, broker: BrokerId) -> None:
        """Note that a broker shuts down, so that other brokers become leaders of its partitions."""
        if not self.is_single:
            self.leaving.add(broker)
            self._tell()

    def set_controller(self, broker: BrokerId, *, elected: bool) -> None:
        """Note that ``broker`` was elected as controller, or is the controller no longer.

        ``elected`` is True in the first case.
        """
        if self.is_single or elected == (self._controller == broker):
            return
        self._controller = broker if elected else None
        if elected:
            self._controlled.set()
        else:
            self._controlled.clear()
        self._tell()

    async def wait_controller(self) -> None:
        """Wait until a broker is elected as controller.

        If the controller was killed, that takes up to a session timeout.
        """
        await self._controlled.wait()

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` when the controller changes, or a broker begins to shut down."""
        self._subscribers.append(changed)

    def _tell(self) -> None:
        for changed in self._subscribers:
            changed()
