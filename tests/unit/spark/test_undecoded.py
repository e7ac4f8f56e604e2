# SPDX-License-Identifier: Apache-2.0
"""Files of bronze that silver still has to decode, after other jobs have rewritten files."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Pipeline
from consumerd.spark.silver_plan import find_undecoded
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.transaction import Table
from tests.support.tables import append, make_rows, make_table, stage


def settings(tmp_path: Path) -> JobSettings:
    topics = {"orders": {"key": "utf8", "value": "raw"}}
    return JobSettings(pipeline=Pipeline.model_validate({"path": str(tmp_path / "lake"), "silver": {"topics": topics}}))


def rewrite(table: Table, paths: list[str], offsets: range, operation: Operation) -> None:
    with table.begin(plan=f"{operation} of {paths}", job="test", operation=operation) as transaction:
        transaction.remove(paths)
        stage(transaction, [make_rows(offsets)])
        transaction.commit()


@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.DELETE])
def test_a_file_made_of_decoded_ones_does_not_wait(tmp_path: Path, operation: Operation) -> None:
    """Silver's version does not move by it; one that has a row which is not decoded waits."""
    bronze = make_table(tmp_path / "lake" / "bronze")
    append(bronze, make_rows(range(3)))
    silver = make_table(tmp_path / "lake" / "silver" / "orders")
    append(silver, make_rows(range(3)), progress={f"bronze:{bronze.record.id}": 1})
    given = settings(tmp_path)

    rewrite(bronze, list(bronze.snapshot().files), range(2), operation)
    assert frozenset() == find_undecoded(given, bronze, "orders")
    append(bronze, make_rows(range(3, 5)), make_rows(range(2), topic="other"))
    [waiting] = find_undecoded(given, bronze, "orders")
    rewrite(bronze, [waiting], range(3, 4), operation)
    [now] = find_undecoded(given, bronze, "orders")
    assert waiting != now
    assert now in bronze.snapshot().files


def test_all_files_wait_where_bronze_is_an_earlier_copy_than_the_one_that_silver_has_read(tmp_path: Path) -> None:
    """Of a backup: what silver has decoded says nothing of the files that it is given now."""
    bronze = make_table(tmp_path / "lake" / "bronze")
    append(bronze, make_rows(range(3)))
    silver = make_table(tmp_path / "lake" / "silver" / "orders")
    append(silver, make_rows(range(9)), progress={f"bronze:{bronze.record.id}": 5})

    assert bronze.snapshot().files.keys() == find_undecoded(settings(tmp_path), bronze, "orders")
