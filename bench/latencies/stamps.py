# SPDX-License-Identifier: Apache-2.0
"""Send times at the beginning of values, and the file of arrivals of a reader.

Times are in microseconds of the wall clock, which all processes of a machine share.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

VALUE_BYTES: Final = 100
STAMP_BYTES: Final = 16
_LINES: Final = 500


def stamp() -> bytes:
    """Return the current time in the form in which a value begins with it."""
    return b"%016d" % (time.time_ns() // 1000)


class Arrivals:
    """Writes a line ``<sent> <arrived>`` for each value, some hundred lines at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._lines: list[bytes] = []

    def add(self, values: list[bytes]) -> None:
        """Note that values have arrived now."""
        now = time.time_ns() // 1000
        self._lines += [b"%s %d\n" % (value[:STAMP_BYTES], now) for value in values]
        if len(self._lines) >= _LINES:
            self._file.write(b"".join(self._lines))
            self._file.flush()
            self._lines.clear()
