# SPDX-License-Identifier: Apache-2.0
"""Every offset is accounted for, and everything seeded is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import consumerd
from consumerd.landing import footers
from consumerd.landing.chain import LandedGap
from consumerd.landing.examine import SPANS_NAMED, Positions, examine
from consumerd.landing.findings import FindingKind, Severity
from consumerd.landing.report import AuditReport
from consumerd.landing.scan import scan_landing
from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.offsets.positions import Position
from consumerd.offsets.store import Validity
from tests.support.landing_zone import LandingZone, rewrite_parquet, truncate_file

ORDERS = TopicPartition.modern("orders", 0)


@pytest.fixture
def zone(tmp_path: Path) -> LandingZone:
    return LandingZone(tmp_path / "landing")


def audit(*zones: LandingZone, positions: Positions | None = None, names: bool = False) -> AuditReport:
    landing = scan_landing([zone.path for zone in zones])
    landing = footers.read_ends(landing) if names else footers.read_all(landing)
    return examine(landing, depth="names" if names else "footers", positions=positions, group="lake")


def errors(report: AuditReport) -> list[tuple[FindingKind, int | None, int | None]]:
    return [(finding.kind, finding.start, finding.end) for finding in report.errors]


def notes(report: AuditReport) -> list[tuple[FindingKind, int | None, int | None]]:
    return [(finding.kind, finding.start, finding.end) for finding in report.notes]


def test_sound_zone_has_nothing_to_act_upon(zone: LandingZone) -> None:
    """Chains, seals, incarnations, an operator's second landing and a truncation are all explained."""
    zone.land("orders", 0, 0, 100, files=4)
    zone.land("orders", 0, 30, 60, request="again")
    zone.land("orders", 0, 50, 70, truncated=True)
    zone.land("orders", 0, 0, 10, czxid=9)

    report = audit(zone)

    assert [] == errors(report)
    assert [(FindingKind.LOG_TRUNCATED, 50, 100), (FindingKind.REPEATED, 30, 60)] == notes(report)
    first, second, third = report.logs
    assert ("orders/0@7", "orders/0@7.1", "orders/0@9") == (str(first.log), str(second.log), str(third.log))
    assert ([(0, 100)], [(30, 60)], 130) == (list(first.landed), list(first.repeated), first.records)
    assert [(1, True), (2, True)] == [(chain.number, chain.sealed) for chain in first.chains]
    assert [False] == [chain.sealed for chain in third.chains]
    assert (first.min_timestamp, first.max_timestamp) == (1_700_000_000_000, 1_700_000_099_000)
    assert sum(one.records for one in first.arrivals) == 130


@pytest.mark.parametrize("request_id", [None, "to-the-end"])
def test_election_that_took_records_is_told(zone: LandingZone, request_id: str | None) -> None:
    """Under a policy or by a request: what was landed from the log's lost end, and where it goes on."""
    zone.land("orders", 0, 0, 100)
    other = zone.replica("b")
    zone.land("orders", 0, 70, 90, truncated=True, request=request_id)
    other.land("orders", 0, 90, 120)

    report = audit(zone, other)

    assert [] == errors(report)
    assert [(FindingKind.LOG_TRUNCATED, 70, 100)] == notes(report)
    (told,) = report.notes
    assert "orders/0@7.1: an unclean election took the log's end away" in told.detail
    assert f"goes on at 70 ({'request to-the-end' if request_id else 'on_above'})" in told.detail
    assert "[70, 100) was landed from it before, as orders/0@7. Both are kept" in told.detail


def test_recorded_gaps_are_named_with_their_reasons(zone: LandingZone) -> None:
    """What explains itself is no error, but losses are warned of."""
    gaps = [Gap(10, 20, GapReason.RETENTION), Gap(30, 33, GapReason.COMPACTION), Gap(40, 41, GapReason.CONTROL)]
    zone.land("orders", 0, 0, 100, gaps=gaps)
    zone.land("orders", 0, 120, 130)

    report = audit(zone)

    assert [] == errors(report)
    assert {
        (Severity.WARNING, 10, 20, "orders/0@7: [10, 20) was not landed: retention"),
        (Severity.NOTICE, 30, 33, "orders/0@7: [30, 33) was not landed: compaction"),
        (Severity.NOTICE, 40, 41, "orders/0@7: [40, 41) was not landed: control"),
        (Severity.NOTICE, 100, 120, "orders/0@7: [100, 120) was not landed: consumed elsewhere"),
    } == {(finding.severity, finding.start, finding.end, finding.detail) for finding in report.notes}
    assert {"retention", "compaction", "control", "consumed elsewhere"} == {str(one) for one in report.logs[0].gaps}
    assert not report.logs[0].missing


