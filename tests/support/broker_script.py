# SPDX-License-Identifier: Apache-2.0
"""One script of requests, run against a real broker and against the embedded one; the answers are compared.

Record sets are built by ``tests.support.record_sets`` with fixed times, so that what comes back is the same, byte by byte.
An answer is plain data: the decoded fields, record sets as size and checksum; ``CLOSED`` where the broker closed the
connection instead, ``SILENT`` where it said nothing and answered the next request.

The answers of real brokers are kept in ``tests/vectors/answers``: ``python -m tests.support.broker_script`` runs it
against all of them, on Kafka's jars, and writes them anew.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from aiokafka.record.memory_records import MemoryRecords

from consumerd.net.versions import RELEASES, VersionRange
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import declaration_of
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.list_offsets import ListOffsetsRequest, ListPartition, ListTopic
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.schema import Request
from consumerd.wire.session import encode_request
from tests.support.kafka import Cluster, parse_release
from tests.support.record_sets import RecordSpec, batch, message, wrapper

CLOSED: Final = "closed"
SILENT: Final = "silent"

_KEEP: Final = {"retention.ms": "3153600000000"}
# The records' times are of 2017. Retention begins half a minute after a broker: one that starts slowly, or is asked slowly,
# would delete them by its default of a week in the middle of the script. -1 means "at once" to 0.8.2, hence a hundred years.

TOPICS: Final = {
    "plain": _KEEP,
    "acks": _KEEP,
    "cut": _KEEP,
    "small": {**_KEEP, "max.message.bytes": "200"},
    "strict": {**_KEEP, "message.timestamp.difference.max.ms": "1000"},
}
"""What has to be there, each with one partition and these settings (``strict`` where messages have times)."""

REAL: Final = {"0.8.2": "0.8.2.2", "0.9": "0.9.0.1", "0.10": "0.10.2.2", "1.1": "1.1.1"}
"""The real release for each that the embedded broker passes for."""

RECORDED: Final = Path(__file__).parent.parent / "vectors" / "answers"

RELEASES_COMPARED: Final = {"0.8.2": (0, 8, 2), "0.9": (0, 9), "0.10": (0, 10, 2), "1.1": (1, 1)}

T0: Final = 1_500_000_000_000
"""The time of the first record, in ms; each is a second later than the one before."""

Answers = dict[str, Any]


class Asker:
    """Asks on connections that last until a broker closes them."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = (host, int(port))
        self._socket: socket.socket | None = None

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, request: Request[Any], version: int) -> Any:
        """Return the answer's fields, or CLOSED, or SILENT."""
        return self.ask_raw(
            encode_request(request, version, correlation_id=5, client_id="script"),
            lambda body: plain(request.decode_response(version, body), version),
            answered=request.expects_response,
        )

    def ask_raw(self, frame: bytes, decode: Callable[[memoryview], Any], *, answered: bool = True) -> Any:
        """Send a frame and return what is decoded of the answer. ``answered`` False: the next request shows what came of it."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, 20)
        try:
            self._socket.sendall(frame)
            if not answered:
                probe = encode_request(MetadataRequest(topics=("plain",)), 0, correlation_id=6, client_id="script")
                self._socket.sendall(probe)
            body = self._receive()
        except ConnectionError:
            body = None
        if body is None:
            self.close()
            return CLOSED
        correlation = int.from_bytes(body[:4], "big")
        if correlation == 6:
            return SILENT
        assert correlation == 5, correlation
        return self._blur(decode(memoryview(body)[4:]))

    def _blur(self, fields: Any) -> Any:
        """Return an answer without what is the broker's own: its port, and the order in which it has topics."""
        if isinstance(fields, dict):
            if "topics" in fields:
                fields["topics"].sort(key=lambda topic: str(topic["topic"]))
            if fields.get("cluster_id") is not None:
                fields["cluster_id"] = "the cluster's own"
            for broker in fields.get("brokers", ()):
                broker["port"] = {self._address[1]: "the port asked"}.get(broker["port"], broker["port"])
        return fields

    def _receive(self) -> bytes | None:
        assert self._socket is not None
        size = self._exactly(4)
        return None if size is None else self._exactly(int.from_bytes(size, "big"))

    def _exactly(self, size: int) -> bytes | None:
        assert self._socket is not None
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                return None
            data += more
        return data


