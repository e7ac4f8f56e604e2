# SPDX-License-Identifier: Apache-2.0
"""The job ``bronze``: a table that holds each landed record once.

A record may have landed several times: two daemons with a folder each, a re-read after a crash. Rows are identified by
topic, incarnation (creation) of the topic, partition, offset, and index among records that share an offset (Kafka 0.7).

How a run works
    1. The names and metadata of landed files, and the coverage of the table (the offsets that its commits have taken)
       give a plan: which offsets to take from which file (``landing.plan``).
    2. Spark's tasks copy these rows from file to file, as Arrow, without a shuffle (``bronze_tasks``).
    3. A commit adds the new files and their coverage. A large plan is split into several commits.

Example: the table covers offsets 0-499 of a partition. Landed are file A with 0-499, file B with 400-999 in another
chain, and file C with 1000-1499. The plan takes 500-999 from B and all of C. After the commit the table covers 0-1499.

Crashes
    Only commits are visible. A run that dies has made some of its commits; the next run plans from their coverage.

Damaged files
    A damaged file is left out and reported by each run until it is restored or removed. Its records are taken from
    another chain if that has them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Bronze
from consumerd.landing.footers import read_new
from consumerd.landing.plan import LandingPlan, plan_landing
from consumerd.landing.scan import scan_landing
from consumerd.landing.values import Landing
from consumerd.spark.bronze_rows import FOLDERS
from consumerd.spark.bronze_table import BOUNDS, JOB, SCHEMA, BronzeTable
from consumerd.spark.bronze_tasks import FilesDamaged
from consumerd.spark.job import Progress, Sessions, Summary
from consumerd.spark.table.commit import TableCommit
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.transaction import create_table

_MAX_ATTEMPTS: Final = 3
"""Attempts to plan and commit while other jobs commit to the table."""


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Copy the records that have landed since the last run into the table ``bronze``.

    Returns the summary. Raises ConfigError, ConsumerdError, OSError.
    """
    bronze = settings.pipeline.bronze
    target = open_bronze(settings.location("bronze"), bronze)
    return take_over(
        spark,
        settings.landing_roots(),
        target,
        topics=settings.landing_topics(),
        commit_bytes=bronze.commit_bytes,
        progress=progress,
    )


def open_bronze(place: str, bronze: Bronze) -> BronzeTable:
    """Return the bronze table in the folder ``place``; create it if it does not exist.

    Raises ConsumerdError, OSError.
    """
    settings = FileSettings(compression=bronze.compression, level=bronze.compression_level, bounds=BOUNDS)
    return BronzeTable(create_table(place, name=JOB, schema=SCHEMA.json(), partition_by=FOLDERS), settings)


def take_over(
    spark: Sessions,
    roots: Sequence[str | Path],
    target: BronzeTable,
    *,
    progress: Progress,
    topics: Iterable[str] | None = None,
    commit_bytes: int = 2 << 30,
) -> Summary:
    """Copy landed records into the table, except those that the table has; return the summary.

    Args:
        roots: landing folders.
        topics: names of topics; None for all.
        commit_bytes: approximate bytes of landed files per commit.

    Raises ConfigError if a root is not a landing folder, TableConflict if other jobs keep committing the same records,
    ConsumerdError, OSError, and Spark's exceptions if a task fails.
    """
    started = time.monotonic()
    wanted = None if topics is None else frozenset(topics)
    damage: dict[str, str] = {}
    taken: list[TableCommit] = []
    conflicts = 0
    while True:
        try:
            progress.step("reading names and footers")
            covered = target.covered()
            landing = _mark_damaged(read_new(scan_landing(roots, topics=wanted), covered), damage)
            plan = plan_landing(landing, covered)
            for part in _split(plan, commit_bytes):
                count = sum(planned.metadata.count for planned in part.files)
                progress.step(f"copying {count} rows of {len(part.files)} files")
                taken.append(target.take(spark, part))
                progress.done(_count_files(taken), len(plan.files), "files")
            break
        except FilesDamaged as found:
            # plan again without these files: other chains may have their records
            damage |= found.reasons
        except TableConflict:
            conflicts += 1
            if conflicts == _MAX_ATTEMPTS:
                raise
    summary = _summarize(target, landing, plan, taken, time.monotonic() - started)
    return replace(summary, notes=(*landing.name_absent(wanted), *summary.notes))


def _split(plan: LandingPlan, commit_bytes: int) -> Iterator[LandingPlan]:
    """Yield parts of a plan of about ``commit_bytes`` each. Raises OSError."""
    if plan.is_empty:
        if plan.passed:  # files without a new row are committed as done, so that later runs skip them by name
            yield plan
        return
    sizes = sum(Path(planned.file.path).stat().st_size for planned in plan.files)
    rows = sum(planned.metadata.count for planned in plan.files)
    yield from plan.split(max(1, rows * commit_bytes // max(1, sizes)))


def _mark_damaged(landing: Landing, damage: Mapping[str, str]) -> Landing:
    """Return the landing zone with the files marked that tasks found to be damaged."""
    if not damage:
        return landing
    chains = [
        replace(
            chain,
            files=tuple(
                replace(file, metadata=None, damage=f"{file.path} {damage[file.path]}") if file.path in damage else file
                for file in chain.files
            ),
        )
        for chain in landing.chains
    ]
    return replace(landing, chains=tuple(chains))


def _summarize(
    target: BronzeTable, landing: Landing, plan: LandingPlan, taken: Sequence[TableCommit], seconds: float
) -> Summary:
    rows = sum(one.rows for one in taken)
    numbers = {
        "table": target.place,
        "rows": rows,
        "files_landed": landing.file_count,
        "files_taken": _count_files(taken),
        "files_damaged": len(plan.damaged),
        "commits": len(taken),
        "version": taken[-1].version if taken else None,
        "rows_per_s": round(rows / seconds) if rows and seconds else 0,
    }
    return Summary(
        numbers=numbers,
        findings=tuple(str(finding) for finding in plan.damaged),
        notes=() if rows else ("nothing new has landed",),
    )


def _count_files(taken: Sequence[TableCommit]) -> int:
    """Return the number of landed files that commits have taken."""
    return sum(one.counts["files_taken"] for one in taken)
