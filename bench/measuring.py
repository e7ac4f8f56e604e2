# SPDX-License-Identifier: Apache-2.0
"""Measurement of a case: its readers take turns, round after round."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cases import Case, Reader
from bench.readers.running import ReaderFailed, Source, Starter, processor_s
from bench.slopes import Marks, TooFewRecords, slope_between

LIMIT_S: Final = 20.0
"""Time limit in seconds, from a reader's first record on. It ends readings that do not reach the upper mark before."""

_BEGINS_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Result of one reading.

    Attributes:
        records_per_s: rate between the two counts ``low`` and ``high``.
        seconds: time between them.
        low: record count at which the measurement began.
        high: record count at which it ended.
        reader_cores: CPU time of the reader per second, in cores; None if the reading was too short.
        broker_cores: the same of the broker.
    """

    records_per_s: float
    seconds: float
    low: int
    high: int
    reader_cores: float | None = None
    broker_cores: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Readings of a case by reader, in the order of the rounds, and its failures."""

    case: str
    readings: Mapping[Reader, Sequence[Reading]]
    failures: Sequence[str] = ()

    def rates(self, reader: Reader) -> list[float]:
        """Return the rates of a reader in records/s, round by round."""
        return [reading.records_per_s for reading in self.readings.get(reader, ())]


def take_rounds(
    case: Case,
    readers: Sequence[Reader],
    starters: Mapping[Reader, Starter],
    source: Source,
    marks: Marks,
    *,
    rounds: int,
    limit_s: float = LIMIT_S,
    told: Callable[[int, Reader, Reading | str], None] = lambda *_: None,
) -> Measured:
    """Let each reader read once in each round.

    Every second round runs in reverse order, so that the order of the readers does not matter.

    Args:
        marks: record counts between which the rate is measured.
        limit_s: time limit of a reading, see :data:`LIMIT_S`.
        told: called after each reading with the round (from 0), the reader, and its reading or error text.
    """
    readings: dict[Reader, list[Reading]] = {reader: [] for reader in readers}
    failures = []
    for number in range(rounds):
        for reader in readers if number % 2 == 0 else reversed(readers):
            try:
                reading = read_once(starters[reader], source, marks, limit_s)
            except (ReaderFailed, TooFewRecords) as error:
                said = textwrap.shorten(str(error), 300)
                failures.append(f"{reader}, round {number + 1}: {said}")
                told(number, reader, str(error))
            else:
                readings[reader].append(reading)
                told(number, reader, reading)
    return Measured(case=case.name, readings=readings, failures=failures)


def read_once(start: Starter, source: Source, marks: Marks, limit_s: float = LIMIT_S) -> Reading:
    """Read the topic from its first offset to the upper mark or the time limit.

    Raises ReaderFailed if the reader ends or delivers no record within 60 s, TooFewRecords if it read too little for a
    rate.
    """
    broker = source.cluster.processes["broker-0"].pid
    usage = _Usage()
    with scratch() as folder, start(source, folder) as running:
        began = time.monotonic()
        first_at = None
        while True:
            series = running.series()
            count = series[-1][1] if series else 0
            now = time.monotonic()
            if count and first_at is None:
                first_at = now
            if count >= marks.low:
                with contextlib.suppress(FileNotFoundError):  # the process has just ended
                    usage.add(now, processor_s(running.pid), processor_s(broker))
            if count >= marks.high or (first_at is not None and now - first_at > limit_s):
                break
            if first_at is None and now - began > _BEGINS_WITHIN_S:
                raise ReaderFailed(f"not one record within {_BEGINS_WITHIN_S} s")
            time.sleep(_LOOK_S)
        slope = slope_between(series, marks)
    reader_cores, broker_cores = usage.cores()
    return Reading(
        records_per_s=slope.records_per_s,
        seconds=slope.seconds,
        low=slope.low,
        high=slope.high,
        reader_cores=reader_cores,
        broker_cores=broker_cores,
    )


class _Usage:
    """CPU time of two processes, at the first and at the last sample."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, float, float]] = []

    def add(self, at: float, reader_s: float, broker_s: float) -> None:
        self._looks[1:] = [(at, reader_s, broker_s)]

    def cores(self) -> tuple[float | None, float | None]:
        if len(self._looks) < 2 or self._looks[1][0] - self._looks[0][0] < 10 * _LOOK_S:
            return None, None
        (began, *before), (ended, *after) = self._looks
        reader, broker = ((b - a) / (ended - began) for a, b in zip(before, after, strict=True))
        return reader, broker


@contextmanager
def scratch() -> Iterator[Path]:
    """Create a temporary folder and delete it at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="consumerd-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
