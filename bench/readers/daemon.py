# SPDX-License-Identifier: Apache-2.0
"""The whole daemon as a reader, with its default settings.

It is a group of one in ZooKeeper, commits positions and serves metrics.

With the null sink, its own metric counts the records. It is scraped five times a second over one connection.

With the Parquet sink, only records in published files count, from the time at which a file was linked to its final
name. Names and times come from the file system, so the measurement sends no requests to the daemon.
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
"""Longest interval in ms in which Parquet files are published here; topics of few records have a shorter one.

The daemon's default is one minute, or 128 MiB.
"""
_RECORDS_A_MS: Final = 20_000


def null_sink(environment: Mapping[str, str]) -> Callable[[Source, Path], AbstractContextManager[Running]]:
    """Return a starter for the daemon with the null sink.

    Args:
        environment: additional environment variables of the daemon.
    """

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
    """Return a starter for the daemon with the Parquet sink.

    Args:
        options: settings of the sink, besides those that all measurements need.
        environment: additional environment variables of the daemon.
    """

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
    """A daemon with the Parquet sink, and its published files.

    ``files`` holds each file's time of publication and its number of records.
    """

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
            # the last file does not count: it was published late, after a wait for more records
            if total < self.records:
                series.append((at, total))
        return series