def plain(value: Any, version: int) -> Any:
    """Return an answer as JSON has it, with the fields that its version has."""
    if isinstance(value, (bytes, memoryview)):
        return _describe_records(bytes(value))
    if dataclasses.is_dataclass(value):
        return {
            one.name: plain(getattr(value, one.name), version)
            for one in dataclasses.fields(value)
            if version in declaration_of(one).versions
        }
    if isinstance(value, tuple):
        return [plain(one, version) for one in value]
    return value


def _describe_records(data: bytes) -> dict[str, Any]:
    """Return what is in a record set, as aiokafka reads it; the bytes themselves count where nothing is compressed."""
    at, codecs = 0, 0
    while at + 23 <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if at + size > len(data):
            break
        codecs |= data[at + 22 if data[at + 16] == 2 else at + 17] & 7
        at += size
    records = []
    memory = MemoryRecords(data)
    while (unit := memory.next_batch()) is not None:
        for record in unit:
            key, value = ((part or b"").decode() for part in (record.key, record.value))
            records.append([record.offset, record.timestamp, record.timestamp_type, key, value])
    return {
        "records": records,
        "cut off": None if codecs else len(data) - at,
        "crc": None if codecs else zlib.crc32(data),
    }


def run(bootstrap: str, release: str) -> Answers:
    """Run all that brokers of a release understand, and return the answers by what was asked."""
    ranges = RELEASES[RELEASES_COMPARED[release]]
    asker = Asker(bootstrap)
    try:
        answers: Answers = {}
        for name, request, version in _requests(ranges):
            answers[f"{name} v{version}"] = asker.ask(request, version)
        if release in ("0.10", "1.1"):
            answers["ApiVersions of the future"] = asker.ask_raw(
                bytes.fromhex("0000000b0012006400000005000178"),
                lambda body: plain(ApiVersionsRequest().decode_response(0, body), 0),
            )
        if release == "0.8.2":
            answers["ApiVersions"] = asker.ask(ApiVersionsRequest(), 0)
        for name, frame in (
            ("unknown request", bytes.fromhex("0000000b03e7000000000005000178")),
            ("Metadata of the future", bytes.fromhex("0000000b0003006400000005000178")),
            ("unreadable body", bytes.fromhex("0000000e0003000000000005000178000001")),
            ("negative size", bytes.fromhex("ffffffff0003000000000005000178")),
        ):
            if release != "0.9":  # which leaves some of them open for ever
                answers[name] = asker.ask_raw(frame, lambda body: bytes(body).hex())
        return answers
    finally:
        asker.close()


def frames(release: str) -> list[bytes]:
    """Return the requests alone, as frames."""
    return [
        encode_request(request, version, correlation_id=5, client_id="script")
        for _, request, version in _requests(RELEASES[RELEASES_COMPARED[release]])
    ]


def _newest(ranges: Any, key: ApiKey, ours: int) -> int:
    spoken: VersionRange | None = ranges.get(key)
    assert spoken is not None
    return min(spoken.last, ours)


def _requests(ranges: Any) -> Iterator[tuple[str, Request[Any], int]]:
    produce, fetch = _newest(ranges, ApiKey.PRODUCE, 3), _newest(ranges, ApiKey.FETCH, 5)
    offsets, metadata = _newest(ranges, ApiKey.LIST_OFFSETS, 2), _newest(ranges, ApiKey.METADATA, 5)
    stored = 2 if produce >= 3 else 1 if produce >= 2 else 0
    for version in range(metadata + 1):
        for name, topics in (("one topic", ("plain",)), ("unknown topic", ("nothing",)), ("invalid topic", ("a b",))):
            yield f"Metadata of {name}", MetadataRequest(topics=topics), version
        if version >= 4:
            silent = MetadataRequest(topics=("nothing",), allow_auto_topic_creation=False)
            yield "Metadata of unknown topic, not to be made", silent, version
    for version in range(produce + 1):
        yield from ((f"Produce {name}", request, version) for name, request in _produce(version, stored))
    for version in range(fetch + 1):
        yield from ((f"Fetch {name}", request, version) for name, request in _fetch(version))
    for version in range(offsets + 1):
        yield from ((f"ListOffsets {name}", request, version) for name, request in _list_offsets(version))


