# SPDX-License-Identifier: Apache-2.0
"""Blocking connection to a broker of Kafka 0.7, for fetched bytes as they are."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Final, Self

from bench.readers.telling import FETCH_BYTES
from consumerd.wire.legacy.messages import (
    LATEST_TIME,
    LegacyFetchRequest,
    LegacyMultiFetchRequest,
    LegacyOffsetsRequest,
    LegacyRequest,
)
from consumerd.wire.legacy.session import encode_legacy_request
from consumerd.wire.legacy.wire_types import VERSION

_HEAD: Final = struct.Struct(">ihih")
"""Size and error code of the response, size and error code of its only entry."""
_ENTRY_CODE_BYTES: Final = 2
_SIZE_BYTES: Final = 4


class LegacyConnection:
    """Blocking connection to the broker at ``bootstrap``, for partition 0 of one topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._topic = topic
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._memory = memoryview(bytearray(FETCH_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def find_end(self) -> int:
        """Return the size of the log in bytes."""
        request = LegacyOffsetsRequest(topic=self._topic, partition=0, time=LATEST_TIME, max_number=1)
        self._send(request)
        size = int.from_bytes(self._receive(_SIZE_BYTES), "big")
        return int(request.decode_response(VERSION, self._receive(size)).offsets[0])

    def ask(self, offset: int) -> None:
        """Send a MULTIFETCH; ``offset`` may be inside of a message."""
        part = LegacyFetchRequest(topic=self._topic, partition=0, offset=offset, max_size=FETCH_BYTES)
        self._send(LegacyMultiFetchRequest(requests=(part,)))

    def receive_head(self) -> int:
        """Return the number of fetched bytes in the next response."""
        _, code, size, entry_code = _HEAD.unpack(self._receive(_HEAD.size))
        assert (code, entry_code) == (0, 0), (code, entry_code)
        return int(size) - _ENTRY_CODE_BYTES

    def receive_messages(self, size: int) -> memoryview:
        """Return the bytes after the head of a response; the next ones overwrite them."""
        return self._receive(size)

    def _send(self, request: LegacyRequest[Any]) -> None:
        self._socket.sendall(encode_legacy_request(request))

    def _receive(self, size: int) -> memoryview:
        view = self._memory[:size]
        filled = 0
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            assert count, "closed"
            filled += count
        return view
