# SPDX-License-Identifier: Apache-2.0
"""JSON lines: what a reader gets back."""

import json
from dataclasses import replace

import pytest

from consumerd.errors import CorruptMessageError
from consumerd.model import BrokerId, PartitionKey, TimestampType, TopicPartition
from consumerd.sinks import lines
from consumerd.sinks.lines import encode_lines
from consumerd.wire.records import RecordBatch
from tests.support.record_batches import build_batch, record

pytestmark = pytest.mark.usefixtures("each_path")

PARTITION = TopicPartition.modern("orders", 3)


def decode(batch: RecordBatch) -> list[dict[str, object]]:
    return [json.loads(line) for line in b"".join(encode_lines(batch)).splitlines()]


def test_line_has_every_field():
    """The names and types are a promise."""
    batch = build_batch(
        PARTITION,
        [record(5, b"v", key=b"k", timestamp=17, headers=(("trace", b"1"), ("raw", b"\xff"), ("none", None)))],
    )

    assert decode(batch) == [
        {
            "topic": "orders",
            "partition": 3,
            "timestamp_type": 0,
            "offset": 5,
            "next_offset": 6,
            "index": 0,
            "timestamp": 17,
            "headers": [
                {"key": "trace", "value": "1"},
                {"key": "raw", "value_base64": "/w=="},
                {"key": "none", "value": None},
            ],
            "key": "k",
            "value": "v",
        }
    ]


@pytest.mark.parametrize(
    ("data", "field", "expected"),
    [
        (None, "value", None),
        (b"", "value", ""),
        ("ünï☃ \U0001f600".encode(), "value", "ünï☃ \U0001f600"),
        (b'{"a": "b\\n"}\n\r\t\x00\x1f\x7f', "value", '{"a": "b\\n"}\n\r\t\x00\x1f\x7f'),
        ("\u2028\u0085\x0b\x0c".encode(), "value", "\u2028\u0085\x0b\x0c"),
        (b"\xff\xfe", "value_base64", "//4="),
        ("\ud800".encode("utf-8", "surrogatepass"), "value_base64", "7aCA"),
    ],
)
@pytest.mark.parametrize("beside", [[], [b"plain"], [b"\xff"], [None]])
def test_values_survive_as_text_or_base64(data, field, expected, beside):
    """Whatever bytes a record has, and its neighbours, a reader can tell them again; one record is one line."""
    batch = build_batch(PARTITION, [record(offset, value) for offset, value in enumerate([data, *beside])])
    encoded = b"".join(encode_lines(batch))

    assert encoded.count(b"\n") == 1 + len(beside)
    first = json.loads(encoded.split(b"\n")[0])
    assert first[field] == expected
    assert len([name for name in first if name.startswith("value")]) == 1


def test_missing_timestamp_is_null():
    """Magic 0 has none, and -1 is no time."""
    assert [line["timestamp"] for line in decode(build_batch(PARTITION, [record(0), record(1, timestamp=3)]))] == [
        None,
        3,
    ]


def test_each_line_says_whose_time_its_timestamp_is():
    """As Parquet has it: -1 none, 0 the producer's, 1 the broker's. Lines of one batch may differ, headers included."""
    kinds = [TimestampType.CREATE_TIME] * 3 + [TimestampType.NONE] + [TimestampType.LOG_APPEND_TIME] * 2
    batch = build_batch(
        PARTITION,
        [
            record(offset, timestamp=-1 if kind is TimestampType.NONE else 7, headers=(("n", b"%d" % offset),))
            for offset, kind in enumerate(kinds)
        ],
    )
    batch = replace(batch, timestamp_types=bytes(kind + 1 for kind in kinds))
    lines = decode(batch)

    assert [line["timestamp_type"] for line in lines] == [0, 0, 0, -1, 1, 1]
    assert [line["offset"] for line in lines] == list(range(6))
    assert [line["headers"] for line in lines] == [[{"key": "n", "value": str(offset)}] for offset in range(6)]
    assert {line["timestamp_type"] for line in decode(replace(batch, timestamp_types=b""))} == {-1}


def test_records_with_and_without_headers_mix():
    """The column is there if any record has headers."""
    batch = build_batch(PARTITION, [record(0), record(1, headers=(("a", b"b"),))])

    assert [line["headers"] for line in decode(batch)] == [[], [{"key": "a", "value": "b"}]]


def test_legacy_record_goes_on_at_the_next_message():
    """Offsets are bytes, and records of one compressed set share theirs."""
    partition = TopicPartition("clicks", PartitionKey(3, BrokerId(0)))
    records = [record(0), record(40, index=0), record(40, index=1), record(40, index=2), record(90)]
    batch = build_batch(partition, records, next_offset=120, next_offsets=[40, 90, 90, 90, 120])

    assert [(line["offset"], line["index"], line["next_offset"]) for line in decode(batch)] == [
        (0, 0, 40),
        (40, 0, 90),
        (40, 1, 90),
        (40, 2, 90),
        (90, 0, 120),
    ]
    assert (decode(batch)[0]["broker"], decode(batch)[0]["partition"]) == (0, 3)


@pytest.mark.parametrize(("count", "size"), [(10_000, 1), (5, 600_000), (3, 2_000_000)])
def test_pieces_are_bounded_whole_lines(count: int, size: int):
    """A batch may be decompressed to many times what was fetched; its text must not double that at once."""
    batch = build_batch(PARTITION, [record(offset, b"x" * size) for offset in range(count)])
    pieces = list(encode_lines(batch))

    assert all(piece.endswith(b"\n") for piece in pieces)
    assert max(len(piece) for piece in pieces) <= max(2 * lines.PIECE_BYTES, size + 1000)
    assert [json.loads(line)["offset"] for line in b"".join(pieces).splitlines()] == list(range(count))


def test_unreadable_headers_are_refused_before_anything_is_given():
    """A half-written batch could not be taken back."""
    batch = build_batch(PARTITION, [record(offset, headers=(("a", b"b"),)) for offset in range(5000)])
    batch.header_ends[-1] -= 1

    with pytest.raises(CorruptMessageError):
        next(encode_lines(batch))


def test_other_buffers_give_the_same_lines():
    """A decoder may hand out a view of the frame."""
    batch = build_batch(PARTITION, [record(0, b"v", key=b"\xff"), record(1, None)])
    views = [
        RecordBatch(**{name: getattr(batch, name) for name in RecordBatch.__slots__} | {"buffer": buffer})
        for buffer in (memoryview(batch.buffer), bytearray(batch.buffer))
    ]

    assert [decode(view) for view in views] == [decode(batch)] * 2
