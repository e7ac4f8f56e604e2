# SPDX-License-Identifier: Apache-2.0
"""Producer ids, each given once in a cluster, in blocks that brokers take in ZooKeeper.

As Kafka's ``ProducerIdManager``: the node ``/latest_producer_id_block`` has the last block that a broker has taken.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

from consumerd.errors import CoordinationError
from consumerd.model import BrokerId
from consumerd.zk.port import BadVersion, ZkClient

_PATH: Final = "/latest_producer_id_block"
_BLOCK: Final = 1000


class ProducerIds:
    """Gives out producer ids on behalf of one broker."""

    def __init__(self, zk: ZkClient, broker_id: BrokerId) -> None:
        self._zk = zk
        self._broker_id = broker_id
        self._next = self._end = 0
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """Return a producer id that no producer has had. Raises CoordinationError."""
        async with self._taking:
            if self._next == self._end:
                self._next = await self._take_block()
                self._end = self._next + _BLOCK
            self._next += 1
            return self._next - 1

    async def _take_block(self) -> int:
        while True:
            await self._zk.ensure_path(_PATH)
            data, stat = await self._zk.get(_PATH)
            try:
                start = int(json.loads(data)["block_end"]) + 1 if data else 0
            except (ValueError, KeyError, TypeError) as error:
                raise CoordinationError(f"{_PATH}: expected a block of producer ids, got {data!r}") from error
            block = {
                "version": 1,
                "broker": self._broker_id,
                "block_start": str(start),
                "block_end": str(start + _BLOCK - 1),
            }
            try:
                await self._zk.set(_PATH, json.dumps(block).encode(), version=stat.version)
            except BadVersion:
                continue  # another broker has taken it
            return start
