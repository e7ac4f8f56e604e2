# SPDX-License-Identifier: Apache-2.0
"""Formats of ``consumerd tail``: bytes as they are for programs, one line a record for people, JSON as the sinks write it."""

from __future__ import annotations

import json

import pytest

from consumerd.admin.record_formats import FORMAT_NAMES, FormatOptions, make_format
from consumerd.model import TopicPartition
from consumerd.sinks.lines import encode_lines
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import RecordBatch
from tests.support.record_sets import RecordSpec, batch

P = TopicPartition.modern("orders", 3)
RECORDS = [
    (b"k", b"paid"),
    (None, "gr\u00fc\u00dfe".encode()),
    (b"k", None),
    (b"\x00\xff", b"two\nlines\t\x1b[31m"),
    (b"", b""),
]


@pytest.fixture
def records() -> RecordBatch:
    """Five records at 100, one with a header."""
    specs = [
        RecordSpec(
            delta=at,
            key=key,
            value=value,
            timestamp_delta=at,
            headers=[(b"trace", b"a\x07")] if at == 0 else (),
        )
        for at, (key, value) in enumerate(RECORDS)
    ]
    return decode_record_set(batch(100, specs, base_timestamp=1_763_800_000_250), partition=P, start=100)


def show(name: str, records: RecordBatch, **options: bytes | bool) -> bytes:
    return b"".join(make_format(name, FormatOptions(**options))(records))  # type: ignore[arg-type]  # by name


def test_json_lines_are_those_of_the_sinks(records: RecordBatch) -> None:
    """One rule for what is no text."""
    assert show("json", records) == b"".join(encode_lines(records))
    assert json.loads(show("json", records).splitlines()[3])["key_base64"] == "AP8="


def test_values_are_the_bytes_that_were_produced(records: RecordBatch) -> None:
    """A program that reads them gets no escapes; null is empty unless said otherwise."""
    values = [value for _, value in RECORDS]
    assert show("value", records) == b"".join((value or b"") + b"\n" for value in values)
    assert show("value", records, null=b"NULL").splitlines(keepends=True)[2] == b"NULL\n"


def test_keys_and_values_are_as_produce_reads_them(records: RecordBatch) -> None:
    """``produce --key-separator '|' --null-value -`` makes the same records of them."""
    shown = show("key-value", records, separator=b"|", null=b"-")
    assert shown == b"".join(
        b"%b|%b\n" % (b"-" if key is None else key, b"-" if value is None else value) for key, value in RECORDS
    )


def test_a_terminal_gets_no_control_characters(records: RecordBatch) -> None:
    """It would obey them; and a record is one line."""
    shown = show("key-value", records, escape=True)
    assert shown.splitlines()[3] == rb"\x00\xff" + b"\t" + rb"two\nlines\t\x1b[31m"
    assert show("value", records, escape=True).splitlines()[1] == "gr\u00fc\u00dfe".encode()


def test_text_is_one_line_a_record_with_its_place_and_time(records: RecordBatch) -> None:
    """Tabs between the fields, and none inside."""
    lines = show("text", records).decode().splitlines()
    assert lines[0] == "orders/3\t100\t2025-11-22T08:26:40.250+00:00\tk\tpaid\ttrace=a\\x07"
    assert lines[2] == "orders/3\t102\t2025-11-22T08:26:40.252+00:00\tk\t-"
    assert [line.count("\t") for line in lines[1:]] == [4] * 4


def test_a_record_without_a_time_and_one_outside_of_the_calendar_are_shown() -> None:
    """Old brokers keep no time, damaged producers write any."""
    specs = [RecordSpec(delta=0, value=b"v")]
    none = decode_record_set(batch(0, specs, base_timestamp=-1), partition=P, start=0)
    far = decode_record_set(batch(0, specs, base_timestamp=1 << 60), partition=P, start=0)
    assert show("text", none) == b"orders/3\t0\t-\t-\tv\n"
    assert show("text", far).split(b"\t")[2] == b"1152921504606846976 ms since 1970"


@pytest.fixture(scope="module")
def large() -> RecordBatch:
    """More than a piece of lines in any format."""
    specs = [RecordSpec(delta=at, value=b"v" * 4000) for at in range(300)]
    return decode_record_set(batch(0, specs), partition=P, start=0)


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_large_batches_come_in_pieces_of_whole_lines(name: str, large: RecordBatch) -> None:
    """The output is written piece by piece, so that it need not be in memory at once."""
    pieces = list(make_format(name, FormatOptions())(large))
    assert len(pieces) > 1
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert sum(piece.count(b"\n") for piece in pieces) == 300


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_no_records_are_no_lines(name: str, records: RecordBatch) -> None:
    """A batch may have gaps alone."""
    assert show(name, records.rows(0, 0)) == b""
