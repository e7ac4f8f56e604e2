# SPDX-License-Identifier: Apache-2.0
"""The commands ``describe``, ``history``, ``files``, ``quarantine``, ``vacuum`` and ``restore``.

None needs Spark. A table is named by its path below ``pipeline.path`` (``bronze``, ``silver/orders``), or by its
folder.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from consumerd.config.job import QUARANTINE, JobSettings
from consumerd.errors import ConfigError
from consumerd.spark.decoding.records import CAUSES
from consumerd.spark.job import JobName, PrintedTable, Summary, TableRequest
from consumerd.spark.quarantine import Purged, Quarantined, count, purge
from consumerd.spark.quarantine_purged import PURGED
from consumerd.spark.quarantine_rows import Choice
from consumerd.spark.table.commit import LOG_FOLDER, DataFile, TableCommit
from consumerd.spark.table.restore import restore
from consumerd.spark.table.snapshot import is_filled_by_stream
from consumerd.spark.table.transaction import Table as DeltaTable
from consumerd.spark.table.transaction import find_table, open_table
from consumerd.spark.table.vacuum import Vacuumed, vacuum
from consumerd.telemetry.wording import format_time

_JOB_DEPTH: Final = 2
"""Deepest level below ``pipeline.path`` at which jobs have their tables (``silver/orders``)."""
_MAX_DEPTH: Final = 4
"""Deepest level below ``pipeline.path`` at which tables are listed, for a folder above those of several pipelines."""
_NEXT_STEP: Final = "mend the declaration or the producer, then: consumerd-spark replay --source quarantine"
_OURS: Final = re.compile(r"(bronze|quarantine|purged|stats|silver of .*|latest of .*)$")
"""Names of the jobs' own tables.

Other Delta tables may be in the same folder. They are vacuumed only if named.
"""


def run(name: JobName, settings: JobSettings, request: TableRequest) -> Summary:
    """Execute a command over tables, such as ``history``; return its summary.

    Raises ConfigError if there is no such table, TableError, OSError.
    """
    return _COMMANDS[name](settings, request)


def find_tables(settings: JobSettings, *, depth: int = _JOB_DEPTH) -> dict[str, DeltaTable]:
    """Return existing tables by name: those of the settings, and others below ``pipeline.path``.

    Args:
        depth: Levels below the path that are searched. Commands that change tables use the default, the tables of one
            pipeline.

    Raises ConfigError if no path is set, TableError, OSError.
    """
    places = dict(settings.tables())
    top = settings.tables_root()
    if top is not None:
        for place in sorted(_find_folders(top, depth), key=lambda place: (len(place.parts), place)):
            places.setdefault(str(place.relative_to(top)), place)
    found = ((name, find_table(place)) for name, place in places.items())
    return {name: table for name, table in found if table is not None}


def _find_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folders of tables at most ``depth`` levels below a folder.

    Neither tables nor folders of partitions, such as ``topic=orders``, are searched: they may have many files.
    """
    if not depth:
        return
    found: list[Path] = []
    with suppress(OSError):  # a folder that may not be read, such as another user's
        found += folder.iterdir()
    for place in found:
        with suppress(OSError):
            if "=" in place.name or not place.is_dir():
                continue
            if (place / LOG_FOLDER).is_dir():
                yield place
            else:
                yield from _find_folders(place, depth - 1)


def is_ours(table: DeltaTable) -> bool:
    """Return True if jobs or ``append_batches`` write the table. Raises TableError, OSError."""
    return _OURS.match(table.record.name) is not None or is_filled_by_stream(table.snapshot())


def _find(settings: JobSettings, name: str | None) -> tuple[str, DeltaTable]:
    """Return a table and its name. Raises ConfigError if it does not exist."""
    assert name is not None  # the parser requires it
    if name.startswith(("/", "./", "../")):
        return name, open_table(name)
    tables = find_tables(settings, depth=_MAX_DEPTH)
    if name not in tables:
        known = ", ".join(sorted(tables)) or "none yet"
        raise ConfigError(f"there is no table {name!r}; there are: {known}. A folder is written as /path or ./path")
    return name, tables[name]


# -- describe, history, files


def _describe(settings: JobSettings, request: TableRequest) -> Summary:
    if request.table is None:
        tables = find_tables(settings, depth=_MAX_DEPTH)
    else:
        tables = dict([_find(settings, request.table)])
    found = {name: _description(table, request.version) for name, table in tables.items()}
    heads = ("version", "oldest_version", "changed", "rows", "files", "bytes", "log_files", "log_bytes")
    rows = tuple((name, *(one[head] for head in heads)) for name, one in found.items())
    shown = [PrintedTable(title="Tables", heads=("table", *heads), rows=rows)]
    if request.table is not None:
        [one] = found.values()
        columns = json.loads(str(one["schema"]))["fields"]
        shown.append(
            PrintedTable(
                title="Columns",
                heads=("column", "type", "nullable"),
                rows=tuple((field["name"], _type_name(field["type"]), field["nullable"]) for field in columns),
            )
        )
    notes = () if found else ("there is no table yet",)
    return Summary(numbers={}, details={"tables": found}, tables=tuple(shown) if found else (), notes=notes)


