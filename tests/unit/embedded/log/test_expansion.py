# SPDX-License-Identifier: Apache-2.0
"""What decompression and conversion may take of the embedded broker, counted in bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from consumerd.embedded.handlers.codes import code_of
from consumerd.embedded.log.errors import LogRecordTooLarge
from consumerd.embedded.log.expansion import Expansion, most_decompressed
from consumerd.embedded.log.preparation import prepare
from consumerd.embedded.log.settings import LogSettings
from consumerd.errors import CorruptMessageError, DecompressedTooLarge
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.building import build_messages, build_record_set, build_wrapper
from consumerd.wire.records import NewRecord

T0 = TopicPartition.modern("t", 0)
SETTINGS = LogSettings()
EMPTY_MESSAGE = build_messages([(0, 0, None, None)], magic=0)
MOST = most_decompressed(SETTINGS.max_message_bytes)


def wrapper(size: int, codec: int = 1) -> bytes:
    """Return a wrapper of as many empty messages as fit into ``size``; they compress 400 times."""
    count = size // len(EMPTY_MESSAGE)
    return build_wrapper(EMPTY_MESSAGE * count, count - 1, magic=0, codec=codec)


@contextmanager
def at_most(peak_bytes: int) -> Iterator[None]:
    """Assert what is allocated in the block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < peak_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [1, 2, 3], ids=["gzip", "snappy", "lz4"])
def test_what_expands_beyond_the_bound_is_refused_before_it_is_converted(codec: int) -> None:
    """Two sets of 325 KB took 4.7 GB; producers cut in two what is too large."""
    bomb = wrapper(MOST + (1 << 20), codec)
    with at_most(2 * MOST), pytest.raises(DecompressedTooLarge) as caught:
        prepare(bomb, T0, 0, SETTINGS, 0)
    assert ErrorCode.MESSAGE_TOO_LARGE == code_of(caught.value)


def test_a_batch_is_bounded_as_a_wrapper_is() -> None:
    """The other format's way in."""
    bomb = build_record_set([NewRecord(value=bytes(MOST))], magic=2, codec=1)
    with at_most(MOST), pytest.raises(DecompressedTooLarge):
        prepare(bomb, T0, 0, SETTINGS, 0)


def test_what_a_row_becomes_is_bounded_before_it_is_converted() -> None:
    """Uncompressed messages become one batch, whose size has a lower bound; objects of their records took gigabytes."""
    row = EMPTY_MESSAGE * (SETTINGS.max_message_bytes // 7 + 1)
    with at_most(12 * len(row)), pytest.raises(LogRecordTooLarge):
        prepare(row, T0, 0, SETTINGS, 0)


def test_what_clients_write_is_taken() -> None:
    """Text that compresses 15 times, up to the largest message; a small set of one large message; raised limits."""
    small = build_record_set([NewRecord(value=bytes(900_000))], magic=2, codec=1)
    assert 1 == prepare(small, T0, 0, SETTINGS, 0).count
    assert 1 == prepare(small, T0, 0, LogSettings(max_message_bytes=len(small)), 0).count
    raised = LogSettings(max_message_bytes=2 * SETTINGS.max_message_bytes)
    large = build_record_set([NewRecord(value=bytes(1_000_000))] * 30, magic=2, codec=1)
    assert 30 == prepare(large, T0, 0, raised, 0).count


def test_the_sets_of_a_request_share_a_bound() -> None:
    """Many small sets, each below its own bound, would keep the broker's threads for minutes."""
    one = build_record_set([NewRecord(value=bytes(MOST - 1000))], magic=2, codec=1)
    expansion = Expansion(10 * len(one))
    outcomes = []
    for _ in range(10):
        try:
            prepare(one, T0, 0, SETTINGS, 0, expansion)
            outcomes.append("taken")
        except DecompressedTooLarge:
            outcomes.append("refused")
    assert ["taken"] * 4 + ["refused"] * 6 == outcomes


def test_what_was_refused_counts() -> None:
    """It was decompressed before it was found to be damaged."""
    damaged = build_wrapper(EMPTY_MESSAGE * 1000 + b"x", 999, magic=0, codec=1)
    expansion = Expansion(0)
    before = expansion.left_bytes
    with pytest.raises(CorruptMessageError, match="ends in the middle"):
        prepare(damaged, T0, 0, SETTINGS, 0, expansion)
    assert before > expansion.left_bytes
