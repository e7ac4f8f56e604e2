# SPDX-License-Identifier: Apache-2.0
"""Which file gives which record: each record once, whatever chains and roots overlap, and whatever was taken before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import ConfigError, LocalProtocolError
from consumerd.landing.chain import ChainRecord, FileMetadata, LandedGap, RootRecord
from consumerd.landing.coverage import NOTHING, Coverage
from consumerd.landing.findings import FindingKind
from consumerd.landing.plan import LandingPlan, plan_landing
from consumerd.landing.ranges import EMPTY, RangeSet
from consumerd.landing.values import LandedChain, LandedFile, Landing, LandingRoot
from consumerd.model import GapReason, Incarnation, TopicPartition

PARTITION = TopicPartition.modern("orders", 0)
FIRST = Incarnation(7)


@dataclass(frozen=True)
class Sketch:
    """A file to be: its span, which offsets of it are records, and whether it sums its gaps up."""

    start: int
    end: int
    held: frozenset[int]
    summed: bool = False


def root(order: int) -> LandingRoot:
    return LandingRoot(
        path=Path(f"/landing{order}"), record=RootRecord(root=f"r{order}", cluster="c", group="g"), order=order
    )


def file_of(chain: int, order: int, sketch: Sketch, incarnation: Incarnation) -> LandedFile:
    missing = [offset for offset in range(sketch.start, sketch.end) if offset not in sketch.held]
    gaps = [LandedGap(start=one, end=one + 1, reason=GapReason.COMPACTION, offsets=1) for one in missing]
    if sketch.summed and len(gaps) > 1:
        gaps = [LandedGap(start=missing[0], end=missing[-1] + 1, reason=GapReason.COMPACTION, offsets=len(missing))]
    metadata = FileMetadata(
        writer="w",
        group="g",
        cluster="c",
        topic=PARTITION.topic,
        partition=PARTITION.partition,
        incarnation=incarnation,
        chain=chain,
        position=sketch.start,
        next_offset=sketch.end,
        count=len(sketch.held),
        first_offset=min(sketch.held, default=None),
        last_offset=max(sketch.held, default=None),
        min_timestamp=None,
        max_timestamp=None,
        gaps=tuple(gaps),
    )
    path = f"/landing{order}/{chain}/{sketch.start}"
    return LandedFile(path=path, position=sketch.start, name_end=sketch.end, metadata=metadata)


def chain_of(number: int, files: Sequence[Sketch], *, order: int = 0, incarnation: Incarnation = FIRST) -> LandedChain:
    record = ChainRecord(
        origin=files[0].start, incarnation=incarnation, extension="parquet", reason="committed", writer="w"
    )
    return LandedChain(
        root=root(order),
        partition=PARTITION,
        number=number,
        folder=f"/landing{order}/{number}",
        record=record,
        files=tuple(file_of(number, order, sketch, incarnation) for sketch in files),
    )


def landing_of(chains: Iterable[LandedChain]) -> Landing:
    return Landing(roots=(root(0), root(1)), chains=tuple(chains))


def whole(start: int, end: int) -> Sketch:
    return Sketch(start, end, frozenset(range(start, end)))


def offsets(ranges: RangeSet) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def given_by(plan: LandingPlan) -> list[tuple[int, list[tuple[int, int]], bool]]:
    return [
        (int(file.chain.partition("chain=")[2].partition(":")[0]), list(file.ranges), file.whole) for file in plan.files
    ]


def test_files_without_overlap_are_taken_whole() -> None:
    """The common case costs nothing: no row is filtered."""
    plan = plan_landing(landing_of([chain_of(1, [whole(0, 10), whole(10, 20)])]))

    assert [(1, [(0, 10)], True), (1, [(10, 20)], True)] == given_by(plan)
    assert {"orders/0@7": [[0, 20]]} == plan.adds.encode()["covered"]
    assert {"r0:topic=orders/partition=0/chain=1:7:0:w": [[0, 20]]} == plan.adds.encode()["taken"]


def test_highest_chain_gives_what_chains_share() -> None:
    """Where an operator has had records landed again, the newer chain's count."""
    plan = plan_landing(landing_of([chain_of(1, [whole(0, 10), whole(10, 20)]), chain_of(2, [whole(5, 13)])]))

    assert [(2, [(5, 13)], True), (1, [(0, 5)], False), (1, [(13, 20)], False)] == given_by(plan)


def test_files_of_one_chain_that_overlap_give_each_offset_once() -> None:
    """No writer lands such files, but somebody may have copied them there."""
    plan = plan_landing(landing_of([chain_of(1, [whole(0, 10), whole(10, 20), whole(15, 25), whole(25, 30)])]))

    assert [(0, 10), (10, 20), (20, 25), (25, 30)] == [span for file in plan.files for span in file.ranges]