def test_gap_that_another_replica_fills_is_none(zone: LandingZone) -> None:
    """Between replicas with paths of their own, what one has consumed is a gap of the other."""
    zone.land("orders", 0, 0, 100)
    other = zone.replica("b")
    other.land("orders", 0, 100, 150)
    zone.land("orders", 0, 140, 200)

    report = audit(zone, other)

    assert [] == errors(report)
    assert [(FindingKind.REPEATED, 140, 150)] == notes(report)
    assert [(0, 200)] == list(report.logs[0].landed)


def test_missing_files_are_named(zone: LandingZone) -> None:
    """Old files may be moved away, which is told; a file missing between others is an error."""
    paths = zone.land("orders", 0, 0, 90, files=9)
    for place in (0, 1, 5):
        paths[place].unlink()

    report = audit(zone)

    assert [(FindingKind.FILE_MISSING, 50, 60)] == errors(report)
    assert [(FindingKind.FILE_MISSING, 0, 20)] == notes(report)
    assert [(0, 20), (50, 60)] == list(report.logs[0].missing)
    assert "goes on at 50, and no file is there" in report.errors[0].detail


def test_damaged_files_are_named(zone: LandingZone) -> None:
    """A truncated file, a copy under another name."""
    paths = zone.land("orders", 0, 0, 30, files=3)
    truncate_file(paths[1])
    shutil.copy(paths[2], paths[2].with_name(f"{30:020d}.parquet"))

    report = audit(zone)

    assert [(FindingKind.FILE_DAMAGED, 10, 20), (FindingKind.FILE_DAMAGED, 30, None)] == errors(report)
    assert [str(paths[1]), str(paths[2].with_name(f"{30:020d}.parquet"))] == [one.where for one in report.errors]
    assert [(10, 20)] == list(report.logs[0].missing)


def test_overlap_within_a_chain_is_named(zone: LandingZone) -> None:
    """No writer of ours can do this; a copy job can."""
    [first] = zone.land("orders", 0, 0, 10)
    [_second] = zone.land("orders", 0, 10, 20)
    rewrite_parquet(first, describe=lambda metadata: replace(metadata, next_offset=15, count=15, last_offset=14))

    assert [(FindingKind.OVERLAP, 10, 15)] == errors(audit(zone))


def test_file_behind_a_seal_is_named(zone: LandingZone) -> None:
    """Nobody may write to a chain that is over."""
    zone.land("orders", 0, 0, 10)
    [late] = zone.land("orders", 0, 10, 20)
    late.rename(late.with_name("aside"))
    zone.land("orders", 0, 5, 8, request="again")
    seal = zone.chain("orders", 0) / f"{10:020d}.parquet"
    assert seal.exists()
    behind = zone.chain("orders", 0) / f"{12:020d}.parquet"
    late.with_name("aside").rename(behind)
    rewrite_parquet(
        behind,
        describe=lambda metadata: replace(metadata, position=12, next_offset=22, first_offset=12, last_offset=21),
    )

    kinds = {finding.kind for finding in audit(zone).errors}

    assert FindingKind.FILE_BEHIND_SEAL in kinds


def test_unsealed_and_unexplained_chains_are_named(zone: LandingZone) -> None:
    """Each chain but the newest ends with a seal, and each is there for a reason."""
    zone.land("orders", 0, 0, 10)
    zone.land("orders", 0, 20, 30, request="ahead")
    seal = zone.files("orders", 0, 1)[-1]
    seal.unlink()
    record = zone.chain("orders", 0, 2) / "_chain.json"
    fields = json.loads(record.read_bytes())
    del fields["request_id"]
    record.write_text(json.dumps(fields))

    report = audit(zone)

    assert {
        (FindingKind.CHAIN_UNSEALED, 10, None),
        (FindingKind.CHAIN_UNEXPLAINED, 20, None),
        (FindingKind.JUMP, 10, 20),
    } == set(errors(report))


def test_chain_of_an_earlier_incarnation_than_the_one_before_is_named(zone: LandingZone) -> None:
    """A topic is made again with a later one each time: ZooKeeper was set back, or the folder was copied here."""
    zone.land("orders", 0, 0, 10, czxid=9)
    other = zone.replica("b")
    other.land("orders", 0, 0, 5, czxid=5)
    other.land("orders", 0, 0, 10, czxid=7)
    zone.land("orders", 0, 10, 20, czxid=9, request="again")
    shutil.rmtree(zone.chain("orders", 0, 2))
    shutil.copytree(other.chain("orders", 0, 2), zone.chain("orders", 0, 2))

    report = audit(zone)

    assert [(FindingKind.CHAIN_UNEXPLAINED, 0, None)] == errors(report)
    assert "chain=2 begins at 0 of incarnation 7" in report.errors[0].detail
    assert "of incarnation 9" in report.errors[0].detail


