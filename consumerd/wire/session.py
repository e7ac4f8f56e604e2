# SPDX-License-Identifier: Apache-2.0
"""The client's protocol state of one connection: requests out, matched responses in; no IO.

Owns the request header, correlation ids, and the queue of requests in flight. Knows no socket, no clock and no
particular message.

A broker processes the requests of a connection one by one and answers in that order (Kafka protocol guide, "Network").
So a response must have the correlation id of the oldest request in flight. There are two kinds of faults:

- Any other correlation id means that the stream is out of step. That *poisons* the session: all requests in flight
  fail with this error, and every later call raises it.
- A body that cannot be decoded fails only its own request; the owner of the connection decodes it.

Example: requests 0, 1 and 2 are in flight, and the response to 0 arrives. The next response must have id 1. One with
id 2 poisons the session, and requests 1 and 2 fail.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import Final

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire.declaration import INT16, INT32, STRING, field, message
from consumerd.wire.framing import encode_frame
from consumerd.wire.primitives import MAX_INT32
from consumerd.wire.schema import Request, compile_codec

CORRELATION_BYTES: Final = 4
"""Size of the response header, version 0: the correlation id.

Version 1 of that header, of flexible versions, has tagged fields behind it; the codec of the response skips them.
"""

_CORRELATION: Final = struct.Struct(">i")


@message
class RequestHeader:
    """Header of every request frame, version 1.

    Version 2, the header of flexible versions, has tagged fields after these. ``client_id`` is a plain string in both.
    """

    api_key: int = field(INT16)
    api_version: int = field(INT16)
    correlation_id: int = field(INT32)
    client_id: str | None = field(STRING, nullable="0+")


HEADER_CODEC: Final = compile_codec(RequestHeader, 0)


def encode_request(request: Request[object], version: int, *, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a whole request frame. Raises LocalProtocolError for a value that ``version`` cannot express."""
    body = request.encode(version)
    header = RequestHeader(api_key=request.api, api_version=version, correlation_id=correlation_id, client_id=client_id)
    return encode_frame(HEADER_CODEC.encode(header) + compile_codec(type(request), version).header_tags + body)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFrame:
    """A complete response from a broker, not decoded yet.

    Args:
        key: the correlation id, which :meth:`ClientSession.send` returned for the request.
        body: the bytes after the correlation id.
    """

    key: int
    body: memoryview


class ClientSession:
    """The client's side of one connection: matches responses to requests.

    Its caller splits the received bytes into frames. ``fault`` is the error after which the connection cannot be used;
    None if it is usable.
    """

    def __init__(self, client_id: str | None) -> None:
        self._client_id = client_id
        self._next_id = 0
        self._waiting: deque[int] = deque()
        self.fault: RemoteProtocolError | None = None

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for their response."""
        return len(self._waiting)

    def send(self, request: Request[object], version: int) -> tuple[int, bytes]:
        """Return the request's correlation id and its frame, to be sent.

        Frames must be sent in the order of these calls. Raises LocalProtocolError, without any change, for a value that
        ``version`` cannot express, and after an earlier :attr:`fault`.
        """
        if self.fault is not None:
            raise LocalProtocolError(f"the session is unusable: {self.fault}") from self.fault
        correlation_id = self._next_id
        frame = encode_request(request, version, correlation_id=correlation_id, client_id=self._client_id)
        self._next_id = 0 if correlation_id == MAX_INT32 else correlation_id + 1
        if request.expects_response:
            self._waiting.append(correlation_id)
        return correlation_id, frame

    def receive_frame(self, body: memoryview) -> ResponseFrame:
        """Match one response frame, without its size, to its request.

        Raises RemoteProtocolError if it is not the response to the oldest request; every later call raises it again.
        """
        if self.fault is not None:
            raise self.fault
        if len(body) < CORRELATION_BYTES:
            raise self._poison(RemoteProtocolError(f"response frame of {len(body)} bytes: needs a correlation id"))
        (correlation_id,) = _CORRELATION.unpack_from(body)
        if not self._waiting or self._waiting[0] != correlation_id:
            expected = self._waiting[0] if self._waiting else "none"
            raise self._poison(
                RemoteProtocolError(f"response with correlation id {correlation_id} at byte 0: expected {expected}")
            )
        self._waiting.popleft()
        return ResponseFrame(key=correlation_id, body=body[CORRELATION_BYTES:])

    def _poison(self, fault: RemoteProtocolError) -> RemoteProtocolError:
        self.fault = fault
        return fault
