# SPDX-License-Identifier: Apache-2.0
"""Limits of the decompressed size of the records in a Produce request.

Kafka has none: it decompresses record by record, and drops what it has read. Here the records of a partition (a record
set) are checked together as columns, and conversion creates objects for them, so a few hundred KB that expand a
thousandfold would take gigabytes.

One set may take 16 times the largest message, and at least 16 MiB: 1 MB of JSON in gzip expands to about ten times its
size. All sets of a request together may take four times 16 MiB and 32 times the request's size, so that many small ones
are limited too. Above that, sets are refused with MESSAGE_TOO_LARGE, upon which producers split their batch.
"""

from __future__ import annotations

import threading
from typing import Final

_LARGEST_MESSAGES: Final = 16
_LEAST_BYTES: Final = 16 << 20
_REQUEST_SETS: Final = 4
_REQUEST_RATIO: Final = 32


def most_decompressed(max_message_bytes: int) -> int:
    """Return the limit, in bytes, of the decompressed records of one append.

    Args:
        max_message_bytes: The log's limit of a message or batch.
    """
    return max(_LEAST_BYTES, _LARGEST_MESSAGES * max_message_bytes)


class Expansion:
    """Remaining limit, in bytes, of the decompressed records of one Produce request.

    The threads that append its parts share it.
    """

    def __init__(self, request_bytes: int) -> None:
        self._left_bytes = _REQUEST_SETS * _LEAST_BYTES + _REQUEST_RATIO * request_bytes
        self._lock = threading.Lock()

    @property
    def left_bytes(self) -> int:
        """Number of bytes left for further parts of the request.

        Parts that are appended at the same time may each take all of them.
        """
        return max(self._left_bytes, 0)

    def spend(self, decompressed_bytes: int) -> None:
        """Subtract the decompressed bytes of a part of the request from the limit.

        For a part that was refused, the caller gives the bytes that decompression may have taken.
        """
        with self._lock:
            self._left_bytes -= decompressed_bytes
