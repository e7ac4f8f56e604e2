"""Offsets by partition, as values and as the JSON that Spark's own Kafka source writes: ``{"topic": {"0": 5}}``.

Pure. An offset here is the next one to be read, as everywhere in consumerd, so that the end of a range is exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping

from consumerd.model import TopicPartition

PartitionOffsets = Mapping[TopicPartition, int]

JsonOffsets = dict[str, dict[str, int]]
"""What a checkpoint holds: topic, partition as text, next offset."""


def to_json(offsets: PartitionOffsets) -> JsonOffsets:
    """Return offsets as they stand in a checkpoint, topics and partitions in order."""
    found: JsonOffsets = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return found


def from_json(document: object, *, what: str) -> dict[TopicPartition, int]:
    """Read offsets out of a parsed JSON document; ``what`` says where it comes from.

    Raises ConfigError that names topic and partition.
    """
    raise NotImplementedError
