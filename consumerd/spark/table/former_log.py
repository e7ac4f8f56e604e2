# SPDX-License-Identifier: Apache-2.0
"""Upgrade of tables of earlier releases, whose log was not yet Delta's.

Their log was ``_table.json`` and ``_log/<version>.json``. The first process that opens such a table rewrites the log as
``_delta_log``, version by version, under a lock. ``_table.json`` is removed last, so if the process dies before that,
the next one continues. Data files and version numbers stay the same, and the former log stays in place. Blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from consumerd.landing.record_fields import MalformedRecord, decode_fields, describe_malformed, get_number, get_text
from consumerd.spark.table.actions import parse_covered
from consumerd.spark.table.attempts import StagedCommit
from consumerd.spark.table.commit import (
    Operation,
    TableCommit,
    TableRecord,
    commit_name,
    get_numbers,
    get_objects,
    get_texts,
    parse_commit_name,
    parse_file,
)
from consumerd.spark.table.errors import TableError
from consumerd.spark.table.locks import FileLock
from consumerd.spark.table.log import TableLog

_RECORD: Final = "_table.json"
_FOLDER: Final = "_log"
_LOCK: Final = ".lock"
_STAGED: Final = ".commit"


def upgrade(log: TableLog) -> None:
    """Rewrite the log of an earlier release's table; do nothing for other tables.

    Raises TableError, OSError.
    """
    path = log.path / _RECORD
    try:
        record = _parse_table(log.files.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return
    except MalformedRecord as error:
        raise TableError(describe_malformed(str(path), error)) from error
    with contextlib.closing(FileLock(log.path / _FOLDER / _LOCK)) as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            lock.wait_exclusive()
        if not path.exists():
            return  # another process has upgraded it while we waited for the lock
        log.create(record)
        log.files.unlink(log.path / _FOLDER / _STAGED)  # left by a process that died
        names = log.files.names(log.path / _FOLDER)
        for version in sorted(filter(None, map(parse_commit_name, names))):
            if version > log.latest():
                with StagedCommit(log.files, log.path / _FOLDER / _STAGED) as staged:
                    log.publish(_read(log, version), staged)
        log.files.unlink(path)
        log.files.sync_folder(log.path)


def _parse_table(data: bytes) -> TableRecord:
    fields = decode_fields(data)
    return TableRecord(
        id=get_text(fields, "id"),
        name=get_text(fields, "name"),
        schema=get_text(fields, "schema"),
        partition_by=get_texts(fields, "partition_by"),
    )


def _read(log: TableLog, version: int) -> TableCommit:
    path = log.path / _FOLDER / commit_name(version)
    try:
        fields = decode_fields(log.files.read(path))
        commit = _parse_commit(fields)
    except MalformedRecord as error:
        raise TableError(describe_malformed(str(path), error)) from error
    if commit.version != version:
        raise TableError(f"{path} says that it is version {commit.version}; was it copied here?")
    return commit


def _parse_commit(fields: Mapping[str, object]) -> TableCommit:
    try:
        operation = Operation(get_text(fields, "operation"))
    except ValueError as error:
        raise MalformedRecord(str(error)) from error
    return TableCommit(
        version=get_number(fields, "version"),
        plan=get_text(fields, "plan"),
        operation=operation,
        job=get_text(fields, "job"),
        writer=get_text(fields, "writer"),
        time_ms=get_number(fields, "time_ms"),
        added=tuple(parse_file(entry) for entry in get_objects(fields, "added")),
        removed=get_texts(fields, "removed"),
        covered=parse_covered(fields),
        progress=get_numbers(fields, "progress"),
        counts=get_numbers(fields, "counts"),
        schema=get_text(fields, "schema") if fields.get("schema") is not None else None,
    )
