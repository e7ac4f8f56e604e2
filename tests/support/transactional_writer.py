# SPDX-License-Identifier: Apache-2.0
"""A mirror in miniature that kills itself: numbers into a topic, and its position, in one transaction each.

    python -m tests.support.transactional_writer BOOTSTRAP TOPIC UNTIL [REQUEST MOMENT NTH]

It begins with its producer id, then reads its position, and goes on from there: number N goes to partition N modulo 2,
and the position after each transaction to partition 2. It commits a group's offset, too, so that all requests of a
transaction are made. With a kill point it ends itself by SIGKILL at the NTH request of that kind: ``before`` its frame is
written, ``after`` it, or ``answered``, when the response is there and nothing was made of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ForeignPartition

from consumerd.access.address import parse_bootstrap
from consumerd.client.opening import run_producer
from consumerd.client.producer import Producer
from consumerd.client.producer_settings import ProducerSettings
from consumerd.cluster.view import Broker
from consumerd.errors import ConsumerdError
from consumerd.model import BrokerId, TopicPartition
from consumerd.net.address import Address
from consumerd.net.dialer import Dialer
from consumerd.net.pool import ConnectionPool
from consumerd.net.stream import FrameReceiver, Stream, TcpConnector
from consumerd.wire.apikeys import ApiKey

PARTITIONS: Final = 2
"""Partitions of the numbers."""
POSITIONS: Final = 2
"""Partition of the positions."""
PER_TRANSACTION: Final = 6
MOMENTS: Final = ("before", "after", "answered")
REQUESTS: Final = ("INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN", "PRODUCE", "ADD_OFFSETS_TO_TXN", "TXN_OFFSET_COMMIT",
                   "END_TXN")  # fmt: skip
_API_KEY_AT: Final = slice(4, 6)


@dataclass
class KillPoint:
    """Where the process ends."""

    api: ApiKey
    moment: str
    left: int

    def pass_by(self, api: int, moment: str) -> None:
        """End the process if it is here, and the last time."""
        if (api, moment) == (self.api, self.moment):
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


class DeadlyStream:
    """A stream, and the receiver of its frames, that passes the kill point by."""

    def __init__(self, receiver: FrameReceiver, point: KillPoint) -> None:
        self.stream: Stream | None = None
        self._receiver = receiver
        self._point = point
        self._asked: deque[int] = deque()

    def write(self, data: bytes) -> None:
        """See Stream."""
        assert self.stream is not None
        api = int.from_bytes(data[_API_KEY_AT])
        self._asked.append(api)
        self._point.pass_by(api, "before")
        self.stream.write(data)
        self._point.pass_by(api, "after")

    async def drain(self) -> None:
        """See Stream."""
        assert self.stream is not None
        await self.stream.drain()

    def close(self) -> None:
        """See Stream."""
        assert self.stream is not None
        self.stream.close()

    async def wait_closed(self) -> None:
        """See Stream."""
        assert self.stream is not None
        await self.stream.wait_closed()

    def frame_received(self, body: memoryview) -> None:
        """See FrameReceiver."""
        self._point.pass_by(self._asked.popleft(), "answered")
        self._receiver.frame_received(body)

    def stream_closed(self, cause: ConsumerdError) -> None:
        """See FrameReceiver."""
        self._receiver.stream_closed(cause)


class DeadlyConnector:
    """Opens streams that pass the kill point by."""

    def __init__(self, point: KillPoint) -> None:
        self._connector = TcpConnector(max_frame_bytes=1 << 24)
        self._point = point

    async def __call__(self, address: Address, receiver: FrameReceiver) -> Stream:
        """See StreamConnector."""
        deadly = DeadlyStream(receiver, self._point)
        deadly.stream = await self._connector(address, deadly)
        return deadly


def group_of(topic: str) -> str:
    """Return the group whose offset is committed with each transaction."""
    return f"offset-of-{topic}"


def read_position(bootstrap: str, topic: str) -> int:
    """Return the number to go on with: the last committed position, as librdkafka reads it."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    position = 0
    try:
        consumer.assign([ForeignPartition(topic, POSITIONS, 0)])
        while (message := consumer.poll(30)) is not None:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return position
            if error is None:
                position = int(message.value() or b"0")
        raise RuntimeError(f"{topic}/{POSITIONS}: not read to its end within 30 s")
    finally:
        consumer.close()


async def write(producer: Producer, bootstrap: str, topic: str, until: int) -> None:
    """Write what is left, six numbers a transaction."""
    await producer.init_transactions()
    position = await asyncio.to_thread(read_position, bootstrap, topic)
    while position < until:
        producer.begin_transaction()
        following = min(position + PER_TRANSACTION, until)
        for number in range(position, following):
            await producer.enqueue(topic, b"%d" % number, partition=number % PARTITIONS)
        await producer.enqueue(topic, b"%d" % following, partition=POSITIONS)
        await producer.send_offsets_to_transaction({TopicPartition.modern(topic, 0): following}, group_of(topic))
        await producer.commit_transaction()
        position = following


async def main(bootstrap: str, topic: str, until: int, point: KillPoint) -> None:
    """Run the writer."""
    dialer = Dialer(DeadlyConnector(point), client_id="writer", now=time.monotonic)
    brokers = [
        Broker(id=BrokerId(-1 - number), host=one.host, port=one.port)
        for number, one in enumerate(parse_bootstrap(bootstrap))
    ]
    settings = ProducerSettings(transactional_id=f"writer-of-{topic}")
    async with (
        ConnectionPool(dialer, now=time.monotonic, random=random.random) as pool,
        run_producer(pool, lambda: brokers, settings=settings) as producer,
    ):
        await write(producer, bootstrap, topic, until)


if __name__ == "__main__":
    _, servers, name, last, *where = sys.argv
    nowhere = KillPoint(ApiKey.API_VERSIONS, "never", 0)
    here = KillPoint(ApiKey[where[0]], where[1], int(where[2])) if where else nowhere
    asyncio.run(main(servers, name, int(last), here))