# -- Produce


def records(magic: int, *, count: int = 3, at: int = 0, size: int = 20, codec: int = 0) -> bytes:
    """Return a record set with values ``aaa...`` of ``size`` bytes, whose times go on from number ``at``."""
    values = [bytes([97 + number]) * size for number in range(count)]
    times = [T0 + (at + number) * 1000 for number in range(count)]
    if magic == 2:
        specs = [
            RecordSpec(delta=number, value=value, key=b"k%d" % number, timestamp_delta=number * 1000)
            for number, value in enumerate(values)
        ]
        return batch(0, specs, codec=codec, base_timestamp=times[0], max_timestamp=times[-1])
    inner = b"".join(
        message(number, value, key=b"k%d" % number, magic=magic, timestamp=time)
        for number, (value, time) in enumerate(zip(values, times, strict=True))
    )
    return wrapper(count - 1, inner, codec, magic=magic, timestamp=times[-1]) if codec else inner


def _damaged(record_set: bytes) -> bytes:
    return record_set[:-1] + bytes([record_set[-1] ^ 1])


def _produce(version: int, stored: int) -> Iterator[tuple[str, Request[Any]]]:
    magic = 2 if version >= 3 else min(version, stored, 1) if version != 1 else 0
    good = records(magic, at=10 * version)

    def to(topic: str, record_set: bytes | None, *, partition: int = 0, acks: int = 1) -> ProduceRequest:
        one = ProducePartition(partition=partition, record_set=record_set)
        return ProduceRequest(acks=acks, timeout_ms=5000, topics=(ProduceTopic(topic=topic, partitions=(one,)),))

    yield "records", to("plain", good)
    yield "records, all replicas", to("plain", records(magic, at=10 * version + 3), acks=-1)
    yield "gzip", to("plain", records(magic, at=10 * version + 6, codec=1))
    yield "acks 7", to("acks", good, acks=7)
    yield "to an unknown topic", to("nothing", good)
    yield "to an unknown partition", to("plain", good, partition=9)
    yield "to an invalid topic", to("a b", good)
    yield "damaged", to("plain", _damaged(good))
    yield "damaged, acks 0", to("plain", _damaged(good), acks=0)
    yield "without an answer", to("plain", records(magic, at=10 * version + 9, count=1), acks=0)
    yield "to an unknown topic, acks 0", to("nothing", good, acks=0)
    yield "too large", to("small", records(magic, size=300, count=1))
    if magic >= 1:
        yield "from another time", to("strict", good)
    yield "nothing", to("plain", b"")
    yield "cut off", to("cut", good[:-5])
    if version >= 3:
        yield "two batches", to("plain", good + good)
        yield "messages in the place of a batch", to("plain", records(1))


# -- Fetch


def _fetch(version: int) -> Iterator[tuple[str, Request[Any]]]:
    def ask(
        *partitions: tuple[str, int, int, int], min_bytes: int = 1, max_bytes: int = 1 << 20, wait_ms: int = 100
    ) -> FetchRequest:
        topics = tuple(
            FetchTopic(
                topic=topic,
                partitions=(FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=limit),),
            )
            for topic, number, offset, limit in partitions
        )
        limits: dict[str, Any] = {"max_bytes": max_bytes} if version >= 3 else {}
        return FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, topics=topics, **limits)

    yield "all", ask(("plain", 0, 0, 1 << 20))
    yield "from within", ask(("plain", 0, 4, 1 << 20))
    yield "at the end", ask(("small", 0, 0, 1 << 20))
    yield "beyond the end", ask(("plain", 0, 100_000, 1 << 20))
    yield "below the start", ask(("plain", 0, -1, 1 << 20))
    yield "of an unknown topic", ask(("nothing", 0, 0, 1 << 20))
    yield "of an unknown partition", ask(("plain", 5, 0, 1 << 20))
    yield "of little at a time", ask(("plain", 0, 0, 10))
    yield "of nothing at a time", ask(("plain", 0, 0, 0))
    yield "cut in the middle", ask(("plain", 0, 0, 250))
    yield "of much more than there is", ask(("plain", 0, 0, 1 << 20), min_bytes=1 << 20)
    yield "without waiting", ask(("small", 0, 0, 1 << 20), wait_ms=0)
    yield "of two topics, one unknown", ask(("plain", 0, 0, 1 << 20), ("nothing", 0, 0, 1 << 20))
    yield "of no topic", ask()
    if version >= 3:
        yield "little in all", ask(("plain", 0, 0, 1 << 20), ("plain", 0, 0, 1 << 20), max_bytes=10)
        yield "of two topics, little in all", ask(("small", 0, 0, 1 << 20), ("plain", 0, 0, 1 << 20), max_bytes=10)
        yield "nothing in all", ask(("plain", 0, 0, 1 << 20), max_bytes=0)


