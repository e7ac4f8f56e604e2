# SPDX-License-Identifier: Apache-2.0
"""Kafka's own ConsumerPerformance, which prints its progress ten times a second.

With the new consumer it does not verify CRCs: it sets ``check.crcs`` to false, and no option changes that. This is in
favour of that peer. The high-level consumer commits to ZooKeeper and the new one to Kafka, as they do by default.
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
    """Return the command that reads with the ZooKeeper-based consumer (releases up to 1.1.1)."""
    return _command(source, "--zookeeper", source.cluster.zookeeper, "--threads", "1", "--fetch-size", str(FETCH_BYTES))


def _command(source: Source, *where: str) -> list[str]:
    return java_command(
        source.cluster.release, _MAIN, *where, "--topic", source.topic, "--group", f"bench-{time.monotonic_ns()}",
        "--messages", str(source.records), "--show-detailed-stats", "--hide-header",
        "--reporting-interval", str(_REPORT_MS),
    )  # fmt: skip


def parse_report(line: str) -> Sample | None:
    """Read a line of the detailed report; return None for any other line.

    The fields are: time, id, MB so far, MB/s, records so far, records/s. Later releases add more.
    """
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < 6:
        return None
    try:
        at = datetime.strptime(fields[0], _TIME).replace(tzinfo=UTC)
        return at.timestamp(), int(fields[4])
    except ValueError:
        return None
