"""Keys of the progress of bronze, silver and the quarantine, for comparing their counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REBUILDS: Final = "rebuilds"
"""Number of rebuilds of a topic's table. The quarantine has one for each topic."""
EXPIRED: Final = "expired"
"""Number of rows that retention, or a purge, has removed. Bronze and the quarantine have one for each topic."""


def bronze_source(table_id: str) -> str:
    """Return the key of the version of bronze that a topic's table has come to."""
    return f"bronze:{table_id}"


def expired_key(topic: str | None) -> str:
    """Return the key of the number of removed rows.

    Args:
        topic: None in a topic's own table.
    """
    return EXPIRED if topic is None else f"{EXPIRED}:{topic}"


def rebuilds_key(topic: str) -> str:
    """Return the key of a topic's rebuilds in the quarantine."""
    return f"{REBUILDS}:{topic}"


def count_gone(
    topic: str, *, bronze: Mapping[str, int], silver: Mapping[str, int], quarantine: Mapping[str, int]
) -> int:
    """Return the rows removed from bronze minus those removed from silver and the quarantine.

    Bronze plus this number is silver plus quarantine, if all of bronze is decoded. After a purge it is negative: of 100
    records 10 were quarantined, and 4 of these purged, so 100 - 4 = 90 + 6.

    Args:
        bronze: progress of the table, as the others.
    """
    of_topic = expired_key(topic)
    return bronze.get(of_topic, 0) - silver.get(EXPIRED, 0) - quarantine.get(of_topic, 0)
