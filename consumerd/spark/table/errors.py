# SPDX-License-Identifier: Apache-2.0
"""Errors of tables. Each message names the table's path, and the version or file concerned."""

from __future__ import annotations

from consumerd.errors import ConsumerdError


class TableError(ConsumerdError):
    """Raised if a table is absent, damaged, or has other columns than expected."""


class TableConflict(TableError):
    """Raised if a commit of another job contradicts this one.

    Nothing of this commit is visible. Run the job again.
    """


class VersionVacuumed(TableError):
    """Raised if vacuum has removed files or commits of the requested version."""
