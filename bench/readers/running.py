# SPDX-License-Identifier: Apache-2.0
"""Interfaces of a reader that is started and observed; CPU time of a process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.slopes import Sample
from tests.support.kafka import Cluster


class ReaderFailed(Exception):
    """A reader ended, or never began to read; the message holds its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Topic to read, and the number of records that it holds."""

    cluster: Cluster
    topic: str
    records: int


class Running(Protocol):
    """A reader that was started."""

    @property
    def pid(self) -> int:
        """Process id of the reader."""

    def series(self) -> Sequence[Sample]:
        """Return the samples so far: times, and the records read by then.

        Raises ReaderFailed.
        """


class Starter(Protocol):
    """Starts a reader at the beginning of a topic. Leaving the context ends the reader."""

    def __call__(self, source: Source, folder: Path, /) -> AbstractContextManager[Running]:
        """Start the reader; it may use ``folder`` alone."""


def processor_s(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