def test_operators_jump_is_told(zone: LandingZone) -> None:
    """Offsets that an operator has passed over are not lost, but nobody has them either."""
    zone.land("orders", 0, 0, 10)
    zone.land("orders", 0, 20, 30, request="ahead")

    report = audit(zone)

    assert [] == errors(report)
    assert [(FindingKind.JUMP, 10, 20)] == notes(report)
    assert "operator's request (ahead)" in report.notes[0].detail
    assert [(10, 20)] == list(report.logs[0].jumped)


def test_missing_chain_is_told(zone: LandingZone) -> None:
    """A whole chain may have been moved away."""
    zone.land("orders", 0, 0, 10)
    zone.land("orders", 0, 5, 15, request="again")
    shutil.rmtree(zone.chain("orders", 0, 1))

    report = audit(zone)

    assert [] == errors(report)
    assert [(FindingKind.CHAIN_MISSING, 1)] == [(finding.kind, finding.chain) for finding in report.notes]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"count": 9}, "count 9 records and 0 offsets passed over, of the 10 offsets"),
        ({"last_offset": 10}, r"have records from 0 to 10, which is not within \[0, 10\)"),
        ({"first_offset": None}, "count 10 records, from None to 9"),
        (
            {"count": 9, "gaps": (LandedGap(start=9, end=11, reason=GapReason.CORRUPT, offsets=1),)},
            r"tell of a gap \[9, 11\)",
        ),
    ],
)
def test_metadata_that_do_not_add_up_are_named(zone: LandingZone, changes: dict[str, object], expected: str) -> None:
    """A file accounts for each offset of its span, or is at odds with itself."""
    [path] = zone.land("orders", 0, 0, 10)
    rewrite_parquet(path, describe=lambda metadata: replace(metadata, **changes))  # type: ignore[arg-type] # as given

    report = audit(zone)

    assert {FindingKind.MISCOUNTED} == {finding.kind for finding in report.errors}
    assert str(path) == report.errors[0].where
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(report.errors[0].detail)


def test_summed_gaps_are_told(zone: LandingZone) -> None:
    """Beyond a thousand gaps a file tells only how many offsets they are."""
    gaps = [Gap(offset, offset + 1, GapReason.COMPACTION) for offset in range(1, 2400, 2)]
    zone.land("orders", 0, 0, 2400, gaps=gaps)

    report = audit(zone)

    assert [] == errors(report)
    assert [(FindingKind.GAP, 1, 2400)] == notes(report)
    assert "1200 offsets within [1, 2400) were not landed: compaction" in report.notes[0].detail


@pytest.mark.parametrize("pieces", [1, 2, 30])
def test_what_was_erased_is_one_note_of_its_log(zone: LandingZone, pieces: int) -> None:
    """`consumerd-spark erase` cuts a piece out for each record of a key; none of them asks for anything."""
    gaps = [Gap(offset, offset + 1, GapReason.ERASED) for offset in range(1, 1 + 3 * pieces, 3)]
    zone.land("orders", 0, 0, 100, gaps=gaps)

    report = audit(zone)

    assert [] == errors(report)
    assert [(FindingKind.GAP, 1, gaps[-1].end)] == notes(report)
    told = "[1, 2) was not landed" if pieces == 1 else f"{pieces} offsets in {pieces} pieces of [1, {gaps[-1].end})"
    assert told in report.notes[0].detail
    assert report.notes[0].detail.endswith(": erased")


def test_very_many_gaps_are_named_in_part(zone: LandingZone) -> None:
    """A compacted topic must not drown what matters; the report itself has every gap."""
    gaps = [Gap(offset, offset + 1, GapReason.COMPACTION) for offset in range(1, 400, 2)]
    zone.land("orders", 0, 0, 400, gaps=gaps)

    report = audit(zone)

    assert SPANS_NAMED + 1 == len(report.notes)
    assert 200 == len(report.logs[0].gaps[GapReason.COMPACTION].spans)
    assert "(100 offsets in 100 pieces)" in report.notes[-1].detail


def held(value: int | None, validity: Validity = Validity.VALID, *, czxid: int | None = 7, text: str = "") -> Position:
    return Position(
        value=value, validity=validity, incarnation=None if czxid is None else Incarnation(czxid), text=text
    )


