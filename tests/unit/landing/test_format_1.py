# SPDX-License-Identifier: Apache-2.0
"""A landing folder of the release before, upgraded in place, as audit and bronze see it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]  # it has no types of its own
import pyarrow.dataset as ds
import pytest

from consumerd.landing.examine import examine
from consumerd.landing.footers import read_all
from consumerd.landing.ranges import EMPTY
from consumerd.landing.scan import scan_landing
from consumerd.landing.values import Landing
from consumerd.model import Incarnation, TopicPartition
from consumerd.sinks.base import Start
from consumerd.spark.bronze_rows import FilePiece, read_piece
from consumerd.spark.data_check import check_data
from consumerd.spark.landed_rows import LandedContent
from tests.support import landed_1
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.record_batches import build_batch, record
from tests.support.sinks import SinkRig

ORDERS = TopicPartition.modern("orders", 0)


async def _go_on(kind: str, path: Path) -> None:
    rig = SinkRig(kind=kind, path=path, clock=ManualClock(), cluster=landed_1.CLUSTER, group=landed_1.GROUP)
    writer = await rig.member().open(StubClaim(ORDERS, incarnation=Incarnation(landed_1.CZXID)))
    await writer.start(Start(position=landed_1.END, reason="committed", truncation=1))
    await writer.write(build_batch(ORDERS, [record(offset) for offset in range(60, 70)]))
    await writer.flush()
    await rig.close()


@pytest.fixture(params=["parquet", "jsonl"])
def mixed(request: pytest.FixtureRequest, tmp_path: Path) -> Landing:
    """Files of both formats in one chain."""
    path = landed_1.copy_landed(request.param, tmp_path / "landing")
    asyncio.run(_go_on(request.param, path))
    return read_all(scan_landing([path]))


def test_audit_accounts_for_both_formats(mixed: Landing) -> None:
    """Nothing is damaged, misplaced or unexplained for its format."""
    report = examine(mixed, depth="footers")
    assert [] == [finding.detail for finding in report.errors]
    assert {"orders/0@7": 40, "orders/0@7.1": 70, "orders/1@7": 9} == {str(one.log): one.end for one in report.logs}


def test_rows_of_both_formats_are_bronze(mixed: Landing) -> None:
    """The columns that files of format 2 have besides are the table's own."""
    offsets: list[int] = []
    names = set()
    newest = next(chain for chain in mixed.chains if str(chain.log) == "orders/0@7.1")
    for file in newest.files:
        assert file.metadata is not None
        assert (file.metadata.count, ()) == check_data(file.path, newest.record.extension, file.metadata)
        content = LandedContent(
            path=file.path, partition=ORDERS, extension=newest.record.extension, count=file.metadata.count
        )
        piece = FilePiece(
            content=content, topic="orders", incarnation="7.1", broker=None, partition=0, ranges=None, contested=EMPTY
        )
        for part in read_piece(piece):
            offsets += part.rows["offset"].to_pylist()
            names.add(tuple(part.with_folders().schema.names))
    assert [*range(30, 50), *range(55, 70)] == sorted(offsets)
    assert 1 == len(names)


def test_dataset_of_both_formats_has_topic_and_partition(tmp_path: Path) -> None:
    """What the README says: folders tell where format 1 does not, and both agree."""
    path = landed_1.copy_landed("parquet", tmp_path / "landing")
    asyncio.run(_go_on("parquet", path))
    table = ds.dataset(path, partitioning="hive", exclude_invalid_files=True).to_table()
    assert (["orders"], [0, 1]) == (
        table["topic"].unique().to_pylist(),
        sorted(table["partition"].unique().to_pylist()),
    )
    assert 38 + 25 + 10 + 4 == len(table)


def test_pandas_sees_topic_and_partition_of_both_formats(tmp_path: Path) -> None:
    """Of one file of format 2 as it is; of a folder, whose older files leave it to the folders' names, by pyarrow's dataset."""
    path = landed_1.copy_landed("parquet", tmp_path / "landing")
    asyncio.run(_go_on("parquet", path))
    (newest,) = (file for file in path.rglob("*.parquet") if file.name.startswith(f"{60:020d}"))
    # plainly, from a place whose folders' names say nothing; pandas takes columns from such names otherwise
    alone = tmp_path / newest.name
    alone.write_bytes(newest.read_bytes())
    for frame in (pd.read_parquet(alone), pd.read_parquet(newest, partitioning=None)):
        assert (["orders"], [0], 10) == (list(frame["topic"].unique()), list(frame["partition"].unique()), len(frame))
    whole = ds.dataset(path, partitioning="hive", exclude_invalid_files=True).to_table().to_pandas()
    assert {("orders", 0), ("orders", 1)} == set(zip(whole["topic"], whole["partition"], strict=True))
