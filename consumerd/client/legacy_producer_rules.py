# SPDX-License-Identifier: Apache-2.0
"""Records and partitions of Kafka 0.6 and 0.7 for a producer, and its settings.

Pure. It implements ``client.producer_rules``.

Records
    A message has a payload and nothing else. The key of a record chooses its partition, and is not stored, nor is the
    timestamp. Headers and tombstones are refused.

Size
    A broker drops a message set silently if a payload in it is larger than its ``max.message.size``, 1,000,000 bytes by
    default (a line in the broker's log is all). So such a record is refused here. Of a compressed message the
    compressed payload counts; if that is too large, the batch is sent without compression, as messages that each fit.

Partitions
    The list of all (broker, partition) pairs, in ascending order of both numbers: 0-2 is before 0-10. Partitioners
    choose an index of that list.

    Example: broker 0 has 3 partitions of ``dogs``, broker 2 has one. The list is 0-0, 0-1, 0-2, 2-0. A key whose hash
    is 7 goes to index 7 % 4 = 3, which is 2-0.

    Text order, as members of a group use it, would have 0-10 before 0-2. The document does not say which order it means
    by "ordered by Broker+Partition (e.g. 0-3)". Java's producer compares numbers, and with its order both producers
    send a key to the same partition.

Sources: "Writing a Driver for Kafka", sections "Message" and "Producer"; ``ZKBrokerPartitionInfo.scala``,
``Partition.scala`` and ``SyncProducer.scala`` of Kafka 0.7.2; frames recorded from it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.client.producer_settings import ProducerSettings
from consumerd.cluster.view import TopicView
from consumerd.errors import ConfigError, ConsumerdError, LocalProtocolError, OversizedRecord
from consumerd.model import PartitionKey, TopicPartition
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.message_set import build_message_set, compress_message_set
from consumerd.wire.legacy.stored_message import CODECS, HEAD_BYTES
from consumerd.wire.record_fields import Headers
from consumerd.wire.records import NewRecord

_SHOWN: Final = 10
"""Partitions that a message names, at most."""


class UnknownOutcome(enum.StrEnum):
    """Policy for records that may have been written.

    Their connection ended after they were sent, and before the broker had confirmed them.
    """

    RESEND = "resend"
    """Send them again: each record is written at least once, unless its time is over."""
    FAIL = "fail"
    """Fail with DeliveryUnknown: no record is written twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyProducerSettings:
    """Settings of a producer for Kafka 0.6 and 0.7 alone, checked on creation. Raises ConfigError.

    Args:
        magic: Format of messages: 1 for Kafka 0.7, 0 for Kafka 0.6, which has no compression.
        on_unknown: What to do with records that may have been written.
        max_message_bytes: Largest payload of a message, in bytes: ``max.message.size`` of the brokers.
    """

    magic: int = 1
    on_unknown: UnknownOutcome = UnknownOutcome.RESEND
    max_message_bytes: int = 1_000_000

    def __post_init__(self) -> None:
        if self.magic not in (0, 1):
            raise ConfigError(f"magic: expected 0 (Kafka 0.6) or 1 (Kafka 0.7), got {self.magic}")
        if self.max_message_bytes <= 0:
            raise ConfigError(f"max_message_bytes: expected more than 0, got {self.max_message_bytes}")

    def check_codec(self, codec: Codec) -> None:
        """Raise ConfigError for a compression that the format of messages does not have."""
        if codec not in CODECS:
            raise ConfigError(f"codec {codec.name.lower()}: Kafka 0.7 has none, gzip and snappy")
        if codec is not Codec.NONE and self.magic == 0:
            raise ConfigError(f"codec {codec.name.lower()}: Kafka 0.6 (magic 0) has no compression; take none")


class LegacyProducerRules:
    """Rules of Kafka 0.6 and 0.7: payloads of limited size, partitions that belong to brokers."""

    def __init__(self, settings: ProducerSettings, legacy: LegacyProducerSettings) -> None:
        self._max_request_bytes = settings.max_request_bytes
        self._max_message_bytes = legacy.max_message_bytes

    def check(self, topic: str, value: bytes | None, headers: Headers, size: int) -> None:
        """Raise OversizedRecord for a payload that brokers drop, ValueError for headers or a tombstone."""
        if value is None:
            raise ValueError(f"{topic}: Kafka 0.6 and 0.7 have no tombstones; give the record a value")
        if headers:
            raise ValueError(f"{topic}: messages of Kafka 0.6 and 0.7 have no headers; put them into the value")
        check_payload(topic, value, self._max_message_bytes)
        if size > self._max_request_bytes:
            raise OversizedRecord(
                f"{topic}: a record of {size} bytes, the limit is {self._max_request_bytes}; raise max_request_bytes, "
                "or write smaller records"
            )

    def list_partitions(self, topic: TopicView) -> Sequence[PartitionKey]:
        """Return the partitions of all registered brokers, by broker and number."""
        return sorted(topic.partitions, key=lambda key: (-1 if key.broker is None else key.broker, key.number))

    def explain_partition(self, topic: str, known: Sequence[PartitionKey]) -> str:
        """Name the partitions that there are."""
        names = ", ".join(map(str, known[:_SHOWN])) + (", ..." if len(known) > _SHOWN else "")
        return f"{topic} has {names} on the brokers that are registered now; name one as BROKER-N"

    def explain_missing(self, failure: ConsumerdError | None, waited: str) -> str:
        """Say that ZooKeeper could not be read, or that no broker is registered."""
        if failure is not None:
            return (
                f"its brokers could not be read from ZooKeeper {waited}; check its address and that it is up: {failure}"
            )
        return (
            f"no broker is registered in ZooKeeper (/brokers/ids) {waited}; start one, or check the chroot in the "
            "address of ZooKeeper"
        )

    def explain_unsent(self, partition: TopicPartition) -> str:
        """Say that the partition's broker was away."""
        broker = partition.partition.broker
        return f"broker {broker}, the only one that has the partition, is not registered or could not be reached"


def check_payload(topic: str, payload: bytes, max_message_bytes: int) -> None:
    """Raise OversizedRecord for a payload that brokers of Kafka 0.6 and 0.7 would drop.

    Args:
        max_message_bytes: Largest payload, in bytes.
    """
    if len(payload) > max_message_bytes:
        raise OversizedRecord(
            f"{topic}: a message of {len(payload)} bytes, the limit is {max_message_bytes}: brokers of Kafka 0.6 and 0.7 "
            "drop larger ones silently. Write smaller messages, or raise the brokers' max.message.size and "
            "max_message_bytes with it"
        )


def encode_message_set(
    topic: str, records: Sequence[NewRecord], *, codec: Codec, legacy: LegacyProducerSettings
) -> bytes:
    """Encode the values of records as a message set: one compressed message, or plain ones.

    Raises OversizedRecord for a value that brokers would drop; LocalProtocolError for a record without a value, which
    only hooks can make; ConfigError if the library of the codec is missing.
    """
    payloads = []
    for record in records:
        if record.value is None:
            raise LocalProtocolError(f"{topic}: a record without a value, which Kafka 0.6 and 0.7 cannot store")
        check_payload(topic, record.value, legacy.max_message_bytes)
        payloads.append(record.value)
    plain = build_message_set(payloads, magic=legacy.magic)
    if codec is Codec.NONE:
        return plain
    compressed = compress_message_set(plain, codec)
    return compressed if len(compressed) - HEAD_BYTES <= legacy.max_message_bytes else plain
