# SPDX-License-Identifier: Apache-2.0
"""Positions in files, for ``consumerd offsets import`` and ``offsets set --from-file``. Three formats are read:

- The JSON document of ``consumerd offsets export``. It alone names its cluster, and identifies its topics.
- Lines ``TOPIC,PARTITION,OFFSET`` of ``kafka-consumer-groups --reset-offsets --export`` (KIP-122), or
  ``GROUP,TOPIC,PARTITION,OFFSET``, which the tool of 2.4 and later writes for several groups.
- Lines ``/consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET`` of ``kafka.tools.ExportZkOffsets`` (0.8 to 0.10). Those of
  0.7 have ``BROKER-PARTITION``, and positions in bytes; a cluster of 0.8 has no such partition.

In a file of several groups, only the lines of the wanted group are read. If a file has one group only, its name is not
compared: so a group can be copied.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.admin.offsets_export import OffsetsExport, parse_export, split_orphans
from consumerd.admin.operations import Target
from consumerd.errors import ConfigError
from consumerd.model import PartitionKey, TopicPartition

_LARGEST: Final = 2**63 - 1
_CSV_COLUMNS: Final = 3
_CSV_COLUMNS_WITH_GROUP: Final = 4
_FORMATS: Final = (
    "expected a document of `consumerd offsets export`, lines TOPIC,PARTITION,OFFSET of kafka-consumer-groups, or "
    "lines /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET of ExportZkOffsets"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedOffsets:
    """Positions that were read from a file, for one group.

    Args:
        targets: New position of each partition.
        orphaned: Topics that were deleted before the file was exported; their positions are left out.
        left_out: Number of lines, by group, of the groups whose positions are in the file and are not used.
        export: Exported document with the identity of its cluster and topics; None for the formats of Kafka's tools.
    """

    targets: tuple[Target, ...]
    orphaned: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    export: OffsetsExport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One position, and the group that the line names; None if it names none."""

    group: str | None
    target: Target


def parse_offsets(text: str, source: str, group: str) -> ImportedOffsets:
    """Read a file of positions: an export of consumerd, or lines of Kafka's tools.

    Args:
        source: Name of the file, for errors.
        group: Group whose lines are read, if the file has those of several groups.

    Raises ConfigError.
    """
    first = text.lstrip()[:1]
    if first in {"{", "["} or not first:
        export = parse_export(text, source)
        kept, orphaned = split_orphans(export)
        targets = tuple(Target(partition=one.key, position=one.position) for one in kept)
        return ImportedOffsets(targets=targets, orphaned=tuple(orphaned), export=export)
    lines = list(_read_zookeeper_lines(text, source) if first == "/" else _read_csv(text, source))
    groups = Counter(line.group for line in lines if line.group is not None)
    if len(groups) > 1 and group not in groups:
        raise ConfigError(f"{source}: has no positions of group {group!r}; those in it: {', '.join(sorted(groups))}")
    wanted = group if len(groups) > 1 else None
    return ImportedOffsets(
        targets=tuple(line.target for line in lines if wanted is None or line.group == wanted),
        left_out={} if wanted is None else {name: count for name, count in groups.items() if name != wanted},
    )


def _read_csv(text: str, source: str) -> Iterator[_Line]:
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        for row in reader:
            where = f"{source}: line {reader.line_num}"
            if not row:
                continue
            if len(row) not in {_CSV_COLUMNS, _CSV_COLUMNS_WITH_GROUP}:
                raise ConfigError(f"{where}: {_FORMATS}")
            topic, partition, offset = (value.strip() for value in row[-_CSV_COLUMNS:])
            group = row[0] if len(row) == _CSV_COLUMNS_WITH_GROUP else None
            yield _Line(group=group, target=_make_target(topic, partition, offset, where))
    except csv.Error as error:
        raise ConfigError(f"{source}: line {reader.line_num}: {error}; {_FORMATS}") from error


def _read_zookeeper_lines(text: str, source: str) -> Iterator[_Line]:
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{source}: line {number}"
        if not line.strip():
            continue
        path, _, offset = line.strip().rpartition(":")
        match path.split("/"):
            case ["", "consumers", group, "offsets", topic, partition]:
                yield _Line(group=group, target=_make_target(topic, partition, offset, where))
            case _:
                raise ConfigError(f"{where}: {_FORMATS}")


def _make_target(topic: str, partition: str, offset: str, where: str) -> Target:
    if not topic:
        raise ConfigError(f"{where}: the topic is missing")
    if not (offset.isascii() and offset.isdigit() and len(offset) <= len(str(_LARGEST)) and int(offset) <= _LARGEST):
        raise ConfigError(f"{where}: offset: expected a number from 0 on, got {offset!r:.40}")
    try:
        return Target(partition=TopicPartition(topic, PartitionKey.parse(partition)), position=int(offset))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
