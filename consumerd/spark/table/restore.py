# SPDX-License-Identifier: Apache-2.0
"""Restores an earlier version of a table by a new commit. Blocks.

Versions in between stay readable. Example: the newest version is 9. Restoring version 5 commits version 10, with the
rows of version 5.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from consumerd.spark.table.commit import DataFile, Operation, TableCommit
from consumerd.spark.table.errors import VersionVacuumed
from consumerd.spark.table.transaction import Table, Transaction

JOB: Final = "restore"


def restore(table: Table, version: int) -> TableCommit:
    """Commit a new version with the rows, coverage and progress of ``version``.

    Coverage is the landed offsets that the table has taken, progress the numbers that jobs store with their commits.
    Columns that were added since stay, and are null. Raises VersionVacuumed if files of the version have been deleted;
    TableConflict if other jobs commit at the same time; TableError, OSError.
    """
    with table.begin(plan=f"restore:{version}:{uuid.uuid4().hex}", job=JOB, operation=Operation.REPLACE) as transaction:
        wanted, base = table.snapshot(version), transaction.base
        missing = (file for path, file in wanted.files.items() if path not in base.files)
        transaction.add([_link(transaction, file, number) for number, file in enumerate(missing)])
        transaction.remove([path for path in base.files if path not in wanted.files])
        return transaction.commit(covered=wanted.covered, progress=wanted.progress, restores=version)


def _link(transaction: Transaction, file: DataFile, number: int) -> DataFile:
    """Stage a hard link to a file."""
    # under a new name, because a vacuum that is due deletes the old one
    table = transaction.table
    path = str(PurePosixPath(file.path).parent / f"{transaction.attempt}-{number:05d}.parquet")
    staged = transaction.staging / path
    table.log.files.make_folders(staged.parent)
    try:
        table.log.files.link(table.path / file.path, staged)
    except FileNotFoundError as error:
        raise VersionVacuumed(
            f"{table.path / file.path} has been removed; go back to a newer version, or let vacuum keep files longer"
        ) from error
    return replace(file, path=path)
