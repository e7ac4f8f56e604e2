# SPDX-License-Identifier: Apache-2.0
"""A table's description and its commits, as values. Pure; ``actions`` encodes them."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Effect of a commit on the table's rows."""

    APPEND = "append"
    """Adds rows and removes none. Incremental readers take these rows."""
    COMPACT = "compact"
    """Writes the same rows into other files. Incremental readers skip it."""
    REPLACE = "replace"
    """Removes or changes rows (``latest``, ``restore``). Incremental readers must read the whole table again."""
    DELETE = "delete"
    """Removes rows (``retention``, a purge of the quarantine). Incremental readers skip it."""
    UPDATE = "update"
    """Changes values, but adds and removes no rows (marks in the quarantine). Incremental readers skip it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Smallest and largest value of one column in one file, without nulls."""

    low: Scalar
    high: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file of a table.

    Attributes:
        path: relative to the table's folder.
        size: in bytes.
        rows: number of rows.
        values: of the partition columns, in their order, escaped as in folder names.
        bounds: by column, for some columns only; a column that is null in all rows has none.
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


def cut_files(
    files: Sequence[DataFile], limit_bytes: int, *, most_files: int | None = None
) -> Iterator[tuple[DataFile, ...]]:
    """Yield consecutive files in groups of at most ``limit_bytes``, and of at most ``most_files``. Pure.

    A larger file is a group by itself.
    """
    begin = size = 0
    for number, file in enumerate(files):
        if number > begin and (size + file.size > limit_bytes or number - begin == most_files):
            yield tuple(files[begin:number])
            begin, size = number, 0
        size += file.size
    if files:
        yield tuple(files[begin:])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """One version of a table.

    Attributes:
        version: number of the commit; 0 creates the table.
        plan: name of the work. A job that is run again has the same plan, and a plan is committed at most once.
        operation: effect on the rows.
        job: name of the job, such as ``bronze``.
        writer: unique name of the attempt (``attempts``).
        time_ms: wall clock of the commit, for people and for vacuum.
        added: new files.
        removed: paths of files that are not part of the table any more.
        covered: the landed offsets whose records the commit adds (bronze).
        progress: the version up to which the job has read each of its sources, such as ``{"bronze": 17}``. Sources that
            a later commit does not mention keep their progress.
        counts: figures for people and for checks, such as ``{"read": 1000, "quarantined": 3}``.
        schema: Spark's JSON of a StructType, if the commit adds columns.
        restores: the earlier version that the commit restores. ``covered`` and ``progress`` then replace all earlier
            ones, and plans of the versions in between count as not done.
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
        """Number of rows in the files that the commit adds."""
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
    """Return the file name of a version's commit, such as ``00000000000000000017.json``."""
    return f"{version:020d}.json"


def parse_commit_name(name: str) -> int | None:
    """Return the version in a commit's file name, or None for any other name."""
    match = _COMMIT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def checkpoint_name(version: int) -> str:
    """Return the file name of a version's checkpoint."""
    return f"{version:020d}.checkpoint.parquet"


def parse_checkpoint_name(name: str) -> int | None:
    """Return the version in a checkpoint's file name, or None for any other name."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match else None


# -- parts of records


def encode_file(file: DataFile) -> dict[str, object]:
    """Return the description of a table's data file as a JSON object."""
    return {
        "path": file.path,
        "size": file.size,
        "rows": file.rows,
        "values": list(file.values),
        "bounds": {name: [bounds.low, bounds.high] for name, bounds in file.bounds.items()},
    }


def parse_file(fields: Mapping[str, object]) -> DataFile:
    """Parse the description of a table's data file. Raises MalformedRecord."""
    return DataFile(
        path=get_text(fields, "path"),
        size=get_number(fields, "size"),
        rows=get_number(fields, "rows"),
        values=get_texts(fields, "values"),
        bounds=parse_bounds(get_object(fields, "bounds")),
    )


def parse_bounds(entries: Mapping[str, object]) -> dict[str, Bounds]:
    """Parse the bounds of columns, such as ``{"offset": [0, 17]}``. Raises MalformedRecord."""
    found = {}
    for name, pair in entries.items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(one, int | str) for one in pair):
            raise MalformedRecord(f"bounds of {name}: {pair!r}, expected two numbers or texts")
        found[name] = Bounds(low=pair[0], high=pair[1])
    return found


def get_objects(fields: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """Return a field that is a list of JSON objects. Raises MalformedRecord."""
    entries = fields.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise MalformedRecord(f"{name} is {entries!r}, expected a list of objects")
    return entries


def get_object(fields: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return a field that is a JSON object. Raises MalformedRecord."""
    entries = fields.get(name)
    if not isinstance(entries, dict):
        raise MalformedRecord(f"{name} is {entries!r}, expected an object")
    return entries


def get_texts(fields: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Return a field that is a list of strings. Raises MalformedRecord."""
    entries = fields.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise MalformedRecord(f"{name} is {entries!r}, expected a list of strings")
    return tuple(entries)


def get_numbers(fields: Mapping[str, object], name: str) -> dict[str, int]:
    """Return a field that is a JSON object of whole numbers. Raises MalformedRecord."""
    entries = get_object(fields, name)
    return {key: find_number(entries, key) or 0 for key in entries}
