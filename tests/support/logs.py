# SPDX-License-Identifier: Apache-2.0
"""Logs for tests: opened on whatever files, filled, read back, and compared with what was acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.partition_log import Appended, PartitionLog
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import TopicPartition
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.record_set import decode_record_set
from consumerd.wire.records import NewRecord, Record
from tests.support.log_check import StoredUnit, check_folder, read_file

PARTITION = TopicPartition.modern("orders", 0)
START_MS = 1_500_000_000_000


def record_set(
    values: Iterable[bytes | None],
    *,
    magic: int = 2,
    codec: int = 0,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
) -> bytes:
    """Return what a producer sends."""
    values = list(values)
    keys = keys or [None] * len(values)
    timestamps = timestamps or [START_MS] * len(values)
    records = [
        NewRecord(key=key, value=value, timestamp=timestamp if magic else -1)
        for key, value, timestamp in zip(keys, values, timestamps, strict=True)
    ]
    return build_record_set(records, magic=magic, codec=codec)


def read_records(log: PartitionLog, start: int | None = None, *, max_bytes: int = 300) -> Iterator[Record]:
    """Read as a consumer does, doubling what it asks for while the first unit is cut off."""
    offset = log.start_offset if start is None else start
    asked = max_bytes
    while offset < log.end_offset:
        with log.read(offset, asked, whole_first=False) as part:
            batch = decode_record_set(part.read(), partition=log.partition, start=offset)
            assert part.size, f"nothing at {offset}, the log ends at {log.end_offset}"
        if batch.next_offset == offset:
            asked *= 2
            continue
        yield from batch.records()
        offset, asked = batch.next_offset, max_bytes


@dataclass
class LogRig:
    """One log in a directory, with a clock that is moved by hand and a memory of what it has acknowledged."""

    files: OsLogFiles
    path: Path = Path("/data")
    settings: LogSettings = field(default_factory=LogSettings)
    now_ms: int = START_MS
    acknowledged: list[tuple[int, bytes]] = field(default_factory=list)
    """By offset: timestamps and values."""
    in_flight: list[tuple[int, bytes]] = field(default_factory=list)
    """Those of an append that has not returned."""
    durable_end: int = 0
    numbers: int = 0

    def open(self) -> None:
        """Open the directory and the log."""
        self.directory = LogDirectory.open(self.path, files=self.files, now_ms=lambda: self.now_ms)
        self.log = self.directory.open_log(PARTITION, self.settings)

    @property
    def folder(self) -> Path:
        """Where the log's files are."""
        return self.path / "orders-0"

    def files_content(self, name: str) -> bytes:
        """Return the content of a file of the log."""
        return read_file(self.files, self.folder / name)

    def append(self, count: int = 1, *, size: int = 10, magic: int | None = None, codec: int = 0) -> Appended:
        """Append that many records whose values are numbered."""
        values = [f"{self.numbers + number}:".encode().ljust(size, b".") for number in range(count)]
        self.numbers += count
        timestamps = [self.now_ms + number % 3 for number in range(count)]
        magic = self.settings.message_format if magic is None else magic
        self.in_flight = list(zip(timestamps, values, strict=True))
        appended = self.log.append(record_set(values, magic=magic, codec=codec, timestamps=timestamps))
        first = len(self.acknowledged)
        assert (first, first + count - 1, count) == (appended.base_offset, appended.last_offset, appended.count)
        self.acknowledged += self.in_flight
        self.in_flight = []
        self.durable_end = max(self.durable_end, self.log.recovery_point)
        return appended

    def flush(self) -> None:
        """Make durable what there is."""
        self.log.flush()
        self.durable_end = self.log.end_offset

    def check_recovered(self) -> None:
        """See that what is there is what was acknowledged, that all of it that was durable is there, and go on from it.

        What was on its way when the process ended may be there, too.
        """
        log = self.log
        expected = self.acknowledged + self.in_flight
        assert self.durable_end <= log.end_offset <= len(expected), f"{log!r}: {self.durable_end}, {len(expected)}"
        for record in self.check_readable():
            assert expected[record.offset][1] == record.value, f"offset {record.offset}"
        self.acknowledged = expected[: log.end_offset]
        self.in_flight = []
        self.durable_end = log.recovery_point

    def check_readable(self) -> list[Record]:
        """See that the files are in order and that everything from start to end can be read; return it."""
        units = check_folder(self.files, self.folder, indexed=False)
        self._check_indexes(units)
        there = list(read_records(self.log))
        assert list(range(self.log.start_offset, self.log.end_offset)) == [record.offset for record in there]
        return there

    def _check_indexes(self, units: Sequence[StoredUnit]) -> None:
        """See that each unit is found by each of its offsets."""
        for unit in units:
            with self.log.read(unit.last_offset, 1, whole_first=True) as part:
                assert (unit.position, unit.size) == (part.position, part.size)

    def check_times(self) -> None:
        """See that looking for times gives what a look at every record gives. Not for magic 0."""
        start = self.log.start_offset
        there = [(timestamp, offset) for offset, (timestamp, _) in enumerate(self.acknowledged) if offset >= start]
        for wanted in {timestamp + shift for timestamp, _ in there for shift in (0, 1)}:
            first = next((one for one in there if one[0] >= wanted), None)
            assert first == self.log.find_offset(wanted), f"at {wanted}"

    def close(self) -> None:
        """End cleanly."""
        self.directory.close()
        self.durable_end = len(self.acknowledged)
