# SPDX-License-Identifier: Apache-2.0
"""The demo's audit on Kafka 0.7, whose brokers tell no offset: it finds the same faults by the records' content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.demo.audit import AuditFailed, Landed, TopicAudit, audit_sent, read_json_lines, read_parquet
from consumerd.demo.ledger import RecordPlace, SentLedger, digest
from consumerd.model import BrokerId, PartitionKey


class Row(NamedTuple):
    """A record in a file: its partition is number ``partition`` of ``broker``."""

    broker: int
    partition: int
    offset: int
    value: bytes

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.partition, BrokerId(self.broker))


# several records have one offset: they were compressed together
ROWS = [
    Row(broker, partition, 100 * (number // 2), b'{"n":%d}' % (100 * broker + 10 * partition + number))
    for broker in (0, 1)
    for partition in (0, 1)
    for number in range(4)
]

Land = Callable[[list[Row]], TopicAudit]


def sent(rows: list[Row]) -> SentLedger:
    ledger = SentLedger()
    for row in rows:
        ledger.note(RecordPlace("orders", row.key, None), b"a key, which is not stored", row.value)
    return ledger


def write_parquet(folder: Path, key: PartitionKey, rows: list[Row]) -> None:
    columns = {
        "offset": pa.array([row.offset for row in rows], pa.int64()),
        "key": pa.array([None] * len(rows), pa.binary()),
        "value": pa.array([row.value for row in rows], pa.binary()),
    }
    pq.write_table(pa.table(columns), make_chain(folder, key) / f"{0:020d}.parquet")


def write_json_lines(folder: Path, key: PartitionKey, rows: list[Row]) -> None:
    lines = [
        json.dumps(
            {
                "topic": "orders",
                "partition": row.partition,
                "broker": row.broker,
                "offset": row.offset,
                "key": None,
                "value": row.value.decode(),
            }
        )
        for row in rows
    ]
    (make_chain(folder, key) / f"{0:020d}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def make_chain(folder: Path, key: PartitionKey) -> Path:
    chain = folder / "topic=orders" / f"partition={key}" / "chain=1"
    chain.mkdir(parents=True)
    return chain


@pytest.fixture(params=[write_parquet, write_json_lines])
def land(request: pytest.FixtureRequest, tmp_path: Path) -> Land:
    """Writes rows into files of one kind, and audits them by the ledger of all that was produced."""

    def write(rows: list[Row]) -> TopicAudit:
        for key in {row.key for row in rows}:
            request.param(tmp_path, key, [row for row in rows if row.key == key])
        (found,) = audit_sent(sent(ROWS).places, [*read_parquet(tmp_path), *read_json_lines(tmp_path)])
        return found

    return write


def counts(found: TopicAudit) -> dict[str, int]:
    """The numbers of faults that are not 0."""
    names = ("lost", "twice", "changed", "misplaced", "unknown")
    return {name: number for name in names if (number := getattr(found, name))}


def test_what_landed_once_in_its_partition_is_sound(land: Land) -> None:
    """In any order, and at any offset."""
    found = land(list(reversed(ROWS)))

    assert (found.sound, found.produced, found.landed) == (True, len(ROWS), len(ROWS))
    assert counts(found) == {}


def test_a_lost_record_is_found(land: Land) -> None:
    """Its partition is told: there is no offset to tell."""
    found = land([row for row in ROWS if row != ROWS[5]])

    assert (found.landed, counts(found)) == (len(ROWS) - 1, {"lost": 1})
    assert found.findings == ("orders: 1 lost: orders/0-1",)


def test_each_further_copy_is_found(land: Land) -> None:
    """At the same offset or another one, as when a producer has sent it again."""
    found = land([*ROWS, ROWS[2], ROWS[2]._replace(offset=900)])

    assert (found.landed, counts(found)) == (len(ROWS), {"twice": 2})
    assert found.findings == ("orders: 2 landed twice: orders/0-0@100, orders/0-0@900",)


def test_a_copy_in_another_partition_is_the_double(land: Land) -> None:
    """Not the record that stands where it belongs."""
    found = land([*ROWS, ROWS[9]._replace(broker=0)])

    assert (found.landed, counts(found)) == (len(ROWS), {"twice": 1})
    assert found.findings == ("orders: 1 landed twice: orders/0-0@0",)


def test_a_record_in_the_partition_of_another_broker_is_found(land: Land) -> None:
    """0-1 and 1-1 have the same number on their brokers."""
    found = land([row._replace(broker=1) if row == ROWS[4] else row for row in ROWS])

    assert (found.landed, counts(found)) == (len(ROWS) - 1, {"misplaced": 1})
    assert found.findings == ("orders: 1 misplaced: orders/0-1 stands at orders/1-1@0",)


def test_a_changed_record_is_lost_and_another_one_unknown(land: Land) -> None:
    """Nothing but its content says which record it was."""
    found = land([row._replace(value=b"{}") if row == ROWS[3] else row for row in ROWS])

    assert (found.landed, counts(found)) == (len(ROWS) - 1, {"lost": 1, "unknown": 1})
    assert found.findings == ("orders: 1 lost: orders/0-0", "orders: 1 never produced: orders/0-0@100")


def test_a_key_that_nobody_can_have_sent_is_found() -> None:
    """Messages of Kafka 0.7 have no key."""
    row = ROWS[0]
    landed = [Landed(place=RecordPlace("orders", row.key, row.offset), digest=digest(b"k", row.value))]

    (found,) = audit_sent(sent([row]).places, landed)

    assert counts(found) == {"lost": 1, "unknown": 1}


def test_each_topic_is_judged_by_itself() -> None:
    """A topic that nobody has produced is one, too."""
    stray = Landed(place=RecordPlace("clicks", ROWS[0].key, 0), digest=digest(None, ROWS[0].value))

    clicks, orders = audit_sent(sent(ROWS[:1]).places, [stray])

    assert (clicks.topic, clicks.produced, counts(clicks)) == ("clicks", 0, {"unknown": 1})
    assert (orders.topic, orders.produced, counts(orders)) == ("orders", 1, {"lost": 1})


def test_a_line_of_another_broker_than_its_folder_fails_the_audit(tmp_path: Path) -> None:
    """The numbers of the partitions are the same."""
    write_json_lines(tmp_path, ROWS[0].key, ROWS[:1])
    (tmp_path / "topic=orders/partition=0-0").rename(tmp_path / "topic=orders/partition=1-0")

    with pytest.raises(AuditFailed, match="line 1 says orders/0-0"):
        list(read_json_lines(tmp_path))
