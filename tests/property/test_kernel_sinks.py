# SPDX-License-Identifier: Apache-2.0
"""What the native kernel makes of records for sinks is what Python makes of them: JSON lines, and Arrow's buffers."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.sinks.lines import encode_lines
from consumerd.wire import kernel
from consumerd.wire.record_fields import NO_TIMESTAMP
from consumerd.wire.records import Record, RecordBatch
from tests.support.pure import without_kernel
from tests.support.record_batches import build_batch, record

pytestmark = pytest.mark.skipif(kernel.lines is None or kernel.gather is None, reason="there is no kernel")

MODERN = TopicPartition.modern('odd"topic\u2603', 3)
LEGACY = TopicPartition("clicks", PartitionKey(3, BrokerId(0)))
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

# around the width of the kernel's steps: plain bytes with something else at any place among them
ODD = st.sampled_from(
    [b'"', b"\\", b"\n", b"\x00", b"\x1f", b"\x7f", b"\x80", b"\xc1\xbf", b"\xff"]
    + [text.encode() for text in ("\xe9", "\u0800", "\u2603", "\ud7ff", "\ue000", "\U00010000", "\U0010ffff")]
    + [
        b"\xe2\x98",
        b"\xf0\x9f\x98",
        b"\xc0\x80",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
    ]
)
PLAIN = st.integers(0, 40).map(lambda size: b"abcdefghijklmnopqrstuvwxyz !#[]~{}01234567"[:size])
FIELDS = st.one_of(
    st.none(),
    st.binary(max_size=50),
    st.text(max_size=50).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(st.one_of(PLAIN, ODD), max_size=8).map(b"".join),
)
HEADERS = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), FIELDS), max_size=2).map(
    tuple
)


@st.composite
def batches(draw: st.DrawFn, partitions: tuple[TopicPartition, ...] = (MODERN, LEGACY)) -> RecordBatch:
    """Batches of any records, with what stands between them on the wire."""
    partition = draw(st.sampled_from(partitions))
    count = draw(st.integers(1, 12))
    offsets = sorted(draw(st.lists(st.integers(0, (1 << 63) - 3), min_size=count, max_size=count)))
    headers = HEADERS if draw(st.booleans()) else st.just(())
    indexes = st.integers(0, (1 << 31) - 1) if draw(st.booleans()) else st.just(0)
    keys = FIELDS if draw(st.booleans()) else st.none()
    rows = [
        Record(
            offset=offset,
            timestamp=-1,
            timestamp_type=record(0).timestamp_type,
            key=draw(keys),
            value=draw(FIELDS),
            headers=draw(headers),
            index=draw(indexes),
        )
        for offset in offsets
    ]
    batch = build_batch(
        partition, rows, next_offset=offsets[-1] + 1, framing=draw(st.sampled_from([b"", b"\xff\x00", b'"' * 20]))
    )
    timestamps = array("q", [draw(st.one_of(st.just(NO_TIMESTAMP), INT64)) for _ in rows])
    buffer = draw(st.sampled_from([bytes, bytearray, memoryview]))(batch.buffer)
    return replace(batch, timestamps=timestamps, buffer=buffer)


@given(batches())
def test_lines_are_the_same(batch: RecordBatch) -> None:
    """Byte by byte: a reader cannot tell who wrote them."""
    with without_kernel():
        expected = b"".join(encode_lines(batch))

    assert expected == b"".join(encode_lines(batch))


@pytest.mark.parametrize("odd", [b'"', b"\\", b"\x1f", b"\xc3\xa9", b"\xff", b"\xe2\x98"])
@pytest.mark.parametrize("behind", [b"", b'"' * 32, b"\xff" * 32])
def test_what_is_not_plain_is_seen_at_every_place(odd: bytes, behind: bytes) -> None:
    """Within a step of 16 bytes, at its ends, behind the last whole one, and at the end of all there is."""
    for length in range(36):
        values = [(b"a" * length)[:place] + odd + b"a" * (length - place) for place in range(length + 1)]
        batch = build_batch(MODERN, [record(offset, value) for offset, value in enumerate(values)], framing=behind)
        with without_kernel():
            expected = b"".join(encode_lines(batch))

        assert expected == b"".join(encode_lines(batch))


@given(batches(partitions=(MODERN,)), st.integers(1, 3000), st.integers(0, 12))
def test_pieces_of_any_size_are_whole_lines(batch: RecordBatch, enough: int, row: int) -> None:
    """However much is enough, and wherever the kernel begins, each piece has at least a line, and none is cut or missing."""
    lines = b"".join(encode_lines(replace(batch, header_starts=array("q"), header_ends=array("q")))).splitlines(
        keepends=True
    )
    head = lines[0][: lines[0].index(b'"offset":') + len(b'"offset":')]
    row = min(row, len(batch) - 1)
    seen = row
    while seen < len(batch):
        piece, behind = native_lines(batch, head, seen, enough)
        assert b"".join(lines[seen:behind]) == piece
        assert behind > seen
        assert len(b"".join(lines[seen : behind - 1])) < enough
        seen = behind


def native_lines(batch: RecordBatch, head: bytes, row: int, enough: int) -> tuple[bytes, int]:
    assert kernel.lines is not None
    columns = (batch.offsets, None, batch.indexes or None, batch.timestamps)
    keys, values = (batch.key_starts, batch.key_ends), (batch.value_starts, batch.value_ends)
    written = kernel.lines.encode_lines(batch.buffer, head, columns, keys, values, None, row, enough)
    assert written is not None
    return written


@given(batches())
def test_arrow_columns_are_the_same(batch: RecordBatch) -> None:
    """Values, nulls and types; and they are what Arrow calls valid."""
    with without_kernel():
        expected = batch.to_arrow()
    found = batch.to_arrow()
    found.validate(full=True)

    assert expected == found
    assert [column.null_count for column in expected] == [column.null_count for column in found]


@given(st.lists(st.one_of(st.just(NO_TIMESTAMP), INT64)))
@example([])
@example([NO_TIMESTAMP])
def test_extent_leaves_out_what_is_missing(values: list[int]) -> None:
    """A file's time range is of the records that have a time."""
    assert kernel.gather is not None
    known = [value for value in values if value != NO_TIMESTAMP]

    assert ((min(known), max(known)) if known else None) == kernel.gather.extent(array("q", values), NO_TIMESTAMP)


