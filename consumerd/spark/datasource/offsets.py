# SPDX-License-Identifier: Apache-2.0
"""Offsets by partition, as values and as JSON: ``{"topic": {"0": 5}}``. Pure.

The JSON is that of Spark's own Kafka source. An offset is the next one to read, so the end of a range is exclusive.
Partition 3 of broker 0 of Kafka 0.6 or 0.7 is ``{"topic": {"0-3": 1234}}``, and its offset counts bytes.

A checkpoint also identifies each topic's incarnation, so that a deleted and re-created topic is noticed. If ZooKeeper
is given, that is the ``czxid`` of the node of the topic, which created it; else it is the topic id, if brokers
have it (2.8 and later). Example: the topic ``orders`` with czxid 7 is ``{"orders": {"0": 5}, "orders@7": {}}``. No
topic can have the name ``orders@7``, and Spark's own source finds no offsets there, so a query can be moved to that
source and back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from consumerd.errors import ConfigError
from consumerd.model import PartitionKey, TopicPartition, find_topic_fault, is_topic_id

PartitionOffsets = Mapping[TopicPartition, int]

JsonOffsets = dict[str, dict[str, int]]
"""Contents of a checkpoint: topic, partition as text, next offset."""

_MOST: Final = (1 << 63) - 1
_MADE: Final = "@"
"""Separator between a topic and its incarnation."""
_CZXID: Final = re.compile("[0-9]{1,19}")


def to_json(offsets: PartitionOffsets, incarnations: Mapping[str, str] = MappingProxyType({})) -> JsonOffsets:
    """Return offsets, and topics' incarnations, as they are in a checkpoint; sorted."""
    found: JsonOffsets = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    for topic in sorted(incarnations):
        found[f"{topic}{_MADE}{incarnations[topic]}"] = {}
    return found


def read_checkpoint(document: JsonOffsets) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    """Return the offsets and the topics' incarnations of a checkpoint.

    It may be one of Spark's own source, without incarnations. Raises ConfigError.
    """
    offsets: JsonOffsets = {}
    incarnations: dict[str, str] = {}
    for name, by_partition in document.items():
        topic, made, incarnation = name.partition(_MADE)
        if made and not by_partition and (_CZXID.fullmatch(incarnation) or is_topic_id(incarnation)):
            incarnations[topic] = incarnation
        else:
            offsets[name] = by_partition
    return from_json(offsets, what="the checkpoint"), incarnations


def from_json(document: object, *, what: str, least: int = 0) -> dict[TopicPartition, int]:
    """Read offsets, or timestamps, by partition from a parsed JSON document.

    Args:
        what: name of the document, for errors.
        least: smallest number allowed.

    Raises ConfigError, which names topic and partition.
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
    """Read offsets, or timestamps, by partition from JSON such as ``{"topic": {"0": 5}}``.

    Args:
        what: name of the option, for errors.
        least: smallest number allowed.

    Raises ConfigError, which names topic and partition.
    """
    found = from_json(_parse(text, what), what=what, least=least)
    if not found:
        raise ConfigError(f"{what}: no partition is named")
    return found


def parse_assignment(text: str, *, what: str) -> list[TopicPartition]:
    """Read partitions such as ``{"topic": [0, 1]}``; return them in order, each once.

    Those of Kafka 0.6 and 0.7 are texts, as in ``{"topic": ["0-0", "1-0"]}``. Raises ConfigError.
    """
    document = _parse(text, what)
    if not isinstance(document, dict):
        raise ConfigError(f'{what}: expected {{"topic": [0, 1]}}, got {_describe(document)}')
    found = set()
    for topic, numbers in document.items():
        _check_topic(topic, what)
        if not isinstance(numbers, list):
            raise ConfigError(f"{what}: {topic}: expected a list of partitions, got {_describe(numbers)}")
        for number in numbers:
            partition = None
            if isinstance(number, (int, str)) and not isinstance(number, bool):
                partition = _read_partition(topic, str(number), what)
            if partition is None or partition.is_legacy != isinstance(number, str):
                raise ConfigError(f"{what}: {topic}: expected a partition's number, got {_describe(number)}")
            found.add(partition)
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
    try:
        return TopicPartition(topic, PartitionKey.parse(key))
    except ValueError:
        raise ConfigError(f"{what}: {topic}: expected a partition's number, got {_describe(key)}") from None


def _describe(value: object) -> str:
    return repr(value)[:60]
