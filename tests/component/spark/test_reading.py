# SPDX-License-Identifier: Apache-2.0
"""Tasks of a long stream, one after the other in one Python worker, as Spark has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tests.support.embedded import EmbeddedThread
from tests.support.zookeeper import run_server

_WORKER = """
import json, os, sys, threading
from consumerd.errors import OffsetOutOfRange
from consumerd.model import TopicPartition
from consumerd.access.address import ClusterAddress
from consumerd.spark.datasource.options import FetchOptions
from consumerd.spark.datasource.planning import OffsetRange
from consumerd.spark.datasource.reading import ReadTask, read_range

def task(start, end):
    place = OffsetRange(partition=TopicPartition.modern("orders", 0), start=start, end=end)
    return ReadTask(range=place, cluster=ClusterAddress(client_id="consumerd-spark", bootstrap=sys.argv[1]), fetch=FetchOptions())

def held():
    return [sorted(os.readlink(f"/proc/self/fd/{one}").split(":")[0] for one in os.listdir("/proc/self/fd") if
                   os.path.exists(f"/proc/self/fd/{one}")), threading.active_count()]

rows, seen = 0, []
for number in range(30):
    reading = read_range(task(number * 10, number * 10 + 10))
    rows += next(reading).num_rows
    if number % 3:
        rows += sum(batch.num_rows for batch in reading)
    reading.close()  # as with a LIMIT, where rows are left
    if number in (1, 29):  # it takes a second, since a new leader may trail
        try:
            next(read_range(task(10_000, 10_010)))
        except OffsetOutOfRange:
            seen.append(held())
print(json.dumps({"rows": rows, "first": seen[0], "last": seen[-1], "failed": len(seen)}))
"""


def test_tasks_leave_no_socket_and_no_thread_behind(tmp_path: Path) -> None:
    """Read to the end, given up after the first rows, or failed: a stream has thousands of them in one worker."""
    with run_server() as zookeeper, EmbeddedThread(tmp_path, f"{zookeeper.connect_string}/reading") as broker:
        broker.create_topic("orders", 1)
        broker.produce("orders", b"\n".join(b"key\tvalue %d" % number for number in range(300)))
        done = subprocess.run(
            [sys.executable, "-c", _WORKER, broker.bootstrap], capture_output=True, text=True, check=False, timeout=300
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    assert (found["rows"], found["failed"]) == (300, 2)
    assert found["first"] == found["last"]
    assert found["last"][1] == 1
