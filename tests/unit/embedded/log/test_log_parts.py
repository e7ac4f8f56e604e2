# SPDX-License-Identifier: Apache-2.0
"""Small parts: settings, indexes, headers."""

from __future__ import annotations

import pytest

from consumerd.embedded.log.headers import parse_header, walk_headers
from consumerd.embedded.log.index import OffsetIndex, TimeIndex
from consumerd.embedded.log.settings import LogSettings
from consumerd.errors import ConfigError, CorruptMessageError
from consumerd.model import TimestampType
from tests.support.logs import START_MS, record_set


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"segment_bytes": 13}, "segment.bytes"),
        ({"segment_bytes": 1 << 31}, "segment.bytes"),
        ({"segment_index_bytes": 11}, "segment.index.bytes"),
        ({"segment_ms": 0}, "segment.ms"),
        ({"index_interval_bytes": -1}, "index.interval.bytes"),
        ({"flush_messages": 0}, "flush.messages"),
        ({"message_format": 3}, "message format"),
        ({"timestamp_type": TimestampType.NONE}, "message.timestamp.type"),
        ({"min_cleanable_ratio": 1.1}, "min.cleanable.dirty.ratio"),
    ],
)
def test_settings_that_cannot_work_name_the_key(change: dict[str, object], named: str) -> None:
    """Found when they are made, not when the log is written."""
    with pytest.raises(ConfigError, match=named):
        LogSettings(**change)  # type: ignore[arg-type]  # fields by their names


def test_an_index_says_where_to_begin() -> None:
    """At the last entry that is not above what is looked for; an entry that does not rise is none."""
    index = OffsetIndex()
    assert 0 == index.find(5)
    for offset, position in ((3, 100), (3, 150), (2, 170), (7, 200)):
        index.append(offset, position)
    assert [(2, 0), (3, 100), (6, 100), (7, 200), (99, 200)] == [(o, index.find(o)) for o in (2, 3, 6, 7, 99)]
    assert b"\0\0\0\3\0\0\0\x64\0\0\0\7\0\0\0\xc8" == index.encode()
    assert 2 == len(index)
    again = OffsetIndex.decode(index.encode(), segment_bytes=201, most_relative=7)
    assert again is not None
    assert index.encode() == again.encode()
    assert OffsetIndex.decode(index.encode(), segment_bytes=200, most_relative=7) is None
    assert OffsetIndex.decode(index.encode(), segment_bytes=201, most_relative=6) is None


def test_a_time_index_says_what_is_certainly_older() -> None:
    """Entries rise; "no timestamp" is none."""
    index = TimeIndex()
    for timestamp, offset in ((-1, 0), (1000, 4), (1000, 6), (900, 7), (2000, 9)):
        index.append(timestamp, offset)
    assert [(1000, 0), (1001, 4), (2000, 4), (2001, 9)] == [(t, index.find(t)) for t in (1000, 1001, 2000, 2001)]
    assert (1000).to_bytes(8, "big") + b"\0\0\0\4" + (2000).to_bytes(8, "big") + b"\0\0\0\t" == index.encode()
    assert TimeIndex.decode(index.encode(), most_relative=8) is None
    backwards = (1000).to_bytes(8, "big") + b"\0\0\0\4" + (2000).to_bytes(8, "big") + b"\0\0\0\3"
    assert TimeIndex.decode(backwards, most_relative=9) is None


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_header_is_read_when_there_is_enough_of_it(magic: int) -> None:
    """Every prefix is "not yet", or the header of a unit that is not whole yet; none is an error."""
    data = record_set([b"value", b"other"], magic=magic, codec=1)
    whole = parse_header(data, 0, 500)
    assert whole is not None
    assert (500, len(data), 500 + len(data), 1) == (whole.position, whole.size, whole.end, whole.last_offset)
    assert (START_MS if magic else -1) == whole.max_timestamp
    for end in range(len(data)):
        assert parse_header(data[:end], 0, 500) in (None, whole)
        assert [] == list(walk_headers(data[:end]))
    assert [0, len(data)] == [one.position for one in walk_headers(data * 2 + data[:50])]


@pytest.mark.parametrize(
    ("at", "wrong"), [(16, b"\3"), (8, b"\0\0\0\x0d"), (8, b"\0\0\0\x30"), (8, b"\xff\xff\xff\xff"), (23, b"\xff" * 4)]
)
def test_what_cannot_be_a_unit_is_an_error(at: int, wrong: bytes) -> None:
    """An unknown magic, a size that nothing has, offsets that fall."""
    data = bytearray(record_set([b"value"]))
    data[at : at + len(wrong)] = wrong
    with pytest.raises(CorruptMessageError):
        parse_header(data, 0, 0)
