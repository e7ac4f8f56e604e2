# SPDX-License-Identifier: Apache-2.0
"""Records what real brokers store and send: raw record sets, and the records that went in.

    python -m tests.vectors.record_sets 1.1.1        # rewrites tests/vectors/records/kafka-1.1.1.json

Needs Java, maven on first use (``tests.support.kafka``), and aiokafka (``.[clients]``). None of our own decoders is asked
what a record set holds: keys, values and headers are those that the release's own Java producer (or aiokafka's, for
transactions) got acknowledged at that offset; timestamps, and which offsets a broker left in a compacted log, are those
that aiokafka's parser finds, and both must agree. Timestamps and producer ids differ from run to run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.record.memory_records import _MemoryRecordsPy  # its C twin fails on several magics in one set

from consumerd.wire.framing import SIZE_BYTES, decode_frame_size
from consumerd.wire.modern.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from consumerd.wire.session import CORRELATION_BYTES, encode_request
from tests.support.kafka import CODECS, Cluster, Sent, has_headers, parse_release

VECTORS: Final = Path(__file__).with_name("records")
NEWEST_FETCH: Final = {"0.8.2.2": 0, "0.9.0.1": 1, "0.10.2.2": 3, "0.11.0.3": 5, "1.1.1": 7, "2.8.2": 11}
PROPERTIES: Final = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "8000000",
    "log.retention.check.interval.ms": "500",
}
COMPACT: Final = {"cleanup_policy": "compact", "segment_ms": "2000", "min_cleanable_dirty_ratio": "0.01"}

WHOLE: Final = 1 << 20

Ledger = Mapping[int, Sent]


class Recorder:
    """Fetches from one broker, and keeps what came with what was to come."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cases: list[dict[str, Any]] = []
        self.fetch_version = NEWEST_FETCH[cluster.release]

    def produce(self, topic: str, records: Sequence[Sent], codec: str = "none", batch_bytes: int = 1200) -> Ledger:
        """Send records with the release's own producer, several to a batch; returns what stands at which offset."""
        producer = self.cluster.ledger_producer(codec, linger_ms="100", batch_size=str(batch_bytes))
        producer.send(records)
        return {offset: sent for (name, _, offset), sent in producer.finish().items() if name == topic}

    def fetch(self, topic: str, start: int, version: int, max_bytes: int, isolation: int) -> FetchedPartition:
        """Fetch once from partition 0."""
        asked = FetchPartition(partition=0, fetch_offset=start, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=200,
            min_bytes=1,
            isolation_level=isolation if version >= 4 else READ_UNCOMMITTED,
            topics=(FetchTopic(topic=topic, partitions=(asked,)),),
        )
        with socket.create_connection(("127.0.0.1", self.cluster.ports[0]), 10.0) as sock:
            sock.sendall(encode_request(request, version, correlation_id=1, client_id="recorder"))
            stream = sock.makefile("rb")
            body = stream.read(decode_frame_size(stream.read(SIZE_BYTES), 1 << 24))
        (answer,) = request.decode_response(version, memoryview(body)[CORRELATION_BYTES:]).topics[0].partitions
        if answer.error_code:
            raise RuntimeError(f"fetch of {topic} at {start}: error {answer.error_code}")
        return answer

    def keep(
        self,
        note: str,
        topic: str,
        ledger: Ledger,
        *,
        start: int = 0,
        version: int | None = None,
        max_bytes: int = WHOLE,
        missing: Mapping[int, str] | None = None,
        isolation: int = READ_UNCOMMITTED,
        parsed: bool = True,
    ) -> None:
        """Fetch to the log's end, or once with a ``max_bytes``, and keep a case for each answer: a broker gives one
        segment at a time. ``missing`` says of offsets why they hold no record for a consumer.

        ``parsed`` is false where aiokafka cannot read the set: it is then known to hold all up to the log's end.
        """
        version = self.fetch_version if version is None else version
        while True:
            answer = self.fetch(topic, start, version, max_bytes, isolation)
            raw = bytes(answer.record_set or b"")
            found = parse(raw) if parsed else dict.fromkeys(range(start, answer.high_watermark), (-1, -1))
            if parsed:
                self._compare(raw, ledger, version)
            last = max(found, default=answer.high_watermark)
            expected = {
                offset: times for offset, times in found.items() if offset >= start and offset not in (missing or {})
            }
            known = {offset: reason for offset, reason in (missing or {}).items() if start <= offset <= last}
            self.cases.append(
                {
                    "note": note,
                    "fetch_version": version,
                    "start": start,
                    "read_committed": isolation == READ_COMMITTED,
                    "aborted": [[one.producer_id, one.first_offset] for one in answer.aborted_transactions or ()],
                    "to_the_end": max_bytes == WHOLE and last + 1 >= max(ledger),
                    "high_watermark": answer.high_watermark,
                    "missing": {str(offset): reason for offset, reason in known.items()},
                    "records": [
                        _describe(offset, *expected[offset], ledger[offset], version) for offset in sorted(expected)
                    ],
                    "record_set_hex": raw.hex(),
                }
            )
            start = last + 1
            if max_bytes != WHOLE or not found or start >= max(ledger):
                break

    def left(self, topic: str) -> set[int]:
        """Return the offsets that the log holds now."""
        offsets: set[int] = set()
        start = 0
        while True:
            answer = self.fetch(topic, start, self.fetch_version, WHOLE, READ_UNCOMMITTED)
            found = parse(bytes(answer.record_set or b""))
            offsets |= found.keys()
            start = max(found, default=answer.high_watermark) + 1
            if start >= answer.high_watermark:
                return offsets

    def _compare(self, raw: bytes, ledger: Ledger, version: int) -> None:
        for record in parse_records(raw):
            sent = ledger[record.offset]
            seen = (record.key, record.value, tuple(record.headers) if version >= 4 else sent.headers)
            if seen != (sent.key, sent.value, sent.headers):
                raise RuntimeError(f"offset {record.offset}: sent {sent}, aiokafka reads {seen}")


