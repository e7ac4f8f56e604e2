# SPDX-License-Identifier: Apache-2.0
"""Promise 4 by the system's own count: a whole daemon under 200 partitions of 1 MiB messages and a sink that stalls.

A broker of its own process serves partitions that never end; ZooKeeper is a real one; nothing of Kafka is needed.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from consumerd.wire import kernel
from tests.support.daemon import Daemon
from tests.support.memory import MIB, Setting, read_memory, run_broker, run_daemon
from tests.support.stalling_sinks import STALL
from tests.support.zookeeper import run_server

BUDGET_MIB = 64
PARQUET_BUDGET_MIB = 128
"""Of less, half is for Arrow, and what is left of the constant varies with its release."""
DEFAULT_BUDGET_MIB = 256
CONSTANT_MIB = 160 if kernel.NATIVE else 190
"""Without the kernel, blocks come from glibc, which returns them late: up to 169 MiB were seen on Python 3.14."""
PARTITION_MIB = 0.1
"""For each partition, as docs/sizing.md has it. The peak is that of the first fetches (267 to 281 MiB of 308 in six runs on a
busy machine with a budget of 128); while the sink stands still it does not grow."""
FILLED = 7 / 8
"""Of all that is not set aside for libraries, so much must be held once all stands still: the rest is less than a fetch."""
RECORDS = 50
PATIENCE_S = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.drawn]


def most_mib(setting: Setting) -> float:
    """Return what docs/sizing.md has people give the container."""
    return setting.budget_mib + CONSTANT_MIB + PARTITION_MIB * setting.partitions


def delivered(daemon: Daemon) -> int:
    """Return how many records all partitions have moved."""
    return sum(one["position"] or 0 for one in daemon.status()["partitions"])


def wait_for_records(daemon: Daemon, count: int) -> None:
    daemon.wait(lambda: delivered(daemon) >= count, f"{count} records", PATIENCE_S)


def is_full(held: Mapping[str, int], budget_mib: int) -> bool:
    """Tell of ``buffered_bytes`` whether it is most of what is not set aside for libraries."""
    libraries = held["libraries"]
    return sum(held.values()) - libraries > FILLED * (budget_mib * MIB - libraries)


def full_and_still(daemon: Daemon, budget_mib: int) -> Callable[[], bool]:
    """Return a condition that holds when memory is full and nothing has moved for a second: neither records nor what is held.

    Before it is full, a broker that has to wait for the processor may let a second pass.
    """
    seen = (time.monotonic(), (-1, {}))

    def holds() -> bool:
        nonlocal seen
        held = daemon.status()["buffered_bytes"]
        now = (delivered(daemon), held)
        if now != seen[1]:
            seen = (time.monotonic(), now)
        return is_full(held, budget_mib) and time.monotonic() - seen[0] >= 1

    return holds


@pytest.mark.parametrize(
    ("sink", "codec", "budget_mib"),
    [
        ("stalling-parquet", "none", PARQUET_BUDGET_MIB),
        ("stalling-parquet", "gzip", PARQUET_BUDGET_MIB),
        ("stalling-parquet", "gzip", DEFAULT_BUDGET_MIB),
        ("stalling-jsonl", "gzip", BUDGET_MIB),
    ],
)
def test_a_stalled_sink_keeps_memory_within_the_budget_and_a_constant(
    sink: str, codec: str, budget_mib: int, tmp_path: Path
) -> None:
    """200 partitions, uncompressed and packed 100 to 1: the most that was ever resident, before, during and after."""
    setting = Setting(sink=sink, codec=codec, partitions=200, budget_mib=budget_mib)
    stall = tmp_path / STALL
    with (
        run_server() as zookeeper,
        run_broker(zookeeper.connect_string, setting.partitions, setting.codec),
        run_daemon(setting, zookeeper.connect_string, tmp_path) as daemon,
    ):
        wait_for_records(daemon, RECORDS)
        stall.touch()
        daemon.wait(
            full_and_still(daemon, budget_mib), "the stall to fill memory, and everything to stand still", PATIENCE_S
        )
        held = daemon.status()["buffered_bytes"]
        before = delivered(daemon)
        stall.unlink()
        wait_for_records(daemon, before + RECORDS)
        peak = read_memory(daemon.process.pid).peak

    assert is_full(held, budget_mib), f"the stall did not fill memory: {held}"
    assert peak < most_mib(setting)


def test_units_that_expand_beyond_the_limit_stop_their_partitions_and_take_no_memory(tmp_path: Path) -> None:
    """100 MiB in a batch of 1 MiB, on 50 partitions at once: nothing is decompressed further than allowed, nor kept."""
    setting = Setting(sink="null", codec="bomb", partitions=50, budget_mib=BUDGET_MIB)
    with (
        run_server() as zookeeper,
        run_broker(zookeeper.connect_string, setting.partitions, setting.codec),
        run_daemon(setting, zookeeper.connect_string, tmp_path) as daemon,
    ):

        def all_stopped() -> bool:
            states = [one["state"] for one in daemon.status()["partitions"]]
            return states.count("stopped") >= setting.partitions

        daemon.wait(all_stopped, "every partition stopped", 2 * PATIENCE_S)
        reasons = {one["reason"].split(": ", 1)[1] for one in daemon.status()["partitions"]}
        peak = read_memory(daemon.process.pid).peak

    assert name_the_limit(reasons), reasons
    assert peak < most_mib(setting)


def name_the_limit(reasons: set[str]) -> bool:
    """Tell whether all of them name the limit that there is: a quarter of the budget."""
    return all(str(BUDGET_MIB * MIB // 4) in reason for reason in reasons)
