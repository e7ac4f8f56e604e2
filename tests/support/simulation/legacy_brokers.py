# SPDX-License-Identifier: Apache-2.0
"""Brokers of Kafka 0.7 on virtual time: the embedded broker's logs and handlers, its registration, and the network.

A broker has its own partitions ``B-P``. While it is away, its nodes are gone, and its partitions with them. It comes
back with its logs, or with none. :class:`StoredLog` knows what was produced; nobody else does.

Members reach brokers by real connections over streams in memory. A request reaches the broker while its member is
stopped, too; the answer waits for the member.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from consumerd.embedded.appending import Appender
from consumerd.embedded.handlers.context import ConnectionRefused
from consumerd.embedded.legacy.byte_log import DEFAULT_SETTINGS
from consumerd.embedded.legacy.byte_logs import ByteLogs
from consumerd.embedded.legacy.registration import encode_legacy_broker
from consumerd.embedded.legacy.requests import LegacyHandlers, PartitionCounts
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.reply import FileRange
from consumerd.embedded.znodes import BrokerAddress
from consumerd.errors import ConnectionLost, ConsumerdError, RemoteProtocolError
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.address import Address
from consumerd.net.frames import FrameAssembler
from consumerd.net.stream import FrameReceiver, Stream
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.message_set import build_message_set, compress_message_set
from consumerd.wire.legacy.session import read_legacy_request
from consumerd.zk.layout import broker_path, topic_path
from consumerd.zk.layout_legacy import topic_broker_path
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.faulty_log_files import MemoryLogFiles
from tests.support.simulation.brokers import Log
from tests.support.simulation.processes import Process, World
from tests.support.streams import receive

_FOLDER: Final = Path("/logs")
_PORT: Final = 9092
_SESSION_S: Final = 6.0
"""Time after which the nodes of a broker that was killed are gone."""
_CONNECT_S: Final = 1.0
"""Time limit of an attempt to connect to a broker that does not answer."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of a log: the offset of its message, its index in there, the message's end, and its value."""

    offset: int
    index: int
    following: int
    value: bytes


class StoredLog(Log):
    """What was produced to one partition. ``cuts`` has an entry for each time that its broker was wiped.

    ``end`` is the end of what readers see. A *life* is the log between two wipes, by number from 0 on.
    """

    def __init__(self, czxid: int) -> None:
        super().__init__(czxid)
        self.written = 0
        """End of what was appended, flushed or not."""
        self._lives: list[list[StoredRecord]] = [[]]

    @property
    def life(self) -> int:
        """Number of the present life."""
        return len(self.cuts)

    def add(self, records: Sequence[StoredRecord], end: int) -> None:
        """Add what was appended."""
        self._lives[-1] += records
        self.written = end

    def show(self, end: int) -> None:
        """Let readers see the log up to ``end``, where a message must end."""
        assert end == 0 or any(one.following == end for one in self._lives[-1]), f"no message ends at {end}"
        self.end = end

    def recover(self, end: int) -> None:
        """Lose what was not flushed, after ``end``."""
        assert end >= self.end, f"what readers saw up to {self.end} is lost from {end} on"
        self._lives[-1] = [one for one in self._lives[-1] if one.following <= end]
        self.written = end
        self.show(end)

    def wipe(self) -> None:
        """Lose everything."""
        self.cuts.append(0)
        self._lives.append([])
        self.end = self.written = 0

    def list_visible(self) -> list[StoredRecord]:
        """Return the records that readers can see now."""
        return [one for one in self._lives[-1] if one.following <= self.end]

    def list_between(self, life: int, start: int, end: int) -> list[StoredRecord]:
        """Return the records of one life whose messages begin within ``[start, end)``."""
        return [one for one in self._lives[life] if start <= one.offset < end]

    def has_boundary(self, life: int, position: int) -> bool:
        """Return True if a message begins or ends at a position."""
        return position == 0 or any(one.following == position for one in self._lives[life])


