# SPDX-License-Identifier: Apache-2.0
"""Bounds of what the record sets of a Produce request may take when they are decompressed.

Kafka has none: it decompresses record by record and drops what it has read. Here whole sets are checked as columns, and
conversion makes objects of their records, so that a few hundred KB that expand a thousandfold would take gigabytes.

One set may take 16 times the largest message, 16 MiB at least: 1 MB of JSON in gzip takes about ten times its size. All
sets of a request together may take four times that and 32 times the request's own size, so that many small ones are
bounded as well. What is above is refused with MESSAGE_TOO_LARGE, at which producers cut their batch in two.
"""

from __future__ import annotations

import threading
from typing import Final

_LARGEST_MESSAGES: Final = 16
_LEAST_BYTES: Final = 16 << 20
_REQUEST_SETS: Final = 4
_REQUEST_RATIO: Final = 32


def most_decompressed(max_message_bytes: int) -> int:
    """Return what one record set of a log may take when it is decompressed."""
    return max(_LEAST_BYTES, _LARGEST_MESSAGES * max_message_bytes)


class Expansion:
    """What the sets of one request may still take; used by the threads that append them."""

    def __init__(self, request_bytes: int) -> None:
        self._left_bytes = _REQUEST_SETS * _LEAST_BYTES + _REQUEST_RATIO * request_bytes
        self._lock = threading.Lock()

    @property
    def left_bytes(self) -> int:
        """What is left for those that follow; sets that are worked on at the same time may each take it."""
        return max(self._left_bytes, 0)

    def spend(self, decompressed_bytes: int) -> None:
        """Note what a set has taken, or may have taken before it was refused."""
        with self._lock:
            self._left_bytes -= decompressed_bytes
