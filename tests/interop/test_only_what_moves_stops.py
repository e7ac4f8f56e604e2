# SPDX-License-Identifier: Apache-2.0
"""Partitions that a rebalance does not move do not pause: measured from outside, by when records come out.

What a busy machine does to everybody is told from what a rebalance does to a partition, and does not count: the time for
which the kernel let the member, the broker or this process wait for a processor, and that for which nothing came to a control,
either: one more daemon, alone in a group of its own, that reads a partition of the same broker, filled by the same
producer. Members that come and go are started nicely, so that they take from those that are measured as little as possible.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

from tests.interop.conftest import ClusterFactory, Figure
from tests.support.daemon import Daemon
from tests.support.load import SteadyLoad
from tests.support.mixed_group import MixedGroup
from tests.support.starvation import StarvationMeter, measure_overlap, merge
from tests.support.waiting import wait_until

PARTITIONS = 12
RATE = 200
ALLOWED_S = 0.2
WARM_UP_RECORDS = 400
STALL_S = 0.05
"""Less is no stall: records come every 5 ms, a few at a time."""
NICE = 19

Partition = tuple[str, int]
M = TypeVar("M")


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A stretch of time, and the partitions that stayed with one of ours from its begin to its end."""

    what: str
    begin: float
    end: float
    staying: Mapping[Partition, Daemon]


@dataclass(frozen=True, slots=True)
class Gap:
    """Nothing of a partition came out from ``begin`` to ``end``; ``excused`` of it is the machine's."""

    begin: float
    end: float
    excused: float
    where: str

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def counted(self) -> float:
        return max(0.0, self.seconds - self.excused)

    def __str__(self) -> str:
        return f"{self.seconds:.3f} s, {self.excused:.3f} s of it excused, {self.where}"


@dataclass
class Rebalances:
    """Carries out joins and departures, and notes which partitions stayed during each."""

    group: MixedGroup
    staying: Mapping[str, Daemon]
    """The members that are there all the time, by consumer id."""
    windows: list[Window] = field(default_factory=list)
    members: int = 0

    def join(self, what: str, start: Callable[[], M]) -> M:
        return self._change(f"{what} joins", start, +1)

    def leave(self, what: str, end: Callable[[], object]) -> None:
        self._change(f"{what} leaves", end, -1)

    def _change(self, what: str, change: Callable[[], M], difference: int) -> M:
        self.members += difference
        before, begin = self.group.owners(), time.monotonic()
        result = change()
        self.group.settle(self.members)
        after, settled = self.group.owners(), time.monotonic()
        self.wait_flowing(after, settled)
        kept = {partition: owner for partition, owner in after.items() if before[partition] == owner}
        self.windows.append(Window(what, begin, time.monotonic(), self._with_daemons(kept)))
        return result

    def rest(self, seconds: float) -> Window:
        """Let nothing happen for so long."""
        begin = time.monotonic()
        wait_until(lambda: time.monotonic() > begin + seconds, "the end of the quiet run", seconds + 30)
        return Window("quiet", begin, time.monotonic(), self._with_daemons(self.group.owners()))

    def wait_flowing(self, owners: Mapping[Partition, str], since: float) -> None:
        """Wait until each partition of the members that stay has delivered something that came later than ``since``."""
        wanted = self._with_daemons(owners)

        def flowing() -> bool:
            late = {
                (daemon.name, (one.topic, one.partition))
                for daemon in self.staying.values()
                for one in daemon.deliveries[-20 * RATE :]
                if one.at > since
            }
            return all((daemon.name, partition) in late for partition, daemon in wanted.items())

        wait_until(flowing, "records of every partition")

    def _with_daemons(self, owners: Mapping[Partition, str]) -> dict[Partition, Daemon]:
        return {partition: self.staying[owner] for partition, owner in owners.items() if owner in self.staying}


def times_of(daemon: Daemon) -> dict[Partition, list[float]]:
    """Return when records of each partition came out."""
    found: dict[Partition, list[float]] = defaultdict(list)
    for one in daemon.deliveries:
        found[one.topic, one.partition].append(one.at)
    return found


