# SPDX-License-Identifier: Apache-2.0
"""Moves positions (``consumerd offsets set | reset``) in a cluster without ZooKeeper.

Positions are in Kafka only, and a request cannot be left for a member. So positions are written directly, while the
group has no members. The coordinator refuses such a commit (UNKNOWN_MEMBER_ID) if a member has joined meanwhile: no
member's commit is overwritten, and no position changes while a member reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from consumerd.admin.operations import Plan, PlannedMove, PositionMoveRow, Target, Way, describe
from consumerd.client.group_coordinators import GroupDetails
from consumerd.errors import CoordinationError, OffsetError
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.kafka_writer import KafkaOffsetWriter
from consumerd.offsets.store import KAFKA_ONLY
from consumerd.telemetry.wording import counted

_STOP_MEMBERS: Final = (
    "Without ZooKeeper, positions are written directly, and only while the group has no members: stop them (those that "
    "were killed are out after their session timeout), and give the command again"
)


async def plan_kafka_moves(positions: GroupPositions, members: GroupDetails, targets: Sequence[Target]) -> Plan:
    """Plan position changes in a cluster without ZooKeeper.

    Each change is a direct write to Kafka, or refused if the group has members. Raises CoordinationError,
    ConnectionLost.

    Args:
        positions: Reader of the group's committed positions.
        members: Group as its coordinating broker describes it.
        targets: New position of each partition.
    """
    kept = await positions.find_kept([target.partition for target in targets])
    if kept.unknown:
        raise CoordinationError(f"positions in Kafka are unknown: {kept.unknown}")
    why = ""
    if members.members:
        why = f"group {positions.group} has {counted(len(members.members), 'member')} ({members.state})"
    owners = members.owners
    moves = [
        PlannedMove(
            partition=target.partition,
            position=kept.find_counting(target.partition, KAFKA_ONLY).believed,
            version=None,
            target=target.position,
            owner=owners.get(target.partition),
            way=Way.REFUSED if members.members else Way.DIRECTLY,
            why=why,
            earlier=None,
            places=KAFKA_ONLY,
            incarnation=kept.zookeeper[target.partition].incarnation,
        )
        for target in targets
    ]
    return Plan(moves=moves, ids=None, advice=_STOP_MEMBERS)


async def move_in_kafka(
    writer: KafkaOffsetWriter, plan: Plan, show: Callable[[PositionMoveRow], None]
) -> Sequence[PlannedMove]:
    """Write the positions of a plan to Kafka, and show each.

    Returns an empty sequence: no change is left for a member to carry out. Raises OffsetError, which says how many
    positions were written before the failure.

    Args:
        show: Called with the row of each written position.
    """
    for written, move in enumerate(plan.moves):
        try:
            await writer.write(move.partition, move.target, move.incarnation)
        except (OffsetError, CoordinationError) as error:
            before = f"{counted(written, 'position')} before it" if written else "nothing"
            raise OffsetError(f"{move.partition}: not written, and {before} was: {error}") from error
        show(describe(move, move.outcome))
    return ()
