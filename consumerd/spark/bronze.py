"""The job ``bronze``: a table that holds each landed record once.

What is new is a matter of names and footers: a plan (``landing.plan``) says which file gives which offsets, given what the
table's commits cover. Spark's tasks copy these rows from file to file, as Arrow, with no shuffle; the commit that adds their
files to the table says what it covers. A run that dies leaves the table as it was, or with some of its commits; the next one
plans by what they cover. Rows of one identity (topic, incarnation, partition, offset, index) are in the table once, however often
and wherever they have landed.

A file that is damaged is left out and told of, again in each run, until it is restored or removed; another chain that has
its records gives them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from consumerd.config.job import JobSettings
from consumerd.config.pipeline import Bronze
from consumerd.spark.bronze_delta import DeltaTarget
from consumerd.spark.bronze_parquet import ParquetTarget
from consumerd.spark.bronze_rows import FOLDERS
from consumerd.spark.bronze_target import BOUNDS, JOB, SCHEMA, FilesDamaged, Taken, Target
from consumerd.spark.job import Progress, Sessions, Summary
from consumerd.spark.landing.footers import read_new
from consumerd.spark.landing.plan import LandingPlan, plan_landing
from consumerd.spark.landing.scan import scan_landing
from consumerd.spark.landing.values import Landing
from consumerd.spark.table.errors import TableConflict
from consumerd.spark.table.parquet_files import FileSettings
from consumerd.spark.table.transaction import create_table, local_path

OUTBOX: Final = "_outbox"
"""Where, below a Delta table, its outbox is: Delta passes over names that begin so."""
_TRIES: Final = 3


def run(spark: Sessions, settings: JobSettings, progress: Progress) -> Summary:
    """Take over what has landed since the last run. See ``job.Run``."""
    bronze = settings.pipeline.bronze
    target = open_target(settings.location("bronze"), bronze)
    return take_over(
        spark,
        settings.landing_roots(),
        target,
        topics=settings.landing_topics(),
        commit_bytes=bronze.commit_bytes,
        progress=progress,
    )


def open_target(place: str, bronze: Bronze) -> Target:
    """Return the table at a place, which is made if there is none. Raises ConsumerdError, OSError."""
    settings = FileSettings(compression=bronze.compression, level=bronze.compression_level, bounds=BOUNDS)
    if bronze.format == "parquet":
        return ParquetTarget(create_table(place, name=JOB, schema=SCHEMA.json(), partition_by=FOLDERS), settings)
    outbox = local_path(place) / OUTBOX
    table = create_table(outbox, name="outbox", schema=SCHEMA.json(), partition_by=FOLDERS)
    return DeltaTarget(place, ParquetTarget(table, settings))


def take_over(
    spark: Sessions,
    roots: Sequence[str | Path],
    target: Target,
    *,
    progress: Progress,
    topics: Iterable[str] | None = None,
    commit_bytes: int = 2 << 30,
) -> Summary:
    """Take over what of a landing zone a table does not hold yet, in commits of about ``commit_bytes`` of landed data.

    Raises ConfigError where a root is none, TableConflict where other jobs commit the same all the time, ConsumerdError, OSError,
    and what Spark raises where a task fails.
    """
    started = time.monotonic()
    wanted = None if topics is None else frozenset(topics)
    damage: dict[str, str] = {}
    taken: list[Taken] = []
    conflicts = 0
    while True:
        try:
            target.recover(spark)
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
    return _summarize(target, landing, plan, taken, time.monotonic() - started)


def _split(plan: LandingPlan, commit_bytes: int) -> Iterator[LandingPlan]:
    """Yield the plan's parts; none where there is nothing to commit. Raises OSError."""
    if plan.is_empty:
        if plan.passed.taken:
            yield plan
        return
    sizes = sum(Path(planned.path).stat().st_size for planned in plan.files)
    rows = sum(planned.metadata.count for planned in plan.files)
    yield from plan.split(max(1, rows * commit_bytes // max(1, sizes)))


def _mark_damaged(landing: Landing, damage: Mapping[str, str]) -> Landing:
    """Return the zone with what tasks have found out about files."""
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


def _summarize(target: Target, landing: Landing, plan: LandingPlan, taken: Sequence[Taken], seconds: float) -> Summary:
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
