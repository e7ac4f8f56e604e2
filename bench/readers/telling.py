# SPDX-License-Identifier: Apache-2.0
"""Output of our loops over client libraries: time and record count, every 50 ms."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

from bench.slopes import Sample

FETCH_BYTES: Final = 8 << 20
"""Bytes that a reader requests from a partition at once, if that can be configured."""

_INTERVAL_S: Final = 0.05


class Teller:
    """Prints the time and the number of records read, at most every 50 ms."""

    def __init__(self) -> None:
        self._count = 0
        self._told = 0.0

    def add(self, records: int) -> None:
        """Count more records."""
        self.reach(self._count + records)

    def reach(self, count: int) -> None:
        """Set the number of records read so far."""
        self._count = count
        if (now := time.monotonic()) - self._told >= _INTERVAL_S:
            self._tell(now)

    def finish(self) -> None:
        """Print the number of all records, however short the time since the last line is."""
        self._tell(time.monotonic())

    def _tell(self, now: float) -> None:
        self._told = now
        sys.stdout.write(f"{now:.6f} {self._count}\n")
        sys.stdout.flush()


def parse_told(line: str) -> Sample | None:
    """Read a line that :class:`Teller` has printed."""
    at, _, count = line.partition(" ")
    return float(at), int(count)


def run_loop(doc: str | None, consume: Callable[[str, str, int], None]) -> None:
    """Call ``consume`` with the arguments of the command line.

    Args:
        doc: description for ``--help``.
        consume: gets the address of the broker (or of ZooKeeper), the topic, and the number of its records.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("records", type=int)
    args = parser.parse_args()
    consume(args.bootstrap, args.topic, args.records)
