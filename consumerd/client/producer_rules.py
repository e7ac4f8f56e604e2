# SPDX-License-Identifier: Apache-2.0
"""Interface to what differs for a producer between generations of Kafka, besides requests.

A producer needs to know which records a broker can store, and which partitions a topic has. Requests are behind
``client.producer_hooks.EventHandler``. :class:`ModernProducerRules` is for 0.8 and later,
``client.legacy_producer_rules`` for 0.6 and 0.7.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from consumerd.cluster.view import TopicView
from consumerd.errors import ConsumerdError, OversizedRecord
from consumerd.model import PartitionKey, TopicPartition
from consumerd.wire.record_fields import Headers


class ProducerRules(Protocol):
    """Records that brokers of one generation can store, and the partitions of their topics."""

    def check(self, topic: str, value: bytes | None, headers: Headers, size: int) -> None:
        """Check that a record can be stored.

        Raises OversizedRecord; ValueError for a part of the record that this generation cannot store.

        Args:
            value: Encoded value; None for a tombstone.
            size: Size of the record by ``accumulator.wire_size``, in bytes.
        """

    def list_partitions(self, topic: TopicView) -> Sequence[PartitionKey]:
        """Return a topic's partitions in the order of partitioners, which choose an index of it."""

    def explain_partition(self, topic: str, known: Sequence[PartitionKey]) -> str:
        """Say which partitions there are, for a record that names another one.

        Args:
            known: Partitions, as :meth:`list_partitions` returned them.
        """

    def explain_missing(self, failure: ConsumerdError | None, waited: str) -> str:
        """Say why a topic has no partitions to write to, and what to do.

        Args:
            failure: Error of the last attempt to read the topics; None if they were read.
            waited: Time that was waited for, as text.
        """

    def explain_unsent(self, partition: TopicPartition) -> str:
        """Say why no attempt was made to send a batch until its time was over."""


class ModernProducerRules:
    """Rules of Kafka 0.8 and later: records with all parts, partitions numbered from 0.

    Args:
        max_request_bytes: Size limit of a request, and of a record.
    """

    def __init__(self, max_request_bytes: int) -> None:
        self._max_request_bytes = max_request_bytes

    def check(self, topic: str, value: bytes | None, headers: Headers, size: int) -> None:  # noqa: ARG002 - the interface
        """Raise OversizedRecord for a record that does not fit into a request."""
        if size > self._max_request_bytes:
            raise OversizedRecord(
                f"{topic}: a record of {size} bytes, the limit is {self._max_request_bytes}; raise "
                f"max_request_bytes, "
                "and the broker's message.max.bytes (or the topic's max.message.bytes) with it, or write smaller "
                "records"
            )

    def list_partitions(self, topic: TopicView) -> Sequence[PartitionKey]:
        """Return the partitions by number; numbers are consecutive."""
        return [PartitionKey(number) for number in range(len(topic.partitions))]

    def explain_partition(self, topic: str, known: Sequence[PartitionKey]) -> str:
        """Say how many partitions there are."""
        return f"{topic} has {len(known)}, from 0 on"

    def explain_missing(self, failure: ConsumerdError | None, waited: str) -> str:
        """Say that no broker responded, or that the topic does not exist."""
        if failure is not None:
            return f"no broker could be asked about it {waited}; check the addresses and that they are up: {failure}"
        return f"no such topic with a leader {waited}; create it, or let brokers do so (auto.create.topics.enable)"

    def explain_unsent(self, partition: TopicPartition) -> str:  # noqa: ARG002 - the interface
        """Say that the partition had no leader."""
        return "the partition had no leader that could be reached"
