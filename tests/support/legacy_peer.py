# SPDX-License-Identifier: Apache-2.0
"""Brokers of Kafka 0.7 in memory, which answer as the recorded ones do, and a fetcher on them.

For virtual time. A test compares the answers of :class:`LegacyPeer` with all that was recorded.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from consumerd.aio.cell import Cell
from consumerd.client.legacy_fetch import LegacyFetchProtocol
from consumerd.client.legacy_offsets import LegacyOffsetLookup
from consumerd.client.log_range import LogRangeReader
from consumerd.cluster.view import Broker, ClusterView, PartitionView, TopicView
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.fetcher import Fetcher
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.net.legacy_dialer import LegacyDialer
from consumerd.net.pool import ConnectionPool
from consumerd.telemetry.hooks import Hooks
from consumerd.wire.legacy.messages import (
    EARLIEST_TIME,
    LATEST_TIME,
    LegacyErrorCode,
    LegacyFetchRequest,
    LegacyFetchResponse,
    LegacyMultiFetchRequest,
    LegacyMultiFetchResponse,
    LegacyOffsetsRequest,
    LegacyOffsetsResponse,
)
from consumerd.wire.legacy.session import encode_legacy_response, read_legacy_request
from consumerd.wire.legacy.stored_message import encode_message
from tests.support.cluster import make_broker
from tests.support.legacy_frames import load_exchanges
from tests.support.scripted_broker import FakeNetwork, Reaction

ONE_BYTE_FRAME: Final = bytes.fromhex("0000000100")
"""Recorded answer to a FETCH of -1 bytes."""


class LegacyLog:
    """The log of one partition: segments of bytes, from byte offset ``start`` on."""

    def __init__(self, data: bytes = b"", *, start: int = 0) -> None:
        self.starts = [start]
        self.modified_ms = [0]
        self.data = bytearray(data)

    @property
    def start(self) -> int:
        """Offset of the first byte."""
        return self.starts[0]

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.start + len(self.data)

    def append(self, data: bytes, *, time_ms: int = 0) -> None:
        """Append bytes to the last segment."""
        self.data += data
        self.modified_ms[-1] = time_ms

    def roll(self) -> None:
        """Begin a new segment at the end."""
        self.starts.append(self.end)
        self.modified_ms.append(self.modified_ms[-1])

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes from ``offset`` up to the end of its segment, at most ``size``."""
        place = bisect_right(self.starts, offset)
        end = self.starts[place] if place < len(self.starts) else self.end
        return bytes(self.data[offset - self.start : min(end, offset + size) - self.start])

    def list_offsets(self, time: int, count: int, now_ms: int) -> list[int]:
        """Return what OFFSETS of this time returns."""
        if time == EARLIEST_TIME:
            return [self.start][:count]
        # the log end counts as a segment that is modified now
        ends = [*zip(self.starts, self.modified_ms, strict=True), (self.end, now_ms)]
        found = [offset for offset, modified in ends if time == LATEST_TIME or modified <= time]
        return found[::-1][:count]


class LegacyPeer:
    """One broker of Kafka 0.7.2. Topics have the partitions from 0 to ``partitions - 1``."""

    def __init__(self, *, partitions: int = 3, delay_s: float = 0.0) -> None:
        self.logs: dict[tuple[str, int], LegacyLog] = {}
        self.requests: list[tuple[float, Any]] = []
        self.now_ms = 0
        self.delay_s = delay_s
        self.silent = False
        self.codes: dict[tuple[str, int], int] = {}
        """Error codes that a FETCH of a partition is answered with."""
        self.is_jafka = False
        """OFFSETS of a topic without a log has no offsets."""
        self.lies = False
        """OFFSETS closes the connection, though FETCH knows the partition."""
        self._partitions = partitions

    @classmethod
    def from_recordings(cls) -> LegacyPeer:
        """Return a broker with the logs that the recorded Kafka 0.7.2 had."""
        peer = cls()
        for one in load_exchanges():
            if one.name.startswith("k072_fetch") and one.response is not None and not one.is_malformed_response:
                request = read_legacy_request(one.request[4:])
                assert isinstance(request, LegacyFetchRequest)
                answer = request.decode_response(0, memoryview(one.response)[4:])
                if answer.messages and request.offset == 0 and request.max_size >= 1000:
                    peer.log(request.topic, request.partition).data[:] = answer.messages
        segments = peer.logs["vKAFasegs", 0] = LegacyLog()
        for number in range(120):
            if number in (40, 80):
                segments.roll()
            segments.append(encode_message(b"%04d" % number + b"x" * 46))
        segments.modified_ms = [0x1A1FD99397D, 0x1A1FD99397E, 0x1A1FD99397F]
        peer.now_ms = 0x1A1FD996123
        return peer

    def log(self, topic: str, number: int) -> LegacyLog:
        """Return a partition's log; it is created if there is none."""
        return self.logs.setdefault((topic, number), LegacyLog())

    def asked(self, kind: type[Any]) -> list[Any]:
        """Return the requests of one kind so far."""
        return [request for _, request in self.requests if isinstance(request, kind)]

    @property
    def fetch_times(self) -> list[float]:
        """Times of the MULTIFETCH requests so far."""
        return [at for at, request in self.requests if isinstance(request, LegacyMultiFetchRequest)]

    def react(self, body: bytes) -> tuple[bytes | Reaction, float, bool]:
        """Take a request's frame body; return what to send, after how long, and whether to close then."""
        request = read_legacy_request(body)
        self.requests.append((asyncio.get_running_loop().time(), request))
        return (Reaction.SILENT if self.silent else self._answer(request)), self.delay_s, False

    def _answer(self, request: object) -> bytes | Reaction:
        if isinstance(request, LegacyFetchRequest):
            return ONE_BYTE_FRAME if request.max_size < 0 else encode_legacy_response(self._fetch(request))
        if isinstance(request, LegacyMultiFetchRequest):
            return encode_legacy_response(LegacyMultiFetchResponse(responses=tuple(map(self._fetch, request.requests))))
        if isinstance(request, LegacyOffsetsRequest):
            return self._list_offsets(request)
        return Reaction.CLOSE

    def _fetch(self, request: LegacyFetchRequest) -> LegacyFetchResponse:
        key = (request.topic, request.partition)
        log = self.logs.get(key)
        if code := self.codes.get(key, 0):
            return LegacyFetchResponse(error_code=code)
        if "/" in request.topic:
            return LegacyFetchResponse(error_code=LegacyErrorCode.UNKNOWN)
        if not 0 <= request.partition < self._partitions:
            return LegacyFetchResponse(error_code=LegacyErrorCode.WRONG_PARTITION)
        if log is None:
            return LegacyFetchResponse()
        if not log.start <= request.offset <= log.end:
            return LegacyFetchResponse(error_code=LegacyErrorCode.OFFSET_OUT_OF_RANGE)
        return LegacyFetchResponse(messages=log.read(request.offset, request.max_size))

    def _list_offsets(self, request: LegacyOffsetsRequest) -> bytes | Reaction:
        if self.lies or not 0 <= request.partition < self._partitions or request.max_number < 0:
            return Reaction.CLOSE
        log = self.logs.get((request.topic, request.partition))
        if log is None:
            has_ends = request.time in (EARLIEST_TIME, LATEST_TIME) and not self.is_jafka
            offsets = [0] if has_ends else []
        else:
            offsets = log.list_offsets(request.time, request.max_number, self.now_ms)
        return encode_legacy_response(LegacyOffsetsResponse(offsets=tuple(offsets)))


