# SPDX-License-Identifier: Apache-2.0
"""The demo's audit finds each kind of fault; it would be worth nothing if it could not fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.demo.audit import AuditFailed, Landed, TopicAudit, audit, read_json_lines, read_parquet
from consumerd.demo.ledger import Ledger, RecordPlace
from consumerd.model import PartitionKey


class Row(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


ROWS = [
    Row(partition, offset, b"k%d" % offset, b'{"n":%d%d}' % (partition, offset))
    for partition in (0, 1)
    for offset in range(4)
]
ROWS += [Row(0, 4, b"gone", None), Row(1, 4, None, b"no key")]


def ledger_of(rows: Iterable[Row], topic: str = "orders") -> Ledger:
    ledger = Ledger()
    for row in rows:
        ledger.note(RecordPlace(topic, PartitionKey(row.partition), row.offset), row.key, row.value)
    return ledger


def by_partition(rows: Iterable[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.partition, []).append(row)
    return found


def write_parquet(folder: Path, rows: Iterable[Row]) -> Iterator[Landed]:
    for partition, here in by_partition(rows).items():
        chain = folder / "topic=orders" / f"partition={partition}" / "chain=1"
        chain.mkdir(parents=True)
        columns = {
            "offset": pa.array([row.offset for row in here], pa.int64()),
            "key": pa.array([row.key for row in here], pa.binary()),
            "value": pa.array([row.value for row in here], pa.binary()),
        }
        pq.write_table(pa.table(columns), chain / f"{0:020d}.parquet")
    return read_parquet(folder)


def write_json_lines(folder: Path, rows: Iterable[Row]) -> Iterator[Landed]:
    for partition, here in by_partition(rows).items():
        chain = folder / "topic=orders" / f"partition={partition}" / "chain=1"
        chain.mkdir(parents=True)
        lines = [json.dumps(line(row)) + "\n" for row in here]
        (chain / f"{0:020d}.jsonl").write_text("".join(lines))
    return read_json_lines(folder)


def line(row: Row) -> dict[str, object]:
    return {
        "topic": "orders",
        "partition": str(row.partition),
        "offset": row.offset,
        "key": None if row.key is None else row.key.decode(),
        "value": None if row.value is None else row.value.decode(),
    }


@pytest.fixture(params=[write_parquet, write_json_lines])
def land(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[Row]], TopicAudit]:
    """Writes rows into files of one kind, and audits them by the ledger of all that was produced."""

    def write(rows: list[Row]) -> TopicAudit:
        (found,) = audit(ledger_of(ROWS).digests, request.param(tmp_path, rows))
        return found

    return write


Land = Callable[[list[Row]], TopicAudit]


def test_what_landed_as_it_was_produced_is_sound(land: Land) -> None:
    """Tombstones and records without a key among it, in any order."""
    found = land(list(reversed(ROWS)))

    assert found.findings == ()
    assert found.sound
    assert (found.produced, found.landed) == (len(ROWS), len(ROWS))
    assert (found.lost, found.twice, found.changed, found.misplaced, found.unknown) == (0, 0, 0, 0, 0)


def test_a_lost_record_is_found(land: Land) -> None:
    """The one fault that a queue must not have."""
    found = land([row for row in ROWS if (row.partition, row.offset) != (1, 2)])

    assert (found.landed, found.lost, found.twice) == (len(ROWS) - 1, 1, 0)
    assert found.findings == ("orders: 1 lost: orders/1@2",)


def test_a_partition_that_did_not_land_at_all_is_found(land: Land) -> None:
    """There is no folder to look into."""
    found = land([row for row in ROWS if row.partition == 0])

    assert found.lost == 5


def test_a_doubled_record_is_found(land: Land) -> None:
    """The other fault: what files that hold each record once promise."""
    found = land([*ROWS, ROWS[2], ROWS[2]])

    assert (found.landed, found.lost, found.twice) == (len(ROWS), 0, 2)
    assert found.findings == ("orders: 2 landed twice: orders/0@2, orders/0@2",)


def test_a_copy_under_another_offset_is_found(land: Land) -> None:
    """A producer that sends again what was acknowledged would look like this."""
    found = land([*ROWS, ROWS[2]._replace(offset=5)])

    assert (found.twice, found.unknown) == (1, 0)
    assert found.findings == ("orders: 1 landed twice: orders/0@5",)


@pytest.mark.parametrize("altered", [{"value": b"{}"}, {"key": b"other"}, {"key": None}, {"value": None}], ids=str)
def test_a_changed_record_is_found(land: Land, altered: dict[str, bytes | None]) -> None:
    """Counting offsets would not see it."""
    found = land([row._replace(**altered) if row == ROWS[3] else row for row in ROWS])  # type: ignore[arg-type]

    assert (found.landed, found.changed, found.lost) == (len(ROWS) - 1, 1, 0)
    assert found.findings == ("orders: 1 changed: orders/0@3",)


def test_a_record_in_a_wrong_partition_is_found(land: Land) -> None:
    """All records are there, and each once: only the place is wrong."""
    found = land([row._replace(partition=1, offset=9) if row == ROWS[3] else row for row in ROWS])

    assert (found.misplaced, found.lost, found.unknown) == (1, 0, 0)
    assert found.findings == ("orders: 1 misplaced: orders/0@3 stands at orders/1@9",)


def test_a_record_in_the_place_of_another_is_found(land: Land) -> None:
    """One is misplaced, and the one whose place it takes is lost."""
    rows = [row for row in ROWS if row not in {ROWS[3], ROWS[7]}] + [ROWS[3]._replace(partition=1)]
    found = land(rows)

    assert (found.misplaced, found.lost, found.changed) == (1, 1, 0)
    assert found.landed == len(ROWS) - 2


def test_two_partitions_that_were_exchanged_are_found(land: Land) -> None:
    """The counts of each partition would add up."""
    found = land([row._replace(partition=1 - row.partition) for row in ROWS])

    assert (found.landed, found.misplaced) == (0, len(ROWS))


def test_a_record_that_nobody_produced_is_found(land: Land) -> None:
    """It must have come from somewhere."""
    found = land([*ROWS, Row(1, 5, b"k", b"v")])

    assert (found.landed, found.unknown) == (len(ROWS), 1)
    assert found.findings == ("orders: 1 never produced: orders/1@5",)


def test_each_topic_is_judged_by_itself() -> None:
    """A topic of which nothing has landed is one, and so is one that nobody knows."""
    ledger = ledger_of(ROWS[:1])
    landed = [Landed(place=RecordPlace("clicks", PartitionKey(0), 0), digest=b"x")]

    clicks, orders = audit(ledger.digests, landed)

    assert (clicks.topic, clicks.produced, clicks.unknown) == ("clicks", 0, 1)
    assert (orders.topic, orders.produced, orders.lost) == ("orders", 1, 1)


def test_many_findings_are_counted_and_a_few_are_shown(land: Land) -> None:
    """A total loss must not fill the screen."""
    (finding,) = land([row for row in ROWS if row.partition == 9]).findings

    assert finding.startswith("orders: 10 lost: orders/0@0")
    assert finding.endswith("and 5 more")


def test_a_line_that_contradicts_its_folder_fails_the_audit(tmp_path: Path) -> None:
    """Who reads the folder and who reads the line would believe different things."""
    found = write_json_lines(tmp_path, ROWS[:1])
    (tmp_path / "topic=orders/partition=0").rename(tmp_path / "topic=orders/partition=1")

    with pytest.raises(AuditFailed, match="line 1 says orders/0"):
        list(found)


@pytest.mark.parametrize(("name", "content"), [("x.parquet", b"PAR1 not"), ("x.jsonl", b'{"topic": "orders", "par')])
def test_a_file_that_cannot_be_read_fails_the_audit_and_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    """Half a file is no file."""
    path = tmp_path / "topic=orders" / "partition=0" / "chain=1" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)

    with pytest.raises(AuditFailed, match=name):
        _ = [*read_parquet(tmp_path), *read_json_lines(tmp_path)]


def test_values_that_are_no_text_are_read_too(tmp_path: Path) -> None:
    """JSON lines hold them in base64."""
    path = tmp_path / "topic=orders" / "partition=0" / "chain=1" / "x.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"topic":"orders","partition":"0","offset":0,"key":null,"value_base64":"/w=="}\n')
    ledger = ledger_of([Row(0, 0, None, b"\xff")])

    (found,) = audit(ledger.digests, read_json_lines(tmp_path))

    assert found.sound
