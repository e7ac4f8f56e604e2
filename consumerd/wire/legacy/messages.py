# SPDX-License-Identifier: Apache-2.0
"""Requests and responses of Kafka 0.6 and 0.7, as declared messages.

Source: "Writing a Driver for Kafka", sections "Request Header" to "Offsets". Differences of a real Kafka 0.7.2 are at
the messages that they concern. A frame is::

    request     int32 size, int16 request type, then the declared fields
    response    int32 size, then the declared fields, of which the first is the int16 error code

The document's request header is the request type with the fields ``topic`` and ``partition``. Its multi-request header
is the request type with the count of ``requests``. The entries of a multi-request are single requests without the type.

There are no versions: all messages have version 0 here. ``wire.legacy.session`` writes and reads the request type.
"""

from __future__ import annotations

import enum
from types import NoneType
from typing import Any, ClassVar, Final, TypeVar

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import INT16, INT32, INT64, RECORDS, STRING, ArrayOf, field, message
from consumerd.wire.legacy.wire_types import TO_END, VERSION, counted, sized
from consumerd.wire.schema import Request, compile_codec, request

R_co = TypeVar("R_co", covariant=True)

LATEST_TIME: Final = -1
"""``time`` of an OFFSETS request for the log end offset."""
EARLIEST_TIME: Final = -2
"""``time`` of an OFFSETS request for the first offset of the log."""
RANDOM_PARTITION: Final = -1
"""``partition`` of a PRODUCE request with which the broker chooses one; not in the document."""

_VERSIONS: Final = range(VERSION, VERSION + 1)


class LegacyRequestType(enum.IntEnum):
    """Number at the beginning of a request: its kind."""

    PRODUCE = 0
    FETCH = 1
    MULTIFETCH = 2
    MULTIPRODUCE = 3
    OFFSETS = 4


class LegacyErrorCode(enum.IntEnum):
    """Error code of a response; the names are those of the document.

    Each number has the same meaning in later releases, so ``wire.errorcodes`` has a row for each.
    """

    UNKNOWN = -1
    """Any other error; Kafka 0.7.2 answers it to FETCH of an illegal topic name."""
    NO_ERROR = 0
    OFFSET_OUT_OF_RANGE = 1
    """The offset is negative, deleted or beyond the log end."""
    INVALID_MESSAGE = 2
    """A message failed its checksum; Kafka 0.7.2 closes the connection instead."""
    WRONG_PARTITION = 3
    """The partition does not exist. Only for FETCH and MULTIFETCH: after other requests the connection is closed."""
    INVALID_FETCH_SIZE = 4
    """The first message is larger than ``max_size``; Kafka 0.7.2 answers 0 and a part of the message instead."""


# -- responses


@message
class LegacyFetchResponse:
    """FETCH response: a message set, which begins at the offset asked for.

    ``messages`` is a view of the frame. Its last message may be cut off, also if it is the only one: then ``max_size``
    was too small for it. It never crosses the end of a log segment. It is empty at the log end, and for a topic or
    partition that was never written, at any offset.
    """

    error_code: int = field(INT16, default=0)
    messages: memoryview | bytes = field(TO_END, default=b"")


@message
class LegacyMultiFetchResponse:
    """MULTIFETCH response: a FETCH response for each request, in the order of the requests.

    The error code of the whole is 0, also if entries have others. The document does not describe this response.
    """

    error_code: int = field(INT16, default=0)
    responses: tuple[LegacyFetchResponse, ...] = field(sized(LegacyFetchResponse))


@message
class LegacyOffsetsResponse:
    """OFFSETS response: offsets at which log segments begin, and the log end, in descending order."""

    error_code: int = field(INT16, default=0)
    offsets: tuple[int, ...] = field(ArrayOf(INT64))


# -- requests


class LegacyRequest(Request[R_co]):
    """Base class of requests of Kafka 0.6 and 0.7."""

    __slots__ = ()

    request_type: ClassVar[LegacyRequestType]


class _UnansweredRequest(LegacyRequest[None]):
    """Base class of requests without a response.

    A broker that refuses one closes the connection.
    """

    __slots__ = ()

    @property
    def expects_response(self) -> bool:
        """False: there is no response."""
        return False

    def decode_response(self, version: int, body: memoryview) -> None:  # noqa: ARG002 - the interface
        """Raise LocalProtocolError, since no response exists."""
        raise LocalProtocolError(f"{type(self).__name__}: has no response that could be decoded")


