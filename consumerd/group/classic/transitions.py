# SPDX-License-Identifier: Apache-2.0
"""The states of a member of a coordinated group, and every transition between them.

Pure: nothing but a table. :mod:`consumerd.group.classic.machine` decides *when* a trigger fires, never *what follows*.

The protocol is eager: a member gives up all its partitions before it joins again. Its rounds lead from
UNJOINED through JOINING, SYNCING, STABLE and DRAINING back to UNJOINED.

In DRAINING the member still belongs to its generation: it flushes, commits, and sends heartbeats. ``FENCED`` is the way
out without that: the coordinator has removed the member, or has begun a generation without it, so others may own its
partitions already.

A coordinator that does not answer moves no state. What it grants then is a matter of the lease
(:class:`~consumerd.zk.lease.Lease`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class ClassicState(enum.Enum):
    """The state of a member of a coordinated group."""

    UNJOINED = "unjoined"
    """It owns nothing, and joins when its time has come."""
    JOINING = "joining"
    """JoinGroup is sent; the response comes when all members have joined."""
    SYNCING = "syncing"
    """SyncGroup is sent; the response is the assignment."""
    STABLE = "stable"
    """It owns what it was assigned."""
    DRAINING = "draining"
    """The group rebalances: the member flushes and commits all that it owns before it joins again."""
    LEAVING = "leaving"
    """It flushes and commits, learns its id if its first join is not answered yet, and sends LeaveGroup."""
    STOPPED = "stopped"


class Trigger(enum.Enum):
    """An event that takes a member of a coordinated group from one state to another."""

    JOIN = "join"
    JOINED = "joined"
    SYNCED = "synced"
    FAILED = "failed"
    """JoinGroup or SyncGroup failed, and the member has to join again."""
    REBALANCE = "rebalance"
    """The coordinator calls for a rebalance, or this member needs one: its topics have changed."""
    DRAINED = "drained"
    FENCED = "fenced"
    """The coordinator does not know the member, or not its generation."""
    LEAVE = "leave"
    LEFT = "left"


TRANSITIONS: Final[Mapping[tuple[ClassicState, Trigger], ClassicState]] = {
    (ClassicState.UNJOINED, Trigger.JOIN): ClassicState.JOINING,
    (ClassicState.JOINING, Trigger.JOINED): ClassicState.SYNCING,
    (ClassicState.JOINING, Trigger.FAILED): ClassicState.UNJOINED,
    (ClassicState.SYNCING, Trigger.SYNCED): ClassicState.STABLE,
    (ClassicState.SYNCING, Trigger.FAILED): ClassicState.UNJOINED,
    (ClassicState.STABLE, Trigger.REBALANCE): ClassicState.DRAINING,
    (ClassicState.STABLE, Trigger.FENCED): ClassicState.UNJOINED,
    (ClassicState.DRAINING, Trigger.DRAINED): ClassicState.UNJOINED,
    (ClassicState.DRAINING, Trigger.FENCED): ClassicState.UNJOINED,
    **{
        (state, Trigger.LEAVE): ClassicState.LEAVING
        for state in (
            ClassicState.UNJOINED,
            ClassicState.JOINING,
            ClassicState.SYNCING,
            ClassicState.STABLE,
            ClassicState.DRAINING,
        )
    },
    (ClassicState.LEAVING, Trigger.LEFT): ClassicState.STOPPED,
}
"""Next state by state and trigger. In LEAVING, answers of the coordinator change no state.

A leaving member drains or drops its partitions, and then sends LeaveGroup.
"""

ENDS: Final = frozenset({ClassicState.LEAVING, ClassicState.STOPPED})
"""States from which a member does not join again."""
