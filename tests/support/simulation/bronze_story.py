# SPDX-License-Identifier: Apache-2.0
"""Stories that go on into bronze.

A simulated group lands Parquet files or JSON lines, and jobs carry them over.

Beside all that happens in other stories: logs lose their ends under a policy or until an operator says where to go on,
operators ask for positions while they do, topics are made again after it, and each replica has a folder of its own.
Bronze runs while the group is at work, with disturbances, and to its end after everybody has left.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import random
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Final

from consumerd.delivery.policy import OffsetPolicy, OnOutOfRange
from consumerd.delivery.status import DeliveryState
from consumerd.sinks.files import FileFormat
from consumerd.sinks.jsonl import JsonlFormat
from consumerd.sinks.parquet import ParquetFormat
from tests.support.simulation.bronze import BronzeJobs, land_stranger
from tests.support.simulation.processes import Process, World
from tests.support.simulation.story import Outcome, Story, tell_story

_FOLDERS = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where stories keep their tables: in memory where there is such a folder, since they make and remove many files."""


_ON_ABOVE: Final[tuple[OnOutOfRange, ...]] = ("earliest", "nearest", "stop")


def tell_into_bronze(seed: int) -> Outcome:
    """Tell a seed's story into a bronze table; a failure is part of the outcome."""
    folder = Path(tempfile.mkdtemp(prefix="bronze-story-", dir=_FOLDERS))
    try:
        stranger = _land_stranger()
        return tell_story(seed, lambda seed, world: BronzeStory(seed, world, folder, stranger))
    finally:
        shutil.rmtree(folder)


@functools.cache
def _land_stranger() -> Path:
    """Land files of another cluster, once for all stories of a process."""
    folder = Path(tempfile.mkdtemp(prefix="bronze-stranger-", dir=_FOLDERS))
    atexit.register(shutil.rmtree, folder)
    return land_stranger(folder / "landing")


class BronzeStory(Story):
    """A story with a bronze table.

    Args:
        folder: empty folder for the table and a copy of the landing zone.
        stranger: a landing root of another cluster.
    """

    def __init__(self, seed: int, world: World, folder: Path, stranger: Path) -> None:
        super().__init__(seed, world)
        self.own = own = random.Random(f"bronze of {seed}")
        self.brokers.with_values = True
        self.with_elections = not self.java_too and own.random() < 0.75
        self.with_wishes = not self.java_too and own.random() < 0.5
        self.recreates = not (self.java_too or self.with_wishes)
        on_above: OnOutOfRange = own.choice(_ON_ABOVE)
        shared = self.java_too or own.random() < 0.25
        self.configured = self.configured or not shared
        self.judge.several_roots = not shared
        kind: FileFormat = ParquetFormat("zstd", 1) if own.random() < 0.7 else JsonlFormat()
        self.judge.format = kind
        self.setting = replace(
            self.setting,
            file_format=kind,
            shared=shared,
            delivery=replace(self.setting.delivery, offsets=OffsetPolicy(on_above=on_above)),
        )
        self.bronze = BronzeJobs(folder, stranger, own, self.judge, self.disk)
        self.disk.heard = self._linked
        self.pause_s = own.choice([(0.5, 5.0), (4.0, 15.0)])
        """Shortest and longest time between two runs of bronze."""
        self.resting = False
        self.everybody_delivers = False

    def _linked(self, path: Path, process: Process) -> None:
        self.judge.linked(path, process)
        self.bronze.linked(path)

    def beside(self) -> list[Coroutine[None, None, None]]:
        """See Story."""
        return [*super().beside(), self.carry_over()]

    async def run(self) -> None:
        """See Story."""
        async with asyncio.TaskGroup() as group:
            operator = group.create_task(self.operate())
            await super().run()
            operator.cancel()
        self.bronze.run_to_the_end()
        if self.everybody_delivers:
            missing = self.bronze.find_missing()
            assert not missing, f"bronze lacks what the logs hold: {missing[:3]}"

    async def disturb(self) -> None:
        """See Story: the logs have time to grow, and to lose their ends, in between."""
        await super().disturb()
        if not self.daemons:
            self.join()
        await asyncio.sleep(self.own.uniform(2.0, 8.0))
        await super().disturb()

    async def carry_over(self) -> None:
        """Run bronze now and then."""
        while True:
            await asyncio.sleep(self.own.uniform(*self.pause_s))
            self.bronze.run_disturbed()

    async def operate(self) -> None:
        """Request positions as an operator: for stopped partitions, and now and then for others."""
        while True:
            await asyncio.sleep(self.own.uniform(0.2, 2.0))
            for daemon in list(self.daemons.values()):
                if not daemon.process.dead:
                    for one in daemon.statuses():
                        if one.state is DeliveryState.STOPPED and one.partition in self.brokers.logs:
                            self.wish(one.partition)
            if self.with_wishes and not self.resting and self.brokers.logs and self.own.random() < 0.15:
                # from the beginning: the files that land then have all records of those before
                self.wish(self.own.choice(sorted(self.brokers.logs)), self.own.choice([0, 0, None]))

    async def come_to_rest(self) -> None:
        """See Story."""
        self.resting = True
        await super().come_to_rest()
        self.everybody_delivers = bool(self.daemons or self.java)
        self.bronze.run_disturbed()
