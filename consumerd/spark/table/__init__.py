# SPDX-License-Identifier: Apache-2.0
"""Delta tables on a file system: Parquet files and a transaction log, written by this package.

::

    <path>/_delta_log/00000000000000000000.json                 what the table is: id, name, columns, partition columns
    <path>/_delta_log/00000000000000000017.json                 commit 17: files added and removed, and why
    <path>/_delta_log/00000000000000000100.checkpoint.parquet   all commits up to 100, folded
    <path>/_staging/<attempt>/...                               what is being written
    <path>/topic=orders/day=2026-11-22/<name>.parquet           rows

A commit becomes visible as a whole, by one ``link(2)`` of its log file, or not at all. Files that a commit removes stay
until ``vacuum``, so readers of older versions are not disturbed. The path must be on a file system with ``link`` and
``fsync`` that driver and executors share. Any reader of Delta tables can read these tables, and commits of other writers
(OPTIMIZE, DELETE) are understood.

``commit``      a commit and its parts, as values. Pure.
``actions``     commits as Delta's JSON actions. Pure.
``checkpoint``  a snapshot as Delta's checkpoint.
``snapshot``    the sum of all commits up to a version. Pure.
``log``         reading, publishing and expiring commits.
``former_log``  upgrades tables of earlier releases.
``transaction`` staging, linking and committing files; conflicts between jobs.
``reading``     snapshots and increments as DataFrames.
``files``       Parquet files with statistics, written in Spark's tasks.
``vacuum``      removal of files and commits that only old versions need.
``restore``     the commit that goes back to an earlier version.

Do not read a table with plain ``spark.read.parquet(path)``, which ignores the log. Between a compaction and the next
vacuum it returns rows twice, and while a job commits, or after one was killed, it returns rows that are not committed.
"""
