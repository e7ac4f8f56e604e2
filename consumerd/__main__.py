# SPDX-License-Identifier: Apache-2.0
"""``consumerd`` and ``python -m consumerd``: takes the signals before anything else is loaded.

As the first process of a container a program that has no handler for SIGTERM does not even get it; the modules take
most of a second to load, and an orchestrator may change its mind in that second.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType


def _end(number: int, _frame: FrameType | None) -> None:
    """End with the code that shells give such an end. ``run`` puts its own handlers in place."""
    raise SystemExit(128 + number)


def main() -> int:
    """Run the command line and return the exit code."""
    signal.signal(signal.SIGTERM, _end)
    try:
        from consumerd.cli.main import main as run_command

        return run_command()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