def _describe(offset: int, timestamp: int, timestamp_type: int, sent: Sent, version: int) -> dict[str, Any]:
    headers = [[name, None if value is None else value.hex()] for name, value in sent.headers]
    return {
        "offset": offset,
        "timestamp": timestamp,
        "timestamp_type": timestamp_type,
        "key_hex": None if sent.key is None else sent.key.hex(),
        "value_hex": None if sent.value is None else sent.value.hex(),
        "headers": headers if version >= 4 else [],
    }


def parse_records(raw: bytes) -> list[Any]:
    """Return the data records in a record set as aiokafka's parser has them."""
    records = _MemoryRecordsPy(raw)
    found = []
    while records.has_next():
        batch = records.next_batch()
        if not getattr(batch, "is_control_batch", False):
            found += list(batch)
    return found


def parse(raw: bytes) -> dict[int, tuple[int, int]]:
    """Return timestamp and its type by offset; -1 where there is none."""
    return {
        record.offset: (
            -1 if record.timestamp is None else record.timestamp,
            -1 if record.timestamp_type is None else record.timestamp_type,
        )
        for record in parse_records(raw)
    }


# -- what is produced


def assorted(topic: str, count: int, *, headers: bool) -> list[Sent]:
    """Return records of many shapes."""
    keys = (None, b"", b"key", b"k" * 70)
    values = (b"", None, b"v", b'{"amount": 17}', b"long" * 40, b"longer" * 30)
    some = (("trace", b"abc"), ("none", None), ("empty", b""))
    return [
        Sent(
            topic=topic,
            partition=0,
            key=keys[number % len(keys)],
            value=values[number % len(values)],
            headers=some[: number % 5] if headers and number % 5 < 4 else (),
        )
        for number in range(count)
    ]


def rows(topic: str, count: int, key: bytes | None = None) -> list[Sent]:
    """Return records of one shape."""
    return [Sent(topic=topic, partition=0, key=key, value=b"%0100d" % number) for number in range(count)]


def record_codecs(recorder: Recorder) -> None:
    """Each codec of the release: from the start, from within a batch, and cut off."""
    release = recorder.cluster.release
    for codec in CODECS[release]:
        topic = f"assorted-{codec}"
        recorder.cluster.create_topic(topic)
        ledger = recorder.produce(topic, assorted(topic, 30, headers=has_headers(release)), codec)
        broken = release.startswith(("0.8", "0.9")) and codec == "lz4"
        recorder.keep(f"{codec}, assorted", topic, ledger, parsed=not broken)
        recorder.keep(f"{codec}, from within a batch", topic, ledger, start=3, parsed=not broken)
        if not broken:
            recorder.keep(f"{codec}, cut off", topic, ledger, start=3, max_bytes=1800)
        if codec in ("none", "snappy"):
            topic = f"rows-{codec}"
            recorder.cluster.create_topic(topic)
            records = rows(topic, 120, None if codec == "none" else b"key")
            ledger = recorder.produce(
                topic, [*records, Sent(topic, 0, None, b"large" * 2000)], codec, batch_bytes=32000
            )
            recorder.keep(f"{codec}, rows", topic, ledger)


