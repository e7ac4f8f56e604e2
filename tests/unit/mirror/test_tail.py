# SPDX-License-Identifier: Apache-2.0
"""Search for a mirror's last record from the end of the target backwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from consumerd.client.simple_consumer import FetchedBatch
from consumerd.mirror.provenance import HEADER, RecordOrigin, encode_origin, make_envelope
from consumerd.mirror.tail import find_last_origin
from consumerd.model import LogRange, TopicPartition
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import NewRecord

TARGET = TopicPartition.modern("orders", 0)


def origin(offset: int, cluster: str = "old") -> RecordOrigin:
    return RecordOrigin(cluster, "orders", "0", "7", offset, offset + 1)


@dataclass
class Log:
    """A target partition: origins by target offset; all other records are of others."""

    origins: Mapping[int, RecordOrigin]
    end: int
    magic: int = 2
    per_fetch: int = 700
    fetched: list[int] = field(default_factory=list)

    async def fetch(self, partition: TopicPartition, offset: int, *, max_bytes: int) -> FetchedBatch:
        self.fetched.append(offset)
        end = min(self.end, offset + self.per_fetch)
        data = build_record_set([self._make(one) for one in range(offset, end)], magic=self.magic, base_offset=offset)
        batch = decode_record_set(data, partition=partition, start=offset)
        return FetchedBatch(batch=batch, high_watermark=self.end)

    def _make(self, offset: int) -> NewRecord:
        found = self.origins.get(offset)
        if self.magic < 2:
            return NewRecord(value=b"v" if found is None else make_envelope(found, b"v"))
        headers = (("trace", b"1"),) if found is None else ((HEADER, encode_origin(found)),)
        return NewRecord(value=b"v", headers=headers)


async def find(log: Log, start: int = 0, most: int = 100_000) -> int | None:
    found = await find_last_origin(
        log, TARGET, LogRange(start, log.end), lambda one: one.cluster == "old", most_records=most
    )
    return None if found is None else found.offset


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("place", [0, 1, 899, 900, 4999, 9899, 9900, 9998, 9999])
async def test_last_record_is_found_wherever_it_is(magic: int, place: int) -> None:
    """In the first window, at its edges, and behind thousands of records of others."""
    log = Log({max(0, place - 50): origin(5), place: origin(6)}, 10_000, magic)
    assert await find(log) == 6


async def test_records_of_other_mirrors_are_passed_over() -> None:
    """Two mirrors may write into one topic."""
    log = Log({10: origin(5), 400: origin(900, "other"), 999: origin(901, "other")}, 1000)
    assert await find(log) == 5


async def test_search_is_bounded() -> None:
    """Records are then fetched from the committed position: some come twice, and none is lost."""
    log = Log({10: origin(5)}, 10_000)
    assert await find(log, most=1000) is None
    assert min(log.fetched) == 9000
    assert await find(log, start=11) is None


async def test_end_of_a_mirror_alone_costs_one_fetch() -> None:
    """A thousand partitions are opened at once."""
    log = Log({offset: origin(offset) for offset in range(10_000)}, 10_000)
    assert await find(log) == 9999
    assert log.fetched == [9900]


async def test_empty_log_has_none() -> None:
    assert await find(Log({}, 0)) is None


async def test_log_that_became_shorter_ends_the_search() -> None:
    """After an unclean leader election in the target."""
    log = Log({}, 100)
    assert await find_last_origin(log, TARGET, LogRange(0, 150), lambda _: True) is None