def test_what_was_taken_stays_as_it_is() -> None:
    """A chain that lands again what the table has adds only what it does not have."""
    first = landing_of([chain_of(1, [whole(0, 10)])])
    covered = plan_landing(first).adds
    second = plan_landing(landing_of([*first.chains, chain_of(2, [whole(5, 13)])]), covered)

    assert [(2, [(10, 13)], False)] == given_by(second)
    assert plan_landing(landing_of([*first.chains, chain_of(2, [whole(5, 13)])]), covered | second.adds).is_empty


def test_gap_of_one_chain_is_filled_by_another() -> None:
    """What was consumed elsewhere by a replica is in that replica's root."""
    ours = chain_of(1, [Sketch(0, 30, frozenset([*range(10), *range(20, 30)]))])
    other = chain_of(1, [whole(5, 25)], order=1)

    plan = plan_landing(landing_of([ours, other]))

    assert [(1, [(0, 30)], True), (1, [(10, 20)], False)] == given_by(plan)
    assert {"orders/0@7": [[0, 30]]} == plan.adds.encode()["covered"]


def test_incarnations_do_not_overlap() -> None:
    """The same offset of another making, or behind a truncation, is another record."""
    chains = [chain_of(1, [whole(0, 10)]), chain_of(2, [whole(5, 8)], incarnation=Incarnation(7, 1))]

    assert [True, True] == [file.whole for file in plan_landing(landing_of(chains)).files]


def test_files_without_records_are_taken_note_of() -> None:
    """Progress without records is passed over, and not looked at again."""
    landing = landing_of([chain_of(1, [Sketch(0, 10, frozenset()), whole(10, 12)])])

    plan = plan_landing(landing)

    assert [(1, [(10, 12)], True)] == given_by(plan)
    assert {"r0:topic=orders/partition=0/chain=1:7:0:w": [[0, 12]]} == plan.adds.encode()["taken"]


def test_markers_are_nobodys_records() -> None:
    """Transaction markers are everywhere in a transactional topic; they do not tear coverage into pieces."""
    chain = chain_of(1, [whole(0, 9)])
    metadata = chain.files[0].metadata
    assert metadata is not None
    marked = replace(metadata, gaps=(LandedGap(start=4, end=5, reason=GapReason.CONTROL, offsets=1),), count=8)
    chain = replace(chain, files=(replace(chain.files[0], metadata=marked),))

    assert {"orders/0@7": [[0, 9]]} == plan_landing(landing_of([chain])).adds.encode()["covered"]


def test_damage_is_told_and_the_rest_is_planned() -> None:
    """A job decides whether it goes on without a file; when the file is restored, its records are still due."""
    chain = chain_of(1, [whole(0, 10), whole(10, 20), whole(20, 30)])
    first, second, third = chain.files
    broken = replace(second, metadata=None, damage="x: cut")

    plan = plan_landing(landing_of([replace(chain, files=(first, broken, third))]))
    again = plan_landing(landing_of([chain]), plan.adds)

    assert [(0, 10), (20, 30)] == [span for file in plan.files for span in file.ranges]
    assert [(FindingKind.FILE_DAMAGED, "x: cut", 10, 20)] == [
        (finding.kind, finding.detail, finding.start, finding.end) for finding in plan.damaged
    ]
    assert [(10, 20)] == [span for file in again.files for span in file.ranges]


def test_metadata_must_have_been_read() -> None:
    """A plan by names alone would take gaps for records."""
    chain = chain_of(1, [whole(0, 10)])
    unread = replace(chain, files=(replace(chain.files[0], metadata=None),))

    with pytest.raises(LocalProtocolError, match="its metadata were not read"):
        plan_landing(landing_of([unread]))


def test_a_zone_of_another_cluster_is_refused() -> None:
    """Its offsets are other records; planned, they would count as the table's own."""
    landing = landing_of([chain_of(1, [whole(0, 10)])])
    other = replace(plan_landing(landing).adds, cluster="another")

    with pytest.raises(ConfigError, match="the table holds records of cluster another, and /landing0 is of c"):
        plan_landing(landing, other)


def test_parts_add_up() -> None:
    """A large plan is committed in parts; the first takes note of files that give nothing."""
    landing = landing_of([chain_of(1, [Sketch(0, 2, frozenset()), whole(2, 10), whole(10, 20), whole(20, 21)])])
    plan = plan_landing(landing)

    parts = list(plan.split(11))

    assert [[(2, 10)], [(10, 20), (20, 21)]] == [
        [span for file in part.files for span in file.ranges] for part in parts
    ]
    assert plan.adds == parts[0].adds | parts[1].adds
    assert [[(2, 10), (10, 20), (20, 21)]] == [
        [span for file in part.files for span in file.ranges] for part in plan.split(1000)
    ]
    assert [True] == [part.is_empty for part in plan_landing(landing_of([])).split(5)]


