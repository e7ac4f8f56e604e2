# SPDX-License-Identifier: Apache-2.0
"""Checks the records of every landed file in Spark's tasks, for an audit.

``data_check`` compares a file with its metadata. Work is divided into Spark jobs, so that progress can be shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from consumerd.landing.chain import FileMetadata
from consumerd.landing.findings import Finding
from consumerd.landing.values import Landing
from consumerd.spark.data_check import check_data
from consumerd.spark.job import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES_PER_JOB: Final = 2000
"""Files per Spark job."""
_FILES_PER_TASK: Final = 16
"""Files per task."""

_TASK: Final = "path string, extension string, metadata binary"
"""Schema of the tasks' input: one landed file per row."""
_RESULT: Final = "records bigint, findings string"
"""Schema of the tasks' output: number of records in a file; findings as JSON."""
_RESULT_SCHEMA: Final = pa.schema([("records", pa.int64()), ("findings", pa.string())])


def prove(spark: SparkSession, landing: Landing, progress: Progress) -> tuple[int, tuple[Finding, ...]]:
    """Check the records of all landed files against their metadata, in Spark's tasks.

    Returns the number of records and the findings. Files without known metadata are left out. The landing folders must
    be mounted where Spark's executors run.
    """
    work = [
        (file.path, chain.record.extension, file.metadata.encode())
        for chain in landing.chains
        for file in chain.files
        if file.metadata is not None
    ]
    progress.step(f"reading the data of {len(work)} files")
    records = 0
    findings: list[Finding] = []
    for first in range(0, len(work), _FILES_PER_JOB):
        few = work[first : first + _FILES_PER_JOB]
        for count, found in _run(spark, few):
            records += count
            findings += found
        progress.done(first + len(few), len(work), "files")
    return records, tuple(findings)


def _run(spark: SparkSession, work: Sequence[tuple[str, str, bytes]]) -> Iterator[tuple[int, list[Finding]]]:
    # number of tasks, rounded up
    tasks = spark.createDataFrame(list(work), _TASK).repartition(-(-len(work) // _FILES_PER_TASK))
    for row in tasks.mapInArrow(check_files, _RESULT).collect():
        yield row["records"], [Finding.parse(fields) for fields in json.loads(row["findings"])]


def check_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check the landed files of a task; yield one row of results per file."""
    for batch in batches:
        for path, extension, metadata in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            count, findings = check_data(path, extension, FileMetadata.parse(metadata))
            encoded = json.dumps([finding.encode() for finding in findings])
            yield pa.RecordBatch.from_arrays([pa.array([count]), pa.array([encoded])], schema=_RESULT_SCHEMA)
