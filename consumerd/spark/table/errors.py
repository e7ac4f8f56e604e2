# SPDX-License-Identifier: Apache-2.0
"""Errors of tables. Each message names the table's path, and the version or file concerned."""

from __future__ import annotations

from consumerd.errors import ConsumerdError


class TableError(ConsumerdError):
    """The table is absent, damaged, or has other columns than expected."""


class TableConflict(TableError):
    """A concurrent commit contradicts this one, of which nothing is visible. Run the job again."""


class VersionVacuumed(TableError):
    """Vacuum has removed files or commits of the version that was asked for."""
