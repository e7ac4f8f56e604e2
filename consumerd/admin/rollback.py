# SPDX-License-Identifier: Apache-2.0
"""Restores the positions that ``consumerd offsets migrate apply`` has replaced, in ZooKeeper or Kafka.

A position is restored only if it is still the one that ``apply`` has written, and no live member consumes its topic: a
position that a member has committed since is newer.

Where there was no position before ``apply``, ZooKeeper's offset node is deleted. Brokers before 2.4 have no request
that deletes a position, so in Kafka the written position stays. It does no harm: ``apply`` had copied it from
ZooKeeper, and members that read both stores take the larger position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.admin.inspection import require_group
from consumerd.admin.migration import read_members
from consumerd.admin.migration_file import AppliedMigration, ReplacedOffset
from consumerd.admin.operations import OffsetMover, Plan, PlannedMove, PositionMoveRow, Way
from consumerd.admin.positions import read_cluster
from consumerd.client.opening import ClusterAccess
from consumerd.errors import ConfigError, OffsetError
from consumerd.model import TopicPartition
from consumerd.offsets.opening import open_positions
from consumerd.offsets.positions import KeptPositions, node_version
from consumerd.offsets.store import Place, Validity, is_believed
from consumerd.telemetry.wording import join_shown
from consumerd.zk.layout import offset_path
from consumerd.zk.port import BadVersion, NoNode

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Positions that ``consumerd offsets migrate rollback`` restores.

    Args:
        plan: Positions to write.
        deletes: Partitions whose offset node in ZooKeeper is deleted, with the node's version.
        notes: Sentences about positions that stay as they are, with the reason.
    """

    group: str
    plan: Plan
    deletes: Sequence[tuple[TopicPartition, int]]
    notes: Sequence[str]

    @property
    def count(self) -> int:
        """Number of positions that are written or deleted."""
        return len(self.plan.moves) + len(self.deletes)


async def plan_rollback(access: ClusterAccess, group: str, applied: AppliedMigration, *, source: str) -> Rollback:
    """Plan which positions are restored from the file of ``consumerd offsets migrate apply``.

    Args:
        applied: Content of the file.
        source: Name of the file, for errors.

    Raises ConfigError for the file of another group or cluster, or of a topic that was created again; NotFound if there
    is no such group; CoordinationError; OffsetError if live members consume a topic, or a position has moved since.
    """
    if applied.group != group:
        raise ConfigError(f"{source}: is of group {applied.group!r}, not of {group!r}")
    positions = open_positions(access.cluster, group)
    await require_group(access, positions)
    partitions = [one.partition for one in applied.offsets]
    made = await positions.find_incarnations({one.topic for one in partitions})
    if (cluster := await read_cluster(access)) != applied.cluster:
        raise ConfigError(f"{source}: is of cluster {applied.cluster}, this is {cluster}")
    for one in applied.offsets:
        now = made[one.partition.topic]
        if now is None or str(now) != one.incarnation:
            raise ConfigError(
                f"{source}: topic {one.partition.topic} was deleted or re-created since (incarnation "
                f"{one.incarnation}): its positions mean nothing any more"
            )
    members = await read_members(access, group)
    if consumed := sorted({one.topic for one in partitions if members.consume(one.topic)}):
        raise OffsetError(
            f"live members consume {join_shown(consumed, _SHOWN)}: what they have committed is newer, and they would "
            "commit over what is restored. Stop them first, or go back by settings: consumerd offsets migrate plan "
            f"--to {Place.ZOOKEEPER.value}"
        )
    kept = await positions.find_kept(partitions)
    moves, deletes, notes, moved = [], list[tuple[TopicPartition, int]](), list[str](), list[str]()
    for one in applied.offsets:
        present = kept.find_counting(one.partition, frozenset({applied.to}))
        before = one.before if is_believed(one.validity, made[one.partition.topic]) else None
        if present.value == before:
            continue
        if present.value != one.written:
            moved.append(f"{one.partition} ({present.value} now, {one.written} was written)")
        elif before is not None:
            moves.append(_plan_move(one, before, applied.to, kept))
        elif applied.to is Place.ZOOKEEPER and (version := node_version(present)) is not None:
            deletes.append((one.partition, version))
            notes.append(f"{one.partition}: {present.value} is deleted in ZooKeeper, which had no position that counts")
        else:
            notes.append(
                f"{one.partition}: Kafka had no position that counts; it keeps {present.value}, and forgets it"
            )
    if moved:
        raise OffsetError(f"{join_shown(moved, _SHOWN)}: moved since `apply`, so nothing is restored")
    return Rollback(group=group, plan=Plan(moves=moves, ids=members.ids), deletes=deletes, notes=notes)


def _plan_move(one: ReplacedOffset, before: int, to: Place, kept: KeptPositions) -> PlannedMove:
    incarnation = kept.zookeeper[one.partition].incarnation
    return PlannedMove(
        partition=one.partition,
        position=one.written,
        version=node_version(kept.zookeeper[one.partition]),
        target=before,
        owner=None,
        way=Way.DIRECTLY,
        why="",
        earlier=None,
        places=frozenset({to}),
        # Kafka's position had no identity of its topic if it was of unknown age
        incarnation=incarnation if one.validity is Validity.VALID else None,
    )


async def carry_out_rollback(
    access: ClusterAccess, found: Rollback, mover: OffsetMover, show: Callable[[PositionMoveRow], None]
) -> None:
    """Restore the positions that a migration has replaced.

    Args:
        found: Positions to write or delete.
        show: Called with the row of each written position.

    Raises OffsetError if another client has written one, CoordinationError.
    """
    for partition, version in found.deletes:
        try:
            await access.zk.delete(offset_path(found.group, partition), version=version)
        except NoNode:
            continue  # an unanswered earlier try has deleted it
        except BadVersion as error:
            raise OffsetError(f"{partition}: another client has written its position meanwhile") from error
    await mover.carry_out(found.plan, new_chain=False, wait_s=0.0, show=show)
