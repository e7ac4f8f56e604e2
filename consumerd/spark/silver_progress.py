"""Keys of the progress of bronze, silver and the quarantine, and the comparison of their counts. Pure."""

from __future__ import annotations

from typing import Final

from consumerd.spark.table.commit import files_of, rows_of
from consumerd.spark.table.snapshot import Snapshot

REBUILDS: Final = "rebuilds"
"""Number of rebuilds of a topic's table. The quarantine has one for each topic."""
EXPIRED: Final = "expired"
"""Number of rows that retention has removed. Bronze and the quarantine have one for each topic."""


def bronze_source(table_id: str) -> str:
    """Return the key of the version of bronze that a topic's table has come to."""
    return f"bronze:{table_id}"


def expired_key(topic: str | None) -> str:
    """Return the key of the rows that retention has removed; ``topic`` is None in a topic's own table."""
    return EXPIRED if topic is None else f"{EXPIRED}:{topic}"


def expired_rows(topic: str, source: str, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
    """Return how many rows retention has removed from bronze that silver and the quarantine still have.

    Args:
        source: key of bronze in silver's progress.
    """
    if source not in silver.progress:
        return 0  # what was removed before its first commit was never decoded
    of_topic = expired_key(topic)
    removed = silver.progress.get(EXPIRED, 0) + quarantine.progress.get(of_topic, 0)
    return bronze.progress.get(of_topic, 0) - removed


def rows_behind(topic: str, source: str, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
    """Return how many rows of a topic bronze has, or had, and neither silver nor the quarantine.

    Negative if these two have rows that bronze never had. Arguments are as in :func:`expired_rows`.
    """
    there, bad = (rows_of(files_of(one.files.values(), topic)) for one in (bronze, quarantine))
    return there + expired_rows(topic, source, bronze, silver, quarantine) - silver.rows - bad
