# SPDX-License-Identifier: Apache-2.0
"""Which files become one: small ones of one folder, neighbours first."""

from __future__ import annotations

from consumerd.spark.compact import plan_groups
from consumerd.spark.table.commit import Bounds, DataFile


def make_file(name: str, size: int, *, partition: int = 0, offset: int = 0, day: str = "2026-11-22") -> DataFile:
    bounds = {"partition": Bounds(low=partition, high=partition), "offset": Bounds(low=offset, high=offset)}
    return DataFile(path=name, size=size, rows=1, values=("orders", day), bounds=bounds)


def names(files: list[DataFile], *, target_bytes: int = 100, min_files: int = 2) -> list[list[str]]:
    groups = plan_groups(files, target_bytes=target_bytes, min_files=min_files)
    return [[file.path for file in group] for group in groups]


def test_neighbours_by_partition_and_offset_become_one() -> None:
    """A reader of a range of offsets then has few files to open."""
    files = [
        make_file("p1", 20, partition=1),
        make_file("late", 20, offset=90),
        make_file("early", 20, offset=10),
        make_file("middle", 20, offset=50),
    ]

    assert names(files, target_bytes=60) == [["early", "middle", "late"]]
    assert names(files) == [["early", "middle", "late", "p1"]]


def test_offsets_are_ordered_as_numbers_and_files_without_bounds_come_first() -> None:
    """9 is before 10; and a silver table keeps bounds of other columns."""
    bare = DataFile(path="bare", size=10, rows=1, values=("orders", "2026-11-22"))
    files = [make_file("ten", 10, offset=10), make_file("nine", 10, offset=9), bare]

    assert names(files) == [["bare", "nine", "ten"]]


def test_large_files_few_files_and_other_folders_are_left_alone() -> None:
    """Each compaction writes every byte again."""
    small = [make_file(f"s{number}", 10, offset=number) for number in range(3)]

    assert names([*small, make_file("large", 50)]) == [["s0", "s1", "s2"]]
    assert names(small, min_files=4) == []
    assert names([small[0], make_file("other", 10, day="2026-11-21")]) == []
    assert names([make_file("a", 49), make_file("b", 49, offset=1), make_file("c", 49, offset=2)]) == [["a", "b"]]