def gaps_within(times: Sequence[float], begin: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield each stretch without a delivery that has a part in ``begin`` to ``end``."""
    yield from pairwise(times[max(0, bisect_right(times, begin) - 1) : bisect_left(times, end) + 1])


def find_gaps(
    window: Window,
    times: Mapping[str, Mapping[Partition, Sequence[float]]],
    excuses: Mapping[str, Sequence[tuple[float, float]]],
) -> list[Gap]:
    """Return the gaps of the partitions that stayed, the longest that counts first."""
    return sorted(
        (
            Gap(
                begin,
                end,
                excused=measure_overlap(excuses[daemon.name], begin, end) if end - begin > STALL_S else 0.0,
                where=f"partition {partition} of {daemon.name}, {begin - window.begin:.2f} s after: {window.what}",
            )
            for partition, daemon in window.staying.items()
            for begin, end in gaps_within(times[daemon.name][partition], window.begin, window.end)
        ),
        key=lambda gap: gap.counted,
        reverse=True,
    )


def ten_rebalances(run: Rebalances) -> None:
    """Let members of both kinds come and go, nicely."""
    group = run.group
    guest = run.join("one of ours", lambda: group.start(niceness=NICE))
    java = run.join("java", lambda: group.start_java(niceness=NICE))
    run.leave("one of ours", guest.terminate)
    guest = run.join("one of ours", lambda: group.start(niceness=NICE))
    run.leave("java", java.terminate)
    run.leave("one of ours", guest.terminate)
    java = run.join("java", lambda: group.start_java(niceness=NICE, streams=2))
    guest = run.join("one of ours", lambda: group.start(niceness=NICE))
    run.leave("java", java.terminate)
    run.leave("one of ours", guest.terminate)


@pytest.mark.full  # pauses in ms want a machine of their own; that only what moves is drained, unit tests of the group show
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_partitions_that_stay_do_not_pause(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    """Ten rebalances, with Java members too: the longest gap is that of a quiet run as long, and 200 ms at most."""
    cluster = shared_clusters(release)
    flow, control_topic = {unique("flow"): PARTITIONS}, {unique("control"): 1}
    for topic, count in {**flow, **control_topic}.items():
        cluster.create_topic(topic, count)
    (tmp_path / "control").mkdir()
    producer = cluster.ledger_producer(linger_ms="1")
    with (
        MixedGroup(cluster, tmp_path / "control", unique("controls"), control_topic) as alone,
        MixedGroup(cluster, tmp_path, unique("flowing"), flow) as group,
        SteadyLoad(producer, {**flow, **control_topic}, per_second=RATE, tick_s=0.01),
    ):
        control = alone.start()
        alone.settle(1)
        ours = [group.start(streams=2), group.start()]
        group.settle(len(ours))
        run = Rebalances(group, {daemon.status()["consumer_id"]: daemon for daemon in ours}, members=len(ours))
        wait_until(
            lambda: all(len(daemon.deliveries) > WARM_UP_RECORDS * PARTITIONS / 2 for daemon in ours), "a warm start"
        )
        run.wait_flowing(group.owners(), time.monotonic())

        everywhere = {os.getpid(): "", cluster.processes["broker-0"].pid: "kafka-"}
        with StarvationMeter({**everywhere, **{daemon.process.pid: "" for daemon in ours}}) as meter:
            began = time.monotonic()
            ten_rebalances(run)
            quiet = run.rest(time.monotonic() - began)
        times = {daemon.name: times_of(daemon) for daemon in ours}
        (steady,) = times_of(control).values()

    common = [(begin, end) for begin, end in pairwise(steady) if end - begin > STALL_S]
    common += [wait for pid in everywhere for wait in meter.waits[pid]]
    excuses = {daemon.name: merge(common + meter.waits[daemon.process.pid]) for daemon in ours}
    gaps = {window: find_gaps(window, times, excuses) for window in (*run.windows, quiet)}
    moving = sorted((gap for window in run.windows for gap in gaps[window]), key=lambda gap: gap.counted, reverse=True)
    figure("rebalances", len(run.windows))
    figure("partitions that stayed", sum(len(window.staying) for window in run.windows))
    figure("seconds of rebalances", quiet.begin - began)
    for window in (*run.windows, quiet):
        figure(f"largest gap, {window.what}", gaps[window][0])
    figure("largest gap of the quiet run as it was, s", max(gap.seconds for gap in gaps[quiet]))
    figure("largest gap of the rebalances as it was, s", max(gap.seconds for gap in moving))
    allowed = gaps[quiet][0].counted + ALLOWED_S

    assert len(run.windows) == 10
    assert [str(gap) for gap in moving if gap.counted > allowed] == []