class SimulatedBroker:
    """One broker: its logs, whether it is there, and the streams to it."""

    def __init__(self, number: int, counts: PartitionCounts, settings: LogSettings, shared: LegacyBrokers) -> None:
        self.id = BrokerId(number)
        self.address = BrokerAddress(broker_id=self.id, host=f"broker{number}", port=_PORT)
        self.counts = counts
        self.is_up = False
        self.streams: list[_SimulatedStream] = []
        self.logs: ByteLogs
        self.handlers: LegacyHandlers
        self._settings = settings
        self._shared = shared
        self._files = MemoryLogFiles(shared.chance)
        self._starts = 0

    def start(self) -> None:
        """Open the logs, and register the broker and its topics."""
        shared = self._shared
        self._files.now_ms = shared.now_ms
        self.logs = ByteLogs.open(_FOLDER, self.id, settings=self._settings, files=self._files, now_ms=shared.now_ms)
        self.handlers = LegacyHandlers(
            self.logs, self.counts, Appender(), choose=shared.chance.randrange, has_topic=lambda _: None
        )
        for log in self.logs.logs():
            shared.stored[log.partition].recover(log.end_offset)
        self.is_up = True
        self._starts += 1
        self._unregister()
        started_ms = shared.now_ms()
        shared.server.put(broker_path(self.id), encode_legacy_broker(self.address, started_ms=started_ms))
        for topic in sorted(self.logs.topics()):
            self.register(topic)

    def stop(self) -> None:
        """Stop it cleanly: the logs are flushed, and the nodes are gone at once."""
        self.logs.close()
        self._files.kill()
        self._unregister()
        self._go()

    def kill(self, *, with_power: bool) -> None:
        """Kill it, perhaps by cutting its power: its nodes stay until its session is over."""
        if with_power:
            self._files.cut_power()
            self._files.restore()
        else:
            self._files.kill()
        main = self._shared.world.main
        starts = self._starts

        def end_session() -> None:
            if self._starts == starts:
                self._unregister()

        main.call_later(self._shared.chance.uniform(0.5, 1.3) * _SESSION_S, end_session)
        self._go()

    def wipe(self) -> None:
        """Lose all logs, while it is away."""
        self._files = MemoryLogFiles(self._shared.chance)
        for partition, log in self._shared.stored.items():
            if partition.partition.broker == self.id:
                log.wipe()

    def register(self, topic: str) -> None:
        """Register a topic, whose partitions are all there then, with or without a log."""
        count, shared = self.counts.get(topic), self._shared
        shared.server.put(topic_broker_path(topic, self.id), b"%d" % count)
        node = shared.server.read(topic_path(topic))
        assert node is not None
        for number in range(count):
            partition = self.logs.key(topic, number)
            if partition not in shared.stored:
                shared.stored[partition] = StoredLog(node[1].czxid)
                shared.created(partition, shared.stored[partition])

    def read(self, piece: object) -> bytes:
        """Return the bytes of a piece of a response."""
        if isinstance(piece, FileRange):
            return self._files.read(piece.descriptor, piece.position, piece.size)
        assert isinstance(piece, (bytes, memoryview))
        return bytes(piece)

    def _go(self) -> None:
        self.is_up = False
        streams, self.streams = self.streams, []
        for stream in streams:
            stream.hang_up()

    def _unregister(self) -> None:
        server = self._shared.server
        for topic in self._shared.topics:
            server.remove(topic_broker_path(topic, self.id))
        server.remove(broker_path(self.id))


class LegacyBrokers:
    """All brokers of a story.

    Args:
        stored: The logs by partition, to be filled.
        topics: Names of the topics.
        created: Called with each partition that is registered for the first time.
        latency_s: Shortest and longest time that a message travels.
    """

    def __init__(
        self,
        world: World,
        server: FakeZooKeeper,
        chance: random.Random,
        *,
        stored: dict[TopicPartition, StoredLog],
        topics: Sequence[str],
        created: Callable[[TopicPartition, StoredLog], None],
        latency_s: tuple[float, float],
    ) -> None:
        self.world = world
        self.server = server
        self.chance = chance
        self.stored = stored
        self.topics = topics
        self.latency_s = latency_s
        self.created = created
        self._serial = 0
        settings = replace(
            DEFAULT_SETTINGS,
            segment_bytes=chance.choice([200, 600, 1 << 20]),
            flush_messages=chance.choice([1, 3]),
            flush_interval_ms=400,
            retention_ms=None,
        )
        numbers = sorted(chance.sample([0, 1, 2, 10], chance.randint(2, 3)))
        self.brokers = {
            number: SimulatedBroker(
                number, PartitionCounts(1, {topic: self._draw_count() for topic in topics}), settings, self
            )
            for number in numbers
        }

    def _draw_count(self) -> int:
        # with more than ten partitions, their order as text is not that of their numbers
        return 11 if self.chance.random() < 0.05 else self.chance.randint(1, 3)

    def now_ms(self) -> int:
        """Return the time in ms."""
        return int(self.world.now * 1000)

    def draw_latency(self) -> float:
        """Return how long a message travels."""
        return self.chance.uniform(*self.latency_s)

    def list_up(self) -> list[SimulatedBroker]:
        """Return the brokers that are there."""
        return [one for one in self.brokers.values() if one.is_up]

    def produce(self, partition: TopicPartition, sets: int, *, below: float = math.inf) -> None:
        """Append message sets, of all kinds, to a partition whose broker is up; none that does not end ``below``."""
        assert partition.partition.broker is not None
        broker = self.brokers[partition.partition.broker]
        is_new = not broker.logs.has_topic(partition.topic)
        log = broker.logs.get_or_create(partition)
        if is_new:
            broker.register(partition.topic)
        stored = self.stored[partition]
        for _ in range(sets):
            messages, sizes = self._build(partition, stored.life)
            records, start = [], stored.written
            for size, values in sizes:
                records += [StoredRecord(start, row, start + size, value) for row, value in enumerate(values)]
                start += size
            if start >= below:
                continue
            assert log.append(messages) == start - stored.written
            stored.add(records, start)
        stored.show(log.end_offset)

    def _build(self, partition: TopicPartition, life: int) -> tuple[bytes, list[tuple[int, list[bytes]]]]:
        """Return a message set, and of each message its size and the values in it."""
        chance = self.chance
        values = [self._make_value(partition, life) for _ in range(chance.randint(1, 5))]
        kind = chance.choice(["plain", "plain", "gzip", "snappy", "nested"])
        if kind == "plain":
            magic = chance.choice([0, 1])
            each = [build_message_set([value], magic=magic) for value in values]
            return b"".join(each), [(len(one), [value]) for one, value in zip(each, values, strict=True)]
        codec = Codec.SNAPPY if kind == "snappy" else Codec.GZIP
        inner = build_message_set(values[:2], codec=codec if kind == "nested" else Codec.NONE)
        whole = compress_message_set(inner + build_message_set(values[2:]), codec)
        return whole, [(len(whole), values)]

    def _make_value(self, partition: TopicPartition, life: int) -> bytes:
        self._serial += 1
        padding = "." * self.chance.choice([0, 0, 20, 150])
        return f"{partition} {life} {self._serial} {padding}".encode()

    def flush_due(self) -> None:
        """Flush what is due by time."""
        self._flush(lambda log: log.flush_if_due())

    def flush_all(self) -> None:
        """Flush everything."""
        self._flush(lambda log: log.flush())

    def _flush(self, flush: Callable[..., None]) -> None:
        for broker in self.list_up():
            for log in broker.logs.logs():
                flush(log)
                self.stored[log.partition].show(log.end_offset)


