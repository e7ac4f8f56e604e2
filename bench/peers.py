# SPDX-License-Identifier: Apache-2.0
"""Starters of all readers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from bench.cases import Reader
from bench.readers import java
from bench.readers.child import child
from bench.readers.daemon import null_sink, parquet_sink
from bench.readers.running import Source, Starter
from bench.readers.telling import parse_told


def _loop(module: str, *, by_zookeeper: bool = False) -> Starter:
    def command(source: Source) -> list[str]:
        return [
            sys.executable,
            "-m",
            f"bench.readers.{module}",
            source.cluster.zookeeper if by_zookeeper else source.cluster.bootstrap,
            source.topic,
            str(source.records),
        ]

    return child(command, parse_told)


STARTERS: Final[Mapping[Reader, Starter]] = {
    Reader.DAEMON: null_sink({}),
    Reader.PURE: null_sink({"CONSUMERD_KERNEL": "off"}),
    Reader.PARQUET: parquet_sink({}),
    Reader.PARQUET_SNAPPY: parquet_sink({"compression": "snappy"}),
    Reader.JAVA_NEW: child(java.new_consumer, java.parse_report),
    Reader.JAVA_OLD: child(java.high_level_consumer, java.parse_report),
    Reader.CONFLUENT: _loop("confluent_consume"),
    Reader.CONNECTOR_BATCHES: _loop("connector_batches", by_zookeeper=True),
    Reader.CONNECTOR_RECORDS: _loop("connector_records", by_zookeeper=True),
    Reader.SIMPLE: _loop("simple_consumer"),
    Reader.AIOKAFKA: _loop("aiokafka_getmany"),
    Reader.KAFKA_PYTHON: _loop("kafka_python_poll"),
    Reader.SOCKET: _loop("raw_socket"),
}