POSITIONS = [
    (held(100), []),
    (held(90), [(Severity.NOTICE, FindingKind.COMMITTED_BEHIND, 90, 100)]),
    (held(99), [(Severity.NOTICE, FindingKind.COMMITTED_BEHIND, 99, 100)]),
    (held(101), [(Severity.CRITICAL, FindingKind.COMMITTED_AHEAD, 100, 101)]),
    (held(130), [(Severity.CRITICAL, FindingKind.COMMITTED_AHEAD, 100, 130)]),
    (held(None, Validity.ABSENT), [(Severity.WARNING, FindingKind.COMMITTED_BEHIND, 100, 100)]),
    (held(500, Validity.ANOTHER_INCARNATION), [(Severity.WARNING, FindingKind.COMMITTED_BEHIND, 100, 100)]),
    (held(5, czxid=9), [(Severity.WARNING, FindingKind.COMMITTED_BEHIND, 100, 100)]),
    (held(5, Validity.UNKNOWN_AGE, czxid=None), [(Severity.NOTICE, FindingKind.COMMITTED_BEHIND, 100, 100)]),
    (
        held(None, Validity.MALFORMED, text="x"),
        [(Severity.CRITICAL, FindingKind.COMMITTED_AHEAD, 100, 100)],
    ),
]


@pytest.mark.parametrize(("position", "expected"), POSITIONS)
@pytest.mark.parametrize("names", [False, True], ids=["footers", "names"])
def test_chains_against_the_committed_position(
    zone: LandingZone, position: Position, expected: Sequence[object], *, names: bool
) -> None:
    """A committed position is some chain's end; one beyond all chains means that somebody else read, or files are lost."""
    zone.land("orders", 0, 0, 100)

    report = audit(zone, positions={ORDERS: position}, names=names)

    assert expected == [(one.severity, one.kind, one.start, one.end) for one in report.findings]


def test_position_of_a_partition_that_was_never_landed(zone: LandingZone) -> None:
    """A folder that is gone altogether shows in the group's position alone."""
    zone.land("orders", 0, 0, 100)
    there = held(100)

    report = audit(zone, positions={ORDERS: there, TopicPartition.modern("orders", 1): there})

    assert [(FindingKind.COMMITTED_AHEAD, None, 100)] == errors(report)
    assert "orders/1: the group has committed 100, and none of the roots has a chain of it" == report.errors[0].detail


@pytest.mark.parametrize(
    ("position", "asked"),
    [
        (held(100), True),
        (held(100, Validity.UNKNOWN_AGE, czxid=None), True),
        (held(0), False),
        (held(100, Validity.ANOTHER_INCARNATION), False),
        (held(None, Validity.ABSENT), False),
        (held(None, Validity.MALFORMED, text="x"), False),
    ],
)
def test_what_was_committed_and_never_landed_is_asked_for_wherever_the_topic_is_by_now(
    zone: LandingZone, position: Position, *, asked: bool
) -> None:
    """A topic may be deleted after its records were committed; those of one that was deleted and made again are not these."""
    zone.land("orders", 0, 0, 100)

    report = audit(zone, positions={ORDERS: held(100), TopicPartition.modern("gone", 0): position})

    assert errors(report) == ([(FindingKind.COMMITTED_AHEAD, None, 100)] if asked else [])


def test_names_alone_account_for_spans(zone: LandingZone) -> None:
    """One file a chain is opened; records and gaps within files are not known then."""
    zone.land("orders", 0, 0, 100, files=4, gaps=[Gap(10, 20, GapReason.RETENTION)])

    [log] = audit(zone, names=True).logs

    assert ([(0, 100)], None, 4) == (list(log.landed), log.records, log.files)


def test_report_is_json(zone: LandingZone) -> None:
    """Everything that was found can be kept, and compared with the next audit."""
    zone.land("orders", 0, 0, 100, gaps=[Gap(10, 20, GapReason.RETENTION)])

    report = json.loads(json.dumps(audit(zone).encode()))

    assert "footers" == report["depth"]
    assert {"gap": 1} == report["counts"]
    assert [[0, 10], [20, 100]] == report["logs"][0]["landed"]
    assert {"retention": [[10, 20]]} == report["logs"][0]["gaps"]
    assert {"kind": "gap", "severity": "warning", "start": 10, "end": 20}.items() <= report["findings"][0].items()


def test_every_kind_of_finding_can_be_found() -> None:
    """A kind that nothing reports is a promise that audit does not keep."""
    package = Path(consumerd.__file__).parent
    text = "".join(path.read_text() for path in package.rglob("*.py"))

    assert [kind.name for kind in FindingKind if f"FindingKind.{kind.name}" not in text] == []