# -- ListOffsets


def _list_offsets(version: int) -> Iterator[tuple[str, Request[Any]]]:
    def ask(*partitions: tuple[int, int], topic: str = "plain", count: int = 10) -> ListOffsetsRequest:
        counted = {"max_num_offsets": count} if version == 0 else {}
        ones = tuple(ListPartition(partition=number, timestamp=time, **counted) for number, time in partitions)
        return ListOffsetsRequest(topics=(ListTopic(topic=topic, partitions=ones),))

    yield "latest", ask((0, -1))
    yield "earliest", ask((0, -2))
    yield "of an empty log, latest", ask((0, -1), topic="small")
    yield "of an empty log, earliest", ask((0, -2), topic="small")
    yield "of an unknown topic", ask((0, -1), topic="nothing")
    yield "of an unknown partition", ask((4, -1))
    if version >= 1:
        yield "by a record's own time", ask((0, T0 + 1000))
        yield "by a time between records", ask((0, T0 + 1500))
        yield "by a time before all", ask((0, 1000))
        yield "by a time after all", ask((0, T0 * 2))
        yield "twice the same", ask((0, -1), (0, -1))
    else:
        yield "none", ask((0, -1), count=0)
        yield "by a time before all", ask((0, 1000))


# -- comparison

DIFFERENT: Final = {
    "Produce cut off": "a message set whose last message is cut off is refused as damaged; brokers keep what comes before it",
    "Produce acks 7": "acks above 1 are refused as 0.9 and later do; 0.8.2 waits for so many replicas",
}
"""What is meant to differ, and why."""


def differences(expected: Answers, actual: Answers) -> list[str]:
    """Return what differs and is not meant to, one line each."""
    lines = [f"{name}: only one of the two has it" for name in sorted(expected.keys() ^ actual.keys())]
    for name in sorted(expected.keys() & actual.keys()):
        if name.rpartition(" v")[0] not in DIFFERENT:
            found = _walk(expected[name], actual[name])
            lines += [f"{name}{where}: expected {one}, got {other}" for where, one, other in found]
    return lines


def _walk(one: Any, other: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    if where.endswith((".crc", ".cut off")) and None in (one, other):
        return  # one of them has it compressed, and no two compressors agree
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _walk(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from _walk(first, second, f"{where}[{number}]")
    elif one != other:
        yield where, one, other


# -- real brokers


def real_answers(release: str) -> Answers:
    """Run it against a real broker of its own. Raises KafkaUnavailable."""
    full = REAL[release]
    with Cluster(full) as cluster:
        for topic, configs in TOPICS.items():
            known: dict[str, Any] = {}
            for key, value in configs.items():
                if parse_release(full) >= (0, 10) or "timestamp" not in key:
                    known[key.replace(".", "_")] = value
            cluster.create_topic(topic, 1, **known)
        return run(cluster.bootstrap, release)


def recorded(release: str) -> Answers:
    """Return what was recorded."""
    answers: Answers = json.loads((RECORDED / f"kafka-{REAL[release]}.json").read_text())
    return answers


def record(release: str) -> None:
    """Write down what a real broker answers, an answer a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in real_answers(release).items()]
    (RECORDED / f"kafka-{REAL[release]}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    for one in RELEASES_COMPARED:
        record(one)
