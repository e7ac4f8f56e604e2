"""A small transactional table of Parquet files, for one writer at a time and any number of readers.

::

    <path>/_table.json                                  what the table is: id, name, columns, partition columns
    <path>/_log/00000000000000000017.json               commit 17: files added and removed, and why
    <path>/_log/00000000000000000100.checkpoint.json    all commits up to 100, folded
    <path>/_staging/<attempt>/...                       what is being written
    <path>/topic=orders/day=2026-11-22/<name>.parquet   rows

The table is what its log says: a commit becomes visible whole, by one ``link(2)`` of its log file, or not at all. Files
that a commit removes stay until ``vacuum``, so that whoever reads an older version reads on. The path is a file system with
``link`` and ``fsync`` which driver and executors share; object stores have none, and take Delta instead.

``commit``      values of the log, and their JSON. Pure.
``snapshot``    what the commits up to a version amount to. Pure.
``log``         reading and publishing commits.
``transaction`` how a job adds and removes files: stage, link, commit; conflicts.
``reading``     snapshots and increments as DataFrames.
``files``       Parquet files with statistics, written in Spark's tasks.
``vacuum``      removing what no version within a time needs.

A plain ``spark.read.parquet(path)`` goes by folders, not by the log: between a compaction and the vacuum after it, it
sees rows in the old files and in the new one; and for the moment between the links of a commit and its log file, or after
a job that was killed in between until the next job begins, it sees rows that are not committed yet.
"""
