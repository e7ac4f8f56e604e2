"""What can be wrong with a table; each message names the table's path, and the version or file that it is about."""

from __future__ import annotations

from consumerd.errors import ConsumerdError


class TableError(ConsumerdError):
    """A table that cannot be used as it was asked for: absent, damaged, or of other columns."""


class TableConflict(TableError):
    """Another job has committed what this one's work contradicts; nothing of this one is visible. Run it again."""


class VersionVacuumed(TableError):
    """Files that a version, or an increment, is made of have been removed by vacuum."""
