# SPDX-License-Identifier: Apache-2.0
"""Frames of a connection to a broker of Kafka 0.6 or 0.7; no IO.

For both sides.

Owns the request type in front of each request, and the queue of requests in flight. Source: "Writing a Driver for
Kafka", section "Request Header".

Requests have no ids. A broker processes the requests of a connection one by one, so each response belongs to the oldest
request that waits for one. PRODUCE and MULTIPRODUCE have no response, and do not wait. There are two kinds of faults:

- A response that nothing waits for, or without a complete error code, means that the stream is out of step. That
  *poisons* the session: all requests in flight fail with this error, and every later call raises it.
- A body that cannot be decoded fails only its own request; the owner of the connection decodes it.

Example: FETCH, PRODUCE and OFFSETS are sent, in this order. The first response belongs to FETCH, the second one to
OFFSETS; a third one poisons the session.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, Final

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire.framing import encode_frame
from consumerd.wire.legacy.messages import REQUEST_CLASSES, LegacyRequest
from consumerd.wire.legacy.wire_types import VERSION
from consumerd.wire.schema import Request, compile_codec
from consumerd.wire.server_session import UnknownRequest, UnreadableRequest
from consumerd.wire.session import ResponseFrame

_INT16: Final = struct.Struct(">h")
ERROR_CODE_BYTES: Final = _INT16.size
"""Size of the response header without the frame's size: the error code."""


def encode_legacy_request(request: LegacyRequest[Any]) -> bytes:
    """Encode a whole request frame.

    Raises LocalProtocolError for a value that does not fit its field.
    """
    return encode_frame(_INT16.pack(request.request_type) + request.encode(VERSION))


def read_legacy_request(body: bytes | memoryview) -> LegacyRequest[Any]:
    """Decode one whole request frame, without its size, as a broker receives it.

    Bytes after the request are ignored, as by Kafka 0.7. Message sets in the request are views of the frame.

    Raises UnknownRequest for another request type, UnreadableRequest for a body that does not match it; both are a
    RemoteProtocolError. Brokers close the connection after either.
    """
    view = memoryview(body)
    if len(view) < _INT16.size:
        raise UnreadableRequest(f"request frame of {len(view)} bytes: needs a request type")
    (request_type,) = _INT16.unpack_from(view)
    request_class = REQUEST_CLASSES.get(request_type)
    if request_class is None:
        raise UnknownRequest(f"request type {request_type} at byte 0: expected 0 to {max(REQUEST_CLASSES)}")
    try:
        found, _ = compile_codec(request_class, VERSION).read(view, _INT16.size, len(view))
    except RemoteProtocolError as error:
        raise UnreadableRequest(str(error)) from error
    request: LegacyRequest[Any] = found
    return request


def encode_legacy_response(response: object) -> bytes:
    """Encode a whole response frame, as a broker sends it.

    Raises LocalProtocolError for a value that does not fit its field.

    Args:
        response: response to a request, as declared in ``wire.legacy.messages``.
    """
    return encode_frame(compile_codec(type(response), VERSION).encode(response))


class LegacyClientSession:
    """The client's side of one connection: gives each response to the oldest waiting request.

    It has the interface of :class:`consumerd.wire.session.ClientSession`. ``fault`` is the error after which the
    connection cannot be used; None if it is usable.
    """

    def __init__(self) -> None:
        self._next_key = 0
        self._waiting: deque[int] = deque()
        self.fault: RemoteProtocolError | None = None

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for their response."""
        return len(self._waiting)

    def send(self, request: Request[Any], version: int = VERSION) -> tuple[int, bytes]:
        """Return the request's key and its frame, to be sent.

        Keys count the requests from 0 on, and are not sent. Frames must be sent in the order of these calls.

        Args:
            version: 0, the only one.

        Raises LocalProtocolError, without any change, for another version, for a request of later releases, for a
        value that does not fit its field, and after an earlier :attr:`fault`.
        """
        if self.fault is not None:
            raise LocalProtocolError(f"the session is unusable: {self.fault}") from self.fault
        if not isinstance(request, LegacyRequest) or version != VERSION:
            raise LocalProtocolError(f"{type(request).__name__} v{version}: Kafka 0.6 and 0.7 do not have it")
        frame = encode_legacy_request(request)
        key = self._next_key
        self._next_key += 1
        if request.expects_response:
            self._waiting.append(key)
        return key, frame

    def receive_frame(self, body: memoryview) -> ResponseFrame:
        """Match one response frame, without its size, to its request.

        Raises RemoteProtocolError if no request waits, or if the frame has no complete error code; every later call
        raises it again.
        """
        if self.fault is not None:
            raise self.fault
        if len(body) < ERROR_CODE_BYTES:
            # Kafka 0.7.2 answers a FETCH of -1 bytes with size 1: where the next frame begins is then unknown
            raise self._poison(RemoteProtocolError(f"response frame of {len(body)} bytes: needs an error code"))
        if not self._waiting:
            raise self._poison(RemoteProtocolError(f"response frame of {len(body)} bytes: no request waits for one"))
        return ResponseFrame(key=self._waiting.popleft(), body=body)

    def _poison(self, fault: RemoteProtocolError) -> RemoteProtocolError:
        self.fault = fault
        return fault
