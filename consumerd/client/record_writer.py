# SPDX-License-Identifier: Apache-2.0
"""Writes records to single partitions, and waits for all in-sync replicas.

Without transactions and producer ids, so brokers of each release from 0.8 on take it, and no right but `Write` on the
topic is needed. A request whose answer is lost is sent again, which can append its records twice.

The caller keeps at most one call per partition under way. So records are appended in the order of calls, and nothing
behind a record that failed is in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout
from consumerd.client.accumulator import Written
from consumerd.client.produce_handler import ProduceConnections, ProduceRequests, refuse_write
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.topics import MetadataDirectory
from consumerd.errors import (
    BrokerError,
    ConsumerdError,
    DeliveryTimedOut,
    RequestTimedOut,
)
from consumerd.model import TopicPartition
from consumerd.wire.records import NewRecord

MakeRecords = Callable[[int], Sequence[NewRecord]]
"""Returns the records for the format with this magic, 0, 1 or 2."""


class RecordWriter:
    """Writes records to partitions of one cluster.

    Args:
        connections: Pool of connections to the brokers.
        directory: Directory of leaders; the caller lets it follow the topics.
        settings: Settings of a producer without a transactional id.
        random: Returns floats in [0, 1), for backoffs.
        principal: Our identity at the brokers, for advice.
    """

    def __init__(
        self,
        connections: ProduceConnections,
        directory: MetadataDirectory,
        settings: ProducerSettings,
        *,
        random: Callable[[], float],
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self._principal = principal
        self._directory = directory
        self._settings = settings
        self._random = random
        self._produce = ProduceRequests(connections, directory, settings)

    async def write(self, partition: TopicPartition, make: MakeRecords) -> int | None:
        """Append records; return the offset of the first one once all in-sync replicas have them.

        None if the broker does not tell the offset. Takes at most ``delivery_timeout_s``.

        Args:
            make: Returns the records. It may be called again.

        Raises WriteRefused, of which the cause is a BrokerError, for records that the broker does not take;
        DeliveryTimedOut; UnsupportedVersion; the errors of ``make``.
        """
        failure: ConsumerdError = RequestTimedOut(f"{partition}: no leader is known")
        backoff = Backoff(
            initial_s=self._settings.retry_backoff_s,
            maximum_s=self._settings.retry_backoff_max_s,
            random=self._random,
        )
        was_sent = False
        try:
            async with timeout(self._settings.delivery_timeout_s):
                while True:
                    outcome = await self._produce.attempt(
                        partition, lambda leader: self._produce.send_records(leader, partition, make)
                    )
                    if isinstance(outcome, Written):
                        return outcome.base_offset
                    if isinstance(outcome, BrokerError) and not outcome.retriable:
                        raise refuse_write(partition, outcome, self._principal)
                    failure, was_sent = outcome, True
                    await self._directory.refresh(f"leader of {partition}: {outcome}")
                    await asyncio.sleep(backoff.next())
        except TimeoutError:
            raise DeliveryTimedOut(
                f"{partition}: no acknowledgement within {self._settings.delivery_timeout_s:g} s; last: {failure}",
                partition=partition,
                in_doubt=was_sent,
            ) from failure
