# SPDX-License-Identifier: Apache-2.0
"""Sets of record identities of one topic: incarnation, broker, partition, offset, index.

A set has sorted arrays for each log (partition of one incarnation), 12 bytes per record, and is matched against whole
columns of rows. It is pickled into Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.table.commit import DataFile

COLUMNS: Final = ("incarnation", "broker", "partition", "offset", "index")
SCHEMA: Final = pa.schema(
    [
        ("incarnation", pa.string()),
        ("broker", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("index", pa.int32()),
    ]
)
DDL: Final = "incarnation string, broker int, partition int, offset bigint, index int"
"""The columns of ``SCHEMA`` in Spark's notation."""

Offsets = npt.NDArray[np.int64]
Indexes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class LogKey(NamedTuple):
    """A log: one partition of one incarnation of the topic.

    ``broker`` is None except for partitions of Kafka 0.7.
    """

    incarnation: str
    broker: int | None
    partition: int


@dataclass(frozen=True, slots=True)
class LogRows:
    """Offsets and indexes of records of one log, ascending."""

    offsets: Offsets
    indexes: Indexes

    def find(self, offsets: Offsets, indexes: Indexes) -> Mask:
        """Return a mask of rows, given by offset and index: True for these records."""
        first = np.searchsorted(self.offsets, offsets, side="left")
        behind = np.searchsorted(self.offsets, offsets, side="right")
        found = np.zeros(len(offsets), np.bool_)
        # one round, except for compressed message sets of Kafka 0.7, whose records share an offset
        for step in range(int((behind - first).max(initial=0))):
            place = np.minimum(first + step, len(self.offsets) - 1)
            found |= (first + step < behind) & (self.indexes[place] == indexes)
        return found

    def touches(self, low: int, high: int) -> bool:
        """Return True if a record's offset is within ``[low, high]``."""
        place = int(np.searchsorted(self.offsets, low, side="left"))
        return place < len(self.offsets) and int(self.offsets[place]) <= high


@dataclass(frozen=True, slots=True)
class Identities:
    """Set of identities of one topic's records, by log (partition of one incarnation).

    An identity is incarnation, broker, partition, offset, and index among the records with that offset.
    """

    logs: Mapping[LogKey, LogRows]

    @classmethod
    def of(cls, rows: pa.Table) -> Identities:
        """Make a set of identities from a table of records; duplicates are dropped.

        The table has the columns incarnation, broker, partition, offset and index.
        """
        by_log = rows.group_by(list(COLUMNS[:3])).aggregate([("offset", "list"), ("index", "list")])
        logs = {}
        for place in range(len(by_log)):
            offsets, indexes = (by_log[f"{name}_list"][place].values.to_numpy() for name in COLUMNS[3:])
            order = np.lexsort((indexes, offsets))
            offsets, indexes = offsets[order], indexes[order]
            fresh = np.ones(len(offsets), np.bool_)
            fresh[1:] = (np.diff(offsets) != 0) | (np.diff(indexes) != 0)
            key = LogKey(*(by_log[name][place].as_py() for name in COLUMNS[:3]))
            logs[key] = LogRows(offsets[fresh], indexes[fresh])
        return cls(logs)

    def __len__(self) -> int:
        return sum(len(rows.offsets) for rows in self.logs.values())

    def find(self, rows: pa.Table | pa.RecordBatch) -> Mask:
        """Return a mask of rows: True for each whose identity is in the set."""
        found = np.zeros(len(rows), np.bool_)
        there = set(pc.unique(rows["partition"]).to_pylist())
        offsets, indexes = (np.asarray(pc.fill_null(rows[name], -1)) for name in COLUMNS[3:])
        for key, records in self.logs.items():
            if key.partition in there:
                broker = rows["broker"]
                own = pc.and_(
                    pc.and_(pc.equal(rows["incarnation"], key.incarnation), pc.equal(rows["partition"], key.partition)),
                    pc.is_null(broker) if key.broker is None else pc.equal(broker, key.broker),
                )
                mask = np.asarray(pc.fill_null(own, False))  # noqa: FBT003 - Arrow's signature
                if mask.any():
                    found[mask] |= records.find(offsets[mask], indexes[mask])
        return found

    def may_be_in(self, file: DataFile) -> bool:
        """Return False if a table file's bounds exclude all records of the set.

        A file without bounds, of another writer, may have any record.
        """
        partitions, offsets = file.bounds.get("partition"), file.bounds.get("offset")
        return any(
            (partitions is None or int(partitions.low) <= key.partition <= int(partitions.high))
            and (offsets is None or records.touches(int(offsets.low), int(offsets.high)))
            for key, records in self.logs.items()
        )

    def tables(self) -> Iterator[pa.Table]:
        """Yield the identities as tables, one per log."""
        for key, records in self.logs.items():
            count = len(records.offsets)
            columns = [
                *(pa.repeat(pa.scalar(value, SCHEMA.field(name).type), count) for name, value in key._asdict().items()),
                pa.array(records.offsets),
                pa.array(records.indexes),
            ]
            yield pa.Table.from_arrays(columns, schema=SCHEMA)

    def to_table(self) -> pa.Table:
        """Return the identities as one table."""
        return pa.concat_tables([SCHEMA.empty_table(), *self.tables()])
