# SPDX-License-Identifier: Apache-2.0
"""Delta tables on a shared file system: Parquet files and a transaction log.

::

    <path>/_delta_log/00000000000000000000.json                 the table's description: id, name, columns
    <path>/_delta_log/00000000000000000017.json                 commit 17: files added and removed
    <path>/_delta_log/00000000000000000100.checkpoint.parquet   the table at version 100
    <path>/_staging/<attempt>/...                               files of a transaction that has not committed yet
    <path>/topic=orders/day=2026-11-22/<name>.parquet           rows

Each commit makes one new version of the table. It becomes visible as a whole, by one ``link(2)`` of its log file, or
not at all. Files that a commit removes stay on disk until ``vacuum``, so readers of older versions can go on. The path
must be on a file system with ``link`` and ``fsync`` that driver and executors share. Any reader of Delta tables can
read these tables, and commits of other writers (OPTIMIZE, DELETE) are understood.

Example: bronze adds files A and B (version 1) and C (version 2). A compaction replaces all three by D (version 3).
Readers of version 2 still read A, B and C. Seven days later a vacuum deletes these three files.

``commit``         a commit and its parts, as values. Pure.
``actions``        commits as Delta's JSON actions. Pure.
``checkpoint``     a snapshot as Delta's checkpoint file. Pure.
``snapshot``       the state of a table at a version. Pure.
``log``            reading, publishing and expiring commits.
``log_files``      commits and checkpoints by their file names. Pure.
``former_log``     upgrades tables of earlier releases.
``transaction``    staging, linking and committing files; conflicts between jobs.
``attempts``       staging folders, and the removal of those of dead processes.
``locks``          the lock by which a job knows that no other job is at work.
``reading``        snapshots and increments as DataFrames.
``task_rows``      reading of files with pyarrow in Spark's tasks.
``files``          Parquet files of a DataFrame, written in Spark's tasks.
``parquet_files``  Parquet files of one task, divided by partition values.
``spilled_rows``   rows of a task that wait on disk.
``folder_values``  partition values in folder names. Pure.
``rewriting``      files without some of their rows.
``vacuum``         removal of files and commits that only old versions need.
``restore``        the commit that goes back to an earlier version.

Do not read a table with plain ``spark.read.parquet(path)``, which ignores the log. Between a compaction and the next
vacuum it returns rows twice. While a job commits, or after one was killed, it returns rows that are not committed.
"""