class Network:
    """One process's way to the brokers. See StreamConnector."""

    def __init__(self, brokers: LegacyBrokers, process: Process) -> None:
        self.brokers = brokers
        self.process = process
        self.is_cut = False

    async def __call__(self, address: Address, receiver: FrameReceiver) -> Stream:
        """Connect. Raises ConnectionLost."""
        await asyncio.sleep(self.brokers.draw_latency())
        broker = next(one for one in self.brokers.brokers.values() if one.address.host == address.host)
        if self.is_cut:
            await asyncio.sleep(_CONNECT_S)
        if self.is_cut or not broker.is_up:
            raise ConnectionLost(f"{address}: connection refused")
        stream = _SimulatedStream(self, broker, address, receiver)
        broker.streams.append(stream)
        return stream

    def cut(self) -> None:
        """Let nothing through, either way."""
        self.is_cut = True

    def heal(self) -> None:
        """Let new connections through; the old ones are broken."""
        if self.is_cut:
            self.is_cut = False
            for broker in self.brokers.brokers.values():
                for stream in [one for one in broker.streams if one.network is self]:
                    stream.hang_up()


class _SimulatedStream:
    """See Stream. The broker answers the requests one after the other."""

    def __init__(self, network: Network, broker: SimulatedBroker, address: Address, receiver: FrameReceiver) -> None:
        self.network = network
        self._broker = broker
        self._address = address
        self._receiver = receiver
        self._closed = False
        self._hung_up = False
        self._requests = FrameAssembler(1 << 31)
        self._backlog: deque[bytes] = deque()
        self._serving = False
        self._outbound_at = self._inbound_at = 0.0

    # -- the member's side

    def write(self, data: bytes) -> None:
        for body in receive(self._requests, data, len(data)):
            if not self._closed:
                main = self.network.brokers.world.main
                self._outbound_at = max(self._outbound_at, main.time() + self.network.brokers.draw_latency())
                main.call_at(self._outbound_at, self._arrive, bytes(body))

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        self._end(ConnectionLost(f"{self._address}: closed by us"))

    async def wait_closed(self) -> None:
        pass

    def _end(self, cause: ConsumerdError) -> None:
        if not self._closed:
            self._closed = True
            self._receiver.stream_closed(cause)

    def _receive(self, data: bytes) -> None:
        if not self._closed and not self.network.is_cut:
            for body in receive(FrameAssembler(1 << 31), data, len(data)):
                self._receiver.frame_received(body)

    # -- the broker's side

    def hang_up(self) -> None:
        """Close the connection from the broker's side."""
        if not self._hung_up:
            self._hung_up = True
            if self in self._broker.streams:
                self._broker.streams.remove(self)
            self._send(self._end, ConnectionLost(f"{self._address}: closed by the broker"))

    def _send(self, act: Callable[..., None], *args: object) -> None:
        """Let something travel to the member, behind all that is on its way."""
        process = self.network.process
        self._inbound_at = max(self._inbound_at, process.time() + self.network.brokers.draw_latency())
        process.call_at(self._inbound_at, act, *args)

    def _arrive(self, body: bytes) -> None:
        if self.network.is_cut or self._hung_up:
            return
        self._backlog.append(body)
        if not self._serving:
            self._serving = True
            self.network.brokers.world.main.create_task(self._serve())

    async def _serve(self) -> None:
        broker = self._broker
        while self._backlog and not self._hung_up:
            body = self._backlog.popleft()
            try:
                reply = await broker.handlers.respond(read_legacy_request(body))
            except (ConnectionRefused, RemoteProtocolError):
                self.hang_up()
                break
            if reply is not None and not self._hung_up:
                data = b"".join(map(broker.read, reply.pieces))
                reply.close()
                self._send(self._receive, data)
        self._serving = False
