# SPDX-License-Identifier: Apache-2.0
"""Having a case's readers read, in turns, round after round, and keeping what each reading was."""

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
"""How long a reader reads, from its first record on, when it does not come to the upper mark before."""

_BEGINS_WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading; ``*_cores`` are what the reader's process and the broker's had of the processor meanwhile."""

    records_per_s: float
    seconds: float
    low: int
    high: int
    reader_cores: float | None = None
    broker_cores: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A case's readings by reader, in the order of their rounds, and what failed."""

    case: str
    readings: Mapping[Reader, Sequence[Reading]]
    failures: Sequence[str] = ()

    def rates(self, reader: Reader) -> list[float]:
        """Return records a second, round by round."""
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
    """Let each reader read once a round; every other round goes backwards, so that nobody is always behind the same one."""
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
    """Read from the beginning to the upper mark. Raises ReaderFailed, TooFewRecords."""
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
                with contextlib.suppress(FileNotFoundError):  # it has just ended
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
    """Processor time of two processes at the first and the last look."""

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
    """Give a folder that goes afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="consumerd-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
