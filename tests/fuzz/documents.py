# SPDX-License-Identifier: Apache-2.0
"""What is read beside brokers' answers: ZooKeeper's answers, the payloads of its nodes, the records beside landed data, and
what the embedded broker is sent: requests, and record sets to be checked, stored and converted; and message sets of Kafka 0.7.

Part of ``frames``, which damages them: each comes whole with what reads it and with the errors that it may raise. Nodes are
recorded ones; ZooKeeper's answers are made here, after ``zookeeper.jute``, by none of the code that reads them.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

from consumerd.errors import CoordinationError, CorruptMessageError, OffsetError, RemoteProtocolError
from consumerd.landing.chain import ChainRecord, FileMetadata, LandedGap, RootRecord
from consumerd.landing.record_fields import MalformedRecord
from consumerd.model import BrokerId, GapReason, Incarnation, SessionEpoch, TimestampType, TopicPartition
from consumerd.offsets.requests import encode_request, parse_request
from consumerd.offsets.store import OffsetRequest
from consumerd.sinks.base import QuarantinedUnit
from consumerd.sinks.quarantine_record import KeptUnit, encode_unit, holds_unit, parse_unit
from consumerd.wire.compression import Codec
from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.legacy.message_set import build_message_set, compress_message_set
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.records import NewRecord, Record
from consumerd.wire.server_session import read_request
from consumerd.zk import znodes_legacy
from consumerd.zk.aiozk_client import AiozkClient, AiozkCodec
from consumerd.zk.connection import Listener, ZkConnection, ZkReply, ZkRequest
from consumerd.zk.port import Create, Delete, SetData
from consumerd.zk.znodes import (
    MalformedZnode,
    parse_broker,
    parse_cluster_id,
    parse_controller,
    parse_offset,
    parse_partition_state,
    parse_registration,
    parse_topic,
)
from consumerd.zk.znodes_legacy import find_generation
from tests.property.test_produced_sets import FORMATS, check_any, check_stored
from tests.property.test_records_decoding import mend
from tests.support.frames import REQUESTS, load_frames
from tests.support.legacy_outcomes import mend_messages, read_either_way
from tests.support.znode_recordings import LEGACY, load_legacy

PARTITION: Final = TopicPartition.modern("orders", 7)
_NODES: Final = Path(__file__).parents[1] / "vectors" / "znodes"
_STAT: Final = struct.pack("!qqqqiiiqiiq", 11, 12, 1700, 1701, 3, 4, 0, 0x1_0000_0001, 9, 2, 13)
_MOST_BYTES: Final = 1500
FAILED: Final = "failed"
"""In the name of an answer that says what failed."""


@dataclass(frozen=True, slots=True)
class Document:
    """Bytes, what reads them, and what it may raise."""

    name: str
    data: bytes
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]


@cache
def documents() -> list[Document]:
    """Return all there are, each kind of them about as often as the others."""
    kinds: dict[str, list[Document]] = {}
    for one in (*_nodes(), *_answers(), _conversation(), *_records(), *_sent(), *_message_sets()):
        kinds.setdefault(one.name, []).append(one)
    longest = max(map(len, kinds.values()))
    return [kind[index % len(kind)] for index in range(longest) for kind in kinds.values()]


# -- nodes


def _nodes() -> Iterator[Document]:
    readers: dict[str, Callable[[bytes], object]] = {
        "/brokers/ids": lambda data: (find_generation(data), parse_broker(BrokerId(1), data)),
        "/brokers/topics": parse_topic,
        "state": parse_partition_state,
        "/controller": parse_controller,
        "/cluster/id": parse_cluster_id,
        "ids": parse_registration,
        "offsets": parse_offset,
    }
    for path in sorted(_NODES.glob("kafka-*.json")):
        nodes = json.loads(path.read_text()).get("znodes", {})
        for place, node in nodes.items():
            data = (node["data"] or "").encode()
            kind = _find_kind(place)
            if kind is not None and 0 < len(data) <= _MOST_BYTES:
                yield Document(f"node {kind}", data, readers[kind], (MalformedZnode,))
    yield from _legacy_nodes()
    request = OffsetRequest(
        id="a1",
        partition=PARTITION,
        position=900,
        new_chain=True,
        author="me@here",
        created_ms=1_700_000_000_000,
        version=0,
    )
    yield Document(
        "node request",
        encode_request(request),
        lambda data: parse_request(data, partition=PARTITION, version=1),
        (OffsetError,),
    )


def _legacy_nodes() -> Iterator[Document]:
    readers: dict[str, Callable[[bytes], object]] = {
        "brokers/ids": lambda data: znodes_legacy.parse_broker(BrokerId(1), data),
        "brokers/topics": znodes_legacy.parse_partition_count,
        "ids": znodes_legacy.parse_registration,
    }
    for name in LEGACY:
        for place, node in load_legacy(name).items():
            match place.strip("/").split("/"):
                case ["brokers", "ids" | "topics" as parent, *_]:
                    kind = f"brokers/{parent}"
                case ["consumers", _, "ids", _]:
                    kind = "ids"
                case _:
                    continue
            if node.ephemeral:
                yield Document(f"node of 0.7 {kind}", node.data, readers[kind], (MalformedZnode,))


def _find_kind(place: str) -> str | None:
    parts = place.strip("/").split("/")
    match parts:
        case ["brokers", "ids", _] | ["brokers", "topics", _]:
            return f"/brokers/{parts[1]}"
        case ["brokers", "topics", *_, "state"]:
            return "state"
        case ["controller"] | ["cluster", "id"]:
            return place
        case ["consumers", _, "ids", _] | ["consumers", _, "offsets", _, _]:
            return parts[2]
        case _:
            return None


# -- ZooKeeper's answers


class _Answered(AiozkClient):
    """Has the same answer for everything, and no session."""

    def __init__(self, body: bytes) -> None:
        super().__init__("localhost", session_timeout_s=1.0, now=lambda: 0.0, random=lambda: 0.0)
        self._body = body

    async def _read(self, request: ZkRequest, what: str) -> ZkReply:
        return ZkReply(5, 0, self._body)

    async def _write(self, request: ZkRequest, what: str, epoch: SessionEpoch | None) -> ZkReply:
        return ZkReply(5, 0, self._body)


def _at_once(call: Coroutine[object, object, object]) -> object:
    """Return the result of a call that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    finally:
        call.close()
    raise AssertionError("it waited for something")


