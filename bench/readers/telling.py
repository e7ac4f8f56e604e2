# SPDX-License-Identifier: Apache-2.0
"""What our loops over client libraries print: a moment and a count, every twentieth of a second."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

from bench.slopes import Sample

FETCH_BYTES: Final = 8 << 20
"""What each asks a partition for at once, where it can be told."""

_INTERVAL_S: Final = 0.05


class Teller:
    """Prints how many records have been read, now and then."""

    def __init__(self) -> None:
        self._count = 0
        self._told = 0.0

    def add(self, records: int) -> None:
        """Count more of them."""
        self.reach(self._count + records)

    def reach(self, count: int) -> None:
        """Say where the count stands now."""
        self._count = count
        if (now := time.monotonic()) - self._told >= _INTERVAL_S:
            self._told = now
            sys.stdout.write(f"{now:.6f} {count}\n")
            sys.stdout.flush()


def parse_told(line: str) -> Sample | None:
    """Read such a line."""
    at, _, count = line.partition(" ")
    return float(at), int(count)


def run_loop(doc: str | None, consume: Callable[[str, str, int], None]) -> None:
    """Call ``consume`` with the bootstrap address, the topic and how many records it holds, from the command line."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("records", type=int)
    args = parser.parse_args()
    consume(args.bootstrap, args.topic, args.records)
