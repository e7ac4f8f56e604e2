# SPDX-License-Identifier: Apache-2.0
"""Fast filling of topics with batches that Kafka's own producer has made.

1. ProducerPerformance of the same release sends the first records: the seed, about 64 MB of values.
2. The stored seed is fetched back from the broker. Its first third is skipped, because the producer's JVM was still
   warming up.
3. The rest is sent again and again, byte for byte, over a pipelined connection. The broker assigns the offsets.

All batches, wrapper messages and compressed blocks are therefore those of a Java producer, but sixteen million records
take only seconds.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.cases import Filling, Payload
from bench.payloads import documents
from bench.pipelined import Connection
from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.session import encode_request
from tests.support.kafka import Cluster, parse_release

Unit = tuple[int, bytes]
"""A batch, message or wrapper message: the offset after its last record, and its bytes."""

_SEED_BYTES: Final = 64_000_000
_SEED_DOCUMENTS: Final = 50_000
_REQUEST_BYTES: Final = 256 << 10
_FETCH_BYTES: Final = 8 << 20
_HEAD: Final = struct.Struct(">qi4xb")
"""Offset, size and magic of a unit. They have the same places in message sets and in batches."""
_LAST_DELTA_AT: Final = 23


def fill(cluster: Cluster, filling: Filling, records: int) -> int:
    """Create the topic and fill it; return its number of records.

    All data is on disk when this returns.

    Args:
        records: least number of records that the topic gets.
    """
    cluster.create_topic(filling.topic, filling.partitions)
    value_bytes = 250 if filling.payload is Payload.JSON else filling.value_bytes
    seed = min(records, max(1000, _SEED_BYTES // value_bytes))
    _produce_seed(cluster, filling, seed)
    total = seed
    if records > seed:
        # the producer spread the seed evenly; the units of partition 0 are sent to each partition, in turns
        units = list(_fetch_units(cluster, filling, seed // 3 // filling.partitions))
        requests = [
            one
            for same in zip(
                *(_requests(filling, units, partition) for partition in range(filling.partitions)), strict=True
            )
            for one in same
        ]
        sent = []
        for count, frame in itertools.cycle(requests):
            if total >= records:
                break
            sent.append(frame)
            total += count
        with Connection(cluster.bootstrap, filling.topic) as connection:
            connection.produce(sent)
    # pending disk writes would disturb the first reader
    os.sync()
    return total


def _produce_seed(cluster: Cluster, filling: Filling, records: int) -> None:
    if filling.payload is Payload.REPEATED:
        cluster.perf_produce(filling.topic, records, filling.value_bytes, filling.codec)
        return
    with tempfile.TemporaryDirectory(prefix="consumerd-bench-") as folder:
        path = Path(folder) / "payloads"
        path.write_bytes(b"\n".join(documents(_SEED_DOCUMENTS)))
        cluster.perf_produce(filling.topic, records, codec=filling.codec, payload_file=path)


def _requests(filling: Filling, units: list[Unit], partition: int) -> list[tuple[int, bytes]]:
    """Return produce requests for a partition, each with its number of records.

    They hold all units but the first, whose record count is unknown because its first offset is. The other counts are
    differences of offsets, which have no gaps.
    """
    version = 3 if _has_batches(filling.release) else 2
    requests = []
    begin, _ = units[0]
    piece: list[bytes] = []
    for number, (behind, data) in enumerate(units[1:], 2):
        # a broker accepts a client's batch only with base offset 0; the CRC does not cover that field
        piece.append(bytes(8) + data[8:] if version == 3 else data)
        # a request may hold one batch of magic 2, or any number of messages of magic 0 and 1
        if version == 3 or number == len(units) or sum(map(len, piece)) >= _REQUEST_BYTES:
            produced = ProducePartition(partition=partition, record_set=b"".join(piece))
            topic = ProduceTopic(topic=filling.topic, partitions=(produced,))
            request = ProduceRequest(acks=1, timeout_ms=30_000, topics=(topic,))
            requests.append((behind - begin, encode_request(request, version, correlation_id=1, client_id="bench")))
            begin, piece = behind, []
    return requests


def _has_batches(release: str) -> bool:
    """Return True if the release stores batches of magic 2."""
    return parse_release(release) >= (0, 11)


def _fetch_units(cluster: Cluster, filling: Filling, start: int) -> Iterator[Unit]:
    """Yield the units that the broker holds of partition 0, from about offset ``start`` on."""
    host, _, port = cluster.bootstrap.rpartition(":")
    version = 5 if _has_batches(filling.release) else 2
    offset, correlation_id = start, 0
    with socket.create_connection((host, int(port)), 60) as connection, connection.makefile("rb") as stream:
        while True:
            partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
            topic = FetchTopic(topic=filling.topic, partitions=(partition,))
            request = FetchRequest(max_wait_ms=100, min_bytes=0, topics=(topic,))
            correlation_id += 1
            connection.sendall(encode_request(request, version, correlation_id=correlation_id, client_id="bench"))
            (size,) = struct.unpack(">i", stream.read(4))
            body = memoryview(stream.read(size))[4:]
            answered = request.decode_response(version, body).topics[0].partitions[0]
            found = list(split_units(bytes(answered.record_set or b"")))
            if not found:
                return
            yield from found
            offset = found[-1][0]


def split_units(record_set: bytes) -> Iterator[Unit]:
    """Yield the complete batches, messages or wrapper messages of a record set."""
    at = 0
    while at + _LAST_DELTA_AT + 4 <= len(record_set):
        offset, size, magic = _HEAD.unpack_from(record_set, at)
        end = at + 12 + size
        if end > len(record_set):
            return
        if magic == 2:
            (delta,) = struct.unpack_from(">i", record_set, at + _LAST_DELTA_AT)
            offset += delta
        yield offset + 1, record_set[at:end]
        at = end
