# SPDX-License-Identifier: Apache-2.0
"""The server's side of the protocol: decodes request frames and encodes response frames; no IO.

A request that cannot be processed is classified by how much of it was read, because a broker reacts differently
(Kafka's RequestContext and SocketServer of 1.1):

==========================  ============================================================
error                       what brokers do
==========================  ============================================================
:class:`UnreadableRequest`  close the connection
:class:`UnknownRequest`     close the connection
:class:`VersionNotSpoken`   close the connection; to ApiVersions they respond with
                            UNSUPPORTED_VERSION in version 0
==========================  ============================================================
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.primitives import MAX_INT32
from consumerd.wire.schema import Request, compile_codec
from consumerd.wire.session import CORRELATION_BYTES, HEADER_CODEC, RequestHeader

_HEAD: Final = struct.Struct(">ii")
"""Size and correlation id of a response frame."""


class UnknownRequest(RemoteProtocolError):
    """Raised for a request that is not accepted in any version."""


class VersionNotSpoken(RemoteProtocolError):
    """Raised for a request that is accepted in other versions; its body was not read."""

    def __init__(self, message: str, header: RequestHeader, request_class: type[Request[Any]]) -> None:
        super().__init__(message)
        self.header = header
        self.request_class = request_class


class UnreadableRequest(RemoteProtocolError):
    """Raised for a request whose header is unreadable, or whose body does not match it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A decoded request, as a broker receives it.

    Record sets in the request are views of the frame, not copies.
    """

    header: RequestHeader
    request: Request[Any]


def read_request(body: bytes | memoryview, accepted: Mapping[type[Request[Any]], range]) -> ReceivedRequest:
    """Decode one whole request frame, without its size; return the request.

    Args:
        accepted: the supported requests, each with its versions.

    Raises UnknownRequest, VersionNotSpoken or UnreadableRequest, each a RemoteProtocolError.
    """
    view = memoryview(body)
    try:
        header, at = HEADER_CODEC.read(view, 0, len(view))
    except RemoteProtocolError as error:
        raise UnreadableRequest(str(error)) from error
    request_class = next((known for known in accepted if known.api == header.api_key), None)
    if request_class is None:
        raise UnknownRequest(f"request {name_request(header.api_key)} v{header.api_version}: not accepted")
    versions = accepted[request_class]
    if header.api_version not in versions:
        spoken = f"{versions.start} to {versions.stop - 1}"
        raise VersionNotSpoken(
            f"request {name_request(header.api_key)} v{header.api_version}: accepted are {spoken}",
            header,
            request_class,
        )
    try:
        codec = compile_codec(request_class, header.api_version)
        request_body = codec.skip_header_tags(view[at:])
        # like brokers, ignore bytes behind the request: librdkafka sends three behind a Metadata v12 for all topics
        request, _ = codec.read(request_body, 0, len(request_body))
    except RemoteProtocolError as error:
        raise UnreadableRequest(str(error)) from error
    return ReceivedRequest(header=header, request=request)


def name_request(api_key: int) -> str:
    """Return the request name of an API key; the number if it is unknown."""
    return ApiKey(api_key).name if api_key in tuple(ApiKey) else str(api_key)


def encode_response_pieces(correlation_id: int, response: object, version: int) -> list[Any]:
    """Encode a whole response frame with its size, as pieces to be sent in order.

    A record set that is not ``bytes`` becomes a piece of its own: the object in the response itself, which can be
    anything with a length, such as a range of a file that is sent without being read. Everything between two such
    pieces is one ``bytes``.

    Raises LocalProtocolError for a value that ``version`` cannot express.
    """
    codec = compile_codec(type(response), version)
    written: list[Any] = [codec.header_tags]
    codec.write(response, written.append)
    size = CORRELATION_BYTES + sum(map(len, written))
    if size > MAX_INT32:
        raise LocalProtocolError(f"response of {size} bytes: at most {MAX_INT32} can be sent")
    pieces: list[Any] = []
    between = [_HEAD.pack(size, correlation_id)]
    for one in written:
        if type(one) is bytes:
            between.append(one)
        else:
            pieces += (b"".join(between), one)
            between = []
    if between:
        pieces.append(b"".join(between))
    return pieces


assert _HEAD.size == SIZE_BYTES + CORRELATION_BYTES
