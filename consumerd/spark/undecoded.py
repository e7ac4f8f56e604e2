# SPDX-License-Identifier: Apache-2.0
"""Files of bronze that silver has not decoded yet. Needs no Spark.

Silver decodes what was appended after the version of bronze that its progress names. A file that a compaction, or a job
that removes rows, has made of such a file waits as well; one that was made of decoded files only does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from consumerd.config.job import JobSettings
from consumerd.spark.silver_progress import bronze_source
from consumerd.spark.table.commit import Operation, TableCommit, files_of
from consumerd.spark.table.errors import VersionVacuumed
from consumerd.spark.table.transaction import Table, find_table


def find_undecoded(settings: JobSettings, bronze: Table, topic: str) -> frozenset[str]:
    """Return the paths of a topic's files that silver has not decoded.

    Raises TableError, OSError.
    """
    snapshot = bronze.snapshot()
    silver = find_table(settings.folder("silver", topic))
    after = 0 if silver is None else silver.snapshot().progress.get(bronze_source(bronze.record.id), 0)
    if after > snapshot.version:
        after = 0  # bronze was restored, and the topic is to be decoded anew
    try:
        waiting = _follow(bronze.log.read_after(after), topic)
    except VersionVacuumed:
        waiting = {file.path for file in files_of(snapshot.files.values(), topic)}
    return frozenset(waiting & snapshot.files.keys())


def _follow(commits: Iterable[TableCommit], topic: str) -> set[str]:
    """Return the paths of files that hold rows which these commits have appended."""
    waiting: set[str] = set()
    for commit in commits:
        added = {file.path for file in files_of(commit.added, topic)}
        if commit.operation in (Operation.APPEND, Operation.REPLACE) or not waiting.isdisjoint(commit.removed):
            waiting |= added
    return waiting
