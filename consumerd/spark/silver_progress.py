# SPDX-License-Identifier: Apache-2.0
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
"""Number of rows that retention or ``erase`` has removed. Bronze and the quarantine have one for each topic."""
PURGED_ROWS: Final = "purged"
"""Number of rows that were purged since the last rebuild. The quarantine has one for each topic."""
DECODING: Final = "decoding"
"""Version of bronze up to which files are decoded in parts, 0 at other times. The quarantine has one for each topic."""
DECODED_FILES: Final = "decoded_files"
"""Number of these files that are decoded. The quarantine has one for each topic."""
_SOURCE: Final = "bronze:"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SilverPosition:
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


BEGINNING: Final = SilverPosition()
"""The place of a topic of which nothing is decoded."""


def read_place(progress: Mapping[str, int], source: str, topic: str | None = None) -> SilverPosition:
    """Return the place that a table's progress tells.

    Args:
        source: key of bronze in the progress.
        topic: the topic in the quarantine's progress, None in that of a topic's own table.
    """
    until, files = _part_keys(topic)
    return SilverPosition(version=progress.get(source, 0), until=progress.get(until, 0), files=progress.get(files, 0))


def write_place(
    place: SilverPosition, progress: Mapping[str, int], source: str, topic: str | None = None
) -> Mapping[str, int]:
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
    return f"{_SOURCE}{table_id}"


def is_source(key: str) -> bool:
    """Tell whether a key of a topic's table is one that :func:`bronze_source` makes."""
    return key.startswith(_SOURCE)


def expired_key(topic: str | None) -> str:
    """Return the key of the rows that retention or ``erase`` has removed.

    ``topic`` is None in a topic's own table.
    """
    return EXPIRED if topic is None else f"{EXPIRED}:{topic}"


def purged_key(topic: str) -> str:
    """Return the key of a topic's purged rows in the quarantine."""
    return f"{PURGED_ROWS}:{topic}"


def rebuilds_key(topic: str) -> str:
    """Return the key of a topic's rebuilds in the quarantine."""
    return f"{REBUILDS}:{topic}"


def removed_rows(topic: str, source: str, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
    """Count the decoded rows removed from bronze, minus those removed from silver and the quarantine.

    If all of bronze is decoded, bronze plus this number is silver plus quarantine. Example, with 100 records, of which
    silver has 90 and the quarantine 10:

    * retention removes 30 of bronze only: 30, and 70 + 30 = 90 + 10;
    * ``erase`` removes a good one everywhere: 1 - 1 = 0, and 99 + 0 = 89 + 10;
    * a purge removes 4 of the quarantine: -4, and 100 - 4 = 90 + 6.

    Args:
        source: key of bronze in silver's progress.
    """
    # Apart from the others: until a rebuild a purged record stays known by its identity, so a comparison leaves it out.
    purged = quarantine.progress.get(purged_key(topic), 0)
    if source not in silver.progress:
        return -purged  # what was removed before silver's first commit was never decoded
    of_topic = expired_key(topic)
    removed = silver.progress.get(EXPIRED, 0) + quarantine.progress.get(of_topic, 0)
    return bronze.progress.get(of_topic, 0) - removed - purged


def rows_behind(topic: str, source: str, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
    """Count the rows of bronze that are still to be decoded.

    Rows that were decoded do not count, also if retention, ``erase`` or a purge has removed them since.

    Negative if silver and the quarantine have rows that bronze never had. Arguments are as in :func:`removed_rows`.
    """
    there, bad = (rows_of(files_of(one.files.values(), topic)) for one in (bronze, quarantine))
    return there + removed_rows(topic, source, bronze, silver, quarantine) - silver.rows - bad