@pytest.mark.parametrize("max_records", [1, 15, 1000])
def test_a_file_is_done_with_only_when_all_that_has_its_records_is(max_records: int) -> None:
    """A part that is never committed, since one of its files is damaged or the job dies, must leave the other landing free."""
    again = chain_of(2, [whole(0, 10), whole(10, 20), whole(20, 30)])
    first = chain_of(1, [whole(0, 15), whole(15, 30)])
    parts = list(plan_landing(landing_of([first, again])).split(max_records))

    committed = NOTHING
    given: set[int] = set()
    for part in parts:
        committed |= part.adds
        given |= {offset for file in part.files for span in file.ranges for offset in range(span.start, span.end)}
        done = committed.taken.get(first.ref, EMPTY)
        assert all(set(range(span.start, span.end)) <= given for span in done)
    assert [(0, 30)] == [(span.start, span.end) for span in committed.taken[first.ref]]


# -- everything at once


@st.composite
def zones(draw: st.DrawFn) -> tuple[list[LandedChain], dict[str, frozenset[int]]]:
    """Up to five chains of two roots, with overlaps, gaps, and gaps that are summed up; and what each file holds."""
    chains, rows = [], {}
    for place in range(draw(st.integers(1, 5))):
        position, files = draw(st.integers(0, 12)), []
        for _ in range(draw(st.integers(1, 3))):
            end = position + draw(st.integers(1, 8))
            held = frozenset(range(position, end))
            if draw(st.booleans()):
                held -= draw(st.frozensets(st.sampled_from(range(position, end))))
            files.append(Sketch(position, end, held, summed=draw(st.booleans())))
            position = end
        chain = chain_of(1 + place // 2, files, order=place % 2)
        rows |= {file.path: sketch.held for file, sketch in zip(chain.files, files, strict=True)}
        chains.append(chain)
    return chains, rows


def carry_out(plan: LandingPlan, rows: dict[str, frozenset[int]], table: list[int]) -> None:
    """Do as ``PlannedFile`` says: take rows of its ranges, and of contested ones those that are not there yet."""
    for planned in plan.files:
        here = rows[planned.file.path]
        assert not offsets(planned.ranges) & offsets(planned.contested)
        taken = here & offsets(planned.ranges)
        taken |= (here & offsets(planned.contested)) - set(table)
        assert not planned.whole or taken == here
        table += taken


@given(zones(), st.lists(st.integers(0, 5), max_size=3), st.integers(1, 30), st.sampled_from([0, 1, 2, 8, 1000]))
def test_each_record_once(
    zone: tuple[list[LandedChain], dict[str, frozenset[int]]], runs: list[int], max_records: int, few: int
) -> None:
    """Whatever lands in whatever order, in as many runs, with many holes or few: the table holds each record that any file
    holds, once.
    """
    chains, rows = zone
    covered, table = NOTHING, list[int]()
    for count in [*sorted(runs), len(chains)]:
        for part in plan_landing(landing_of(chains[:count]), covered, most_pieces=few).split(max_records):
            carry_out(part, rows, table)
            covered = covered | Coverage.parse(part.adds.encode())

    assert sorted(frozenset().union(*rows.values())) == sorted(table)
    assert plan_landing(landing_of(chains), covered, most_pieces=few).is_empty


def test_holes_of_a_compacted_topic_are_not_remembered_one_by_one() -> None:
    """Nine hundred of each file, for good, would fill the memory of every job that opens the table."""
    files = [
        Sketch(at, at + 9000, frozenset(range(at, at + 9000)) - frozenset(range(at, at + 9000, 10)))
        for at in range(0, 90_000, 9000)
    ]
    landing = landing_of([chain_of(1, files)])
    plan = plan_landing(landing)

    assert [True] * 10 == [planned.whole for planned in plan.files]
    assert 10 >= sum(len(ranges.spans) for part in (plan.adds.covered, plan.adds.doubtful) for ranges in part.values())
    assert 9000 == sum(len(ranges.spans) for ranges in plan_landing(landing, most_pieces=10_000).adds.covered.values())


def test_a_few_holes_are_remembered_one_by_one() -> None:
    """Another chain's rows of other offsets are then taken without a look at the table."""
    sketch = Sketch(0, 100, frozenset(range(100)) - {10, 50})
    again = plan_landing(
        landing_of([chain_of(1, [whole(0, 100)])]), plan_landing(landing_of([chain_of(2, [sketch])])).adds
    )

    assert [[(10, 11), (50, 51)]] == [list(planned.ranges) for planned in again.files]
    assert [False] == [bool(planned.contested) for planned in again.files]
