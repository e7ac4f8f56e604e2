# SPDX-License-Identifier: Apache-2.0
"""What a broker asks ZooKeeper for about its topics."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from consumerd.embedded.appending import Appender
from consumerd.embedded.catalogue import LogCatalogue
from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.log_directory import LogDirectory
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.nodes import Nodes
from consumerd.model import BrokerId
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.waiting import until


async def test_a_topic_costs_the_same_however_many_there_are(tmp_path: Path) -> None:
    """Read all of them for each new one, and a thousand topics take millions of reads."""
    client = FakeZooKeeper().client("broker")
    client.connect()
    zk: Any = client
    await until(lambda: client.state.connected)
    calls: Counter[str] = Counter()
    for name in ("find", "exists", "children", "create", "set"):
        setattr(zk, name, counting(calls, name, getattr(zk, name)))
    logs = LogDirectory.open(tmp_path, files=OsLogFiles(), now_ms=lambda: 0)
    costs = []
    async with (
        Appender() as appender,
        LogCatalogue(
            zk, nodes=Nodes([BrokerId(0)]), settings=LogSettings(), directory=logs, appender=appender, now_ms=lambda: 0
        ) as topics,
    ):
        for number in range(40):
            calls.clear()
            await topics.create(f"topic-{number}", 1)
            costs.append(calls.total())
        assert len(topics.names()) == 40
    logs.close()
    # the middle ones: a creation now and then meets the watches of the one before
    assert median(costs[20:]) <= median(costs[:20]), costs


def counting(calls: Counter[str], name: str, call: Any) -> Any:
    """Return a call that is counted."""

    async def counted(*arguments: Any, **options: Any) -> Any:
        calls[name] += 1
        return await call(*arguments, **options)

    return counted
