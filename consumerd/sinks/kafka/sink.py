# SPDX-License-Identifier: Apache-2.0
"""Sink ``kafka``: mirrors partitions into another Kafka cluster, each record exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable

from consumerd.model import Claim
from consumerd.sinks.base import SinkContext
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.kafka.plain_writer import PlainWriter
from consumerd.sinks.kafka.target import MirrorTarget
from consumerd.sinks.kafka.writer import KafkaWriter


class KafkaSink:
    """Sink that mirrors partitions into another Kafka cluster.

    Args:
        wall_ms: Calendar clock, in ms since the epoch, for records without a timestamp.
    """

    Options = KafkaOptions

    def __init__(
        self,
        context: SinkContext,
        options: KafkaOptions,
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._context = context
        self._options = options
        self._wall_ms = wall_ms
        self.target = MirrorTarget(context, options, wall_ms=wall_ms)

    async def check(self) -> None:
        """Connect to the target, and create or check the positions topic.

        Raises ConfigError, RetriableSinkError.
        """
        await self.target.prepare()

    async def open(self, claim: Claim) -> KafkaWriter | PlainWriter:
        """Fence earlier writers of the partition, and return one that goes on where they ended.

        With ``delivery: at-least-once`` none is fenced.

        Raises RetriableSinkError, OwnershipLost, ConfigError.
        """
        await self.target.prepare()
        if self._options.delivery == "at-least-once":
            keeps = self._options.timestamps == "keep"
            return await self.target.open_plain(claim, arrival_ms=None if keeps else self._wall_ms)
        writer = KafkaWriter(
            claim,
            self.target,
            self._options,
            now=self._context.now,
            wall_ms=self._wall_ms,
        )
        await writer.recover()
        return writer

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self.target.close()
