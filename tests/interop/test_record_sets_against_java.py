# SPDX-License-Identifier: Apache-2.0
"""Record sets that we build, number and convert are read by Kafka's own classes, its brokers and its consumers."""

from __future__ import annotations

import socket
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.wire.compression import Codec
from consumerd.wire.framing import SIZE_BYTES, decode_frame_size
from consumerd.wire.modern.assigning import assign_offsets
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.checking import Rules, check
from consumerd.wire.modern.conversion import convert
from consumerd.wire.modern.produce import ACKS_ALL, ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.records import NewRecord
from consumerd.wire.session import CORRELATION_BYTES, encode_request
from tests.interop.conftest import ClusterFactory, require
from tests.support.kafka import Cluster, java_command, parse_release
from tests.support.waiting import wait_until

ORACLE = "2.8.2"
TIMES = (None, 7777)
EVERY_CODEC = Rules(codecs=tuple(Codec))
LARGE = b"a value of more than one block; " * 9000
HEADERS = (("name", b"value"), ("größe", None), ("", b""))
RECORDS = [
    NewRecord(key=b"key", value=b"value", timestamp=1000),
    NewRecord(key=None, value=b"", timestamp=1007),
    NewRecord(key=b"", value=None, timestamp=990),
    NewRecord(key=b"k" * 70, value=LARGE, timestamp=1001),
    *(NewRecord(key=b"%d" % row, value=b"value %d" % row, timestamp=2000 + row) for row in range(200)),
]
FORMATS = [(magic, codec) for magic in (0, 1, 2) for codec in Codec if magic == 2 or codec is not Codec.ZSTD]


def read_by_java(record_sets: list[bytes]) -> list[str]:
    """Return what Kafka's classes read in each."""
    source = Path(__file__).with_name("RecordSetOracle.java")
    done = subprocess.run(
        java_command(ORACLE, str(source)),
        input="\n".join(data.hex() for data in record_sets),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout.removesuffix("\n").split("\n")


def base64(data: bytes | None) -> str:
    return "-" if data is None else b64encode(data).decode().rstrip("=")


def expected(magic: int, codec: int, offset: int, time_ms: int | None, *, timed: bool, headed: bool) -> str:
    """Return what Java should say. A magic of 0 anywhere on the way loses the timestamps."""
    shown = []
    for row, one in enumerate(RECORDS):
        timestamp, kind = (one.timestamp, 0) if timed else (-1, 0)
        if timed and time_ms is not None:
            timestamp, kind = time_ms, 1
        kind = kind if magic else -1
        headers = "".join(f"{base64(name.encode())}={base64(value)}," for name, value in HEADERS) if headed else ""
        shown.append(
            f"{offset + row}:{timestamp}:{kind}:{magic}:{int(codec)}:{base64(one.key)}:{base64(one.value)}:{headers}"
        )
    return " ".join(shown)


@pytest.mark.timeout(120)
def test_kafkas_own_classes_read_what_is_built_numbered_and_converted() -> None:
    """Every magic and codec, with the producer's and the broker's time; every conversion between them."""
    require(ORACLE)
    sets: list[bytes] = []
    wanted: list[str] = []
    for magic, codec in FORMATS:
        headed = magic == 2
        records = [
            NewRecord(key=one.key, value=one.value, timestamp=one.timestamp, headers=HEADERS if headed else ())
            for one in RECORDS
        ]
        built = build_record_set(records, magic=magic, codec=codec, base_offset=0)
        sets.append(built)
        wanted.append(expected(magic, codec, 0, None, timed=magic > 0, headed=headed))
        for time_ms in TIMES:
            parts = check(built, EVERY_CODEC)
            stored = bytes(assign_offsets(bytearray(built), 70_000, log_append_time_ms=time_ms, parts=parts))
            sets.append(stored)
            wanted.append(expected(magic, codec, 70_000, time_ms, timed=magic > 0, headed=headed))
            for to in (0, 1, 2):
                if to != magic and codec is not Codec.ZSTD:
                    sets.append(convert(stored, magic=to))
                    wanted.append(expected(to, codec, 70_000, time_ms, timed=magic > 0 and to > 0, headed=False))

    read = read_by_java(sets)

    assert len(wanted) == len(read)
    for theirs, ours in zip(read, wanted, strict=True):
        assert ours == theirs


def produce(cluster: Cluster, topic: str, version: int, data: bytes) -> int:
    """Send one set and return the base offset that the broker gave it."""
    topics = (ProduceTopic(topic=topic, partitions=(ProducePartition(partition=0, record_set=data),)),)
    request = ProduceRequest(acks=ACKS_ALL, timeout_ms=5000, topics=topics)
    with socket.create_connection(("127.0.0.1", cluster.ports[0]), 10.0) as sock:
        sock.sendall(encode_request(request, version, correlation_id=1, client_id="test"))
        stream = sock.makefile("rb")
        body = stream.read(decode_frame_size(stream.read(SIZE_BYTES), 1 << 20))
    response = request.decode_response(version, memoryview(body)[CORRELATION_BYTES:])
    (answer,) = response.topics[0].partitions
    assert answer.error_code == 0
    return answer.base_offset


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_java_brokers_take_and_java_consumers_read_what_is_built(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Every magic and codec of the release: the broker checks them, and its old consumer decompresses what is left as it is."""
    cluster = shared_clusters(release)
    topic = unique("built")
    # the records are of 1970, and brokers look for what is too old half a minute after their start
    cluster.create_topic(topic, retention_ms="4000000000000")
    known = parse_release(release)
    versions = {0: 0} | ({1: 2} if known >= (0, 10) else {}) | ({2: 3} if known >= (0, 11) else {})
    sent: list[tuple[int, bytes | None, bytes | None]] = []
    for magic, version in versions.items():
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
            data = build_record_set(RECORDS, magic=magic, codec=codec)
            assert len(sent) == produce(cluster, topic, version, data)
            sent += [(len(sent) + row, one.key, one.value) for row, one in enumerate(RECORDS)]

    java = cluster.java_consumer(unique("group"), topic)
    wait_until(lambda: len(java.records()) >= len(sent), "Java has read all", timeout_s=60.0)
    java.terminate()

    def unpacked(text: bytes) -> tuple[bytes | None, ...]:
        return tuple(None if one == b"-" else b64decode(one) for one in text.split(b"\t"))

    assert sent == [(offset, *unpacked(text)) for _, _, offset, text in java.records()]
