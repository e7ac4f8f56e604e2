"""Keys of the progress of bronze, silver and the quarantine, for comparing their counts. Pure."""

from __future__ import annotations

from typing import Final

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