class LegacyCluster:
    """Brokers of Kafka 0.7 and the directory of their partitions; broker ``B`` has the partitions ``B-P``."""

    def __init__(self, *peers: LegacyPeer) -> None:
        self.peers = peers or (LegacyPeer(),)
        self.network = FakeNetwork()
        self.network.brokers.update({make_broker(number).address: peer for number, peer in enumerate(self.peers)})
        self.views: Cell[ClusterView] = Cell(ClusterView())
        self.refreshes: list[str] = []

    def announce(self, *partitions: TopicPartition) -> None:
        """Put partitions into the view; each is led by the broker that its key names."""
        topics: dict[str, dict[PartitionKey, PartitionView]] = {}
        for one in partitions:
            topics.setdefault(one.topic, {})[one.partition] = PartitionView(leader=one.partition.broker)
        self.views.set(
            ClusterView(
                brokers={BrokerId(number): make_broker(number) for number in range(len(self.peers))},
                topics={name: TopicView(name=name, partitions=views) for name, views in topics.items()},
            )
        )

    def find_leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker in the partition's key, if the partition is in the view."""
        return self.views.value.find_leader(partition)

    def request_refresh(self, reason: str) -> None:
        """Note the reason: nothing changes."""
        self.refreshes.append(reason)

    async def refresh(self, reason: str) -> ClusterView:
        """Return the view: nothing changes."""
        self.refreshes.append(reason)
        await asyncio.sleep(0.01)
        return self.views.value

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ConnectionPool]:
        """Run a pool of connections to the brokers while the block runs."""
        now = asyncio.get_running_loop().time
        async with ConnectionPool(LegacyDialer(self.network, now=now), now=now, random=lambda: 0.0) as pool:
            yield pool

    def read_ranges(self, pool: ConnectionPool, *, timeout_s: float = 30.0) -> LogRangeReader:
        """Return the reader of log ranges."""
        return LogRangeReader(
            pool, self, random=lambda: 0.0, timeout_s=timeout_s, lookup=LegacyOffsetLookup(pool, request_timeout_s=5.0)
        )

    @asynccontextmanager
    async def reading(
        self, *partitions: TopicPartition, hooks: Hooks | None = None, **settings: Any
    ) -> AsyncIterator[tuple[Fetcher, LogRangeReader]]:
        """Run a fetcher while the block runs, as :meth:`fetching`; give the reader of log ranges with it."""
        async with self.fetching(*partitions, hooks=hooks, **settings) as fetcher, self.connect() as pool:
            yield fetcher, self.read_ranges(pool, timeout_s=5.0)

    @asynccontextmanager
    async def fetching(
        self, *partitions: TopicPartition, hooks: Hooks | None = None, **settings: Any
    ) -> AsyncIterator[Fetcher]:
        """Run a fetcher while the block runs, by the loop's clock; it decodes on the loop."""
        self.announce(*partitions)
        now = asyncio.get_running_loop().time
        async with self.connect() as pool:
            fetcher = Fetcher(
                settings=FetchSettings(**{"native_thread_bytes": 1 << 30, **settings}),
                budget=MemoryBudget(64 << 20),
                leaders=self,
                protocol=LegacyFetchProtocol(pool),
                log_ranges=self.read_ranges(pool, timeout_s=5.0),
                hooks=hooks or Hooks(),
                now=now,
                random=lambda: 0.0,
            )
            async with asyncio.TaskGroup() as group:
                running = group.create_task(fetcher.run())
                yield fetcher
                running.cancel()


def legacy_partition(topic: str, number: int, broker: int = 0) -> TopicPartition:
    """Return the partition ``broker-number`` of a topic."""
    return TopicPartition(topic, PartitionKey(number, BrokerId(broker)))


def encode_messages(payloads: Sequence[bytes]) -> bytes:
    """Return plain messages of magic 1."""
    return b"".join(encode_message(payload) for payload in payloads)
