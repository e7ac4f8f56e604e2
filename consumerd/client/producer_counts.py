# SPDX-License-Identifier: Apache-2.0
"""Counters of a producer, for the metrics of the program that uses it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCounts:
    """Counters of a producer at one point in time.

    ``open_*`` and ``waiting_callers`` are present values; the others only grow.

    Worth an alert: a growing ``failed_records`` (each call has got the error), and a ``waiting_callers`` that stays
    above 0 (records come faster than brokers accept them).
    """

    written_records: int
    """Acknowledged records; with acks 0, and to Kafka 0.6 and 0.7, sent ones."""
    written_bytes: int
    """Upper bound of the uncompressed size of written records in requests, in bytes."""
    failed_records: int
    """Records that timed out, or that a broker refused."""
    requests: int
    retries: int
    """Retries of batches; each attempt after the first counts."""
    open_records: int
    """Records buffered or in flight."""
    open_bytes: int
    """Memory of records buffered or in flight, in bytes, as counted against ``buffer_bytes``."""
    waiting_callers: int
    """Number of calls that wait for memory."""
