# SPDX-License-Identifier: Apache-2.0
"""Sets of identities, against plain sets."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.spark.erase_tables import SoughtRecords, find_keys, read_wanted
from consumerd.spark.identities import COLUMNS, SCHEMA, Identities
from consumerd.spark.table.commit import Bounds, DataFile

Row = tuple[str, int | None, int, int, int]


def table_of(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


@pytest.mark.parametrize("seed", range(20))
def test_a_set_finds_what_is_in_it(seed: int) -> None:
    """Of logs that differ in one column, with offsets that several records have, and rows that come twice."""
    source = random.Random(seed)

    def draw(count: int) -> list[Row]:
        return [
            (
                source.choice(["7", "7.1"]),
                source.choice([None, 0]),
                source.randrange(2),
                source.randrange(9),
                source.randrange(3),
            )
            for _ in range(count)
        ]

    chosen, rows = draw(source.randrange(60)), draw(200)
    identities = Identities.of(table_of(chosen))

    assert len(set(chosen)) == len(identities)
    assert [row in set(chosen) for row in rows] == identities.find(table_of(rows)).tolist()
    assert (
        identities.find(table_of(rows)).tolist()
        == identities.find(table_of(rows).combine_chunks().to_batches()[0]).tolist()
    )
    assert set(chosen) == {tuple(row.values()) for row in identities.to_table().to_pylist()}


def test_a_file_is_chosen_by_its_bounds() -> None:
    """One without bounds may hold anything."""
    identities = Identities.of(table_of([("7", None, 3, 100, 0)]))

    def file(partitions: tuple[int, int], offsets: tuple[int, int]) -> DataFile:
        bounds = {"partition": Bounds(low=partitions[0], high=partitions[1])}
        bounds["offset"] = Bounds(low=offsets[0], high=offsets[1])
        return DataFile(path="x", size=1, rows=1, values=(), bounds=bounds)

    assert [True, True, False, False, False] == [
        identities.may_be_in(one)
        for one in (
            file((0, 5), (100, 100)),
            file((3, 3), (0, 200)),
            file((4, 9), (0, 200)),
            file((3, 3), (0, 99)),
            file((3, 3), (101, 200)),
        )
    ]
    assert identities.may_be_in(DataFile(path="x", size=1, rows=1, values=()))


def test_keys_are_found_in_columns_of_any_type() -> None:
    """Null is no key; structs are compared by their fields."""
    structs = pa.array([{"id": 1}, None, {"id": 2}])
    assert [False, True] == find_keys(pa.array([None, b"a"]), pa.array([b"a"])).tolist()
    assert [True, False, False] == find_keys(structs, pa.array([{"id": 1}, None])).tolist()


def test_rows_of_a_file_are_found_by_number(tmp_path: Path) -> None:
    """Across row groups, by identity or by key."""
    rows = table_of([("7", None, 0, offset, 0) for offset in range(10)])
    pq.write_table(rows.append_column("key", pa.array([b"a", b"b"] * 5)), tmp_path / "file", row_group_size=3)
    wanted = SoughtRecords(identities=Identities.of(rows.slice(4, 1)), keys=pa.array([b"b"]))

    found = np.concatenate([numbers for _, numbers in read_wanted(tmp_path / "file", wanted)])

    assert [1, 3, 4, 5, 7, 9] == found.tolist()
