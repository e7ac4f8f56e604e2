# SPDX-License-Identifier: Apache-2.0
"""Records what real brokers make of record sets that are sent to them: refused with which error, or stored as what.

    python -m tests.vectors.produced 1.1.1        # rewrites tests/vectors/produced/kafka-1.1.1.json

Needs Java, and maven on first use (``tests.support.kafka``). The sets are made by the tests' own builder, right ones and
ones that are wrong in one way each; each goes to topics of several formats and settings. Kept is the set as it was sent,
the broker's answer (null: it closed the connection), what it stored (a fetch in its newest version), and, where that is
of a newer magic, what it gives to older clients. Which times there are varies from run to run.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from consumerd.errors import RemoteProtocolError
from consumerd.wire.framing import SIZE_BYTES, decode_frame_size
from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.produce import ACKS_LEADER, ProducedPartition, ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.schema import Request
from consumerd.wire.session import CORRELATION_BYTES, encode_request
from tests.support.kafka import Cluster, parse_release
from tests.support.record_sets import CONTROL, LOG_APPEND_TIME, RecordSpec, batch, message, wrapper

VECTORS: Final = Path(__file__).with_name("produced")
NEWEST: Final = {"0.8.2.2": (0, 0), "0.10.2.2": (2, 3), "1.1.1": (3, 5)}
"""The newest versions of Produce and Fetch to ask for."""
FORMATS: Final = {"0.9.0": 0, "0.10.2": 1, "1.1": 2}
NEAR_MS: Final = 3_600_000

# -- what is sent


def rows(
    magic: int, first: int = 0, *, count: int = 3, key: bytes | None = b"key", step: int = 1, **fields: Any
) -> bytes:
    """Return messages side by side, the last of them a tombstone."""
    return b"".join(
        message(
            first + row * step,
            b"value %d" % row if row < count - 1 else None,
            key=key,
            magic=magic,
            timestamp=fields.get("now", 1000) + row,
            attributes=fields.get("attributes", 0),
        )
        for row in range(count)
    )


def specs(key: bytes | None = b"key", *, deltas: tuple[int, ...] = (0, 1, 2), **fields: Any) -> list[RecordSpec]:
    """Return records of a batch, the last of them a tombstone."""
    return [
        RecordSpec(
            delta=delta,
            key=key,
            value=None if delta == deltas[-1] else b"value %d" % delta,
            timestamp_delta=delta,
            **fields,
        )
        for delta in deltas
    ]


def broken(data: bytes, at: int) -> bytes:
    """Return ``data`` with one bit changed."""
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


def message_sets(magic: int, now: int) -> Iterator[tuple[str, bytes]]:
    """Give sets of magic 0 or 1."""
    yield "messages", rows(magic)
    yield "messages without keys", rows(magic, key=None)
    yield "messages of this time", rows(magic, now=now)
    yield "messages with offsets 0", rows(magic, step=0)
    yield "messages with a gap", rows(magic, step=7)
    yield "message with a wrong checksum", rows(magic) + broken(message(3, b"v", magic=magic), -1)
    yield "key longer than the message", message(0, None, magic=magic, body=struct.pack(">i", 90) + b"ab")
    yield "key of length -2", message(0, None, magic=magic, body=struct.pack(">ii", -2, -1))
    yield "value shorter than the message", message(0, None, magic=magic, body=struct.pack(">ii", -1, 1) + b"ab")
    yield "value longer than the message", message(0, None, magic=magic, body=struct.pack(">ii", -1, 9) + b"ab")
    yield "bytes behind the last message", rows(magic) + b"behind"
    yield "too small a size", rows(magic) + struct.pack(">qi", 3, 5) + bytes(20)
    yield "magic 3", message(0, b"v", magic=3)
    if magic:
        yield "the broker's time in a message", rows(magic, attributes=LOG_APPEND_TIME)
        yield "the broker's time in a wrapper", wrapper(2, rows(1), 1, attributes=LOG_APPEND_TIME, timestamp=1002)
        yield "inner offsets from 5 on", wrapper(7, rows(1, 5), 1, timestamp=1002)
        yield "inner offsets with a gap", wrapper(14, rows(1, step=7), 1, timestamp=1002)
        yield "wrapper's offset 0", wrapper(0, rows(1), 1, timestamp=1002)
        yield "wrapper's offset 1", wrapper(1, rows(1), 1, timestamp=1002)
        yield "wrapper's offset 9", wrapper(9, rows(1), 1, timestamp=1002)
        yield "wrapper's timestamp too low", wrapper(2, rows(1), 1, timestamp=-1)
    for codec in range(1, 4):
        # lz4 frames of magic 0 have their own checksum, which is compress()'s business
        if codec < 3 or magic:
            yield f"codec {codec}", wrapper(2, rows(magic), codec, magic=magic, timestamp=1002)
    yield "wrapper with a wrong checksum", broken(wrapper(2, rows(magic), 1, magic=magic, timestamp=1002), -9)
    yield "inner message with a wrong checksum", wrapper(2, broken(rows(magic), 30), 1, magic=magic, timestamp=1002)
    yield "wrapper around nothing", wrapper(0, b"", 1, magic=magic)
    yield "wrapper without a value", message(0, None, magic=magic, attributes=1)
    yield "wrapper around no compressed data", wrapper(2, b"", 1, magic=magic, compressed=b"nothing of the kind")
    yield "wrapper around cut data", wrapper(2, rows(magic)[:-3], 1, magic=magic)
    yield "wrapper around the other magic", wrapper(2, rows(1 - magic), 1, magic=magic)
    yield "wrapper in a wrapper", wrapper(2, wrapper(2, rows(magic), 1, magic=magic), 2, magic=magic)
    yield "wrapper without keys inside", wrapper(2, rows(magic, key=None), 1, magic=magic, timestamp=1002)
    yield "codec 6", wrapper(2, rows(magic), 1, magic=magic, attributes=6)
    yield "a wrapper and messages", wrapper(2, rows(magic), 1, magic=magic, timestamp=1002) + rows(magic)
    yield "two wrappers", wrapper(2, rows(magic), 1, magic=magic) + wrapper(2, rows(magic), 2, magic=magic)


def batches(now: int) -> Iterator[tuple[str, bytes]]:
    """Give sets of magic 2."""
    times = {"base_timestamp": 1000, "max_timestamp": 1002}
    yield "batch", batch(0, specs(), **times)
    yield "batch without keys", batch(0, specs(None), **times)
    yield "batch of this time", batch(0, specs(), base_timestamp=now, max_timestamp=now + 2)
    yield "batch with headers", batch(0, specs(headers=[(b"h", b"1"), (b"null", None)]), **times)
    yield "wrong max timestamp", batch(0, specs(), base_timestamp=1000, max_timestamp=77)
    yield "wrong checksum", broken(batch(0, specs(), **times), -3)
    yield "base offset 5", batch(5, specs(), **times)
    yield "gap", batch(0, specs(deltas=(0, 1, 4)), **times)
    yield "gap, as many as deltas", batch(0, specs(deltas=(0, 2, 4)), last_delta=2, **times)
    yield "no records", batch(0, b"", count=0, last_delta=0)
    yield "more records than there are", batch(0, specs(), count=4, last_delta=3, **times)
    yield "fewer records than there are", batch(0, specs(), count=2, last_delta=1, **times)
    yield "last delta too low", batch(0, specs(), last_delta=1, **times)
    yield "last delta negative", batch(0, specs(), last_delta=-1, **times)
    yield "control batch", batch(0, specs(), attributes=CONTROL, **times)
    yield "the broker's time", batch(0, specs(), attributes=LOG_APPEND_TIME, **times)
    yield "no sequence", batch(0, specs(), producer_id=7, **times)
    yield "bytes behind the batch", batch(0, specs(), **times) + b"behind"
    yield "two batches", batch(0, specs(), **times) + batch(0, specs(), **times)
    yield "record longer than the batch", batch(0, b"\x7e" + bytes(8), count=1, **times)
    yield "codec 6", batch(0, specs(), attributes=6, compressed=b"of what", **times)
    for codec in range(1, 4):
        yield f"codec {codec}", batch(0, specs(), codec=codec, **times)
    yield "codec 1 with a gap", batch(0, specs(deltas=(0, 2, 4)), codec=1, last_delta=2, **times)
    yield "codec 1 around nothing of the kind", batch(0, specs(), codec=1, compressed=b"nothing of the kind", **times)


def sent(release: str, now: int) -> Iterator[tuple[str, int, bytes]]:
    """Give all sets for a release: their names, magics and bytes."""
    produce, _ = NEWEST[release]
    for magic in range(2 if produce >= 2 else 1):
        for name, data in message_sets(magic, now):
            yield name, magic, data
    if produce >= 3:
        for name, data in batches(now):
            yield name, 2, data


# -- to whom it is sent


def topics(release: str) -> dict[str, dict[str, Any]]:
    """Return the topics' names and settings."""
    produce, _ = NEWEST[release]
    if produce < 2:
        return {"magic-0": {"magic": 0}}
    formats = {version: magic for version, magic in FORMATS.items() if parse_release(version) <= parse_release(release)}
    newest = max(formats.values())
    made = {f"magic-{magic}": {"magic": magic, "message_format_version": version} for version, magic in formats.items()}
    for version, magic in formats.items():
        if magic:
            timed = {"message_format_version": version, "message_timestamp_type": "LogAppendTime"}
            made[f"timed-{magic}"] = {"magic": magic, **timed}
    made["compacted"] = {"magic": newest, "cleanup_policy": "compact"}
    made["near"] = {"magic": newest, "message_timestamp_difference_max_ms": str(NEAR_MS)}
    return made


