# SPDX-License-Identifier: Apache-2.0
"""A group's positions as one JSON document: to keep, to compare, and to set again, of this group or of another.

::

    {"format": "consumerd offsets", "version": 1, "group": "lake", "cluster": "<czxid>-<ctime> of /brokers/topics",
     "exported_ms": 1700000000000,
     "offsets": [{"topic": "orders", "partition": "0", "position": 42, "incarnation": "<czxid of the topic>"}, ...]}

A position means something on the cluster and for the making of the topic that it was taken of: both are compared before
it is set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from consumerd.errors import ConfigError
from consumerd.model import PartitionKey, TopicPartition

_FORMAT: Final = "consumerd offsets"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedOffset:
    """One position; ``incarnation`` is the topic's, None where it was not there."""

    topic: str
    partition: str
    position: int
    incarnation: str | None

    @property
    def key(self) -> TopicPartition:
        """The partition. Raises ValueError."""
        return TopicPartition(self.topic, PartitionKey.parse(self.partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsExport:
    """Positions of one group at one moment."""

    group: str
    cluster: str
    exported_ms: int
    offsets: Sequence[ExportedOffset]


def encode_export(export: OffsetsExport) -> str:
    """Return the document, one position a line."""
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "group": export.group,
        "cluster": export.cluster,
        "exported_ms": export.exported_ms,
    }
    lines = ",\n".join(f"  {json.dumps(asdict(one))}" for one in export.offsets)
    return f'{json.dumps(head)[:-1]}, "offsets": [\n{lines}\n]}}\n'


def parse_export(text: str, source: str) -> OffsetsExport:
    """Read a document; ``source`` names it in messages. Raises ConfigError."""
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: expected JSON as `consumerd offsets export` writes it: {error}") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ConfigError(f"{source}: expected a document as `consumerd offsets export` writes it")
    if document.get("version") != _VERSION:
        raise ConfigError(f"{source}: version: expected {_VERSION}; written by a newer release?")
    group, cluster, exported_ms = (document.get(key) for key in ("group", "cluster", "exported_ms"))
    offsets = document.get("offsets")
    if not isinstance(group, str) or not isinstance(cluster, str) or type(exported_ms) is not int:
        raise ConfigError(f"{source}: expected group and cluster as text and exported_ms as a number")
    if not isinstance(offsets, list):
        raise ConfigError(f"{source}: offsets: expected a list")
    return OffsetsExport(
        group=group,
        cluster=cluster,
        exported_ms=exported_ms,
        offsets=[_parse_offset(one, f"{source}: offsets[{index}]") for index, one in enumerate(offsets)],
    )


def _parse_offset(one: object, where: str) -> ExportedOffset:
    if not isinstance(one, dict):
        raise ConfigError(f"{where}: expected an object")
    topic, partition, position, incarnation = (
        one.get(key) for key in ("topic", "partition", "position", "incarnation")
    )
    if not isinstance(topic, str) or not isinstance(partition, str) or not isinstance(incarnation, str | None):
        raise ConfigError(f"{where}: expected topic, partition and incarnation as text")
    if type(position) is not int or position < 0:
        raise ConfigError(f"{where}: position: expected a number from 0 on")
    exported = ExportedOffset(topic=topic, partition=partition, position=position, incarnation=incarnation)
    try:
        _ = exported.key
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    return exported


def split_orphans(export: OffsetsExport) -> tuple[list[ExportedOffset], list[str]]:
    """Return the positions that are about something, and the topics of the others: those were deleted before the export,
    and groups outlive their topics.
    """
    kept = [one for one in export.offsets if one.incarnation is not None]
    return kept, sorted({one.topic for one in export.offsets if one.incarnation is None})


def check_origin(export: OffsetsExport, *, source: str, cluster: str, incarnations: Mapping[str, str | None]) -> None:
    """Refuse positions of another cluster, or of an earlier making of a topic. Raises ConfigError."""
    if export.cluster != cluster:
        raise ConfigError(
            f"{source}: was exported from cluster {export.cluster}, this is {cluster}: positions of one mean nothing in the "
            "other; give --force to set them all the same"
        )
    for one in export.offsets:
        now = incarnations.get(one.topic)
        if one.incarnation is not None and now is not None and one.incarnation != now:
            raise ConfigError(
                f"{source}: topic {one.topic} was deleted and made again since the export (incarnation {one.incarnation}, "
                f"now {now}): its positions mean nothing any more; give --force to set them all the same"
            )
