# SPDX-License-Identifier: Apache-2.0
"""``consumerd-spark`` and ``python -m consumerd.spark``: takes the signals before anything else is loaded."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def _end(number: int, _frame: FrameType | None) -> None:
    """End with the code that shells give such an end."""
    raise SystemExit(128 + number)


def main() -> int:
    """Run a job and return the exit code."""
    signal.signal(signal.SIGTERM, _end)
    try:
        from consumerd.spark.cli import main as run_job

        return run_job()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
