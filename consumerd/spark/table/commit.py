# SPDX-License-Identifier: Apache-2.0
"""A table's description and its commits, as values. ``actions`` encodes them. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.landing.coverage import NOTHING, Coverage
from consumerd.landing.record_fields import (
    MalformedRecord,
    find_number,
    get_number,
    get_text,
)
from consumerd.spark.table.folder_values import escape_value

LOG_FOLDER: Final = "_delta_log"
STAGING_FOLDER: Final = "_staging"

Scalar = int | str
"""A column's smallest or largest value.

Timestamps are microseconds since the epoch; days are texts such as ``2026-11-22``.
"""

_COMMIT_NAME = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT_NAME = re.compile(r"([0-9]{20})\.checkpoint\.parquet")


class Operation(enum.StrEnum):
    """Effect of a commit on the rows."""

    APPEND = "append"
    """Adds rows and removes none. Incremental readers take these rows."""
    COMPACT = "compact"
    """Puts the same rows into other files. Incremental readers skip it."""
    REPLACE = "replace"
    """Removes or changes rows (``latest``, ``restore``). Incremental reading across it is refused."""
    DELETE = "delete"
    """Removes rows (``retention``, a purge of the quarantine). Incremental readers skip it."""
    UPDATE = "update"
    """Changes rows in place: as many before as after (marks in the quarantine). Incremental readers skip it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Smallest and largest value of a column in a file, nulls aside."""

    low: Scalar
    high: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file of a table.

    Attributes:
        path: relative to the table's folder.
        size: in bytes.
        rows: number of rows.
        values: of the partition columns, in their order, as folder names hold them.
        bounds: by column, for the columns of which the writer keeps bounds and which have a value other than null.
    """

    path: str
    size: int
    rows: int
    values: tuple[str, ...]
    bounds: Mapping[str, Bounds] = field(default_factory=dict)


def files_of(files: Iterable[DataFile], value: str) -> tuple[DataFile, ...]:
    """Return the files with a value of the first partition column, such as a topic."""
    folder = escape_value(value)
    return tuple(file for file in files if file.values[:1] == (folder,))


def rows_of(files: Iterable[DataFile]) -> int:
    """Return the number of rows in files."""
    return sum(file.rows for file in files)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """One version of a table.

    Attributes:
        version: number of the commit; 0 creates the table.
        plan: name of the work. A job that is run again has the same plan, and a plan is committed at most once.
        operation: effect on the rows.
        job: name of the job, such as ``bronze``.
        writer: name of the attempt, unique.
        time_ms: wall clock of the commit, for people and for vacuum.
        added: new files.
        removed: paths of files that are not part of the table any more.
        covered: the landed offsets that the commit takes over (bronze).
        progress: how far the job has read each of its sources, such as ``{"bronze": 17}``. Sources that a later commit
            does not mention keep their progress.
        counts: figures for people and for checks, such as ``{"read": 1000, "quarantined": 3}``.
        schema: Spark's JSON of a StructType, where the commit adds columns.
        restores: the version that the commit goes back to. ``covered`` and ``progress`` then replace all earlier ones, and
            plans of later versions count as not done.
    """

    version: int
    plan: str
    operation: Operation
    job: str
    writer: str
    time_ms: int
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    covered: Coverage = NOTHING
    progress: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    schema: str | None = None
    restores: int | None = None

    @property
    def rows(self) -> int:
        """Rows in the files added."""
        return rows_of(self.added)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """Description of a table, fixed when it is created: Delta's ``metaData``.

    Attributes:
        id: random.
        name: such as ``bronze``.
        schema: Spark's JSON of a StructType, the partition columns last.
        partition_by: names of the partition columns.
        created_ms: wall clock, for people.
    """

    id: str
    name: str
    schema: str
    partition_by: tuple[str, ...]
    created_ms: int = 0


# -- names


def commit_name(version: int) -> str:
    """Return the name, in the log's folder, of a version's commit."""
    return f"{version:020d}.json"


def parse_commit_name(name: str) -> int | None:
    """Return the version of a commit's file name, or None for any other name."""
    match = _COMMIT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def checkpoint_name(version: int) -> str:
    """Return the name of the checkpoint that folds all commits up to a version."""
    return f"{version:020d}.checkpoint.parquet"


def parse_checkpoint_name(name: str) -> int | None:
    """Return the version of a checkpoint's file name, or None for any other name."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match else None


# -- parts of records


def encode_file(file: DataFile) -> dict[str, object]:
    """Return a file as a JSON object."""
    return {
        "path": file.path,
        "size": file.size,
        "rows": file.rows,
        "values": list(file.values),
        "bounds": {name: [bounds.low, bounds.high] for name, bounds in file.bounds.items()},
    }


def parse_file(fields: Mapping[str, object]) -> DataFile:
    """Read a file. Raises MalformedRecord."""
    return DataFile(
        path=get_text(fields, "path"),
        size=get_number(fields, "size"),
        rows=get_number(fields, "rows"),
        values=get_texts(fields, "values"),
        bounds=parse_bounds(get_object(fields, "bounds")),
    )


def parse_bounds(entries: Mapping[str, object]) -> dict[str, Bounds]:
    """Read bounds by column, ``{"offset": [0, 17]}``. Raises MalformedRecord."""
    found = {}
    for name, pair in entries.items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(one, int | str) for one in pair):
            raise MalformedRecord(f"bounds of {name}: {pair!r}, expected two numbers or texts")
        found[name] = Bounds(low=pair[0], high=pair[1])
    return found


def get_objects(fields: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """Return a list of objects. Raises MalformedRecord."""
    entries = fields.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise MalformedRecord(f"{name} is {entries!r}, expected a list of objects")
    return entries


def get_object(fields: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return an object. Raises MalformedRecord."""
    entries = fields.get(name)
    if not isinstance(entries, dict):
        raise MalformedRecord(f"{name} is {entries!r}, expected an object")
    return entries


def get_texts(fields: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Return a list of strings. Raises MalformedRecord."""
    entries = fields.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise MalformedRecord(f"{name} is {entries!r}, expected a list of strings")
    return tuple(entries)


def get_numbers(fields: Mapping[str, object], name: str) -> dict[str, int]:
    """Return an object of whole numbers. Raises MalformedRecord."""
    entries = get_object(fields, name)
    return {key: find_number(entries, key) or 0 for key in entries}
