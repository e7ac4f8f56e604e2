# SPDX-License-Identifier: Apache-2.0
"""Offsets by partition, as values and as the JSON that Spark's own Kafka source writes: ``{"topic": {"0": 5}}``.

Pure. An offset here is the next one to be read, as everywhere in consumerd, so that the end of a range is exclusive.

A checkpoint says besides which making of a topic its offsets are of, by the ``czxid`` of the topic's node where
ZooKeeper is
known: ``{"orders": {"0": 5}, "orders@7": {}}``. No topic has such a name, and Spark's own source, which reads offsets of
partitions, finds none there: a query may go over to it, and back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from consumerd.errors import ConfigError
from consumerd.model import PartitionKey, TopicPartition, find_topic_fault

PartitionOffsets = Mapping[TopicPartition, int]

JsonOffsets = dict[str, dict[str, int]]
"""What a checkpoint holds: topic, partition as text, next offset."""

_MOST: Final = (1 << 63) - 1
_MOST_PARTITION: Final = (1 << 31) - 1
_MADE: Final = "@"
_CZXID: Final = re.compile("[0-9]{1,19}")
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}")
"""Nothing else, such as 00: one partition would have two names."""


def to_json(offsets: PartitionOffsets, czxids: Mapping[str, int] = MappingProxyType({})) -> JsonOffsets:
    """Return offsets as they stand in a checkpoint, topics and partitions in order; ``czxids`` by topic."""
    found: JsonOffsets = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    for topic in sorted(czxids):
        found[f"{topic}{_MADE}{czxids[topic]}"] = {}
    return found


def read_checkpoint(document: JsonOffsets) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    """Read what :func:`to_json` has made, or Spark's own source: offsets, and the topics' czxids. Raises ConfigError."""
    offsets: JsonOffsets = {}
    czxids: dict[str, int] = {}
    for name, by_partition in document.items():
        topic, made, czxid = name.partition(_MADE)
        if made and not by_partition and _CZXID.fullmatch(czxid):
            czxids[topic] = int(czxid)
        else:
            offsets[name] = by_partition
    return from_json(offsets, what="the checkpoint"), czxids


def from_json(document: object, *, what: str, least: int = 0) -> dict[TopicPartition, int]:
    """Read offsets, or times, out of a parsed JSON document; ``what`` says where it comes from, ``least`` the smallest.

    Raises ConfigError that names topic and partition.
    """
    if not isinstance(document, dict):
        raise ConfigError(f'{what}: expected {{"topic": {{"0": 23}}}}, got {_describe(document)}')
    found: dict[TopicPartition, int] = {}
    for topic, by_partition in document.items():
        _check_topic(topic, what)
        if not isinstance(by_partition, dict):
            raise ConfigError(f'{what}: {topic}: expected {{"0": 23}}, got {_describe(by_partition)}')
        for key, number in by_partition.items():
            partition = _read_partition(topic, key, what)
            if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= _MOST:
                raise ConfigError(f"{what}: {partition}: expected a number from {least} on, got {_describe(number)}")
            found[partition] = number
    return found


def parse_offsets(text: str, *, what: str, least: int = 0) -> dict[TopicPartition, int]:
    """Read offsets, or times, out of JSON text. Raises ConfigError as :func:`from_json`."""
    found = from_json(_parse(text, what), what=what, least=least)
    if not found:
        raise ConfigError(f"{what}: no partition is named")
    return found


def parse_assignment(text: str, *, what: str) -> list[TopicPartition]:
    """Read ``{"topic": [0, 1]}``; returns the partitions in order, each once. Raises ConfigError."""
    document = _parse(text, what)
    if not isinstance(document, dict):
        raise ConfigError(f'{what}: expected {{"topic": [0, 1]}}, got {_describe(document)}')
    found = set()
    for topic, numbers in document.items():
        _check_topic(topic, what)
        if not isinstance(numbers, list):
            raise ConfigError(f"{what}: {topic}: expected a list of partitions, got {_describe(numbers)}")
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int):
                raise ConfigError(f"{what}: {topic}: expected a partition's number, got {_describe(number)}")
            found.add(_read_partition(topic, str(number), what))
    if not found:
        raise ConfigError(f"{what}: no partition is named")
    return sorted(found)


def _parse(text: str, what: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what}: not JSON that can be used: {error}") from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found


def _check_topic(topic: str, what: str) -> None:
    if (fault := find_topic_fault(topic)) is not None:
        raise ConfigError(f"{what}: {fault}")


def _read_partition(topic: str, key: str, what: str) -> TopicPartition:
    if not _NUMBER.fullmatch(key) or int(key) > _MOST_PARTITION:
        raise ConfigError(f"{what}: {topic}: expected a partition's number, got {key!r}")
    return TopicPartition(topic, PartitionKey(int(key)))


def _describe(value: object) -> str:
    return repr(value)[:60]
