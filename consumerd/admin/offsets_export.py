# SPDX-License-Identifier: Apache-2.0
"""A consumer group's positions as one JSON document.

It serves as a backup, for comparisons, and as input of ``offsets set``, for this group or another::

    {"format": "consumerd offsets", "version": 1, "group": "lake", "cluster": "<czxid>-<ctime> of /brokers/topics",
     "exported_ms": 1700000000000,
     "offsets": [{"topic": "orders", "partition": "0", "position": 42, "incarnation": "<czxid of the topic>"}, ...]}

A position has a meaning only in the cluster of the export, and only for this topic: not for one that is created later
under the same name. So ``offsets set`` compares ``cluster`` and ``incarnation`` with those of the present cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from consumerd.documents import DocumentKind
from consumerd.errors import ConfigError
from consumerd.model import PartitionKey, TopicPartition

_KIND: Final = DocumentKind(name="consumerd offsets", version=1, command="consumerd offsets export", rows="offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedOffset:
    """Committed position of one partition in an exported document.

    ``incarnation`` identifies the topic since its creation; None if the topic did not exist at the export.
    """

    topic: str
    partition: str
    position: int
    incarnation: str | None

    @property
    def key(self) -> TopicPartition:
        """Topic and partition of the position. Raises ValueError if the partition's text is malformed."""
        return TopicPartition(self.topic, PartitionKey.parse(self.partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsExport:
    """Committed positions of one group at one moment, as exported.

    Attributes:
        cluster: Identity of the cluster.
        exported_ms: Time of the export, in ms since the epoch.
    """

    group: str
    cluster: str
    exported_ms: int
    offsets: Sequence[ExportedOffset]


def encode_export(export: OffsetsExport) -> str:
    """Return exported positions as JSON text, with one position per line."""
    head = {"group": export.group, "cluster": export.cluster, "exported_ms": export.exported_ms}
    return _KIND.encode(head, map(asdict, export.offsets))


def parse_export(text: str, source: str) -> OffsetsExport:
    """Read the JSON document that ``consumerd offsets export`` has written. Raises ConfigError.

    Args:
        source: Name of the file, for errors.
    """
    document = _KIND.parse(text, source)
    group, cluster, exported_ms = (document.get(key) for key in ("group", "cluster", "exported_ms"))
    if not isinstance(group, str) or not isinstance(cluster, str) or type(exported_ms) is not int:
        raise ConfigError(f"{source}: expected group and cluster as text and exported_ms as a number")
    offsets = _KIND.find_rows(document, source)
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
    """Separate exported positions from those of topics that were deleted before the export.

    Returns the positions of topics that existed then, and the names of the deleted topics, sorted. A group keeps
    positions of topics that are deleted.
    """
    kept = [one for one in export.offsets if one.incarnation is not None]
    return kept, sorted({one.topic for one in export.offsets if one.incarnation is None})


def check_origin(export: OffsetsExport, *, source: str, cluster: str, incarnations: Mapping[str, str | None]) -> None:
    """Refuse exported positions of another cluster, or of a deleted topic. Raises ConfigError.

    A topic that was deleted and created again since the export counts as deleted.

    Args:
        source: Name of the exported file, for errors.
        cluster: Identity of the present cluster.
        incarnations: Present identity of each topic since its creation; missing or None for a topic that does not
            exist.
    """
    if export.cluster != cluster:
        raise ConfigError(
            f"{source}: was exported from cluster {export.cluster}, this is {cluster}: positions of one mean nothing "
            f"in the "
            "other; give --force to set them all the same"
        )
    for one in export.offsets:
        now = incarnations.get(one.topic)
        if one.incarnation is not None and now is not None and one.incarnation != now:
            raise ConfigError(
                f"{source}: topic {one.topic} was deleted and re-created since the export (incarnation "
                f"{one.incarnation}, "
                f"now {now}): its positions mean nothing any more; give --force to set them all the same"
            )
