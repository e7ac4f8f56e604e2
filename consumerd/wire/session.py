# SPDX-License-Identifier: Apache-2.0
"""One connection's worth of protocol, without the connection: requests out, the answers that belong to them in.

Owns the request header, correlation ids, and which requests are still waiting for their answer. Knows no socket, no
clock and no particular message.

A broker serves a connection's requests one after the other and answers in that order (Kafka protocol guide,
"Network"). So the id of an answer must be that of the oldest request that waits; any other means that the two sides no
longer agree on where they are. This is a fault of the connection: it *poisons* the
session, which from then on raises that fault for whatever arrives and refuses to send; every request in flight fails
for that one cause. A body that cannot be read, on the other hand, is found by :meth:`ResponseFrame.decode` and fails
one request only.
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
"""The response header: the correlation id alone (version 0; no version declared here has another)."""

_CORRELATION: Final = struct.Struct(">i")


@message
class RequestHeader:
    """What precedes every request in its frame (version 1 of the header)."""

    api_key: int = field(INT16)
    api_version: int = field(INT16)
    correlation_id: int = field(INT32)
    client_id: str | None = field(STRING, nullable="0+")


HEADER_CODEC: Final = compile_codec(RequestHeader, 0)


def encode_request(request: Request[object], version: int, *, correlation_id: int, client_id: str | None) -> bytes:
    """Write a whole request frame. Raises LocalProtocolError for what ``version`` cannot say."""
    body = request.encode(version)
    header = RequestHeader(api_key=request.api, api_version=version, correlation_id=correlation_id, client_id=client_id)
    return encode_frame(HEADER_CODEC.encode(header) + body)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFrame:
    """An answer that has arrived in full, and what it answers; ``body`` is what follows the correlation id."""

    correlation_id: int
    request: Request[object]
    version: int
    body: memoryview

    def decode(self) -> object:
        """Read the body: an instance of ``request.response``. Raises RemoteProtocolError, which concerns it alone.

        ``request.decode_response(version, body)`` is the same with the response's own type.
        """
        return self.request.decode_response(self.version, self.body)


@dataclass(frozen=True, slots=True)
class _Waiting:
    correlation_id: int
    request: Request[object]
    version: int


class ClientSession:
    """The client's side of one connection. Its stream is cut into frames by whoever owns it."""

    def __init__(self, client_id: str | None) -> None:
        self._client_id = client_id
        self._next_id = 0
        self._waiting: deque[_Waiting] = deque()
        self._fault: RemoteProtocolError | None = None

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer."""
        return len(self._waiting)

    @property
    def fault(self) -> RemoteProtocolError | None:
        """What poisoned the session, if anything did."""
        return self._fault

    def send(self, request: Request[object], version: int) -> tuple[int, bytes]:
        """Return the request's correlation id and its frame, to be written in the order of these calls.

        Raises LocalProtocolError, and then nothing has changed: for a value that ``version`` cannot say, or on a
        poisoned session.
        """
        if self._fault is not None:
            raise LocalProtocolError(f"the session is unusable: {self._fault}") from self._fault
        correlation_id = self._next_id
        frame = encode_request(request, version, correlation_id=correlation_id, client_id=self._client_id)
        self._next_id = 0 if correlation_id == MAX_INT32 else correlation_id + 1
        if request.expects_response:
            self._waiting.append(_Waiting(correlation_id, request, version))
        return correlation_id, frame

    def receive_frame(self, body: memoryview) -> ResponseFrame:
        """Take one whole frame, without its size.

        Raises RemoteProtocolError, which poisons the session; then again at every call.
        """
        if self._fault is not None:
            raise self._fault
        if len(body) < CORRELATION_BYTES:
            raise self._poison(RemoteProtocolError(f"response frame of {len(body)} bytes: needs a correlation id"))
        (correlation_id,) = _CORRELATION.unpack_from(body)
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            expected = self._waiting[0].correlation_id if self._waiting else "none"
            raise self._poison(
                RemoteProtocolError(f"response with correlation id {correlation_id} at byte 0: expected {expected}")
            )
        waiting = self._waiting.popleft()
        return ResponseFrame(
            correlation_id=correlation_id,
            request=waiting.request,
            version=waiting.version,
            body=body[CORRELATION_BYTES:],
        )

    def _poison(self, fault: RemoteProtocolError) -> RemoteProtocolError:
        self._fault = fault
        return fault
