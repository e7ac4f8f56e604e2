# SPDX-License-Identifier: Apache-2.0
"""Rows that ``consumerd migrate`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.admin.migrate.comparing import CopyComparison
from consumerd.admin.migrate.decisions import GroupMove, PartitionMove
from consumerd.admin.migrate.returning import PartitionReturn

MOVE_COLUMNS: Final = (
    "group",
    "topic",
    "partition",
    "position",
    "mirrored",
    "target",
    "translated",
    "there",
    "verdict",
    "note",
)
STATUS_COLUMNS: Final = ("group", "topic", "partition", "position", "mirrored", "mirror_lag", "verdict", "note")
GROUP_COLUMNS: Final = ("group", "positions", "members", "there", "partitions", "mirror_lag", "safe", "because")
COMPARED_COLUMNS: Final = ("topic", "partition", "compared", "missing", "different", "digest")
RETURN_COLUMNS: Final = ("topic", "partition", "target", "there", "position", "returned", "verdict", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRow:
    """A group's position in one partition, and what becomes of it.

    Attributes:
        position: Position in the source; None if there is none.
        mirrored: Source offset up to which the mirror has come; None if the partition is not mirrored.
        mirror_lag: Distance from there to the source's end; None if it is not known.
        target: Partition of the target, as ``topic/3``; None if the partition is not mirrored.
        translated: Offset there; None if the position cannot be translated.
        there: The group's present position there; None if there is none.
        verdict: ``ready``, ``same``, ``ahead``, ``waiting``, ``refused`` or ``left out``.
        note: Why the position is not moved, or a remark; empty if there is none.
    """

    group: str
    topic: str
    partition: str
    position: int | None
    mirrored: int | None
    mirror_lag: int | None
    target: str | None
    translated: int | None
    there: int | None
    verdict: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMoveRow:
    """A group, and whether it can be cut over.

    Attributes:
        positions: Where the source keeps its positions.
        members: Live members in the source.
        there: Live members in the target.
        partitions: Number of partitions with a position to move.
        mirror_lag: Sum over those partitions; None if it is not known.
        safe: ``yes`` or ``no``.
        because: Why not; for a group with members, what to do first.
    """

    group: str
    positions: str
    members: int
    there: int
    partitions: int
    mirror_lag: int | None
    safe: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """CopyComparison of one partition with its copy.

    Attributes:
        compared: Number of compared records.
        missing: Number of records that one side has deleted.
        different: Number of differences.
        digest: SHA-256 of the source's records, with ``--full``; else None.
    """

    topic: str
    partition: str
    compared: int
    missing: int
    different: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnRow:
    """Position of a group in the target, and its position in the source.

    Attributes:
        target: Partition of the target, as ``topic/3``.
        there: The group's position there.
        position: Its position in the source; None if there is none.
        returned: Position that it gets there.
        verdict: ``ready``, ``same``, ``backwards`` or ``refused``.
    """

    topic: str
    partition: str
    target: str
    there: int
    position: int | None
    returned: int
    verdict: str
    note: str


def make_move_rows(groups: Iterable[GroupMove]) -> list[MoveRow]:
    """Return a row for each position."""
    return [_make_move_row(group.group, one) for group in groups for one in group.partitions]


def _make_move_row(group: str, one: PartitionMove) -> MoveRow:
    return MoveRow(
        group=group,
        topic=one.partition.topic,
        partition=str(one.partition.partition),
        position=one.position,
        mirrored=one.mirrored,
        mirror_lag=one.mirror_lag,
        target=None if one.goal is None else str(one.goal),
        translated=one.translated,
        there=one.committed,
        verdict=one.verdict.value,
        note="; ".join(filter(None, [one.why, one.note])),
    )


def make_group_rows(groups: Iterable[GroupMove]) -> list[GroupMoveRow]:
    """Return a row for each group."""
    rows = []
    for group in groups:
        why = group.explain_unsafe()
        lags = [one.mirror_lag for one in group.partitions if one.goal is not None]
        known = [lag for lag in lags if lag is not None]
        rows.append(
            GroupMoveRow(
                group=group.group,
                positions=" and ".join(group.places),
                members=group.members,
                there=group.target_members,
                partitions=len(group.moved),
                mirror_lag=sum(known) if len(known) == len(lags) else None,
                safe="no" if why else "yes",
                because=why or ("stop its members first: consumerd migrate cutover" if group.members else ""),
            )
        )
    return rows


def make_compared_rows(results: Iterable[CopyComparison]) -> list[ComparedRow]:
    """Return a row for each partition."""
    return [
        ComparedRow(
            topic=one.partition.topic,
            partition=str(one.partition.partition),
            compared=one.compared,
            missing=one.missing,
            different=len(one.differences) + one.more,
            digest=one.digest,
        )
        for one in results
    ]


def make_return_rows(found: Sequence[PartitionReturn]) -> list[ReturnRow]:
    """Return a row for each position."""
    return [
        ReturnRow(
            topic=one.partition.topic,
            partition=str(one.partition.partition),
            target=str(one.goal),
            there=one.committed,
            position=one.position,
            returned=one.returned,
            verdict=one.verdict.value,
            note="; ".join(filter(None, [one.why, one.note])),
        )
        for one in found
    ]
