# SPDX-License-Identifier: Apache-2.0
"""A sink that keeps records in SQLite, each once.

Records and the next offset of their partition are written in one transaction. So the database itself remembers how far it
has come (:attr:`SqliteWriter.resume_position`), and a record that is given twice is passed over.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from consumerd.errors import PermanentSinkError, RetriableSinkError
from consumerd.model import Claim
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.options import SinkOptions
from consumerd.wire.records import RecordBatch

T = TypeVar("T")

_TABLES = """
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT, incarnation TEXT, partition TEXT, next_offset INTEGER, PRIMARY KEY (topic, incarnation, partition)
);
CREATE TABLE IF NOT EXISTS records (
    topic TEXT, incarnation TEXT, partition TEXT, offset INTEGER, timestamp_ms INTEGER, key BLOB, value BLOB,
    PRIMARY KEY (topic, incarnation, partition, offset)
);
"""


class SqliteOptions(SinkOptions):
    """Settings of the sink, below ``sinks.NAME`` beside ``type: sqlite``."""

    file: Path = Field(description="The database; it is made if it is not there.")


class SqliteWriter:
    """One partition's way into the database, for one claim."""

    request_id = None  # only sinks with chains remember operators' requests

    def __init__(self, sink: SqliteSink, claim: Claim, resume_position: int | None) -> None:
        self._sink = sink
        self._claim = claim
        self._log = (claim.partition.topic, str(claim.incarnation), str(claim.partition.partition))
        self._resume_position = resume_position
        self._next_offset = 0

    @property
    def resume_position(self) -> int | None:
        """The next offset by the database's own record, or None before the first one."""
        return self._resume_position

    async def start(self, start: Start) -> None:
        """Fix the first position, and keep it: after `consumerd offsets reset` it is below the one that we have."""
        await self._sink.run(lambda connection: self._write(connection, [], start.position))
        self._next_offset = start.position

    async def write(self, batch: RecordBatch) -> int:
        """Write the batch and its position in one transaction, and return the acknowledged position."""
        if batch.next_offset <= self._next_offset:
            return self._next_offset  # the pipeline may give a batch again; it was taken
        rows = [(*self._log, one.offset, one.timestamp, one.key, one.value) for one in batch.records()]
        self._claim.check()  # raises if the partition is not ours any more
        await self._sink.run(lambda connection: self._write(connection, rows, batch.next_offset))
        self._next_offset = batch.next_offset
        return self._next_offset

    def _write(self, connection: sqlite3.Connection, rows: list[tuple[object, ...]], next_offset: int) -> None:
        with connection:  # one transaction: both, or neither
            connection.executemany("INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            connection.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", (*self._log, next_offset))

    async def flush(self) -> int:
        """Everything is safe already."""
        return self._next_offset

    def deadline(self) -> float | None:
        """Nothing is held, so no flush is ever due."""
        return None

    async def abandon(self) -> None:
        """Nothing is held."""


class SqliteSink:
    """One database. SQLite has one writer at a time, so one connection serves all partitions in turns."""

    Options = SqliteOptions

    def __init__(self, context: SinkContext, options: SqliteOptions) -> None:  # no IO here
        self._name = context.sink_name
        self._file = options.file
        self._connection: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()

    async def open(self, claim: Claim) -> SqliteWriter:
        """Return a writer that knows where the partition goes on."""
        log = (claim.partition.topic, str(claim.incarnation), str(claim.partition.partition))
        query = "SELECT next_offset FROM positions WHERE (topic, incarnation, partition) = (?, ?, ?)"
        found = await self.run(lambda connection: connection.execute(query, log).fetchone())
        return SqliteWriter(self, claim, None if found is None else found[0])

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run blocking work in a thread, one at a time, and translate SQLite's errors.

        Raises RetriableSinkError, PermanentSinkError.
        """
        async with self._turn:
            try:
                return await asyncio.to_thread(self._work, work)
            except sqlite3.DataError as error:
                raise PermanentSinkError(f"sink {self._name}: {self._file} refuses a record: {error}") from error
            except sqlite3.Error as error:
                raise RetriableSinkError(f"sink {self._name}: {self._file} cannot be written: {error}") from error

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = sqlite3.connect(self._file, check_same_thread=False)
            self._connection.executescript(_TABLES)
        return work(self._connection)

    async def close(self) -> None:
        """Close the connection."""
        async with self._turn:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
