# SPDX-License-Identifier: Apache-2.0
"""Checks of produced message sets, as in Kafka 0.6 and 0.7. Pure.

==================================================  ======================================================
set                                                 outcome
==================================================  ======================================================
whole, valid messages of magic 0 and 1              stored as they are
a last message that is cut off                      the messages before it are stored
a first message that is cut off                     refused
a payload above ``max.message.size``                dropped with a line in the broker's log
a wrong checksum, also inside of a compressed one   refused; nothing of the set is stored
an unknown magic or codec                           refused
magic 1, to Kafka 0.6                               refused
==================================================  ======================================================

"Refused" means that the connection is closed. The size is checked first, so a set that is also damaged is only dropped.
Of a compressed message, the compressed payload counts. Source: ``Log.append`` and ``ByteBufferMessageSet`` of Kafka
0.7.2; frames recorded from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumerd.embedded.log.errors import LogRecordTooLarge
from consumerd.embedded.log.expansion import most_decompressed
from consumerd.embedded.log.settings import LogSettings
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.kernel import Buffer
from consumerd.wire.legacy.message_set import check_message_set
from consumerd.wire.legacy.stored_message import LENGTH_BYTES, MAGIC_AT, find_stop, is_valid, read_header
from consumerd.wire.records import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSet:
    """The part of a message set that is to be stored.

    It has ``messages`` whole messages, of ``size_bytes`` together. A compressed message counts as one.
    """

    messages: int
    size_bytes: int


def check_produced_set(message_set: Buffer, partition: TopicPartition, settings: LogSettings) -> CheckedSet:
    """Check a message set; return the part of it that is to be stored.

    Raises CorruptMessageError if the set must be refused, LogRecordTooLarge if it must be dropped.

    Args:
        message_set: The set, as a PRODUCE request has it.
        partition: The partition, for messages of errors.
        settings: ``max_message_bytes`` limits the payload of a message. ``message_format`` 0 refuses magic 1.
    """
    try:
        messages = _check_headers(message_set, partition, settings)
        limits = Limits(decompressed_bytes=most_decompressed(settings.max_message_bytes))
        return CheckedSet(messages=messages, size_bytes=check_message_set(message_set, limits=limits))
    except CorruptMessageError as error:
        raise type(error)(f"{partition}: a message set was refused: {error}", partition=partition) from error


def count_valid_bytes(data: Buffer) -> int:
    """Return the size in bytes of the whole, valid messages with which ``data`` begins."""
    at = 0
    while is_valid(data, at):
        stop = find_stop(data, at)
        assert stop is not None, "a whole message"
        at = stop
    return at


def _check_headers(message_set: Buffer, partition: TopicPartition, settings: LogSettings) -> int:
    """Check size and magic of each message; return the number of whole ones."""
    at = messages = 0
    while (header := read_header(message_set, at)) is not None:
        magic, payload_bytes = message_set[at + MAGIC_AT], header.stop - header.payload_at
        if magic > settings.message_format:
            raise CorruptMessageError(f"byte {at}: magic {magic} is unknown to Kafka 0.6, expected 0")
        if payload_bytes > settings.max_message_bytes:
            raise LogRecordTooLarge(partition, payload_bytes, settings.max_message_bytes)
        messages += 1
        at = header.stop
    if not messages and len(message_set) >= LENGTH_BYTES:
        raise CorruptMessageError(f"the first message is cut off after {len(message_set)} bytes")
    return messages
