# SPDX-License-Identifier: Apache-2.0
"""Codec of the records in ``__consumer_offsets``, which hold groups and positions. Pure.

A record's value replaces that of earlier records with its key, and a null value removes the group or position. So
reading all records in order gives the final state, before and after compaction. ``wire.modern.offsets_topic`` defines
the formats.

Source: Kafka's ``GroupMetadataManager.scala``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from consumerd.embedded.coordinator.positions import CoordinatedPosition, Positions
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.modern.offsets_topic import (
    NO_EXPIRY,
    GroupKey,
    GroupMember,
    GroupValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from consumerd.wire.records import NewRecord, Record

_INT32_MASK: Final = 0xFFFFFFFF
_INT32_MIN: Final = -(1 << 31)
_NO_TIMEOUT: Final = -1


def partition_of(group_id: str, partitions: int) -> int:
    """Return the partition of ``__consumer_offsets`` that has a group's records.

    It is Java's hash code of the group id, modulo the number of ``partitions``.
    """
    units = group_id.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2], "big")) & _INT32_MASK
    signed = code - (1 << 32) if code & 0x80000000 else code
    return 0 if signed == _INT32_MIN else abs(signed) % partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Encoder of groups and positions as records of ``__consumer_offsets``.

    The records have the versions of the imitated release.
    """

    offset_version: int
    group_version: int

    def group(self, group_id: str, value: GroupValue, now_ms: int) -> NewRecord:
        """Return the record of a group's newest generation: members and assignment.

        Its key is the group's id; ``now_ms`` is its timestamp, in ms since the Unix epoch.
        """
        if not self.group_version:  # it has no field for the rebalance timeout
            members = tuple(replace(member, rebalance_timeout_ms=_NO_TIMEOUT) for member in value.members)
            value = replace(value, members=members)
        key = encode_group_key(GroupKey(group_id=group_id))
        return NewRecord(key=key, value=encode_group_value(value, self.group_version), timestamp=now_ms)

    def group_end(self, group_id: str, now_ms: int) -> NewRecord:
        """Return the tombstone that removes a group from ``__consumer_offsets``."""
        return NewRecord(key=encode_group_key(GroupKey(group_id=group_id)), value=None, timestamp=now_ms)

    def position(
        self, group_id: str, partition: TopicPartition, position: CoordinatedPosition, now_ms: int
    ) -> NewRecord:
        """Return the record of a group's position for ``__consumer_offsets``."""
        value = OffsetValue(
            offset=position.offset,
            metadata=position.metadata,
            commit_timestamp=position.commit_ms,
            expire_timestamp=position.expire_ms if self.offset_version else NO_EXPIRY,
        )
        return NewRecord(
            key=self._offset_key(group_id, partition),
            value=encode_offset_value(value, self.offset_version),
            timestamp=now_ms,
        )

    def position_end(self, group_id: str, partition: TopicPartition, now_ms: int) -> NewRecord:
        """Return the tombstone that removes a group's position from ``__consumer_offsets``."""
        return NewRecord(key=self._offset_key(group_id, partition), value=None, timestamp=now_ms)

    def _offset_key(self, group_id: str, partition: TopicPartition) -> bytes:
        key = OffsetKey(group_id=group_id, topic=partition.topic, partition=partition.partition.number)
        return encode_offset_key(key, self.offset_version)


@dataclass(slots=True)
class JournalReplay:
    """Groups and positions in one partition of ``__consumer_offsets``, after its records were read in order."""

    retention_ms: int
    """Time, in ms, for which a position is kept if its record does not name one."""
    groups: dict[str, GroupValue] = field(default_factory=dict)
    positions: dict[str, Positions] = field(default_factory=dict)
    undecided: dict[int, list[Record]] = field(default_factory=dict)
    """Records of open transactions, by producer id."""
    unreadable: int = 0
    """Number of records that were left out, as they are damaged or of an unknown version."""

    def read(self, records: Iterable[Record]) -> None:
        """Apply the next records of the partition."""
        for record in records:
            try:
                self._read(record)
            except CorruptMessageError:
                self.unreadable += 1

    def undecided_positions(self, producer_id: int) -> Iterator[tuple[str, TopicPartition, CoordinatedPosition, int]]:
        """Yield group, partition, position and log offset of a producer's open transaction."""
        for record in self.undecided.get(producer_id, ()):
            try:
                key = decode_key(record.key)
                if isinstance(key, OffsetKey) and record.value is not None:
                    position = self._restore_position(decode_offset_value(record.value))
                    yield key.group_id, TopicPartition.modern(key.topic, key.partition), position, record.offset
            except CorruptMessageError:
                self.unreadable += 1

    def group_ids(self) -> Mapping[str, GroupValue | None]:
        """Return the remaining groups by id, each with its newest generation.

        The value is None for a group that has only positions.
        """
        only_positions = {group_id: None for group_id, kept in self.positions.items() if len(kept)}
        return {**only_positions, **self.groups}

    def _read(self, record: Record) -> None:
        key = decode_key(record.key)
        if isinstance(key, GroupKey):
            if record.value is None:
                self.groups.pop(key.group_id, None)
            else:
                value = decode_group_value(record.value)
                self.groups[key.group_id] = replace(value, members=tuple(map(_restore_member, value.members)))
            return
        kept = self.positions.setdefault(key.group_id, Positions())
        partition = TopicPartition.modern(key.topic, key.partition)
        if record.value is None:
            kept.forget(partition)
        else:
            kept.keep(partition, self._restore_position(decode_offset_value(record.value)), record.offset)

    def _restore_position(self, value: OffsetValue) -> CoordinatedPosition:
        expire_ms = value.expire_timestamp
        if expire_ms == NO_EXPIRY:
            expire_ms = value.commit_timestamp + self.retention_ms
        return CoordinatedPosition(
            offset=value.offset, metadata=value.metadata, commit_ms=value.commit_timestamp, expire_ms=expire_ms
        )


def _restore_member(member: GroupMember) -> GroupMember:
    """Fill in the rebalance timeout that records of version 0 lack.

    As in Kafka, it is the session timeout.
    """
    if member.rebalance_timeout_ms >= 0:
        return member
    return replace(member, rebalance_timeout_ms=member.session_timeout_ms)
