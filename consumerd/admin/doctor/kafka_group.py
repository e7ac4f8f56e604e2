# SPDX-License-Identifier: Apache-2.0
"""Examination of a group in a cluster without ZooKeeper: its members and its committed positions.

There are no znodes to check, and no recorded roots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from consumerd.admin.doctor.facts import RegistryFacts
from consumerd.admin.doctor.findings import join_few
from consumerd.admin.inspection import find_coordinated, require_group
from consumerd.client.group_coordinators import GroupDetails
from consumerd.client.opening import ClusterAccess
from consumerd.group.plan import GroupSnapshot, GroupTopic, Stamp
from consumerd.landing.findings import Finding, Severity
from consumerd.model import TopicPartition
from consumerd.offsets.kafka import OFFSETS_TOPIC
from consumerd.offsets.kafka_truncations import find_stops
from consumerd.offsets.opening import open_positions
from consumerd.offsets.store import KAFKA_ONLY
from consumerd.telemetry.wording import counted

_NO_MEMBERS: Final = GroupSnapshot(stamp=Stamp(ids=(0, 0), names=None, topics={}), members=(), topics={})
"""Members in ZooKeeper of a group that brokers coordinate."""


async def read_kafka_facts(
    access: ClusterAccess, group: str, *, topics: Collection[str] = (), required: bool = True
) -> tuple[RegistryFacts, list[Finding]]:
    """Read a group of a cluster without ZooKeeper, and find problems with its members.

    Returns its committed positions in the form that the checks read, and the problems.

    Args:
        topics: Topics to read besides those of the group.
        required: False if there need not be such a group.

    Raises NotFound if there is no such group, BrokerError, ConnectionLost, ProtocolError.
    """
    positions = open_positions(access.cluster, group)
    members = await find_coordinated(access, group)
    if required:
        await require_group(access, positions, members)
    kept = await positions.read_kept()
    named = {one.topic for one in (*kept.kafka, *members.owners)} | set(topics)
    there = await access.topics.list_partitions(named)
    made = {topic: one for topic, one in (await access.topics.find_incarnations(named)).items() if one is not None}
    view = await access.directory.refresh("doctor")
    facts = RegistryFacts(
        group=group,
        cluster_id=view.cluster_id,
        snapshot=_NO_MEMBERS,
        topics={
            topic: GroupTopic(
                czxid=0, stamp=(0, 0), partitions=tuple(one.partition for one in there if one.topic == topic)
            )
            for topic in sorted(named)
        },
        incarnations=made,
        coordinated=frozenset(members.owners),
        kept=kept,
        places=KAFKA_ONLY,
        stops=find_stops(kept.kafka),
    )
    return facts, [*_check_members(group, members, there), *_check_unknown(kept.unknown)]


def _check_members(group: str, members: GroupDetails, there: Collection[TopicPartition]) -> Iterator[Finding]:
    if not members.members:
        yield Finding(
            severity=Severity.WARNING,
            kind="no-members",
            where=group,
            detail="the group has no members: nothing is consumed",
            advice="start one, if it should be consumed",
        )
        return
    owned = {one.topic for one in members.owners}
    free = sorted(one for one in there if one.topic in owned and one not in members.owners)
    if free:
        yield Finding(
            severity=Severity.WARNING,
            kind="partitions-unowned",
            where=group,
            detail=f"no member has {counted(len(free), 'partition')}: {join_few(free)} (the group is {members.state})",
            advice="look again after the rebalance; if it lasts, see the log of the group's leader",
        )


def _check_unknown(unknown: str) -> Iterator[Finding]:
    if unknown:
        yield Finding(
            severity=Severity.WARNING,
            kind="kafka-positions-unknown",
            where=OFFSETS_TOPIC,
            detail=f"the coordinator has not told all positions: {unknown}",
            advice="see whether the partitions of the topic have leaders: consumerd topics --partitions",
        )
