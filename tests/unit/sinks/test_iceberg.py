# SPDX-License-Identifier: Apache-2.0
"""Landed Parquet files in an Iceberg table, as they are: pyiceberg's ``add_files``, which reads footers and rewrites nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from consumerd.model import Incarnation, TopicPartition
from consumerd.sinks.base import Start
from tests.support import landed_1
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.record_batches import build_batch, record
from tests.support.sinks import SinkRig

if TYPE_CHECKING:
    from pyiceberg.table import Table

REQUIRED = os.environ.get("CONSUMERD_REQUIRE_TOOLS") == "1"


@pytest.fixture(scope="module")
def iceberg() -> Any:
    """The library; where the tests' requirements are installed it must be there."""
    if REQUIRED:
        import pyiceberg
    else:
        pyiceberg = pytest.importorskip("pyiceberg", reason="needs pyiceberg, of the extra test")
    return pyiceberg


@pytest.fixture
async def files(tmp_path: Path) -> list[Path]:
    """Two files of each of two partitions, with keys, nulls and headers."""
    rig = SinkRig(kind="parquet", path=tmp_path / "landing", clock=ManualClock())
    for number in (0, 1):
        partition = TopicPartition.modern("orders", number)
        writer = await rig.member().open(StubClaim(partition, incarnation=Incarnation(7)))
        await writer.start(Start(position=0, reason="earliest"))
        for start in (0, 10):
            rows = [record(at, b"v", key=b"k", timestamp=at, headers=(("h", b"x"),)) for at in range(start, start + 9)]
            rows.append(record(start + 9, None))
            await writer.write(build_batch(partition, rows))
            await writer.flush()
    await rig.close()
    return sorted(rig.path.rglob("*.parquet"))


@pytest.fixture
def table(iceberg: Any, tmp_path: Path, files: list[Path]) -> Iterator[Table]:
    """A table with the columns of a landed file, partitioned by topic and partition."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.transforms import IdentityTransform

    (tmp_path / "warehouse").mkdir()
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("lake")
    made = catalog.create_table("lake.records", schema=pq.read_schema(files[0]))
    with made.update_spec() as spec:
        for name in ("topic", "partition"):
            spec.add_field(name, IdentityTransform(), name)
    yield catalog.load_table("lake.records")
    catalog.close()


def test_landed_files_are_added_with_their_partitions(table: Table, files: list[Path]) -> None:
    """Partition values come from the columns' statistics, not from any path."""
    table.add_files([str(path) for path in files])

    rows = table.scan().to_arrow()
    assert 40 == len(rows)
    assert {("orders", 0), ("orders", 1)} == set(
        zip(rows["topic"].to_pylist(), rows["partition"].to_pylist(), strict=True)
    )
    assert 40 == rows["broker"].null_count
    assert {("orders", 0): 2, ("orders", 1): 2} == {
        (one["partition"]["topic"], one["partition"]["partition"]): one["file_count"]
        for one in table.inspect.partitions().to_pylist()
    }


def test_a_partition_is_read_without_the_others(table: Table, files: list[Path]) -> None:
    """That is what partition values are for."""
    table.add_files([str(path) for path in files])
    scan = table.scan(row_filter="topic = 'orders' and partition = 1 and offset >= 10")
    (task,) = scan.plan_files()
    assert "partition=1" in task.file.file_path
    assert list(range(10, 20)) == sorted(scan.to_arrow()["offset"].to_pylist())


def test_a_file_of_format_1_has_no_partition_to_be_added_to(table: Table) -> None:
    """Those are for bronze: the error says what is missing, and nothing is added."""
    old = next((landed_1.RECORDED / "parquet").rglob("0*.parquet"))
    with pytest.raises(ValueError, match=r"topic: required string *│ Missing"):
        table.add_files([str(old)])
    assert 0 == len(table.scan().to_arrow())
