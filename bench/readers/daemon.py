# SPDX-License-Identifier: Apache-2.0
"""The whole daemon with its defaults, as users run it: a group of one in ZooKeeper, positions committed, metrics served.

Into the null sink, records are counted by its own metric, read five times a second over one connection. Into Parquet only
what is published counts: a file is worth its records from the moment in which it was linked to its name, both of which the
file system says, so that nobody asks the daemon anything.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from bench.readers.running import ReaderFailed, Running, Source
from bench.slopes import Sample
from tests.support.daemon import Daemon, DaemonFailed, settings_for

_COUNTER: Final = "consumerd_records_delivered_total{"
_SCRAPE_S: Final = 0.2
ROLL_MS: Final = 1000
"""How often a Parquet file is published here, or more often where there are few records; by default it is once a minute,
or at 128 MiB.
"""
_RECORDS_A_MS: Final = 20_000


def null_sink(environment: Mapping[str, str]) -> Callable[[Source, Path], AbstractContextManager[Running]]:
    """Return a starter for the daemon with the null sink."""

    @contextmanager
    def start(source: Source, folder: Path) -> Iterator[Running]:
        with _daemon(source, folder, {"type": "null"}, environment) as daemon:
            address = urlsplit(daemon.url).netloc
            with closing(http.client.HTTPConnection(address, timeout=10)) as connection:
                yield _Counted(daemon, connection, [])

    return start


def parquet_sink(
    options: Mapping[str, Any], environment: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Source, Path], AbstractContextManager[Running]]:
    """Return a starter for the daemon with the Parquet sink and these of its settings."""

    @contextmanager
    def start(source: Source, folder: Path) -> Iterator[Running]:
        landing = folder / "landing"
        sink = {
            "type": "parquet",
            "path": str(landing),
            "roll_ms": max(50, min(ROLL_MS, source.records // _RECORDS_A_MS)),
            **options,
        }
        with _daemon(source, folder, sink, environment) as daemon:
            yield _Landed(daemon, landing, source.records, {})

    return start


@contextmanager
def _daemon(source: Source, folder: Path, sink: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Daemon]:
    group = f"bench-{time.monotonic_ns()}"
    settings = settings_for(
        source.cluster.zookeeper, group, topics=(source.topic,), sink=sink,
        log={"level": "info"}, offsets={"commit_interval_ms": 5000},
    )  # fmt: skip
    try:
        with Daemon(folder, "daemon", settings, environment=environment) as daemon:
            yield daemon
            daemon.terminate()
    except DaemonFailed as error:
        raise ReaderFailed(str(error)) from error


@dataclass
class _Counted:
    daemon: Daemon
    connection: http.client.HTTPConnection
    samples: list[Sample]

    @property
    def pid(self) -> int:
        return self.daemon.process.pid

    def series(self) -> Sequence[Sample]:
        if not self.samples or time.monotonic() - self.samples[-1][0] >= _SCRAPE_S:
            try:
                self.connection.request("GET", "/metrics")
                text = self.connection.getresponse().read().decode()
            except (OSError, http.client.HTTPException) as error:
                raise ReaderFailed(f"{error!r}: {self.daemon.log()[-1000:]}") from error
            counts = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(_COUNTER)]
            self.samples.append((time.monotonic(), int(sum(map(float, counts)))))
        return self.samples


@dataclass
class _Landed:
    """Published files; each with its moment of publishing and its count."""

    daemon: Daemon
    landing: Path
    records: int
    files: dict[Path, Sample]

    @property
    def pid(self) -> int:
        return self.daemon.process.pid

    def series(self) -> Sequence[Sample]:
        import pyarrow.parquet

        if self.daemon.process.poll() is not None:
            raise ReaderFailed(self.daemon.log()[-1000:])
        for path in self.landing.glob("topic=*/partition=*/chain=*/*.parquet"):
            if path not in self.files:
                linked = path.stat().st_ctime
                self.files[path] = linked, pyarrow.parquet.read_metadata(path).num_rows
        series, total = [], 0
        for at, count in sorted(self.files.values()):
            total += count
            # the file at the topic's end was waiting for more
            if total < self.records:
                series.append((at, total))
        return series
