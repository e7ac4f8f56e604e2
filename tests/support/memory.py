# SPDX-License-Identifier: Apache-2.0
"""How much memory the daemon takes, as the system counts it: a whole daemon, a real ZooKeeper, an endless broker.

``python -m tests.support.memory --sink stalling-parquet --codec gzip --partitions 200 --budget-mib 64 --seconds 15``
prints what one such run comes to. Sinks: ``null``, and those of ``stalling_sinks``, which stall for the middle third.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.support import verification
from tests.support.daemon import Daemon, settings_for
from tests.support.endless_broker import TOPIC
from tests.support.kafka import nice_command
from tests.support.stalling_sinks import STALL, install
from tests.support.zookeeper import run_server

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Of one process, in MiB: the most that was resident, what is resident now, and how much of that is no file's."""

    peak: float
    resident: float
    anonymous: float


def read_memory(pid: int) -> MemoryUse:
    """Read it from the system."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    peak, resident, anonymous = (int(fields[name].split()[0]) / 1024 for name in ("VmHWM", "VmRSS", "RssAnon"))
    return MemoryUse(peak=peak, resident=resident, anonymous=anonymous)


def forget_peak(pid: int) -> None:
    """Have the peak counted from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@contextmanager
def run_broker(zookeeper: str, partitions: int, codec: str) -> Iterator[None]:
    """Run an endless broker until the block ends."""
    command = [
        *nice_command(5),
        sys.executable,
        "-m",
        "tests.support.endless_broker",
        zookeeper,
        str(partitions),
        codec,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            assert b"ready\n" in iter(process.stdout.readline, b""), "the broker ended"  # its log comes there, too
            yield
        finally:
            process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What to run."""

    sink: str
    codec: str
    partitions: int
    budget_mib: int


@contextmanager
def run_daemon(setting: Setting, zookeeper: str, folder: Path, **fetch: Any) -> Iterator[Daemon]:
    """Run a daemon until the block ends; it is killed then."""
    sink: dict[str, Any] = {"type": setting.sink}
    if setting.sink.startswith("stalling"):
        sink |= {"path": str(folder / "landing"), "roll_ms": 5000}
    settings = settings_for(
        zookeeper,
        "memory",
        topics=(TOPIC,),
        sink=sink,
        fetch={"memory_budget_bytes": setting.budget_mib * MIB, **fetch},
        log={"level": "info"},
    )
    here = [str(install(folder / "sinks")), str(Path(__file__).parents[2])]
    with Daemon(folder, "daemon", settings, niceness=5, python_path=tuple(here)) as daemon:
        yield daemon


def main() -> None:
    """Run one setting and print a line of JSON a second, and the whole at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sink", default="null")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--budget-mib", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--verbose", action="store_true")
    chosen = parser.parse_args()
    setting = Setting(sink=chosen.sink, codec=chosen.codec, partitions=chosen.partitions, budget_mib=chosen.budget_mib)
    with tempfile.TemporaryDirectory() as made, run_server() as zookeeper:
        folder = Path(made)
        with (
            run_broker(zookeeper.connect_string, setting.partitions, setting.codec),
            run_daemon(setting, zookeeper.connect_string, folder) as daemon,
        ):
            daemon.wait_ready(60)
            began = time.monotonic()
            held: dict[str, int] = {}
            while (age := time.monotonic() - began) < chosen.seconds:
                third = int(3 * age / chosen.seconds)
                stall = folder / STALL
                stall.touch() if third == 1 else stall.unlink(missing_ok=True)
                time.sleep(0.5)
                status = daemon.status()
                held = {"held": max(held.get("held", 0), sum(status["buffered_bytes"].values()) // MIB)}
                if chosen.verbose:
                    moved = sum(one["position"] or 0 for one in status["partitions"])
                    now = read_memory(daemon.process.pid)
                    sys.stdout.write(f"{age:5.1f} s, held {status['buffered_bytes']}, {moved} records, {now}\n")
            moved = sum(one["position"] or 0 for one in daemon.status()["partitions"])
            use = {name: round(value) for name, value in asdict(read_memory(daemon.process.pid)).items()}
            sys.stdout.write(json.dumps({**asdict(setting), **use, **held, "records": moved}) + "\n")
            name = f"`python -m tests.support.memory`: {setting.sink}, {setting.codec}, {setting.partitions} partitions"
            verification.record(name, {f"MiB with a budget of {setting.budget_mib} MiB": use["peak"]})


if __name__ == "__main__":
    main()
