# SPDX-License-Identifier: Apache-2.0
"""Restores an earlier version of a table, by a new commit. Versions in between stay readable. Blocks."""

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
    """Commit a version with the rows, coverage and progress of ``version``.

    Columns that were added since stay, and are null. Files that were removed from the table since come back under new
    names (hard links), which a vacuum of the old names does not remove. Raises VersionVacuumed, TableError,
    TableConflict where others commit meanwhile, OSError.
    """
    with table.begin(plan=f"restore:{version}:{uuid.uuid4().hex}", job=JOB, operation=Operation.REPLACE) as transaction:
        wanted, base = table.snapshot(version), transaction.base
        missing = (file for path, file in wanted.files.items() if path not in base.files)
        transaction.add([_link(transaction, file, number) for number, file in enumerate(missing)])
        transaction.remove([path for path in base.files if path not in wanted.files])
        return transaction.commit(covered=wanted.covered, progress=wanted.progress, restores=version)


def _link(transaction: Transaction, file: DataFile, number: int) -> DataFile:
    """Stage a file under another name."""
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