SPANS = st.tuples(st.one_of(st.integers(-3, 12), INT64), st.one_of(st.integers(-3, 12), INT64))


@given(st.binary(max_size=10), st.lists(SPANS, min_size=1, max_size=6), st.integers(0, 5))
def test_any_spans_are_safe_to_give(buffer: bytes, spans: list[tuple[int, int]], row: int) -> None:
    """The kernel takes what lies within the buffer and leaves the rest to Python."""
    assert kernel.gather is not None
    assert kernel.lines is not None
    starts, ends = array("q", [start for start, _ in spans]), array("q", [end for _, end in spans])
    good = [start < 0 or start <= end <= len(buffer) for start, end in spans]
    gathered = kernel.gather.gather(buffer, starts, ends, pa.allocate_buffer)

    assert all(good) == (gathered is not None)
    if gathered is not None:
        offsets, data, validity, nulls = gathered
        found = pa.Array.from_buffers(pa.binary(), len(spans), [validity, offsets, data], null_count=nulls)
        assert [None if start < 0 else buffer[start:end] for start, end in spans] == found.to_pylist()

    zeros = array("q", bytes(8 * len(spans)))
    columns = (zeros, None, None, zeros)
    written = kernel.lines.encode_lines(buffer, b"", columns, (zeros, zeros), (starts, ends), None, row, 1 << 20)
    if row >= len(spans) or not good[row]:
        assert written is None
    else:
        assert written is not None
        text, behind = written
        assert behind == next((at for at in range(row, len(spans)) if not good[at]), len(spans))
        assert text.count(b"\n") >= behind - row


@pytest.mark.parametrize(
    "spoil",
    [
        lambda given: given.update(columns=(given["offsets"][:-1], None, None, given["offsets"])),
        lambda given: given.update(columns=(given["offsets"], given["offsets"][:-1], None, given["offsets"])),
        lambda given: given.update(columns=(given["offsets"], None, given["offsets"][:-1], given["offsets"])),
        lambda given: given.update(columns=(given["offsets"], None, None, given["offsets"][:-1])),
        lambda given: given.update(keys=(given["offsets"], given["offsets"][:-1])),
        lambda given: given.update(keys=(given["offsets"][:-1], given["offsets"])),
        lambda given: given.update(values=(given["offsets"], given["offsets"][:-1])),
        lambda given: given.update(values=(given["offsets"][:-1], given["offsets"])),
        lambda given: given.update(headers=(b"[]", array("q", [0, 1]))),
        lambda given: given.update(headers=(b"[]", array("q", [0, 3, 3]))),
        lambda given: given.update(headers=(b"[]", array("q", [1, 0, 2]))),
        lambda given: given.update(headers=(b"[]", array("q", [-1, 0, 2]))),
        lambda given: given.update(row=2),
        lambda given: given.update(row=-1),
        lambda given: given.update(enough=0),
        lambda given: given.update(columns=(array("q", [(1 << 63) - 1] * 2), None, None, given["offsets"])),
    ],
)
def test_columns_that_do_not_agree_are_left_to_python(spoil: Callable[[dict[str, object]], None]) -> None:
    """Nothing is read beyond a column's end."""
    assert kernel.lines is not None
    offsets = array("q", [0, 0])
    given = {"offsets": offsets, "columns": (offsets, None, None, offsets), "keys": (offsets, offsets)}
    given |= {"values": (offsets, offsets), "headers": None, "row": 0, "enough": 1 << 20}
    names = ("columns", "keys", "values", "headers", "row", "enough")
    assert kernel.lines.encode_lines(b"", b"", *(given[name] for name in names)) is not None
    spoil(given)

    assert kernel.lines.encode_lines(b"", b"", *(given[name] for name in names)) is None


def test_memory_that_is_too_small_is_not_written_to() -> None:
    """Whatever somebody allocates."""
    assert kernel.gather is not None
    column = array("q", [0, -1])
    for short in (1, 12):
        with pytest.raises(ValueError, match="less memory"):
            kernel.gather.gather(
                b"abc", column, array("q", [3, -1]), lambda size, short=short: bytearray(0 if size == short else size)
            )