def _answers() -> Iterator[Document]:
    codec = AiozkCodec("/")
    writes = [SetData("/a", b"", 3), Create("/b", b""), Delete("/c")]
    asked: dict[str, tuple[bytes, Callable[[AiozkClient], Coroutine[object, object, object]]]] = {
        "get": (_buffer(b"lake_host-1-0") + _STAT, lambda client: client.get("/a")),
        "exists": (_STAT, lambda client: client.exists("/a")),
        "children": (_vector([b"0", b"1", b"12"]) + _STAT, lambda client: client.children("/a")),
        "set": (_STAT, lambda client: client.set("/a", b"")),
        "multi": (
            _result(5) + _STAT + _result(1) + _buffer(b"/b") + _result(2) + _END,
            lambda client: client.multi(writes),
        ),
        f"{FAILED} multi": (
            b"".join(_result(-1) + struct.pack("!i", code) for code in (0, -110, -2)) + _END,
            lambda client: client.multi(writes),
        ),
    }
    for name, (body, ask) in asked.items():
        yield Document(
            f"answer to {name}", body, lambda data, ask=ask: _at_once(ask(_Answered(data))), (CoordinationError,)
        )
    yield Document("greeting", _GREETING, codec.read_welcome, (ValueError,))
    yield Document("event", struct.pack("!ii", 4, 3) + _buffer(b"/brokers/ids"), codec.read_change, (ValueError,))


class _Nowhere(asyncio.Transport):
    """Takes everything."""

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        pass


def _conversation() -> Document:
    """Return a greeting, an event and two answers as they come over a connection."""
    event = struct.pack("!iqi", -1, 0, 0) + struct.pack("!ii", 4, 3) + _buffer(b"/brokers/ids")
    answers = [struct.pack("!iqi", xid, 700 + xid, 0) + _STAT for xid in (1, 2)]
    stream = b"".join(map(_buffer, (_GREETING, event, *answers)))
    return Document("conversation", stream, lambda data: _runner().run(_listen(data)), ())


