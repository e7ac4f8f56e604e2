# SPDX-License-Identifier: Apache-2.0
"""Draining a broker of Kafka 0.7: the topics' contents, and what the rates become."""

from __future__ import annotations

import pytest

from bench.legacy import FETCHER, INFLATING, PIPELINED, PURE, SOCKET, build_block, choose_readers, row_of
from bench.readers.legacy_inflating import inflate_all
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.message_set import decode_message_set
from tests.support.legacy_frames import PARTITION

CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY]


@pytest.mark.parametrize("codec", CODECS)
def test_topics_of_all_codecs_hold_the_same_values(codec: Codec) -> None:
    """Values of 100 bytes; compressed, 200 of them share a message."""
    block = build_block(codec)

    batch = decode_message_set(block, partition=PARTITION, start=0)

    assert (20_000, len(block)) == (len(batch), batch.next_offset)
    assert {100} == {len(value or b"") for value in batch.values()}
    assert (20_000 if codec == Codec.NONE else 100) == len(set(batch.offsets))


def test_the_decompressing_reader_goes_on_at_the_message_that_is_cut_off() -> None:
    """It takes whole messages only, so its next request begins there."""
    block = build_block(Codec.GZIP)

    assert len(block) == inflate_all(memoryview(block))
    assert 0 < inflate_all(memoryview(block)[:-1]) < len(block) - 1
    assert 0 == inflate_all(memoryview(block)[:9])


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    """Rounds are compared one by one, since the machine differs from one to the next."""
    rates = {FETCHER: [5e6, 2e6, 9e6], SOCKET: [10e6, 2e6, 10e6], PIPELINED: [20e6, 4e6, 20e6]}

    row = row_of(Codec.NONE, rates)

    assert row.met
    assert row.figure.startswith("**0.90 times**, 5.00 M records/s (2.00 M to 9.00 M)")
    assert row.figure.endswith("; 0.45 times a raw socket, pipelined")
    assert "uncompressed" in row.work
    assert not row_of(Codec.NONE, {**rates, SOCKET: [20e6, 20e6, 20e6]}).met


def test_what_decompresses_takes_part_where_there_is_something_to_decompress() -> None:
    """And the pure reader where it is asked for."""
    assert choose_readers(Codec.NONE) == [FETCHER, SOCKET, PIPELINED]
    assert choose_readers(Codec.GZIP, pure=True) == [FETCHER, SOCKET, PIPELINED, INFLATING, PURE]
