# SPDX-License-Identifier: Apache-2.0
"""Payloads of consumers in a group of protocol type "consumer", version 0 (Kafka's ConsumerProtocol).

Members subscribe to topics in JoinGroup and receive partitions in SyncGroup. ``user_data`` belongs to the assignor.
Payloads of later versions begin with the fields of version 0. They are decoded as version 0, and the rest is ignored,
as Kafka's own clients do.
"""

from __future__ import annotations

from typing import Final, TypeVar, cast

from consumerd.errors import RemoteProtocolError
from consumerd.wire.declaration import BYTES, INT16, INT32, STRING, ArrayOf, field, message
from consumerd.wire.schema import MessageCodec, compile_codec

PROTOCOL_TYPE: Final = "consumer"

T = TypeVar("T")


@message
class ConsumerSubscription:
    """Topics that a group member subscribes to, as sent in JoinGroup."""

    version: int = field(INT16, default=0)
    topics: tuple[str, ...] = field(ArrayOf(STRING))
    user_data: bytes | None = field(BYTES, default=None, nullable="0+")


@message
class AssignedTopic:
    """Partitions of one topic that are assigned to a group member."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(ArrayOf(INT32))


@message
class Assignment:
    """Partitions assigned to a group member, as sent in SyncGroup."""

    version: int = field(INT16, default=0)
    topics: tuple[AssignedTopic, ...] = field(ArrayOf(AssignedTopic))
    user_data: bytes | None = field(BYTES, default=None, nullable="0+")


_SUBSCRIPTION: Final = compile_codec(ConsumerSubscription, 0)
_ASSIGNMENT: Final = compile_codec(Assignment, 0)

encode_subscription: Final = _SUBSCRIPTION.encode
"""Encode a subscription. Raises LocalProtocolError."""
encode_assignment: Final = _ASSIGNMENT.encode
"""Encode an assignment. Raises LocalProtocolError."""


def decode_subscription(data: bytes | memoryview) -> ConsumerSubscription:
    """Decode a subscription of any version. Raises RemoteProtocolError."""
    return _decode(_SUBSCRIPTION, data)


def decode_assignment(data: bytes | memoryview) -> Assignment:
    """Decode an assignment of any version. Raises RemoteProtocolError."""
    return _decode(_ASSIGNMENT, data)


def _decode(codec: MessageCodec[T], data: bytes | memoryview) -> T:
    end = len(data)
    value, at = codec.read(memoryview(data), 0, end)
    if value.version < 0:
        raise RemoteProtocolError(f"{codec.message.__name__}: version {value.version}, expected 0 or more")
    if at != end and not value.version:
        raise RemoteProtocolError(f"{codec.message.__name__} v0: byte {at} of {end}: {end - at} bytes are left over")
    return cast("T", value)
