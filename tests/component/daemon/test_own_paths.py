# SPDX-License-Identifier: Apache-2.0
"""``shared: false``: two daemons of a group, each with a folder of its own that the other never sees.

Records are written all the time while partitions change hands.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.zk.layout import root_path
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedProcess
from tests.support.landing_reader import LandedPartition, read_landing
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad
from tests.support.registry import Registry, open_registry

pytestmark = pytest.mark.records

GROUP = "own-paths"
TOPIC = "orders"
PARTITIONS = 2
PER_PARTITION = 200
MORE = 200
"""So many records are to be committed of each partition before the next thing happens."""


def test_each_path_has_its_own_records_once_and_tells_of_the_others(tmp_path: Path) -> None:
    """A partition goes to the second replica and comes back: what that one has landed is a gap in the first one's chain,
    and no fault; both together have every record once.
    """
    with EmbeddedProcess(tmp_path / "cluster", "--topic", f"{TOPIC}:{PARTITIONS}") as cluster:

        def member(name: str) -> Daemon:
            settings = settings_for(
                cluster.zookeeper,
                GROUP,
                topics=(TOPIC,),
                sink={"type": "jsonl", "path": str(tmp_path / f"landing-{name}"), "roll_ms": 200, "shared": False},
                group={"consumer_id": name},
                offsets={"commit_interval_ms": 200},
            )
            return Daemon(tmp_path, name, settings)

        load = SteadyLoad(Ledger(cluster.bootstrap), {TOPIC: PARTITIONS}, per_second=PER_PARTITION)
        with open_registry(cluster.zookeeper) as registry, load, member("a") as a:
            wait_for_more(a, registry)
            with member("b") as b:
                b.wait(lambda: len(b.owned()) == len(a.owned()) == 1, "each has one")
                ((_, moved),) = b.owned()
                wait_for_more(b, registry)
                assert b.terminate() == 0
            a.wait(lambda: len(a.owned()) == PARTITIONS, "it has come back")
            wait_for_more(a, registry)
            assert a.terminate() == 0
            roots = registry.client.get_children(root_path(GROUP, "out"))
            ends = registry.offsets(GROUP, TOPIC)

    assert sorted(roots) == ["a", "b"]
    first, second = landed(tmp_path / "landing-a"), landed(tmp_path / "landing-b")
    assert list(second) == [moved]
    kept = first[1 - moved]
    assert kept.offsets == list(range(ends[1 - moved]))
    assert kept.gaps == []
    elsewhere = second[moved].offsets
    begin, end = elsewhere[0], elsewhere[-1] + 1
    assert elsewhere == list(range(begin, end))
    assert second[moved].gaps == []
    assert first[moved].gaps == [
        {"start": begin, "end": end, "reason": "consumed elsewhere", "offsets": end - begin},
    ]
    assert first[moved].offsets == [*range(begin), *range(end, ends[moved])]


def wait_for_more(daemon: Daemon, registry: Registry) -> None:
    """Wait until each partition is committed well beyond where it is."""
    before = registry.offsets(GROUP, TOPIC)

    def come_on() -> bool:
        now = registry.offsets(GROUP, TOPIC)
        return len(now) == PARTITIONS and all(now[one] >= before.get(one, 0) + MORE for one in now)

    daemon.wait(come_on, f"{MORE} more of each partition")


def landed(folder: Path) -> dict[int, LandedPartition]:
    landing = read_landing(folder)
    assert landing.problems == []
    return {int(one.partition): one for one in landing.partitions.values()}
