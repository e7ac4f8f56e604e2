# SPDX-License-Identifier: Apache-2.0
"""What others leave in the registry of a group that lands records: before the start, and while it owns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.landing_check import find_faults, log_ends
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad
from tests.support.registry import open_registry

pytestmark = pytest.mark.records

PARTITIONS: Final = 4
PER_PARTITION: Final = 25
FUTURE: Final = 999_999_999
UNREADABLE: Final = {"empty": b"", "no-json": b"\xff{", "pykafka": b"t", "no-streams": b'{"subscription":{"t":0}}'}


@pytest.mark.timeout(120)
def test_nothing_that_others_write_while_records_flow_loses_or_doubles_one(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Members that nobody can read, junk among owners and positions, positions and owner nodes that somebody writes or
    deletes: ours wins, each record lands once, and the status page and the metrics say what was found.
    """
    name = unique("foreign")
    cluster.create_topic(name, PARTITIONS)
    landing = tmp_path / "landing"
    settings = settings_for(
        cluster.zookeeper,
        name,
        topics=(name,),
        sink={"type": "jsonl", "path": str(landing), "roll_ms": 300},
        offsets={"commit_interval_ms": 200},
        log={"level": "info"},
    )
    ids, owners, offsets = (f"/consumers/{name}/{kind}" for kind in ("ids", f"owners/{name}", f"offsets/{name}"))
    junk = [f"{folder}/{one}" for folder in (owners, offsets) for one in ("lock", "0-1", "99", "1.5")]
    producer = Ledger(cluster.bootstrap)
    with open_registry(cluster.zookeeper) as registry:
        zookeeper = registry.client

        def position(partition: int) -> int | None:
            text = zookeeper.get(f"{offsets}/{partition}")[0] if zookeeper.exists(f"{offsets}/{partition}") else b""
            return int(text) if text.isdigit() and int(text) != FUTURE else None

        def disturb(daemon: Daemon, partition: int, data: bytes | None, count: int) -> None:
            """Write or delete a position behind its owner's back; wait until that is counted, and the owner's moves on."""
            before = position(partition)
            assert before is not None
            path = f"{offsets}/{partition}"
            zookeeper.delete(path) if data is None else zookeeper.set(path, data)
            metric = f"consumerd_foreign_commits_total {count}.0\n"
            daemon.wait(lambda: metric in daemon.get("/metrics")[1], f"{count} foreign writes are counted")
            daemon.wait(lambda: (position(partition) or 0) > before, "the owner's position moves on")

        zookeeper.ensure_path(ids)
        for member, data in UNREADABLE.items():
            zookeeper.create(f"{ids}/{member}", data, ephemeral=True)
        for path in junk:
            zookeeper.create(path, b"junk \xff", makepath=True)
        with Daemon(tmp_path, "member", settings) as daemon:
            with SteadyLoad(producer, {name: PARTITIONS}, per_second=PER_PARTITION):
                daemon.wait_ready()
                daemon.wait(lambda: all(map(position, range(PARTITIONS))), "commits of every partition")
                told = daemon.get("/")[1]
                assert [one for one in UNREADABLE if f"unreadable member: {one}: " not in told] == []
                # a position from the past, one from the future, one that is none, and none at all
                disturb(daemon, 0, b"1", 1)
                disturb(daemon, 1, b"%d" % FUTURE, 2)
                disturb(daemon, 2, b"junk \xff", 3)
                disturb(daemon, 3, None, 4)
                zookeeper.set(f"{owners}/0", b"mine now")
                zookeeper.delete(f"{owners}/1")
                daemon.wait(lambda: "ownership lost" in daemon.get("/")[1], "the lost claim is told")
                daemon.wait(lambda: zookeeper.exists(f"{owners}/1") is not None, "it is claimed anew")
                daemon.wait_ready()
            ledger = producer.finish()
            ends = {partition: end for (_, partition), end in log_ends(ledger).items()}
            daemon.wait(lambda: {one: position(one) for one in ends} == ends, "everything is landed and committed")
            page = daemon.get("/")[1]
            assert daemon.terminate() == 0, daemon.log()[-3000:]
        left = [path for path in junk if zookeeper.exists(path)]

    assert find_faults(landing, ledger) == []
    # partitions whose positions happened to be the same are named by one event
    named = " ".join(re.findall(r"([^<>]*): somebody else wrote its position", page))
    assert [one for one in range(PARTITIONS) if re.search(rf"{re.escape(name)}/{one}\b", named) is None] == []
    assert left == junk, "what is nobody's is left where it is"
