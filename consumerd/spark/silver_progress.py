"""Progress of bronze, silver and the quarantine: keys, places, counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.spark.table.commit import files_of, rows_of
from consumerd.spark.table.snapshot import Snapshot

REBUILDS: Final = "rebuilds"
"""Number of rebuilds of a topic's table. The quarantine has one for each topic."""
EXPIRED: Final = "expired"
"""Number of rows that retention has removed. Bronze and the quarantine have one for each topic."""
DECODING: Final = "decoding"
"""Version of bronze up to which files are decoded in parts, 0 at other times. The quarantine has one for each topic."""
DECODED_FILES: Final = "decoded_files"
"""Number of these files that are decoded. The quarantine has one for each topic."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """Position of a topic in bronze.

    All of bronze is decoded up to a version, and of the files behind it some may be.

    Example: version 40 of bronze has five files of a topic, and a commit takes two of them. The topic's table comes to
    ``Place(version=0, until=40, files=2)``, ``Place(version=0, until=40, files=4)`` and ``Place(version=40)``.

    Attributes:
        version: version of bronze up to which everything is decoded.
        until: version of bronze up to which files are decoded in parts; 0 if no file behind ``version`` is decoded.
        files: number of these files that are decoded, in the order of their paths.
    """

    version: int = 0
    until: int = 0
    files: int = 0

    @property
    def newest(self) -> int:
        """Newest version of bronze of which something is decoded."""
        return max(self.version, self.until)


BEGINNING: Final = Place()
"""The place of a topic of which nothing is decoded."""


def read_place(progress: Mapping[str, int], source: str, topic: str | None = None) -> Place:
    """Return the place that a table's progress tells.

    Args:
        source: key of bronze in the progress.
        topic: the topic in the quarantine's progress, None in that of a topic's own table.
    """
    until, files = _part_keys(topic)
    return Place(version=progress.get(source, 0), until=progress.get(until, 0), files=progress.get(files, 0))


def write_place(place: Place, progress: Mapping[str, int], source: str, topic: str | None = None) -> Mapping[str, int]:
    """Return the progress of a commit that comes to a place.

    Arguments are as in :func:`read_place`; ``progress`` is that of the version before.
    """
    until, files = _part_keys(topic)
    of_part = {until: place.until, files: place.files} if place.until or progress.get(until) else {}
    return {source: place.version, **of_part}


def _part_keys(topic: str | None) -> tuple[str, str]:
    return (DECODING, DECODED_FILES) if topic is None else (f"{DECODING}:{topic}", f"{DECODED_FILES}:{topic}")


def bronze_source(table_id: str) -> str:
    """Return the key of the version of bronze that a topic's table has come to."""
    return f"bronze:{table_id}"


def expired_key(topic: str | None) -> str:
    """Return the key of the rows that retention has removed.

    ``topic`` is None in a topic's own table.
    """
    return EXPIRED if topic is None else f"{EXPIRED}:{topic}"


def expired_rows(topic: str, source: str, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
    """Count the rows of silver and the quarantine that retention has removed from bronze.

    Args:
        source: key of bronze in silver's progress.
    """
    if source not in silver.progress:
        return 0  # what was removed before its first commit was never decoded
    of_topic = expired_key(topic)
    removed = silver.progress.get(EXPIRED, 0) + quarantine.progress.get(of_topic, 0)
    return bronze.progress.get(of_topic, 0) - removed


def rows_behind(topic: str, source: str, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
    """Count the rows of bronze that neither silver nor the quarantine has.

    Rows that retention has removed from bronze since they were decoded do not count.

    Negative if these two have rows that bronze never had. Arguments are as in :func:`expired_rows`.
    """
    there, bad = (rows_of(files_of(one.files.values(), topic)) for one in (bronze, quarantine))
    return there + expired_rows(topic, source, bronze, silver, quarantine) - silver.rows - bad
