# SPDX-License-Identifier: Apache-2.0
"""Tables as DataFrames: whole, at a version, or the rows added since a version.

A DataFrame reads the files of one version. Later commits do not change it. It fails once vacuum has deleted these
files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from consumerd.spark.table.commit import DataFile, Operation
from consumerd.spark.table.errors import TableError, VersionVacuumed
from consumerd.spark.table.transaction import Table, open_table

_GLOBS: Final = "__globPaths__"
"""Spark's internal option that disables glob patterns in paths: a folder may be called ``lake[1]``."""


def read_table(spark: SparkSession, path: str | Path, version: int | None = None) -> DataFrame:
    """Return a table at a version, or at its newest, the partition columns last.

    Raises TableError if there is no such table or version, VersionVacuumed if files of the version are gone, OSError.
    """
    table = open_table(path)
    snapshot = table.snapshot(version)
    return read_files(spark, table, snapshot.files.values(), table.schema(snapshot))


def read_increment(spark: SparkSession, path: str | Path, *, after: int, until: int | None = None) -> DataFrame:
    """Return the rows appended after a version, up to version ``until`` or the newest.

    After version 0 that is the whole table. Raises TableError if a commit in between has changed rows
    (``Operation.REPLACE``); VersionVacuumed if appended files have been compacted and vacuumed since; OSError.
    """
    table = open_table(path)
    snapshot = table.snapshot(until)
    commits = tuple(table.log.read_after(after, snapshot.version))
    replaced = [commit.version for commit in commits if commit.operation is Operation.REPLACE]
    if replaced:
        raise TableError(f"{table.path}: version {replaced[0]} has changed rows; read the table whole")
    appended = [file for commit in commits if commit.operation is Operation.APPEND for file in commit.added]
    files = snapshot.files.values() if after == 0 else appended
    return read_files(spark, table, files, table.schema(snapshot))


def read_files(spark: SparkSession, table: Table, files: Iterable[DataFile], schema: str) -> DataFrame:
    """Return some of a table's files, of any version, with the table's columns. Raises VersionVacuumed."""
    columns = StructType.fromJson(json.loads(schema))
    paths = _existing(table, [file.path for file in files])
    if not paths:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns).option("basePath", _for_spark(table.path)).option(_GLOBS, "false")
    return reader.parquet(*paths)


def _existing(table: Table, paths: Sequence[str]) -> list[str]:
    for path in paths:
        if not (table.path / path).exists():
            raise VersionVacuumed(
                f"{table.path / path} has been removed; read a newer version, or let vacuum keep files for longer"
            )
    return [_for_spark(table.path / path) for path in paths]


def _for_spark(path: Path) -> str:
    """Return a path as Hadoop's URI, unescaped, because Hadoop does not decode ``%``."""
    return f"file://{path}"
