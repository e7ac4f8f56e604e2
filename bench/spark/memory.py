# SPDX-License-Identifier: Apache-2.0
"""Memory of a driver that plans: ``python -m bench.spark.memory FOLDER FILES HOLES``.

It prints its peak memory as JSON. The landing zone exists as values only, like those read from file footers: a topic of
many small files, and a compacted topic with holes (offset gaps) in each file. All of it is planned, committed in parts
without any rows, and planned again against what the table then covers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.spark.session import Reading
from consumerd.config.pipeline import Bronze
from consumerd.landing.chain import ChainRecord, FileMetadata, LandedGap, RootRecord
from consumerd.landing.plan import plan_landing
from consumerd.landing.values import LandedChain, LandedFile, Landing, LandingRoot
from consumerd.model import GapReason, Incarnation, TopicPartition
from consumerd.spark.bronze import open_bronze
from consumerd.spark.table.commit import Operation
from consumerd.spark.table.transaction import open_table
from tests.support.memory import read_memory

_PARTITIONS: Final = 8
_ROWS: Final = 10_000
"""Offsets that a file covers."""
_HOLES: Final = 1_000
"""Holes in each file of the compacted topic: as many as file metadata lists one by one."""
_ROWS_A_COMMIT: Final = 20_000_000
_BYTES_IN_MIB: Final = 1 << 20


def measure_driver(folder: Path, files: int, holes: int) -> Reading:
    """Plan in a process of its own; return its peak memory as ``size``.

    Raises CalledProcessError.
    """
    command = [sys.executable, "-m", "bench.spark.memory", str(folder), str(files), str(holes)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Reading(**json.loads(done.stdout))


def make_landing(files: int, holes: int) -> Landing:
    """Return a landing zone of a plain topic, and of a compacted topic with holes.

    Args:
        files: number of files of the plain topic.
        holes: number of holes of the compacted topic, in all its files.
    """
    root = LandingRoot(path=Path("/landing"), record=RootRecord(root="r", cluster="c", group="g"), order=0)
    chains = [*_chains(root, "orders", files, 0), *_chains(root, "users", -(-holes // _HOLES), _HOLES)]
    return Landing(roots=(root,), chains=tuple(chains))


def _chains(root: LandingRoot, topic: str, files: int, holes: int) -> Iterator[LandedChain]:
    for number in range(_PARTITIONS):
        partition = TopicPartition.modern(topic, number)
        folder = f"/landing/topic={topic}/partition={number}/chain=1"
        record = ChainRecord(origin=0, incarnation=Incarnation(7), extension="parquet", reason="committed", writer="w")
        mine = len(range(number, files, _PARTITIONS))
        made = tuple(_file(folder, partition, position * _ROWS, holes) for position in range(mine))
        yield LandedChain(root=root, partition=partition, number=1, folder=folder, record=record, files=made)


def _file(folder: str, partition: TopicPartition, position: int, holes: int) -> LandedFile:
    end = position + _ROWS
    gaps = tuple(
        LandedGap(start=one, end=one + 1, reason=GapReason.COMPACTION, offsets=1)
        for one in range(position + 5, end, _ROWS // holes if holes else _ROWS + 5)
    )
    gaps = gaps if holes else ()
    metadata = FileMetadata(
        writer="w",
        group="g",
        cluster="c",
        topic=partition.topic,
        partition=partition.partition,
        incarnation=Incarnation(7),
        chain=1,
        position=position,
        next_offset=end,
        count=_ROWS - len(gaps),
        first_offset=position,
        last_offset=end - 1,
        min_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000,
        gaps=gaps,
    )
    return LandedFile(path=f"{folder}/{position:020d}.parquet", position=position, name_end=end, metadata=metadata)


def main() -> None:
    """Plan, commit and plan again; print the time and the peak memory."""
    place, files, holes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    landing = make_landing(files, holes)
    began, worked = time.perf_counter(), time.process_time()
    target = open_bronze(str(place), Bronze())
    plan = plan_landing(landing, target.covered())
    for part in plan.split(_ROWS_A_COMMIT):
        with target.table.begin(plan=uuid.uuid4().hex, job="bronze", operation=Operation.APPEND) as transaction:
            transaction.commit(covered=part.adds, counts={"files_taken": len(part.files)})
    again = plan_landing(landing, open_table(place).snapshot().covered)
    if len(plan.files) != landing.file_count or not again.is_empty:
        raise SystemExit(f"{len(plan.files)} of {landing.file_count} files were planned, then {len(again.files)}")
    seconds, processor_s = time.perf_counter() - began, time.process_time() - worked
    # not ru_maxrss: a child process begins with that of its parent
    size = int(read_memory(os.getpid()).peak * _BYTES_IN_MIB)
    sys.stdout.write(
        json.dumps({"seconds": seconds, "processor_s": processor_s, "rows": landing.file_count, "size": size}) + "\n"
    )


if __name__ == "__main__":
    main()
