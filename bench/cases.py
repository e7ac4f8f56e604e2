# SPDX-License-Identifier: Apache-2.0
"""Benchmark cases: topics, their readers and their targets; selection by ``--cases``.

A case is one topic and all its readers, which take turns. All figures for one kind of data therefore come from the same
rounds. Records have 100 bytes, or 100 to 400 bytes. Topics of larger records hold fewer of them: their record count and
their marks (see ``bench.slopes``) are divided by ``Filling.fewer``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


class Reader(enum.StrEnum):
    """Readers that a case can compare. The value is the reader's name in the tables."""

    DAEMON = "consumerd"
    """The whole daemon with the null sink, which computes a checksum of all records. Positions go to ZooKeeper."""
    PURE = "consumerd (pure Python)"
    """The daemon as in DAEMON, without the native kernel."""
    PARQUET = "consumerd, Parquet"
    """The whole daemon with the Parquet sink. Only records in published files count."""
    PARQUET_SNAPPY = "consumerd, Parquet (snappy)"
    """The daemon as in PARQUET, with pages compressed by snappy instead of zstd."""
    JAVA_NEW = "Java new consumer"
    JAVA_OLD = "Java high-level consumer"
    CONFLUENT = "confluent-kafka"
    CONNECTOR_BATCHES = "connector, batches"
    """The library's ConsumerConnector, a member of a group, iterating batches."""
    CONNECTOR_RECORDS = "connector, records"
    """The library's ConsumerConnector, a member of a group, iterating single records."""
    SIMPLE = "SimpleConsumer"
    """The library's SimpleConsumer: one fetch of 8 MB after another, without a group."""
    AIOKAFKA = "aiokafka"
    KAFKA_PYTHON = "kafka-python"
    SOCKET = "raw socket"
    """Pipelined fetches of 8 MB, of which only the batch headers are read. Its rate is the broker's limit."""


class Payload(enum.StrEnum):
    """Kinds of record values."""

    REPEATED = "repeated"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Contents of a topic, in the format that the release's own producer writes.

    Attributes:
        release: Kafka release of the broker and of the producer.
        codec: compression codec; ``none`` for uncompressed records.
        payload: kind of values.
        value_bytes: size of a value. JSON values have 100 to 400 bytes instead.
        fewer: divisor of the record count and of the marks, for topics of large values.
        partitions: number of partitions, which all hold the same amount of data.
    """

    release: str
    codec: str = "none"
    payload: Payload = Payload.REPEATED
    value_bytes: int = 100
    fewer: int = 1
    partitions: int = 1
    suffix: str = ""
    """Tells the topic's name from that of another case with the same contents."""

    @property
    def topic(self) -> str:
        """Name of the topic, made from its contents."""
        size = "" if self.value_bytes == 100 else f"-{self.value_bytes}"
        partitions = "" if self.partitions == 1 else f"-in-{self.partitions}"
        return f"bench-{self.codec}-{self.payload}{size}{partitions}{self.suffix}"

    @property
    def values(self) -> str:
        """Description of the values for the tables."""
        spread = "" if self.partitions == 1 else f", {self.partitions} partitions"
        if self.payload is Payload.JSON:
            return f"random JSON of 100 to 400 bytes{spread}"
        if self.value_bytes % 1024 == 0:
            return f"values of {self.value_bytes // 1024} KiB{spread}"
        return f"{self.value_bytes} bytes, repeated{spread}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Performance target of a reader, relative to a peer or absolute.

    Attributes:
        reader: reader that must reach the target.
        peer: reader to compare it with; None for an absolute target.
        times: least ratio of the reader's rate to the peer's rate.
        records_per_s: least rate of the reader, if there is no peer.
    """

    reader: Reader
    peer: Reader | None = None
    times: float = 0.0
    records_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One topic, its readers in the order of their turns, and their targets."""

    name: str
    filling: Filling
    readers: tuple[Reader, ...]
    targets: tuple[Target, ...]


_LIBRARY: Final = (Reader.CONNECTOR_BATCHES, Reader.CONNECTOR_RECORDS, Reader.SIMPLE)
_EVERYBODY: Final = tuple(reader for reader in Reader if reader not in (Reader.PARQUET_SNAPPY, *_LIBRARY))
_PARQUET_PARTITIONS: Final = 4
"""Partitions of the topics for Parquet.

One thread at a time writes a file, so a topic of one partition would only show what one core can write.
"""


def _plain(payload: Payload) -> Case:
    return Case(
        name=f"1.1.1-none-{payload}",
        filling=Filling(release="1.1.1", payload=payload),
        readers=_EVERYBODY,
        targets=(
            Target(reader=Reader.DAEMON, peer=Reader.JAVA_NEW, times=1.5),
            Target(reader=Reader.DAEMON, peer=Reader.SOCKET, times=0.5),
            Target(reader=Reader.PURE, peer=Reader.AIOKAFKA, times=1.0),
        ),
    )


