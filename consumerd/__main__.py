# SPDX-License-Identifier: Apache-2.0
"""``consumerd`` and ``python -m consumerd``: installs signal handlers, then loads all other modules.

The first process of a container receives SIGTERM only if it has a handler for this signal. Loading the modules takes
most of a second, in which an orchestrator may stop the container.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType


def _end(number: int, _frame: FrameType | None) -> None:
    """Exit with the code that shells use for this signal.

    ``run`` installs its own handlers later.
    """
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
