# SPDX-License-Identifier: Apache-2.0
"""Entry point of ``consumerd-spark`` and ``python -m consumerd.spark``."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def _end(number: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM: exit with 128 plus the signal's number, as shells report it."""
    raise SystemExit(128 + number)


def main() -> int:
    """Run a job and return the exit code."""
    # before the imports below, which take time: SIGTERM is handled from the start
    signal.signal(signal.SIGTERM, _end)
    try:
        from consumerd.spark.cli import main as run_job

        return run_job()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
