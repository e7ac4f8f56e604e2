# SPDX-License-Identifier: Apache-2.0
"""File of the positions that ``consumerd offsets migrate apply`` has replaced. ``rollback`` restores them::

    {"format": "consumerd offsets migration", "version": 1, "group": "lake", "cluster": "<czxid>-<ctime>",
     "to": "kafka", "applied_ms": 1700000000000,
     "offsets": [{"topic": "orders", "partition": "0", "incarnation": "<czxid of the topic>",
                  "before": 40, "validity": "valid", "written": 42}, ...]}

``before`` is null where the store ``to`` had no position. ``validity`` is that of ``before``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from consumerd.documents import DocumentKind
from consumerd.errors import ConfigError
from consumerd.model import PartitionKey, TopicPartition
from consumerd.offsets.store import Place, Validity

_KIND: Final = DocumentKind(
    name="consumerd offsets migration", version=1, command="consumerd offsets migrate apply", rows="offsets"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedOffset:
    """Position that a migration has written, and the one that it has replaced.

    Args:
        incarnation: Identity of the topic since its creation; None if unknown.
        before: Replaced position; None if there was none.
        validity: Tells if ``before`` could be used: valid, missing, malformed, of a deleted topic of the same name.
        written: New position.
    """

    partition: TopicPartition
    incarnation: str | None
    before: int | None
    validity: Validity
    written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedMigration:
    """Positions that one run of ``consumerd offsets migrate apply`` writes, for a later ``rollback``.

    Attributes:
        cluster: Identity of the cluster.
        to: Store that is written, ZooKeeper or Kafka.
        applied_ms: Time of the run, in ms since the epoch.
    """

    group: str
    cluster: str
    to: Place
    applied_ms: int
    offsets: Sequence[ReplacedOffset]


def encode_applied(applied: AppliedMigration) -> str:
    """Return a record of replaced positions as JSON text, with one position per line."""
    head = {
        "group": applied.group,
        "cluster": applied.cluster,
        "to": applied.to.value,
        "applied_ms": applied.applied_ms,
    }
    return _KIND.encode(head, map(_encode_offset, applied.offsets))


def _encode_offset(one: ReplacedOffset) -> dict[str, object]:
    fields = asdict(one)
    del fields["partition"]
    return {
        "topic": one.partition.topic,
        "partition": str(one.partition.partition),
        **fields,
        "validity": one.validity.value,
    }


def parse_applied(text: str, source: str) -> AppliedMigration:
    """Read the JSON file that ``consumerd offsets migrate apply`` has written. Raises ConfigError.

    Args:
        source: Name of the file, for errors.
    """
    document = _KIND.parse(text, source)
    group, cluster, applied_ms = (document.get(key) for key in ("group", "cluster", "applied_ms"))
    if not isinstance(group, str) or not isinstance(cluster, str) or type(applied_ms) is not int:
        raise ConfigError(f"{source}: expected group and cluster as text and applied_ms as a number")
    offsets = _KIND.find_rows(document, source)
    try:
        to = Place(document.get("to"))
    except ValueError:
        raise ConfigError(f"{source}: to: expected zookeeper or kafka") from None
    return AppliedMigration(
        group=group,
        cluster=cluster,
        to=to,
        applied_ms=applied_ms,
        offsets=[_parse_offset(one, f"{source}: offsets[{index}]") for index, one in enumerate(offsets)],
    )


def _parse_offset(one: object, where: str) -> ReplacedOffset:
    if not isinstance(one, dict):
        raise ConfigError(f"{where}: expected an object")
    topic, partition, incarnation = (one.get(key) for key in ("topic", "partition", "incarnation"))
    before, written = one.get("before"), one.get("written")
    if not isinstance(topic, str) or not isinstance(partition, str) or not isinstance(incarnation, str | None):
        raise ConfigError(f"{where}: expected topic, partition and incarnation as text")
    if type(written) is not int or written < 0 or not (before is None or (type(before) is int and before >= 0)):
        raise ConfigError(f"{where}: expected numbers from 0 on as written and before")
    try:
        key, validity = TopicPartition(topic, PartitionKey.parse(partition)), Validity(one.get("validity"))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    return ReplacedOffset(partition=key, incarnation=incarnation, before=before, validity=validity, written=written)
