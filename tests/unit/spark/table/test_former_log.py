# SPDX-License-Identifier: Apache-2.0
"""Tables of the release before the log was Delta's: ``tests/vectors/table-2`` was written by it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from consumerd.landing.filesystem import OsFileSystem
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.log import TableLog
from consumerd.spark.table.transaction import find_table, open_table
from tests.support.tables import append, make_rows, make_table, read_offsets

RECORDED = Path(__file__).parents[3] / "vectors" / "table-2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a copy of the recorded table."""
    return Path(shutil.copytree(RECORDED, tmp_path / "table"))


def test_its_versions_keep_their_numbers_and_rows(path: Path) -> None:
    """Jobs that read it know it by them: silver has come as far as version 17."""
    table = open_table(path)
    (one, two, three) = table.log.read_after(0)

    assert [read_offsets(table, version) for version in range(4)] == [[], [*range(4)], [*range(9)], [*range(9)]]
    assert [one.plan, two.plan, three.plan] == ["first", "second", "third"]
    assert (two.progress, three.operation, two.time_ms) == ({"bronze": 17}, Operation.COMPACT, 1_700_000_060_000)
    snapshot = table.snapshot()
    assert snapshot.covered.cluster == "c-1"
    assert [str(ranges) for ranges in snapshot.covered.covered.values()] == [
        str(one.covered.covered[log] | two.covered.covered[log]) for log in one.covered.covered
    ]
    assert not (path / "_table.json").exists()
    append(table, make_rows([9]))
    assert read_offsets(make_table(path)) == [*range(10)]


class Dying(OsFileSystem):
    """A file system at whose nth change the process is gone."""

    def __init__(self, left: int) -> None:
        self._left = left

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt

    def link(self, source: Path, target: Path) -> None:
        self._count()
        super().link(source, target)
        self._count()

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)


def test_whoever_dies_while_rewriting_the_next_one_goes_on(path: Path, tmp_path: Path) -> None:
    """At every step."""
    for left in range(100):
        place = Path(shutil.copytree(path, tmp_path / f"{left}"))
        try:
            find_table(place, files=Dying(left))
        except KeyboardInterrupt:
            table = open_table(place)
            assert read_offsets(table) == [*range(9)]
            assert table.snapshot().plans == {"first": 1, "second": 2, "third": 3}
        else:
            break
    assert 8 < left < 99


def test_damage_of_the_former_log_is_named_and_leaves_it(path: Path) -> None:
    """Somebody has to restore that very file, with the release that wrote it or with this one."""
    (path / "_log" / f"{2:020d}.json").write_text("{")

    for _ in range(2):
        with pytest.raises(TableError, match=r"_log/0*2\.json is damaged"):
            open_table(path)
    assert (path / "_table.json").exists()
    assert TableLog(path).latest() == 1
