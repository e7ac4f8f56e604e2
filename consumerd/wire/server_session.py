# SPDX-License-Identifier: Apache-2.0
"""The server's side of the protocol, without the connection: a frame's request in, the frame of its answer out.

Owns what a broker makes of a frame before anybody handles it. A request that cannot be handled is told apart by how far
it was read, since the answers differ (Kafka's RequestContext and SocketServer of 1.1): brokers close the connection, but
for ApiVersions in a version that they do not speak, which they answer with UNSUPPORTED_VERSION in version 0.
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
"""A response frame's size and correlation id."""


class UnknownRequest(RemoteProtocolError):
    """A request that is not accepted in any version."""

    def __init__(self, message: str, header: RequestHeader) -> None:
        super().__init__(message)
        self.header = header


class VersionNotSpoken(RemoteProtocolError):
    """A request that is accepted in other versions; nothing of its body was read."""

    def __init__(self, message: str, header: RequestHeader, request_class: type[Request[Any]]) -> None:
        super().__init__(message)
        self.header = header
        self.request_class = request_class


class UnreadableRequest(RemoteProtocolError):
    """A request whose body is not what its header announces; ``header`` is None where that could not be read either."""

    def __init__(self, message: str, header: RequestHeader | None) -> None:
        super().__init__(message)
        self.header = header


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A request that has arrived. Record sets in it are views into the frame."""

    header: RequestHeader
    request: Request[Any]
    version: int


def read_request(body: bytes | memoryview, accepted: Mapping[type[Request[Any]], range]) -> ReceivedRequest:
    """Read one whole frame, without its size. ``accepted`` are the requests that are answered, and in which versions.

    Raises UnknownRequest, VersionNotSpoken or UnreadableRequest, each a RemoteProtocolError.
    """
    view = memoryview(body)
    try:
        header, at = HEADER_CODEC.read(view, 0, len(view))
    except RemoteProtocolError as error:
        raise UnreadableRequest(str(error), None) from error
    request_class = next((known for known in accepted if known.api == header.api_key), None)
    if request_class is None:
        raise UnknownRequest(f"request {name_request(header.api_key)} v{header.api_version}: not accepted", header)
    versions = accepted[request_class]
    if header.api_version not in versions:
        spoken = f"{versions.start} to {versions.stop - 1}"
        raise VersionNotSpoken(
            f"request {name_request(header.api_key)} v{header.api_version}: accepted are {spoken}",
            header,
            request_class,
        )
    try:
        request = compile_codec(request_class, header.api_version).decode(view[at:])
    except RemoteProtocolError as error:
        raise UnreadableRequest(str(error), header) from error
    return ReceivedRequest(header=header, request=request, version=header.api_version)


def name_request(api_key: int) -> str:
    """Return a request's name, or its key if it is none of ours."""
    return ApiKey(api_key).name if api_key in tuple(ApiKey) else str(api_key)


def encode_response(correlation_id: int, response: object, version: int) -> bytes:
    """Write a whole response frame, with its size. Raises LocalProtocolError for what ``version`` cannot say."""
    return b"".join(encode_response_pieces(correlation_id, response, version))


def encode_response_pieces(correlation_id: int, response: object, version: int) -> list[Any]:
    """Write a whole response frame, with its size, as pieces to be sent one after the other.

    A record set that is not ``bytes`` is a piece of its own, the very object that the response has: anything with a
    length, such as a part of a file that is sent without being read. What stands between two of them is one ``bytes``.

    Raises LocalProtocolError for what ``version`` cannot say.
    """
    written: list[Any] = []
    compile_codec(type(response), version).write(response, written.append)
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