def record_log_append_time(recorder: Recorder) -> None:
    """Timestamps of the broker's, plain and compressed."""
    for codec in ("none", "gzip"):
        topic = f"appended-{codec}"
        recorder.cluster.create_topic(topic, message_timestamp_type="LogAppendTime")
        ledger = recorder.produce(topic, assorted(topic, 12, headers=False), codec)
        recorder.keep(f"{codec}, log append time", topic, ledger)


def record_down_conversion(recorder: Recorder) -> None:
    """What a broker of 0.11 or later makes of its batches for older consumers."""
    for codec in ("none", "gzip", "lz4"):
        topic = f"rows-down-{codec}"
        recorder.cluster.create_topic(topic)
        ledger = recorder.produce(topic, rows(topic, 30), codec)
        for version, magic in ((1, 0), (3, 1)):
            recorder.keep(
                f"{codec}, converted down to magic {magic}",
                topic,
                ledger,
                version=version,
                parsed=not (codec == "lz4" and magic == 0),
            )


def record_mixed(recorder: Recorder) -> None:
    """A log that has seen two upgrades of the message format."""
    cluster = recorder.cluster
    cluster.create_topic("mixed", message_format_version="0.9.0")
    ledger: dict[int, Sent] = {}
    for form, codec in (("0.9.0", "none"), ("0.9.0", "snappy"), ("0.10.2", "gzip"), ("0.10.2", "none"), ("1.1", "none"), ("1.1", "lz4")):  # fmt: skip
        cluster.run_tool(
            "kafka.admin.ConfigCommand", "--zookeeper", cluster.zookeeper, "--alter", "--entity-type", "topics",
            "--entity-name", "mixed", "--add-config", f"message.format.version={form}",
        )  # fmt: skip
        time.sleep(2.0)  # the broker hears of it through ZooKeeper
        ledger.update(recorder.produce("mixed", assorted("mixed", 7, headers=False), codec))
    recorder.keep("three magics in one log", "mixed", ledger)


def record_compaction(recorder: Recorder, codecs: Sequence[str]) -> None:
    """Logs in which only the last record of each key is left."""
    for codec in codecs:
        topic = f"compacted-{codec}"
        recorder.cluster.create_topic(topic, **COMPACT)
        ledger: dict[int, Sent] = {}
        for phase in range(3):
            sent = [
                Sent(
                    topic=topic,
                    partition=0,
                    key=b"key-%d" % (number % (5 + 4 * phase)),
                    value=b"%d/%d" % (phase, number),
                )
                for number in range(20)
            ]
            ledger.update(recorder.produce(topic, sent, codec))
            time.sleep(2.5)  # the segment's age
        missing = _wait_compacted(recorder, topic, ledger)
        recorder.keep(f"{codec}, compacted", topic, ledger, missing=missing)


def _wait_compacted(recorder: Recorder, topic: str, ledger: Ledger) -> dict[int, str]:
    """Wait until the cleaner has been through all but the newest segment; returns what it removed."""
    deadline = time.monotonic() + 60
    while True:
        removed = ledger.keys() - recorder.left(topic)
        if len(removed) >= 20:
            return dict.fromkeys(sorted(removed), "compaction")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic} is not compacted: {len(removed)} records are gone")
        time.sleep(0.5)


def record_transactions(recorder: Recorder) -> None:
    """Two producers whose transactions overlap, one of them aborted, and a plain one between them."""
    recorder.cluster.create_topic("transactions")
    ledger, aborted = asyncio.run(_transact(recorder.cluster.bootstrap, "transactions"))
    end = max(ledger) + 3
    control = dict.fromkeys((offset for offset in range(end) if offset not in ledger), "control")
    recorder.keep("transactions, read uncommitted", "transactions", ledger, missing=control)
    recorder.keep(
        "transactions, read committed",
        "transactions",
        ledger,
        missing=control | dict.fromkeys(aborted, "aborted"),
        isolation=READ_COMMITTED,
    )
    recorder.keep(
        "transactions, read committed, from the middle",
        "transactions",
        ledger,
        start=5,
        missing=control | dict.fromkeys(aborted, "aborted"),
        isolation=READ_COMMITTED,
    )