def _description(table: DeltaTable, version: int | None) -> dict[str, object]:
    snapshot = table.snapshot(version)
    log = [file.stat() for file in (table.path / LOG_FOLDER).iterdir() if not file.name.startswith(".")]
    covered = snapshot.covered
    offsets = {str(log): [[span.start, span.end] for span in ranges.spans] for log, ranges in covered.covered.items()}
    return {
        "path": str(table.path),
        "id": table.record.id,
        "name": table.record.name,
        "version": snapshot.version,
        "oldest_version": table.log.oldest(),
        "created": format_time(table.record.created_ms) if table.record.created_ms else None,
        "changed": format_time(snapshot.time_ms) if snapshot.version else None,
        "rows": snapshot.rows,
        "files": len(snapshot.files),
        "bytes": snapshot.size,
        "removed_files": len(snapshot.removed),
        "log_files": len(log),
        "log_bytes": sum(one.st_size for one in log),
        "partition_by": list(table.record.partition_by),
        "progress": dict(snapshot.progress),
        "cluster": covered.cluster,
        "covered": offsets,
        "schema": table.schema(snapshot),
    }


def _type_name(kind: Any) -> str:
    """Return a column's type in the notation of Spark SQL.

    Args:
        kind: type in Spark's JSON.
    """
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_type_name(kind['keyType'])},{_type_name(kind['valueType'])}>"
    fields = (f"{field['name']}:{_type_name(field['type'])}" for field in kind["fields"])
    return f"struct<{','.join(fields)}>"


def _history(settings: JobSettings, request: TableRequest) -> Summary:
    _, table = _find(settings, request.table)
    newest = table.log.latest() if request.version is None else request.version
    first = max(newest - request.limit, table.log.oldest() - 1, 0)
    commits = [_encode_commit(commit) for commit in table.log.read_after(first, newest)][::-1]
    heads = ("version", "time", "operation", "job", "rows", "files_added", "files_removed", "bytes")
    rows = tuple(tuple(commit[head] for head in heads) for commit in commits)
    oldest = max(table.log.oldest(), 1)
    notes = (f"there are older ones, from version {oldest} on (--limit, --version)",) if first + 1 > oldest else ()
    return Summary(
        numbers={},
        details={"table": str(table.path), "versions": commits},
        tables=(PrintedTable(title=f"Versions of {table.path}", heads=heads, rows=rows),),
        notes=notes,
    )


def _encode_commit(commit: TableCommit) -> dict[str, object]:
    operation = str(commit.operation) if commit.restores is None else f"restore of {commit.restores}"
    return {
        "version": commit.version,
        "time": format_time(commit.time_ms),
        "operation": operation,
        "job": commit.job,
        "rows": commit.rows,
        "files_added": len(commit.added),
        "files_removed": len(commit.removed),
        "bytes": sum(file.size for file in commit.added),
        "plan": commit.plan,
        "progress": dict(commit.progress),
        "counts": dict(commit.counts),
    }


def _files(settings: JobSettings, request: TableRequest) -> Summary:
    _, table = _find(settings, request.table)
    snapshot = table.snapshot(request.version)
    files = sorted(snapshot.files.values(), key=lambda file: file.path)
    heads = ("path", "rows", "bytes", "lowest_offset", "highest_offset")
    return Summary(
        numbers={"version": snapshot.version, "files": len(files), "rows": snapshot.rows, "bytes": snapshot.size},
        details={"table": str(table.path), "listed": list(_list_files(files))},
        tables=(PrintedTable(title=f"Files of {table.path}", heads=heads, rows=tuple(map(_row_of, files))),),
    )


def _list_files(files: list[DataFile]) -> Iterator[dict[str, object]]:
    for file in files:
        bounds = {name: [held.low, held.high] for name, held in file.bounds.items()}
        yield {"path": file.path, "rows": file.rows, "bytes": file.size, "values": list(file.values), "bounds": bounds}


def _row_of(file: DataFile) -> tuple[object, ...]:
    offsets = file.bounds.get("offset")
    return file.path, file.rows, file.size, offsets and offsets.low, offsets and offsets.high


# -- the quarantine


def _quarantine(settings: JobSettings, request: TableRequest) -> Summary:
    """Count a version's quarantined records by topic and cause, or purge them."""
    _, table = _find(settings, QUARANTINE)
    choice = _choose(request)
    if request.purge is not None:
        return _purge(table, request, choice)
    snapshot = table.snapshot(request.version)
    causes = count(table, snapshot, choice)
    return Summary(
        numbers={
            "version": snapshot.version,
            "rows": sum(one.rows for one in causes),
            "replayed": sum(one.replayed for one in causes),
        },
        details={"table": str(table.path), "causes": [one.to_dict() for one in causes]},
        tables=_show_causes("In quarantine", causes),
        notes=(_NEXT_STEP if causes else "nothing is in quarantine" if not snapshot.rows else "nothing is chosen",),
    )