def _parquet(payload: Payload, records_per_s: float) -> Case:
    writers = (Reader.PARQUET, Reader.PARQUET_SNAPPY)
    return Case(
        name=f"1.1.1-parquet-{payload}",
        filling=Filling(release="1.1.1", payload=payload, partitions=_PARQUET_PARTITIONS),
        readers=(*writers, Reader.AIOKAFKA),
        targets=(
            *(Target(reader=reader, records_per_s=records_per_s) for reader in writers),
            *(Target(reader=reader, peer=Reader.AIOKAFKA, times=4.0) for reader in writers),
        ),
    )


def _library(payload: Payload) -> Case:
    return Case(
        name=f"1.1.1-library-{payload}",
        filling=Filling(release="1.1.1", payload=payload, suffix="-library"),
        readers=(Reader.DAEMON, Reader.PURE, *_LIBRARY, Reader.AIOKAFKA),
        targets=(
            Target(reader=Reader.CONNECTOR_BATCHES, peer=Reader.DAEMON, times=0.8),
            Target(reader=Reader.CONNECTOR_RECORDS, peer=Reader.AIOKAFKA, times=1.0),
            Target(reader=Reader.SIMPLE, peer=Reader.PURE, times=1.0),
        ),
    )


def _compressed(codec: str, payload: Payload) -> Case:
    return Case(
        name=f"1.1.1-{codec}-{payload}",
        filling=Filling(release="1.1.1", codec=codec, payload=payload),
        readers=(Reader.DAEMON, Reader.JAVA_NEW),
        targets=(Target(reader=Reader.DAEMON, peer=Reader.JAVA_NEW, times=1.2),),
    )


def _messages(codec: str, payload: Payload) -> Case:
    ahead = Target(reader=Reader.DAEMON, peer=Reader.JAVA_OLD, times=2.0)
    pure = Target(reader=Reader.PURE, peer=Reader.AIOKAFKA, times=1.0)
    plain = codec == "none"
    return Case(
        name=f"0.10.2.2-{codec}-{payload}",
        filling=Filling(release="0.10.2.2", codec=codec, payload=payload),
        readers=(Reader.DAEMON, Reader.JAVA_OLD, *((Reader.PURE, Reader.AIOKAFKA) if plain else ())),
        targets=(ahead, pure) if plain else (ahead,),
    )


def _large(name: str, value_bytes: int, fewer: int) -> Case:
    return Case(
        name=f"1.1.1-values-{name}",
        filling=Filling(release="1.1.1", value_bytes=value_bytes, fewer=fewer),
        readers=(Reader.DAEMON, Reader.JAVA_NEW),
        targets=(Target(reader=Reader.DAEMON, peer=Reader.JAVA_NEW, times=1.0),),
    )


CASES: Final = (
    _plain(Payload.REPEATED),
    _plain(Payload.JSON),
    _parquet(Payload.REPEATED, 4.0e6),
    _parquet(Payload.JSON, 1.5e6),
    *(_library(payload) for payload in Payload),
    *(_compressed(codec, payload) for codec in ("snappy", "lz4", "gzip") for payload in Payload),
    _large("1k", 1 << 10, 4),
    _large("64k", 64 << 10, 256),
    *(_messages(codec, payload) for codec in ("none", "snappy") for payload in Payload),
)
"""All cases, grouped by release, because only one cluster runs at a time."""


class Part(enum.StrEnum):
    """Measurements that need no topic of a case, each by a module of its own."""

    KERNEL = "kernel"
    LATENCY = "latency"
    IDLE = "idle"
    REBALANCE = "rebalance"
    LEGACY = "legacy"
    LEGACY_JAVA = "legacy-java"
    MIRROR_1 = "mirror-1"
    MIRROR_1_LZ4 = "mirror-1-lz4"
    MIRROR_2 = "mirror-2"
    MIRROR_2_LZ4 = "mirror-2-lz4"
    TRANSACTIONS = "transactions"
    MIRROR_START = "mirror-start"
    PRODUCER = "producer"


def select(patterns: Iterable[str]) -> tuple[tuple[Case, ...], tuple[Part, ...]]:
    """Return the cases and parts whose names match one of the patterns.

    ``*`` and ``?`` mean the same as in a shell. Raises ValueError for a pattern that matches no name.
    """
    patterns = tuple(patterns)
    names = [case.name for case in CASES] + list(Part)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no case is named {pattern}; there are {', '.join(names)}")

    def wanted(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return tuple(case for case in CASES if wanted(case.name)), tuple(part for part in Part if wanted(part))
