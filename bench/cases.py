# SPDX-License-Identifier: Apache-2.0
"""What is measured, by whom, and what is aimed at: declarations, and how ``--cases`` selects among them.

A case is one topic and everybody who reads it, in turns; all that is said of that topic's kind of data comes from the same
rounds. Records are of 100 bytes or of 100 to 400; larger ones are fewer, by ``fewer``, and so are their marks.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


class Reader(enum.StrEnum):
    """Who reads."""

    DAEMON = "consumerd"
    """The whole daemon, positions committed to ZooKeeper, into the null sink, which folds all it gets into a checksum."""
    PURE = "consumerd (pure Python)"
    """The same without the native kernel."""
    PARQUET = "consumerd, Parquet"
    """The whole daemon into Parquet; only records in published files count."""
    PARQUET_SNAPPY = "consumerd, Parquet (snappy)"
    """The same with pages compressed by snappy instead of zstd."""
    JAVA_NEW = "Java new consumer"
    JAVA_OLD = "Java high-level consumer"
    CONFLUENT = "confluent-kafka"
    AIOKAFKA = "aiokafka"
    KAFKA_PYTHON = "kafka-python"
    SOCKET = "raw socket"
    """Pipelined fetches of 8 MB whose batches are only walked: what the broker gives."""


class Payload(enum.StrEnum):
    """What values are made of."""

    REPEATED = "repeated"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What a topic holds, as the release's own producer writes it; each partition has as much of it."""

    release: str
    codec: str = "none"
    payload: Payload = Payload.REPEATED
    value_bytes: int = 100
    fewer: int = 1
    partitions: int = 1

    @property
    def topic(self) -> str:
        """Its name."""
        size = "" if self.value_bytes == 100 else f"-{self.value_bytes}"
        partitions = "" if self.partitions == 1 else f"-in-{self.partitions}"
        return f"bench-{self.codec}-{self.payload}{size}{partitions}"

    @property
    def values(self) -> str:
        """The values, in words."""
        spread = "" if self.partitions == 1 else f", {self.partitions} partitions"
        if self.payload is Payload.JSON:
            return f"random JSON of 100 to 400 bytes{spread}"
        if self.value_bytes % 1024 == 0:
            return f"values of {self.value_bytes // 1024} KiB{spread}"
        return f"{self.value_bytes} bytes, repeated{spread}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``reader`` is at least ``times`` as fast as ``peer``, or, without one, reads ``records_per_s`` at least."""

    reader: Reader
    peer: Reader | None = None
    times: float = 0.0
    records_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One topic, its readers in their turns, and what is aimed at."""

    name: str
    filling: Filling
    readers: tuple[Reader, ...]
    targets: tuple[Target, ...]


_EVERYBODY: Final = tuple(reader for reader in Reader if reader is not Reader.PARQUET_SNAPPY)
_PARQUET_PARTITIONS: Final = 4
"""A file is written by one thread at a time, so that one partition alone says what one core writes."""


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
    *(_compressed(codec, payload) for codec in ("snappy", "lz4", "gzip") for payload in Payload),
    _large("1k", 1 << 10, 4),
    _large("64k", 64 << 10, 256),
    *(_messages(codec, payload) for codec in ("none", "snappy") for payload in Payload),
)
"""By release: one cluster runs at a time."""


class Part(enum.StrEnum):
    """What is measured without such a topic, by a module of its own."""

    KERNEL = "kernel"
    LATENCY = "latency"
    IDLE = "idle"
    REBALANCE = "rebalance"


def select(patterns: Iterable[str]) -> tuple[tuple[Case, ...], tuple[Part, ...]]:
    """Return the cases and parts whose names match one of the patterns (``*`` and ``?`` as in a shell).

    Raises ValueError for a pattern that matches none.
    """
    patterns = tuple(patterns)
    names = [case.name for case in CASES] + list(Part)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no case is named {pattern}; there are {', '.join(names)}")

    def wanted(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return tuple(case for case in CASES if wanted(case.name)), tuple(part for part in Part if wanted(part))
