# SPDX-License-Identifier: Apache-2.0
"""Groups and positions as records of ``__consumer_offsets``, and back. Pure.

A record holds a state from then on, and a null value removes it. So reading all records in order gives the final state,
before and after compaction. ``wire.modern.offsets_topic`` defines the formats.

Source: Kafka's ``GroupMetadataManager.scala``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.embedded.coordinator.exchange import StoredGroup, StoredMember
from consumerd.embedded.coordinator.positions import CoordinatedPosition, Positions
from consumerd.errors import CorruptMessageError
from consumerd.model import TopicPartition
from consumerd.wire.modern.building import NewRecord
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
from consumerd.wire.records import Record

_INT32_MASK: Final = 0xFFFFFFFF
_INT32_MIN: Final = -(1 << 31)


def partition_of(group_id: str, partitions: int) -> int:
    """Return the partition of a group's records: Java's hash of its id, modulo the number."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2], "big")) & _INT32_MASK
    signed = code - (1 << 32) if code & 0x80000000 else code
    return 0 if signed == _INT32_MIN else abs(signed) % partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Creates records of groups and positions, in the versions of the imitated release."""

    offset_version: int
    group_version: int

    def group(self, group: StoredGroup, now_ms: int) -> NewRecord:
        """Return the record of a generation."""
        members = tuple(
            GroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms if self.group_version else -1,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        )
        value = GroupValue(
            protocol_type=group.protocol_type,
            generation=group.generation,
            protocol=group.protocol,
            leader=group.leader,
            members=members,
        )
        key = encode_group_key(GroupKey(group_id=group.group_id))
        return NewRecord(key=key, value=encode_group_value(value, self.group_version), timestamp=now_ms)

    def group_end(self, group_id: str, now_ms: int) -> NewRecord:
        """Return the tombstone of a group."""
        return NewRecord(key=encode_group_key(GroupKey(group_id=group_id)), value=None, timestamp=now_ms)

    def position(
        self, group_id: str, partition: TopicPartition, position: CoordinatedPosition, now_ms: int
    ) -> NewRecord:
        """Return the record of a position."""
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
        """Return the tombstone of a position."""
        return NewRecord(key=self._offset_key(group_id, partition), value=None, timestamp=now_ms)

    def _offset_key(self, group_id: str, partition: TopicPartition) -> bytes:
        key = OffsetKey(group_id=group_id, topic=partition.topic, partition=partition.partition.number)
        return encode_offset_key(key, self.offset_version)


@dataclass(slots=True)
class JournalReplay:
    """The final state after the records of one partition, read in order."""

    retention_ms: int
    """Time, in ms, for which positions are kept whose record does not say."""
    groups: dict[str, StoredGroup] = field(default_factory=dict)
    positions: dict[str, Positions] = field(default_factory=dict)
    unreadable: int = 0
    """Records left out: damaged, or of an unknown version."""

    def read(self, records: Iterable[Record]) -> None:
        """Apply the next records."""
        for record in records:
            try:
                self._read(record)
            except CorruptMessageError:
                self.unreadable += 1

    def group_ids(self) -> Mapping[str, StoredGroup | None]:
        """Return all remaining groups, each with its newest generation, if it has one."""
        only_positions = {group_id: None for group_id, kept in self.positions.items() if len(kept)}
        return {**only_positions, **self.groups}

    def _read(self, record: Record) -> None:
        key = decode_key(record.key)
        if isinstance(key, GroupKey):
            if record.value is None:
                self.groups.pop(key.group_id, None)
            else:
                self.groups[key.group_id] = _restore_group(key.group_id, decode_group_value(record.value))
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


def _restore_group(group_id: str, value: GroupValue) -> StoredGroup:
    return StoredGroup(
        group_id=group_id,
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        members=tuple(
            StoredMember(
                member_id=member.member_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=(
                    member.session_timeout_ms if member.rebalance_timeout_ms < 0 else member.rebalance_timeout_ms
                ),
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in value.members
        ),
    )