async def _listen(stream: bytes) -> int:
    """Take in a stream that two requests wait for, and return how many were answered."""
    listener = Listener(answered=lambda *_: None, changed=lambda _: None, lost=lambda: None)
    connection = ZkConnection(lambda: 0.0, listener)
    connection.connection_made(_Nowhere())
    connection.data_received(stream[:23])
    waiting = [connection.submit(AiozkCodec("/").probe()) for _ in range(2)]
    connection.data_received(stream[23:])
    connection.connection_lost(None)
    return sum([await one is not None for one in waiting])


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def _buffer(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def _vector(items: list[bytes]) -> bytes:
    return struct.pack("!i", len(items)) + b"".join(map(_buffer, items))


def _result(kind: int) -> bytes:
    return struct.pack("!i?i", kind, False, min(kind, 0))


_END: Final = struct.pack("!i?i", -1, True, -1)
_GREETING: Final = struct.pack("!iiq", 0, 6000, 0x1_0000_0001) + _buffer(bytes(range(16))) + b"\0"


# -- records beside landed data


def _records() -> Iterator[Document]:
    incarnation = Incarnation.parse("4711.2")
    chain = ChainRecord(
        origin=5, incarnation=incarnation, extension="jsonl", reason="truncated", writer="host-1-ab", request_id="a1"
    )
    metadata = FileMetadata(
        writer="host-1-ab-3",
        group="lake",
        cluster="11-1700",
        topic="orders",
        partition=PARTITION.partition,
        incarnation=incarnation,
        chain=2,
        position=5,
        next_offset=90,
        count=80,
        first_offset=5,
        last_offset=88,
        min_timestamp=1_700_000_000_000,
        max_timestamp=None,
        gaps=(LandedGap(start=10, end=15, reason=GapReason.RETENTION, offsets=5),),
        size=8000,
        sha256="ab" * 32,
        modified_ns=17,
    )
    root = RootRecord(root="ab" * 16, cluster="11-1700", group="lake")
    for name, data, read in (
        ("root", root.encode(), RootRecord.parse),
        ("chain", chain.encode(), ChainRecord.parse),
        ("file metadata", metadata.encode(), FileMetadata.parse),
    ):
        yield Document(f"record of a {name}", data, read, (MalformedRecord,))
    damaged = QuarantinedUnit(
        partition=PARTITION,
        incarnation=incarnation,
        offset=10,
        next_offset=14,
        index=0,
        cause="corrupt",
        reason="the checksum is 1, expected 2",
        raw=bytes(range(100)),
        size=100,
    )
    refused = replace(
        damaged,
        cause="rejected",
        raw=b"",
        size=None,
        record=Record(
            offset=10,
            index=0,
            timestamp=17,
            timestamp_type=TimestampType.CREATE_TIME,
            key=b"key",
            value=None,
            headers=(("name", b"value"), ("null", None)),
        ),
    )
    for name, unit in (("damaged unit", damaged), ("refused record", refused)):
        data = b"".join(encode_unit(KeptUnit(unit=unit, cluster="11-1700", group="lake", when_ms=1_700_000_000_000)))
        yield Document(f"quarantined {name}", data, parse_unit, (MalformedRecord,))
        yield Document(
            f"quarantined {name}, met again", data, lambda got, unit=unit: holds_unit(got, unit), (MalformedRecord,)
        )


# -- what a broker is sent


def _sent() -> Iterator[Document]:
    for frame in load_frames():
        if len(frame.request) <= _MOST_BYTES:
            yield Document("request", frame.request[SIZE_BYTES:], _read_request, (RemoteProtocolError,))
    records = [NewRecord(key=b"key", value=b"value %d" % row * row, timestamp=1000 + row) for row in range(7)]
    for magic, codec in FORMATS:
        data = build_record_set(records, magic=magic, codec=codec)
        yield Document("produced set", data, _store, (CorruptMessageError,))


def _read_request(data: bytes) -> object:
    return read_request(data, {request: request.versions for request in REQUESTS.values()})


def _store(data: bytes) -> None:
    """Check, number and convert a set, half of them with checksums that are put right."""
    mended = bytearray(data)
    if sum(data) % 2:
        mend(mended)
    check_stored(bytes(mended), 3)
    if not check_any(bytes(mended), 70):
        raise CorruptMessageError("refused, with its place")


# -- message sets of Kafka 0.6 and 0.7, which the kernel and Python must read alike


def _message_sets() -> Iterator[Document]:
    payloads = [b"value %d" % row * row for row in range(6)]
    plain = build_message_set(payloads[:3], magic=0) + build_message_set(payloads)
    nested = compress_message_set(plain + build_message_set(payloads, codec=Codec.SNAPPY), Codec.GZIP)
    for name, data in (
        ("plain", plain),
        ("gzip", plain + build_message_set(payloads, codec=Codec.GZIP) + plain),
        ("snappy", build_message_set(payloads, codec=Codec.SNAPPY) * 2 + plain),
        ("nested", nested + plain),
    ):
        yield Document(f"set of 0.7 {name}", data, read_either_way, (CorruptMessageError,))
        yield Document(f"set of 0.7 {name}, checksums put right", data, _read_mended, (CorruptMessageError,))
    for codec in (Codec.GZIP, Codec.SNAPPY):
        # damaged below the checksum of the message around it
        read = partial(_read_inside, codec)
        yield Document(f"set of 0.7 inside {codec.name.lower()}", plain * 2, read, (CorruptMessageError,))


def _read_mended(data: bytes) -> None:
    mended = bytearray(data)
    mend_messages(mended)
    read_either_way(bytes(mended))


def _read_inside(codec: Codec, data: bytes) -> None:
    mended = bytearray(data)
    if sum(data) % 2:
        mend_messages(mended)
    read_either_way(compress_message_set(bytes(mended), codec) + build_message_set([b"behind"]))