def _choose(request: TableRequest) -> Choice:
    if request.cause is not None and request.cause not in CAUSES:
        raise ConfigError(f"--cause: expected {', '.join(CAUSES[:-1])} or {CAUSES[-1]}, got {request.cause!r}")
    before = request.before
    if request.older_than_ms is not None:
        before = datetime.fromtimestamp(max(0.0, time.time() - request.older_than_ms / 1000), UTC)
    return Choice(topic=request.topic, cause=request.cause, before=before, replayed=request.purge == "replayed")


def _purge(table: DeltaTable, request: TableRequest, choice: Choice) -> Summary:
    if request.version is not None:
        raise ConfigError("--version: a purge removes rows of the newest version; leave it out")
    before = table.snapshot()
    causes = count(table, before, choice)
    done = Purged()
    if causes and not request.dry_run:
        done = purge(table, choice, now_ms=time.time_ns() // 1_000_000)
    after = table.snapshot()
    notes = [] if causes else ["nothing is chosen"]
    if request.dry_run:
        notes.append("nothing was removed (--dry-run)")
    elif causes:
        notes.append(
            "older versions have the rows until vacuum (pipeline.compact.keep_ms), and silver --rebuild brings back "
            "what is still bad"
        )
    return Summary(
        numbers={
            "version": after.version,
            "chosen": sum(one.rows for one in causes),
            "purged": done.rows.total(),
            "rows": after.rows,
            "files_rewritten": done.rewritten,
            "files_dropped": done.dropped,
        },
        details={
            "table": str(table.path),
            "dry_run": request.dry_run,
            "causes": [one.to_dict() for one in causes],
        },
        tables=_show_causes("To be purged" if request.dry_run else "Purged", causes),
        notes=tuple(notes),
    )


def _show_causes(title: str, causes: Sequence[Quarantined]) -> tuple[PrintedTable, ...]:
    heads = ("topic", "cause", "rows", "replayed", "first_landed", "last_landed", "example")
    rows = tuple(tuple(one.to_dict()[head] for head in heads) for one in causes)
    return (PrintedTable(title=title, heads=heads, rows=rows),) if rows else ()


# -- vacuum and restore


def _vacuum(settings: JobSettings, request: TableRequest) -> Summary:
    if request.table is None:
        tables = {name: table for name, table in find_tables(settings).items() if is_ours(table)}
    else:
        tables = dict([_find(settings, request.table)])
    compact = settings.pipeline.compact
    now_ms = time.time_ns() // 1_000_000
    done = {
        name: vacuum(
            table, keep_ms=compact.keep_ms, keep_log_ms=compact.keep_log_ms, now_ms=now_ms, dry_run=request.dry_run
        )
        for name, table in tables.items()
    }
    rows = tuple((name, *asdict(one).values()) for name, one in done.items())
    heads = ("table", *Vacuumed.__dataclass_fields__)
    notes = [] if done else ["there is no table yet"]
    if request.dry_run:
        notes.append("nothing was removed (--dry-run)")
    return Summary(
        numbers={
            "files_vacuumed": sum(one.replaced + one.abandoned for one in done.values()),
            "vacuumed_bytes": sum(one.size for one in done.values()),
            "log_files_expired": sum(one.expired for one in done.values()),
        },
        details={"dry_run": request.dry_run, "tables": {name: asdict(one) for name, one in done.items()}},
        tables=(PrintedTable(title="To be removed" if request.dry_run else "Removed", heads=heads, rows=rows),)
        if done
        else (),
        notes=tuple(notes),
    )


def _restore(settings: JobSettings, request: TableRequest) -> Summary:
    name, table = _find(settings, request.table)
    assert request.version is not None  # the parser requires it
    if table.record.name in (QUARANTINE, PURGED):
        raise ConfigError(
            "the quarantine goes with the topics' tables: restore silver/TOPIC, or decode a topic anew "
            "(silver --rebuild)"
        )
    before, wanted = table.snapshot(), table.snapshot(request.version)
    version = before.version if request.dry_run else restore(table, request.version).version
    notes = ["nothing was changed (--dry-run)"] if request.dry_run else []
    lost = sum(file.rows for path, file in before.files.items() if path not in wanted.files)
    if wanted.covered != before.covered:
        notes.append(
            f"what {name} had taken over behind version {request.version} is taken over again by the next run, from "
            "the landed files that are still there; what was decoded of it is to be decoded anew (silver --rebuild)"
        )
    elif wanted.progress != before.progress:
        notes.append(f"the next run that writes {name} goes on from there")
    return Summary(
        numbers={
            "table": str(table.path),
            "restored_version": request.version,
            "version": version,
            "rows_before": before.rows,
            "rows": wanted.rows,
            "rows_in_files_taken_out": lost,
        },
        details={"dry_run": request.dry_run},
        notes=tuple(notes),
    )


_COMMANDS: Final[Mapping[JobName, Callable[[JobSettings, TableRequest], Summary]]] = {
    JobName("describe"): _describe,
    JobName("history"): _history,
    JobName("files"): _files,
    JobName("quarantine"): _quarantine,
    JobName("vacuum"): _vacuum,
    JobName("restore"): _restore,
}