async def _transact(bootstrap: str, topic: str) -> tuple[dict[int, Sent], set[int]]:
    """Return what was written, and the offsets of what was aborted; the log ends with a commit marker."""
    ledger: dict[int, Sent] = {}
    first = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="first")
    second = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="second", compression_type="gzip")
    plain = AIOKafkaProducer(bootstrap_servers=bootstrap)

    async def send(producer: AIOKafkaProducer, *values: bytes) -> set[int]:
        offsets = set()
        sent = [Sent(topic=topic, partition=0, key=b"k", value=value) for value in values]
        futures = [await producer.send(topic, one.value, key=one.key, partition=0) for one in sent]
        for one, future in zip(sent, futures, strict=True):
            offset = (await future).offset
            ledger[offset] = one
            offsets.add(offset)
        return offsets

    async with first, second, plain:
        await first.begin_transaction()
        await send(first, b"first 0", b"first 1")
        await first.commit_transaction()
        await first.begin_transaction()
        aborted = await send(first, b"aborted 0", b"aborted 1")
        await second.begin_transaction()
        await send(second, b"second 0", b"second 1", b"second 2")
        await send(plain, b"plain 0")
        aborted |= await send(first, b"aborted 2")
        await first.abort_transaction()
        await send(second, b"second 3")
        await first.begin_transaction()
        await send(first, b"first 2")
        await second.commit_transaction()
        await send(plain, b"plain 1")
        await first.commit_transaction()
    return ledger, aborted


def record_emptied(recorder: Recorder) -> None:
    """Batches that compaction has emptied but keeps, for they hold the last sequence number of their producer."""
    cluster = recorder.cluster
    cluster.create_topic("emptied", **COMPACT)
    ledger, aborted = asyncio.run(_transact(cluster.bootstrap, "emptied"))
    time.sleep(2.5)
    for _ in range(2):
        ledger.update(
            recorder.produce("emptied", [Sent("emptied", 0, b"k", b"after"), Sent("emptied", 0, b"l", b"after")])
        )
        time.sleep(2.5)
    deadline = time.monotonic() + 60
    while recorder.left("emptied") & set(range(max(aborted))) and time.monotonic() < deadline:
        time.sleep(0.5)
    recorder.keep("transactions, compacted away", "emptied", ledger)
    recorder.keep("transactions, compacted away, read committed", "emptied", ledger, isolation=READ_COMMITTED)


def plan(release: str) -> list[Callable[[Recorder], None]]:
    """Return what there is to record of a release."""
    number = parse_release(release)
    steps: list[Callable[[Recorder], None]] = [record_codecs]
    if number >= (0, 10):
        steps.append(record_log_append_time)
    steps.append(lambda recorder: record_compaction(recorder, ("none",) if number < (0, 10) else ("none", "gzip")))
    if (0, 11) <= number < (2, 0):
        steps += [record_down_conversion, record_mixed]
    if number >= (0, 11):
        steps += [record_transactions, record_emptied]
    return steps


def to_text(document: dict[str, Any]) -> str:
    """Return the document as JSON with one case a line."""
    head = json.dumps({key: value for key, value in document.items() if key != "cases"}, indent=1)
    cases = ",\n".join(f"  {json.dumps(case)}" for case in document["cases"])
    return f'{head[:-2]},\n "cases": [\n{cases}\n ]\n}}\n'


def main() -> None:
    """Record one release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("release", choices=sorted(NEWEST_FETCH))
    release: str = parser.parse_args().release
    with Cluster(release, properties=PROPERTIES) as cluster:
        recorder = Recorder(cluster)
        for step in plan(release):
            step(recorder)
    target = VECTORS / f"kafka-{release}.json"
    document = {
        "release": release,
        "recorded": datetime.now(UTC).date().isoformat(),
        "how": f"python -m tests.vectors.record_sets {release}",
        "cases": recorder.cases,
    }
    target.write_text(to_text(document))


if __name__ == "__main__":
    main()
