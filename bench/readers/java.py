# SPDX-License-Identifier: Apache-2.0
"""Kafka's own ConsumerPerformance, which reports ten times a second how much it has read.

With the new consumer it does not check CRCs (it sets ``check.crcs`` to false and cannot be told otherwise), which is in
that peer's favour. The high-level consumer commits to ZooKeeper, the new one to Kafka, as they do by default.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from bench.readers.running import Source
from bench.readers.telling import FETCH_BYTES
from bench.slopes import Sample
from tests.support.kafka import java_command

_MAIN: Final = "kafka.tools.ConsumerPerformance"
_TIME: Final = "%Y-%m-%d %H:%M:%S:%f"
_REPORT_MS: Final = 100


def new_consumer(source: Source) -> list[str]:
    """Return the command that reads with the new consumer."""
    return _command(source, "--broker-list", source.cluster.bootstrap, "--fetch-size", str(FETCH_BYTES))


def high_level_consumer(source: Source) -> list[str]:
    """Return the command that reads with the ZooKeeper-based one (releases up to 1.1.1)."""
    return _command(source, "--zookeeper", source.cluster.zookeeper, "--threads", "1", "--fetch-size", str(FETCH_BYTES))


def _command(source: Source, *where: str) -> list[str]:
    return java_command(
        source.cluster.release, _MAIN, *where, "--topic", source.topic, "--group", f"bench-{time.monotonic_ns()}",
        "--messages", str(source.records), "--show-detailed-stats", "--hide-header",
        "--reporting-interval", str(_REPORT_MS),
    )  # fmt: skip


def parse_report(line: str) -> Sample | None:
    """Read a line of a detailed report: time, id, MB so far, MB/s, records so far, records/s, and more in later releases."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < 6:
        return None
    try:
        at = datetime.strptime(fields[0], _TIME).replace(tzinfo=UTC)
        return at.timestamp(), int(fields[4])
    except ValueError:
        return None
