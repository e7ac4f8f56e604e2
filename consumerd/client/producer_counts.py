# SPDX-License-Identifier: Apache-2.0
"""What a producer has done and what it holds, in numbers: for a program's own metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCounts:
    """Numbers of one moment; ``open_*`` and ``waiting_callers`` are of now, the others count from the start and only grow.

    Worth an alert: ``failed_records`` grows (their callers were told), ``waiting_callers`` stays above 0 (records come faster
    than brokers take them).
    """

    written_records: int
    """Acknowledged; with acks 0: sent."""
    written_bytes: int
    """Of those, uncompressed, with what surrounds them in a request at most."""
    failed_records: int
    """Given up, or refused by a broker."""
    requests: int
    retries: int
    """Batches that will be sent again, once for each time."""
    open_records: int
    """Buffered or on their way."""
    open_bytes: int
    """The same in memory, of ``buffer_bytes``."""
    waiting_callers: int
    """Calls that wait for room."""
