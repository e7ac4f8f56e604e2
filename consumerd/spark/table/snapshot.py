"""What the commits up to a version amount to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.sinks.record_fields import (
    FORMAT_VERSION,
    MalformedRecord,
    decode_fields,
    encode_fields,
    get_number,
    get_text,
)
from consumerd.spark.landing.coverage import NOTHING, Coverage, sum_up
from consumerd.spark.table.commit import (
    Commit,
    DataFile,
    Operation,
    encode_file,
    get_numbers,
    get_objects,
    parse_covered,
    parse_file,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table at a version; version 0 is an empty table.

    ``files`` by their paths; ``covered`` the sum of what commits cover; ``progress`` as the last commits left it;
    ``plans`` all that were ever committed, with their versions; ``last_replace`` is the newest version that was no append
    and no compaction, 0 if none was.
    """

    version: int = 0
    files: Mapping[str, DataFile] = field(default_factory=dict)
    covered: Coverage = NOTHING
    progress: Mapping[str, int] = field(default_factory=dict)
    plans: Mapping[str, int] = field(default_factory=dict)
    last_replace: int = 0
    schema: str | None = None

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return sum(file.rows for file in self.files.values())

    @property
    def size(self) -> int:
        """Bytes of the table's files."""
        return sum(file.size for file in self.files.values())

    def apply(self, commits: Iterable[Commit]) -> Snapshot:
        """Return the snapshot after further commits, given in their order. Raises MalformedRecord if they do not fit."""
        files = dict(self.files)
        progress = dict(self.progress)
        plans = dict(self.plans)
        covered = [self.covered]
        version, last_replace, schema = self.version, self.last_replace, self.schema
        for commit in commits:
            if commit.version != version + 1:
                raise MalformedRecord(f"version {version} is followed by {commit.version}")
            version = commit.version
            for path in commit.removed:
                if files.pop(path, None) is None:
                    raise MalformedRecord(f"version {version} removes {path}, which the table does not have")
            for file in commit.added:
                files[file.path] = file
            covered.append(commit.covered)
            progress.update(commit.progress)
            plans[commit.plan] = version
            if commit.operation is Operation.REPLACE:
                last_replace = version
            schema = commit.schema or schema
        return Snapshot(
            version=version,
            files=files,
            covered=sum_up(covered),
            progress=progress,
            plans=plans,
            last_replace=last_replace,
            schema=schema,
        )

    def encode(self) -> bytes:
        """Return the snapshot as one JSON object, as checkpoints hold it."""
        return encode_fields(
            {
                "format": FORMAT_VERSION,
                "version": self.version,
                "files": [encode_file(file) for file in self.files.values()],
                "covered": self.covered.encode(),
                "progress": dict(self.progress),
                "plans": dict(self.plans),
                "last_replace": self.last_replace,
                "schema": self.schema,
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> Snapshot:
        """Read a snapshot. Raises MalformedRecord."""
        fields = decode_fields(data)
        files = [parse_file(entry) for entry in get_objects(fields, "files")]
        return cls(
            version=get_number(fields, "version"),
            files={file.path: file for file in files},
            covered=parse_covered(fields),
            progress=get_numbers(fields, "progress"),
            plans=get_numbers(fields, "plans"),
            last_replace=get_number(fields, "last_replace"),
            schema=get_text(fields, "schema") if fields.get("schema") is not None else None,
        )


EMPTY: Final = Snapshot()
"""A table that nothing was ever committed to."""
