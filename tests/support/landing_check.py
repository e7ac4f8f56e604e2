# SPDX-License-Identifier: Apache-2.0
"""Judges a landing folder against the producer's own ledger, and what other members of the group have consumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.support.kafka import Sent
from tests.support.landing_reader import Landing, read_landing
from tests.support.waiting import wait_until

Place = tuple[str, int, int]
"""Topic, partition, offset."""

CONSUMED_ELSEWHERE: Final = "consumed elsewhere"
_SHOWN: Final = 20


def log_ends(ledger: Collection[Place]) -> dict[tuple[str, int], int]:
    """Return the next offset of each partition, by what was acknowledged."""
    ends: dict[tuple[str, int], int] = {}
    for topic, partition, offset in ledger:
        ends[topic, partition] = max(ends.get((topic, partition), 0), offset + 1)
    return ends


def find_faults(folder: Path, ledger: Mapping[Place, Sent], elsewhere: Collection[Place] = ()) -> list[str]:
    """Return everything that is wrong with what has landed: of no fault, nothing.

    Each acknowledged record is to be there once, with its key, value and headers, or to be among those consumed ``elsewhere``;
    nothing overlaps; every gap is of the reason "consumed elsewhere", and covers only what was.
    """
    landing = read_landing(folder)
    consumed = frozenset(elsewhere)
    landed: dict[Place, tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = {}
    counts: Counter[Place] = Counter()
    for one in landing.partitions.values():
        for record in one.records:
            place = (one.topic, int(one.partition), record.offset)
            landed[place] = (record.key, record.value, record.headers)
            counts[place] += 1
    faults = list(landing.problems)
    faults += _list("lost", (place for place in ledger if place not in landed and place not in consumed))
    faults += _list("landed twice", (place for place, count in counts.items() if count > 1))
    faults += _list("never sent", (place for place in landed if place not in ledger))
    faults += _list(
        "altered",
        (p for p, found in landed.items() if (s := ledger.get(p)) and (s.key, s.value, s.headers) != found),
    )
    return faults + list(_find_unexplained(landing, consumed))


def wait_landed(folder: Path, ledger: Collection[Place], timeout_s: float = 40.0) -> None:
    """Wait until every acknowledged record has landed. Raises TimeoutError."""
    wait_until(lambda: set(_count(folder)) >= set(ledger), "everything landed", timeout_s, 0.3)


def check_landing(folder: Path, ledger: Collection[Place]) -> None:
    """Raise AssertionError unless what has landed is sound and holds each acknowledged record once, and no other.

    Gaps may be there, for logs that have gaps of their own.
    """
    landed = _count(folder)
    faults = list(read_landing(folder).problems)
    faults += _list("lost", (place for place in ledger if place not in landed))
    faults += _list("never sent", (place for place in landed if place not in ledger))
    faults += _list("landed twice", (place for place, count in landed.items() if count > 1))
    if faults:
        raise AssertionError("\n".join(faults))


def check_landed_with_resent(folder: Path, ledger: Mapping[Place, Sent]) -> None:
    """Raise AssertionError unless what has landed is the ledger, and besides it only what its producer has sent again.

    A producer whose answer was lost with a broker, or with its lead, sends again: such records stand in the log twice.
    """
    landed = read_landing(folder)
    records = {
        (one.topic, int(one.partition), record.offset): record.value
        for one in landed.partitions.values()
        for record in one.records
    }
    assert landed.problems == []
    assert sum(len(one.records) for one in landed.partitions.values()) == len(records), "an offset landed twice"
    assert {place: sent.value for place, sent in ledger.items()} == {place: records.get(place) for place in ledger}
    again = {records[place] for place in records.keys() - ledger.keys()}
    assert again <= {sent.value for sent in ledger.values()}


def _count(folder: Path) -> Counter[Place]:
    return Counter(
        (one.topic, int(one.partition), record.offset)
        for one in read_landing(folder).partitions.values()
        for record in one.records
    )


def _find_unexplained(landing: Landing, consumed: frozenset[Place]) -> Iterator[str]:
    for one in landing.partitions.values():
        for gap in one.gaps:
            places = [(one.topic, int(one.partition), offset) for offset in range(gap["start"], gap["end"])]
            if gap["reason"] != CONSUMED_ELSEWHERE or not consumed.issuperset(places):
                yield f"{one.topic}/{one.partition}: a gap that nothing explains: {gap}"


def _list(what: str, places: Iterator[Place]) -> list[str]:
    found = sorted(places)
    return [f"{what}: {len(found)} records, {found[:_SHOWN]}"] if found else []