@request(ApiKey.PRODUCE, versions=_VERSIONS, response=NoneType)
class LegacyProduceRequest(_UnansweredRequest):
    """PRODUCE request: a message set for one partition; not answered.

    A broker that refuses it closes the connection and stores nothing of it. It stores the whole messages of a set whose
    last one is cut off, and silently drops a set with a message above its ``max.message.size``.
    """

    request_type: ClassVar[LegacyRequestType] = LegacyRequestType.PRODUCE

    topic: str = field(STRING)
    partition: int = field(INT32)
    messages: memoryview | bytes = field(RECORDS)


@request(ApiKey.PRODUCE, versions=_VERSIONS, response=NoneType)
class LegacyMultiProduceRequest(_UnansweredRequest):
    """MULTIPRODUCE request: message sets for several partitions, which may repeat; not answered.

    If the broker refuses one of the sets, it stores those before it and closes the connection.
    """

    request_type: ClassVar[LegacyRequestType] = LegacyRequestType.MULTIPRODUCE

    requests: tuple[LegacyProduceRequest, ...] = field(counted(LegacyProduceRequest))


@request(ApiKey.FETCH, versions=_VERSIONS, response=LegacyFetchResponse)
class LegacyFetchRequest(LegacyRequest[LegacyFetchResponse]):
    """FETCH request: messages of one partition from a byte offset on, at most ``max_size`` bytes.

    ``max_size`` must not be negative: the broker answers that with a frame of one byte, which leaves the stream out of
    step. The broker responds at once, with or without messages.
    """

    request_type: ClassVar[LegacyRequestType] = LegacyRequestType.FETCH

    topic: str = field(STRING)
    partition: int = field(INT32)
    offset: int = field(INT64)
    max_size: int = field(INT32)


@request(ApiKey.FETCH, versions=_VERSIONS, response=LegacyMultiFetchResponse)
class LegacyMultiFetchRequest(LegacyRequest[LegacyMultiFetchResponse]):
    """MULTIFETCH request: FETCH requests for several partitions."""

    request_type: ClassVar[LegacyRequestType] = LegacyRequestType.MULTIFETCH

    requests: tuple[LegacyFetchRequest, ...] = field(counted(LegacyFetchRequest))

    def decode_response(self, version: int, body: memoryview) -> LegacyMultiFetchResponse:  # noqa: ARG002 - one version
        """Decode the response.

        Raises RemoteProtocolError, also if it has not one entry for each request.
        """
        response = compile_codec(LegacyMultiFetchResponse, VERSION).decode(body)
        if not response.error_code and len(response.responses) != len(self.requests):
            raise RemoteProtocolError(
                f"LegacyMultiFetchResponse: {len(response.responses)} entries, expected {len(self.requests)}"
            )
        return response


@request(ApiKey.LIST_OFFSETS, versions=_VERSIONS, response=LegacyOffsetsResponse)
class LegacyOffsetsRequest(LegacyRequest[LegacyOffsetsResponse]):
    """OFFSETS request: the newest ``max_number`` offsets of log segments not modified after ``time``.

    A wrong partition or a negative ``max_number`` closes the connection.

    Args:
        time: in ms since the epoch; or :data:`LATEST_TIME`, :data:`EARLIEST_TIME`. The log end is among the offsets
            only for :data:`LATEST_TIME`, or if ``time`` is not before the broker's clock.
    """

    request_type: ClassVar[LegacyRequestType] = LegacyRequestType.OFFSETS

    topic: str = field(STRING)
    partition: int = field(INT32)
    time: int = field(INT64)
    max_number: int = field(INT32)


REQUEST_CLASSES: Final[dict[int, type[LegacyRequest[Any]]]] = {
    one.request_type: one
    for one in (
        LegacyProduceRequest,
        LegacyFetchRequest,
        LegacyMultiFetchRequest,
        LegacyMultiProduceRequest,
        LegacyOffsetsRequest,
    )
}
"""Classes of the requests, by request type."""
