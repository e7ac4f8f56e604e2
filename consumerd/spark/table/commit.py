"""A table's records on paper: what the table is, and what one commit did. Pure; nothing here touches a disk.

Each is one JSON object with a format version; keys that a reader does not know are passed over.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.sinks.record_fields import (
    FORMAT_VERSION,
    MalformedRecord,
    decode_fields,
    encode_fields,
    find_number,
    get_number,
    get_text,
)
from consumerd.spark.landing.coverage import NOTHING, Coverage

TABLE_RECORD: Final = "_table.json"
LOG_FOLDER: Final = "_log"
STAGING_FOLDER: Final = "_staging"

Scalar = int | str
"""A bound of a column: numbers as they are, timestamps as microseconds since the epoch, days and texts as text."""

_COMMIT_NAME = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT_NAME = re.compile(r"([0-9]{20})\.checkpoint\.json")


class Operation(enum.StrEnum):
    """What a commit does to the rows."""

    APPEND = "append"
    """Adds rows; removes none. What increments are made of."""
    COMPACT = "compact"
    """Puts the same rows into other files; increments pass over it."""
    REPLACE = "replace"
    """Takes rows away or changes them (a latest view); an increment across it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The smallest and the largest value of a column in a file; nulls do not count."""

    low: Scalar
    high: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of rows. ``path`` is relative to the table, ``values`` are those of the partition columns, in order.

    ``bounds`` holds the columns that the writer was asked to keep them of, and that have a value that is not null.
    """

    path: str
    size: int
    rows: int
    values: tuple[str, ...]
    bounds: Mapping[str, Bounds] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of a table.

    ``plan`` names the work: a job that is run again after it was killed has the same one, and a plan that is in the log is
    never committed a second time. ``covered`` is what of a landing zone the commit takes over (bronze). ``progress`` says how far this job has come with each source of its own, by names that
    the job chooses (``{"bronze": 17}``); what a later commit does not mention stays. ``counts`` are figures for people and
    for checks (``{"read": 1000, "quarantined": 3}``). ``schema``, Spark's JSON of a StructType, is there where a commit
    adds columns. ``time_ms`` is for people, and for vacuum.
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

    @property
    def rows(self) -> int:
        """Rows in the files added."""
        return sum(file.rows for file in self.added)

    def encode(self) -> bytes:
        """Return the commit as one JSON object."""
        fields: dict[str, object] = {
            "format": FORMAT_VERSION,
            "version": self.version,
            "plan": self.plan,
            "operation": str(self.operation),
            "job": self.job,
            "writer": self.writer,
            "time_ms": self.time_ms,
            "added": [encode_file(file) for file in self.added],
            "removed": list(self.removed),
            "covered": self.covered.encode(),
            "progress": dict(self.progress),
            "counts": dict(self.counts),
        }
        if self.schema is not None:
            fields["schema"] = self.schema
        return encode_fields(fields)

    @classmethod
    def parse(cls, data: bytes) -> Commit:
        """Read a commit. Raises MalformedRecord."""
        fields = decode_fields(data)
        try:
            operation = Operation(get_text(fields, "operation"))
        except ValueError as error:
            raise MalformedRecord(str(error)) from error
        return cls(
            version=get_number(fields, "version"),
            plan=get_text(fields, "plan"),
            operation=operation,
            job=get_text(fields, "job"),
            writer=get_text(fields, "writer"),
            time_ms=get_number(fields, "time_ms"),
            added=tuple(parse_file(entry) for entry in get_objects(fields, "added")),
            removed=get_texts(fields, "removed"),
            covered=parse_covered(fields),
            progress=get_numbers(fields, "progress"),
            counts=get_numbers(fields, "counts"),
            schema=get_text(fields, "schema") if fields.get("schema") is not None else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """``_table.json``: what is fixed when a table is made. ``id`` is random; ``schema`` is Spark's JSON of a StructType,
    the partition columns last.
    """

    id: str
    name: str
    schema: str
    partition_by: tuple[str, ...]

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return encode_fields(
            {
                "format": FORMAT_VERSION,
                "id": self.id,
                "name": self.name,
                "schema": self.schema,
                "partition_by": list(self.partition_by),
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> TableRecord:
        """Read a record. Raises MalformedRecord."""
        fields = decode_fields(data)
        return cls(
            id=get_text(fields, "id"),
            name=get_text(fields, "name"),
            schema=get_text(fields, "schema"),
            partition_by=get_texts(fields, "partition_by"),
        )


# -- names


def commit_name(version: int) -> str:
    """Return the name, in the log's folder, of a version's commit."""
    return f"{version:020d}.json"


def parse_commit_name(name: str) -> int | None:
    """Read the version off a commit's name, or None if the name is none."""
    match = _COMMIT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def checkpoint_name(version: int) -> str:
    """Return the name of the checkpoint that folds all commits up to a version."""
    return f"{version:020d}.checkpoint.json"


def parse_checkpoint_name(name: str) -> int | None:
    """Read the version off a checkpoint's name, or None if the name is none."""
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
        bounds=_bounds(fields),
    )


def _bounds(fields: Mapping[str, object]) -> dict[str, Bounds]:
    entries = fields.get("bounds")
    if not isinstance(entries, dict):
        raise MalformedRecord(f"bounds is {entries!r}, expected an object")
    found = {}
    for name, pair in entries.items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(one, int | str) for one in pair):
            raise MalformedRecord(f"bounds of {name}: {pair!r}, expected two numbers or texts")
        found[name] = Bounds(low=pair[0], high=pair[1])
    return found


def parse_covered(fields: Mapping[str, object]) -> Coverage:
    """Read the field ``covered``. Raises MalformedRecord."""
    try:
        return Coverage.parse(fields.get("covered", {}))
    except ValueError as error:
        raise MalformedRecord(f"covered: {error}") from error


def get_objects(fields: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """Return a list of objects. Raises MalformedRecord."""
    entries = fields.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise MalformedRecord(f"{name} is {entries!r}, expected a list of objects")
    return entries


def get_texts(fields: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Return a list of strings. Raises MalformedRecord."""
    entries = fields.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise MalformedRecord(f"{name} is {entries!r}, expected a list of strings")
    return tuple(entries)


def get_numbers(fields: Mapping[str, object], name: str) -> dict[str, int]:
    """Return an object of whole numbers. Raises MalformedRecord."""
    entries = fields.get(name)
    if not isinstance(entries, dict):
        raise MalformedRecord(f"{name} is {entries!r}, expected an object")
    return {key: find_number(entries, key) or 0 for key in entries}
