# SPDX-License-Identifier: Apache-2.0
"""Blocking connection that keeps a broker busy with pipelined requests.

It reads the headers of fetched batches and does not decode records.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from bench.readers.telling import FETCH_BYTES
from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.session import encode_request

IN_FLIGHT: Final = 5

_BATCH: Final = struct.Struct(">qi4xb6xi")
"""Base offset, size, magic and last offset delta in the header of a batch."""
_FETCH_VERSION: Final = 5


def _before_records(topic: str) -> int:
    """Return the position of the record set's size in a fetch response.

    Before it are: size, correlation id, throttle time, number of topics (one), topic name, number of partitions (one),
    fields of the partition, number of aborted transactions (none).
    """
    return 4 + 4 + 4 + 4 + (2 + len(topic.encode())) + 4 + (4 + 2 + 8 + 8 + 8) + 4


class Connection:
    """Blocking connection to the broker at ``bootstrap``, for one topic that it leads.

    :meth:`read_all` reads partition 0, which must hold batches of magic 2.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._topic = topic
        self._before_records = _before_records(topic)
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._memory = memoryview(bytearray(2 * FETCH_BYTES))
        self._filled = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def read_all(self, records: int, tell: Callable[[int], None] = lambda _: None) -> float:
        """Fetch partition 0 from offset 0 to ``records``; return the seconds that it took.

        Args:
            records: offset at which to stop.
            tell: called after each response with the next offset.
        """
        began = time.perf_counter()
        self._filled = 0
        self._ask(0)
        next_offset = 0
        while next_offset < records:
            next_offset = self._walk_answer(records)
            tell(next_offset)
        return time.perf_counter() - began

    def _ask(self, offset: int) -> None:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=(FetchTopic(topic=self._topic, partitions=(partition,)),),
        )
        self._socket.sendall(encode_request(request, _FETCH_VERSION, correlation_id=1, client_id="bench"))

    def _walk_answer(self, records: int) -> int:
        """Receive one response and return the offset of the next fetch.

        The next request is sent as soon as that offset is known, which is when the last batch header has arrived.
        """
        before = self._before_records
        self._fill(before + 4)
        end = 4 + int.from_bytes(self._memory[:4], "big")
        error = int.from_bytes(self._memory[before - 30 : before - 28], "big")
        assert error == 0, error
        at, next_offset = before + 4, 0
        while at + 27 <= end:
            self._fill(at + 27)
            base, size, magic, last_delta = _BATCH.unpack_from(self._memory, at)
            assert magic == 2, magic
            at += 12 + size
            if at > end:
                break
            next_offset = base + last_delta + 1
        assert next_offset, "not one whole batch"
        if next_offset < records:
            self._ask(next_offset)
        self._fill(end)
        left = self._filled - end
        self._memory[:left] = bytes(self._memory[end : self._filled])
        self._filled = left
        return next_offset

    def _fill(self, size: int) -> None:
        while self._filled < size:
            count = self._socket.recv_into(self._memory[self._filled :])
            assert count, "closed"
            self._filled += count

    def produce(self, frames: Iterable[bytes]) -> float:
        """Send produce requests for one partition; return the seconds that it took.

        Args:
            frames: encoded requests. At most :data:`IN_FLIGHT` wait for their acknowledgement.
        """
        began = time.perf_counter()
        self._filled = 0
        waiting = 0
        for frame in frames:
            if waiting == IN_FLIGHT:
                self._take_acknowledgement()
                waiting -= 1
            self._socket.sendall(frame)
            waiting += 1
        for _ in range(waiting):
            self._take_acknowledgement()
        return time.perf_counter() - began

    def _take_acknowledgement(self) -> None:
        self._fill(4)
        size = 4 + int.from_bytes(self._memory[:4], "big")
        self._fill(size)
        # before the error code: size, correlation id, one topic, its name, one partition and its number
        at = 4 + 4 + 4 + (2 + len(self._topic.encode())) + 4 + 4
        error = int.from_bytes(self._memory[at : at + 2], "big")
        assert error == 0, f"refused with error {error}"
        self._memory[: self._filled - size] = bytes(self._memory[size : self._filled])
        self._filled -= size
