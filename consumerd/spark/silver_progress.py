# SPDX-License-Identifier: Apache-2.0
"""Numbers that bronze, silver and the quarantine store with their commits. Pure.

A table's *progress* is a mapping of keys to numbers in its log, which each commit may update (``table.snapshot``). This
module has the keys, the positions that the numbers form, and counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumerd.spark.table.commit import files_of, rows_of
from consumerd.spark.table.snapshot import Snapshot

REBUILDS: Final = "rebuilds"
"""Key of a table's progress: number of rebuilds of a topic's table.

In the quarantine it is ``rebuilds:orders`` for a topic ``orders``.
"""
EXPIRED: Final = "expired"
"""Key of a table's progress: number of rows removed by retention or ``erase``.

In bronze and the quarantine it is ``expired:orders`` for a topic ``orders``.
"""
PURGED_ROWS: Final = "purged"
"""Key of a table's progress: number of rows purged since the last rebuild.

It is in the quarantine only, as ``purged:orders`` for a topic ``orders``.
"""
DECODING: Final = "decoding"
"""Key of a table's progress: version of bronze that is being decoded in parts; else 0.

In the quarantine it is ``decoding:orders`` for a topic ``orders``.
"""
DECODED_FILES: Final = "decoded_files"
"""Key of a table's progress: number of files decoded of a version decoded in parts.

In the quarantine it is ``decoded_files:orders`` for a topic ``orders``.
"""
_SOURCE: Final = "bronze:"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SilverPosition:
    """Position of a topic in bronze: how much of bronze is decoded.

    Everything up to a version is decoded. Of the files that later versions have appended, some may be.

    Example: version 40 of bronze is the first one that is decoded. It has five files of the topic, and each commit
    takes two. After them the position is ``SilverPosition(version=0, until=40, files=2)``, ``SilverPosition(version=0,
    until=40, files=4)`` and ``SilverPosition(version=40)``.

    Attributes:
        version: version of bronze up to which everything is decoded.
        until: version of bronze up to which files are being decoded in parts; 0 if no file after ``version`` is
            decoded.
        files: number of these files that are decoded, in the order of their paths.
    """

    version: int = 0
    until: int = 0
    files: int = 0

    @property
    def newest(self) -> int:
        """Newest version of bronze of which anything is decoded."""
        return max(self.version, self.until)


BEGINNING: Final = SilverPosition()
"""Position of a topic of which nothing is decoded."""


def read_position(progress: Mapping[str, int], source: str, topic: str | None = None) -> SilverPosition:
    """Return the position in bronze that a table's progress (numbers in its log) has.

    Version 0 if there is none.

    Args:
        progress: the numbers by key.
        source: key of the position, from :func:`bronze_source`.
        topic: topic, for the quarantine's progress; None for that of a topic's own table.
    """
    until, files = _part_keys(topic)
    return SilverPosition(version=progress.get(source, 0), until=progress.get(until, 0), files=progress.get(files, 0))


def encode_position(
    position: SilverPosition, progress: Mapping[str, int], source: str, topic: str | None = None
) -> Mapping[str, int]:
    """Return the numbers that a commit stores for a position in bronze, by key.

    The table's progress is the mapping of keys to numbers that its commits have stored. Example: ``{"<source>": 40}``
    for ``SilverPosition(version=40)``, with two more keys while version 41 is decoded in parts.

    Args:
        progress: progress before the commit.
        source: key of the position, from :func:`bronze_source`.
        topic: topic, for the quarantine's progress; None for that of a topic's own table.
    """
    until, files = _part_keys(topic)
    of_part = {until: position.until, files: position.files} if position.until or progress.get(until) else {}
    return {source: position.version, **of_part}


def _part_keys(topic: str | None) -> tuple[str, str]:
    return (DECODING, DECODED_FILES) if topic is None else (f"{DECODING}:{topic}", f"{DECODED_FILES}:{topic}")


def bronze_source(table_id: str) -> str:
    """Return the key under which tables store a topic's position in bronze.

    Args:
        table_id: id of the bronze table; a re-created bronze has another one.
    """
    return f"{_SOURCE}{table_id}"


def is_source(key: str) -> bool:
    """Return True if a progress key is that of a position in bronze.

    A table's progress is a mapping of keys to numbers that its commits store.
    """
    return key.startswith(_SOURCE)


def expired_key(topic: str | None) -> str:
    """Return the progress key for rows that ``retention`` or ``erase`` have removed.

    A table's progress is a mapping of keys to numbers that its commits store. Here the number is that of the rows.

    Args:
        topic: topic, for a table of several topics; None for a topic's own table.
    """
    return EXPIRED if topic is None else f"{EXPIRED}:{topic}"


def purged_key(topic: str) -> str:
    """Return the key under which the quarantine counts a topic's purged rows."""
    return f"{PURGED_ROWS}:{topic}"


def rebuilds_key(topic: str) -> str:
    """Return the key under which the quarantine counts a topic's rebuilds.

    A rebuild decodes all records of a topic again.
    """
    return f"{REBUILDS}:{topic}"


def removed_rows(topic: str, source: str, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
    """Return the decoded rows removed from bronze minus those removed from silver and quarantine.

    When all of bronze is decoded, bronze plus this number is silver plus quarantine. Example with 100 records, of which
    silver has 90 and the quarantine 10:

    * retention removes 30 of bronze only: 30, and 70 + 30 = 90 + 10;
    * ``erase`` removes a good one everywhere: 1 - 1 = 0, and 99 + 0 = 89 + 10;
    * a purge removes 4 of the quarantine: -4, and 100 - 4 = 90 + 6.

    Args:
        source: key, in silver's progress, of its position in bronze.
    """
    # Purged rows are counted even before silver's first commit: their identities are kept, so they count as decoded.
    purged = quarantine.progress.get(purged_key(topic), 0)
    if source not in silver.progress:
        return -purged  # rows that were removed before silver's first commit were never decoded
    of_topic = expired_key(topic)
    removed = silver.progress.get(EXPIRED, 0) + quarantine.progress.get(of_topic, 0)
    return bronze.progress.get(of_topic, 0) - removed - purged


def rows_behind(topic: str, source: str, bronze: Snapshot, silver: Snapshot, quarantine: Snapshot) -> int:
    """Return the number of rows of bronze that are not decoded yet.

    Decoded rows do not count, even if retention, ``erase`` or a purge has removed them since. The number is negative if
    silver and the quarantine have rows that bronze never had.

    Args:
        source: key, in silver's progress, of its position in bronze.
    """
    there, bad = (rows_of(files_of(one.files.values(), topic)) for one in (bronze, quarantine))
    return there + removed_rows(topic, source, bronze, silver, quarantine) - silver.rows - bad
