# SPDX-License-Identifier: Apache-2.0
"""A broker of its own process whose partitions never end, so that its memory does not count as the daemon's.

``python -m tests.support.endless_broker ZOOKEEPER PARTITIONS CODEC`` registers itself and the topic ``endless`` in
ZooKeeper and serves until it is ended. Every offset of every partition is one record of 1 MiB in a batch of its own,
which a codec packs about 100 to 1 (snappy, which can do no better, 20 to 1); ``bomb`` is one whose batch is of 1 MiB
*after* the packing.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
from contextlib import AsyncExitStack
from typing import Final

from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.checksum import crc32c
from consumerd.wire.compression import Codec
from consumerd.wire.modern.fetch import FetchedPartition, FetchedTopic, FetchRequest, FetchResponse
from consumerd.wire.modern.list_offsets import (
    EARLIEST_TIMESTAMP,
    ListedPartition,
    ListedTopic,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from consumerd.wire.modern.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from consumerd.zk.layout import broker_path, topic_path
from consumerd.zk.layout_modern import partition_state_path
from tests.support.record_sets import RecordSpec, batch
from tests.support.scripted_broker import ScriptedBroker, ScriptedServer
from tests.support.zookeeper import make_client

TOPIC: Final = "endless"
MESSAGE_BYTES: Final = 1 << 20
BOMB: Final = "bomb"
_END: Final = 1 << 40
_CHECKSUM_AT: Final = 17
_CHECKED_FROM: Final = 21
_NOISE_BYTES: Final = 9000
"""What no codec can pack; the rest of a value is zeros."""


def make_unit(codec: str) -> bytes:
    """Return the batch that every offset holds, as if at offset 0; no checksum covers the base offset."""
    noise = random.Random(7)
    if codec == BOMB:
        size, number = 100 * MESSAGE_BYTES, int(Codec.GZIP)
        value = noise.randbytes(900_000) + bytes(size - 900_000)
    else:
        number = int(Codec[codec.upper()])
        size = MESSAGE_BYTES
        value = (
            noise.randbytes(size)
            if number == Codec.NONE
            else noise.randbytes(_NOISE_BYTES) + bytes(size - _NOISE_BYTES)
        )
    unit = batch(0, [RecordSpec(delta=0, value=value)], codec=number, crc=0)
    return unit[:_CHECKSUM_AT] + struct.pack(">I", crc32c(unit[_CHECKED_FROM:])) + unit[_CHECKED_FROM:]


class EndlessBroker:
    """Answers Metadata, ListOffsets and Fetch for one topic, all of whose partitions it leads."""

    def __init__(self, partitions: int, unit: bytes) -> None:
        self._partitions = partitions
        self._unit = unit
        self.port = 0

    def script(self) -> ScriptedBroker:
        """Return the handlers, with the versions of a broker of 1.0 but for fetch sessions."""
        return ScriptedBroker(
            handlers={MetadataRequest: self._metadata, ListOffsetsRequest: self._offsets, FetchRequest: self._fetch},
            ranges={ApiKey.API_VERSIONS: (0, 0), ApiKey.METADATA: (0, 5), ApiKey.LIST_OFFSETS: (0, 2), ApiKey.FETCH: (0, 6)},
        )  # fmt: skip

    def _metadata(self, _request: MetadataRequest, _version: int) -> MetadataResponse:
        here = (0,)
        found = (
            MetadataPartition(partition=number, leader=0, replicas=here, isr=here) for number in range(self._partitions)
        )
        return MetadataResponse(
            brokers=(MetadataBroker(node_id=0, host="127.0.0.1", port=self.port),),
            topics=(MetadataTopic(topic=TOPIC, partitions=tuple(found)),),
        )

    def _offsets(self, request: ListOffsetsRequest, _version: int) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=tuple(
                ListedTopic(
                    topic=topic.topic,
                    partitions=tuple(
                        ListedPartition(
                            partition=one.partition, offset=0 if one.timestamp == EARLIEST_TIMESTAMP else _END
                        )
                        for one in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def _fetch(self, request: FetchRequest, _version: int) -> FetchResponse:
        room = request.max_bytes
        topics = []
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                count = max(0, min(one.partition_max_bytes, room) // len(self._unit))
                if room == request.max_bytes:
                    count = max(1, count)  # KIP-74: the first message comes whatever its size
                room -= count * len(self._unit)
                answers.append(
                    FetchedPartition(
                        partition=one.partition,
                        high_watermark=_END,
                        last_stable_offset=_END,
                        log_start_offset=0,
                        record_set=b"".join(self._at(one.fetch_offset + index) for index in range(count)),
                    )
                )
            topics.append(FetchedTopic(topic=topic.topic, partitions=tuple(answers)))
        return FetchResponse(topics=tuple(topics))

    def _at(self, offset: int) -> bytes:
        return struct.pack(">q", offset) + self._unit[8:]


async def serve(zookeeper: str, partitions: int, codec: str) -> None:
    """Register and serve until cancelled."""
    broker = EndlessBroker(partitions, make_unit(codec))
    script = broker.script()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ScriptedServer(script))
        broker.port = server.port
        zk = await stack.enter_async_context(make_client(zookeeper))
        await zk.wait_connected()
        state = json.dumps({"controller_epoch": 1, "leader": 0, "version": 1, "leader_epoch": 0, "isr": [0]}).encode()
        assigned = {str(number): [0] for number in range(partitions)}
        await zk.ensure_path(topic_path(TOPIC), json.dumps({"version": 1, "partitions": assigned}).encode())
        for number in range(partitions):
            await zk.ensure_path(partition_state_path(TopicPartition.modern(TOPIC, number)), state)
        registration = {
            "jmx_port": -1, "timestamp": "1", "host": "127.0.0.1", "version": 4, "port": server.port,
            "endpoints": [f"PLAINTEXT://127.0.0.1:{server.port}"],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        }  # fmt: skip
        await zk.ensure_path(broker_path(BrokerId(0)), json.dumps(registration).encode())
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            await asyncio.sleep(1)
            script.requests.clear()
            script.correlation_ids.clear()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
