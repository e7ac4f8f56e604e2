# SPDX-License-Identifier: Apache-2.0
"""A reader while it runs, and what it costs."""

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
    """A reader ended, or never began; carries what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A topic of one partition, and how many records it holds."""

    cluster: Cluster
    topic: str
    records: int


class Running(Protocol):
    """A reader that was started."""

    @property
    def pid(self) -> int:
        """Its process."""

    def series(self) -> Sequence[Sample]:
        """Return what it has read when, so far. Raises ReaderFailed."""


class Starter(Protocol):
    """Starts a reader at the topic's beginning; leaving the context ends it. ``folder`` is its own."""

    def __call__(self, source: Source, folder: Path, /) -> AbstractContextManager[Running]:
        """Start it."""


def processor_s(pid: int) -> float:
    """Return what a process has had of the processor so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