class Recorder:
    """Sends to one broker, and keeps what came of it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.produce_version, self.fetch_version = NEWEST[cluster.release]

    def ask(self, request: Request[Any], version: int) -> Any:
        """Return the answer, or None where the broker closes the connection."""
        with socket.create_connection(("127.0.0.1", self.cluster.ports[0]), 10.0) as sock:
            sock.sendall(encode_request(request, version, correlation_id=1, client_id="recorder"))
            stream = sock.makefile("rb")
            prefix = stream.read(SIZE_BYTES)
            if len(prefix) < SIZE_BYTES:
                return None
            body = stream.read(decode_frame_size(prefix, 1 << 24))
        return request.decode_response(version, memoryview(body)[CORRELATION_BYTES:])

    def send(self, topic: str, magic: int, data: bytes) -> ProducedPartition | None:
        """Produce one set, in the version that its magic came with."""
        partition = ProducePartition(partition=0, record_set=data)
        topics = (ProduceTopic(topic=topic, partitions=(partition,)),)
        request = ProduceRequest(acks=ACKS_LEADER, timeout_ms=5000, topics=topics)
        answer = self.ask(request, min((0, 2, 3)[magic], self.produce_version))
        return None if answer is None else answer.topics[0].partitions[0]

    def fetch(self, topic: str, offset: int, version: int) -> bytes:
        """Fetch what stands from ``offset`` on."""
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=100, min_bytes=1, topics=(FetchTopic(topic=topic, partitions=(asked,)),))
        deadline = time.monotonic() + 10.0
        while True:  # it becomes visible when the high watermark moves
            (partition,) = self.ask(request, version).topics[0].partitions
            if partition.record_set or time.monotonic() > deadline:
                return bytes(partition.record_set or b"")

    def record(self, name: str, topic: str, magic: int, data: bytes, topic_magic: int) -> dict[str, Any]:
        """Send one set to one topic."""
        answer = None
        with suppress(ConnectionError, RemoteProtocolError):
            answer = self.send(topic, magic, data)
        case: dict[str, Any] = {"name": name, "topic": topic, "magic": magic, "sent_hex": data.hex(), "error": None}
        if answer is None:
            return case
        case["error"] = answer.error_code
        if answer.error_code or answer.base_offset < 0:
            return case
        if topic in ("compacted", "near"):  # they differ in what they refuse
            return case
        case["base_offset"] = answer.base_offset
        if answer.log_append_time_ms >= 0:
            case["log_append_time_ms"] = answer.log_append_time_ms
        case["stored_hex"] = self.fetch(topic, answer.base_offset, self.fetch_version).hex()
        for older, version in ((0, 0), (1, 2)):
            if older < topic_magic:
                case[f"as_magic_{older}_hex"] = self.fetch(topic, answer.base_offset, version).hex()
        return case


def record(release: str) -> Path:
    """Send everything to a fresh broker of ``release``, and write the file."""
    now = int(time.time() * 1000)
    with Cluster(release) as cluster:
        settings = topics(release)
        for topic, configs in settings.items():
            cluster.create_topic(topic, **{key: value for key, value in configs.items() if key != "magic"})
        recorder = Recorder(cluster)
        cases = [
            recorder.record(name, topic, magic, data, settings[topic]["magic"])
            for topic in settings
            for name, magic, data in sent(release, now)
        ]
    VECTORS.mkdir(exist_ok=True)
    path = VECTORS / f"kafka-{release}.json"
    head = {
        "release": release,
        "recorded": str(datetime.now(UTC).date()),
        "how": "tests/vectors/produced.py",
        "now_ms": now,
        "topics": settings,
    }
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{json.dumps(head)[:-1]}, "cases": [\n{lines}\n]}}\n')
    return path


def main() -> None:
    """Record the releases named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="+", choices=NEWEST)
    for release in parser.parse_args().release:
        print(record(release))  # noqa: T201 - the command's output


if __name__ == "__main__":
    main()
