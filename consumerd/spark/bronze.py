# SPDX-License-Identifier: Apache-2.0
"""The job ``bronze``: a table that holds each landed record once.

Names and footers say what is new: a plan (``landing.plan``) lists which offsets to take from which file, given the
coverage of the table's commits. Spark's tasks copy these rows from file to file, as Arrow, without a shuffle. Each
commit adds files and their coverage. A run that dies leaves some of its commits or none, and the next run plans from
there. Rows of one identity (topic, incarnation, partition, offset, index) are in the table once, however often they
have landed.

A damaged file is left out and reported by each run until it is restored or removed. If another chain has its records,
they are taken from there.
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
from consumerd.spark.bronze_schema import BOUNDS, JOB, SCHEMA, CommittedRows, FilesDamaged
from consumerd.spark.bronze_table import BronzeTable
from consumerd.spark.job import Progress, Sessions, Summary
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.transaction import create_table

_TRIES: Final = 3


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Take over what has landed since the last run. See ``job.Run``."""
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
    """Return the bronze table at a place; create it if there is none. Raises ConsumerdError, OSError."""
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
    """Copy landed records that the table does not hold yet into it.

    Args:
        roots: landing folders.
        topics: names of topics; None for all.
        commit_bytes: bytes of landed files that one commit takes, about.

    Raises ConfigError if a root is no landing folder, TableConflict if other jobs keep committing the same records,
    ConsumerdError, OSError, and Spark's exceptions if a task fails.
    """
    started = time.monotonic()
    wanted = None if topics is None else frozenset(topics)
    damage: dict[str, str] = {}
    taken: list[CommittedRows] = []
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
                progress.done(sum(one.files for one in taken), len(plan.files), "files")
            break
        except FilesDamaged as found:
            damage |= found.reasons
        except TableConflict:
            conflicts += 1
            if conflicts == _TRIES:
                raise
    summary = _summarize(target, landing, plan, taken, time.monotonic() - started)
    return replace(summary, notes=(*landing.name_absent(wanted), *summary.notes))


def _split(plan: LandingPlan, commit_bytes: int) -> Iterator[LandingPlan]:
    """Yield the plan in parts of about ``commit_bytes``, none if nothing is new. Raises OSError."""
    if plan.is_empty:
        if plan.passed:
            yield plan
        return
    sizes = sum(Path(planned.path).stat().st_size for planned in plan.files)
    rows = sum(planned.metadata.count for planned in plan.files)
    yield from plan.split(max(1, rows * commit_bytes // max(1, sizes)))


def _mark_damaged(landing: Landing, damage: Mapping[str, str]) -> Landing:
    """Return the landing zone with files marked that tasks have found to be damaged."""
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
    target: BronzeTable, landing: Landing, plan: LandingPlan, taken: Sequence[CommittedRows], seconds: float
) -> Summary:
    rows = sum(one.rows for one in taken)
    numbers = {
        "table": target.place,
        "rows": rows,
        "files_landed": landing.file_count,
        "files_taken": sum(one.files for one in taken),
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
