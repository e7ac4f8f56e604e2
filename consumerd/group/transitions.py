# SPDX-License-Identifier: Apache-2.0
"""The states of a member and of a partition, and every transition between them.

The module ``transitions`` is pure: nothing but tables. Two rules hold:

1. Everything that affects transitions stands there; :mod:`consumerd.group.machine` decides *when* a trigger fires,
   never *what follows*.
2. It knows no ZooKeeper, no listener and no clock.

**Theory.** In the Java consumer, a rebalance is a procedure: stop everything, recompute, start again. Here it is a
difference between what a member *should* own and what each partition *is* doing. The member follows the group: it
joins, waits until changes settle, reads a view, and applies it. Each partition then moves on its own from its current
state to the wanted one. So a partition that stays never leaves ``OWNED``. One that goes starts to drain as soon as a
view denies it, independently of the others, so that each handover fits into the 6 s that a Java member keeps trying.
A change during a rebalance is only another difference.

A member's node ``ids/<id>`` and a partition's owner node live and die with the session. Hence each state has two ways
out. The orderly one leads through ``QUIESCING``, ``HOLDING`` and ``RELEASING``. By ``SESSION_OVER`` or ``LOSE``, a
partition in delivery is dropped at once, and any other is forgotten.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class MemberState(enum.Enum):
    """The state of a member in its group."""

    DETACHED = "detached"
    """The member has no ZooKeeper session."""
    JOINING = "joining"
    """There is a ZooKeeper session; the member's node below ``/consumers/G/ids`` is being created."""
    SETTLING = "settling"
    """Something changed; the member waits a moment for further changes before it reads the group."""
    READING = "reading"
    """The members and topics of the group are being read from ZooKeeper."""
    FOLLOWING = "following"
    """The newest assignment is known; partitions are claimed or given up until they match it."""
    SUSPENDED = "suspended"
    """ZooKeeper has been silent for two thirds of the session timeout: the member does nothing.

    It keeps its partitions and positions, and goes on if the session does.
    """
    LEAVING = "leaving"
    """The member leaves: it drains and releases all partitions, then deletes its node."""
    STOPPED = "stopped"


class MemberTrigger(enum.Enum):
    """An event that takes a member from one state to another."""

    SESSION = "session"
    REGISTERED = "registered"
    CHANGED = "changed"
    SETTLED = "settled"
    VIEWED = "viewed"
    UNREADABLE = "unreadable"
    UNLISTED = "unlisted"
    """The member's node below ``/consumers/G/ids`` is gone, or belongs to another session."""
    STALE = "stale"
    """The group has changed since the assignment was computed by which partitions were claimed."""
    SUSPEND = "suspend"
    RESUME = "resume"
    """After a silence the same session answers again, and the member is registered in it."""
    REJOIN = "rejoin"
    """After a silence the same session answers again, and the member is not registered in it yet."""
    SESSION_OVER = "session over"
    LEAVE = "leave"
    LEFT = "left"


class PartitionState(enum.Enum):
    """The state of a partition in this member."""

    ABSENT = "absent"
    """The partition is not this member's, and nothing is in progress."""
    CLAIMING = "claiming"
    """The partition's owner node is being created in ZooKeeper."""
    CONTESTED = "contested"
    """The partition is assigned to this member, but another member's owner node exists.

    The node is watched, and the claim is retried.
    """
    CONFIRMING = "confirming"
    """This member has created the owner node, and checks that the assignment is still current."""
    OWNED = "owned"
    """The partition is this member's, and is being delivered."""
    QUIESCING = "quiescing"
    """The partition is being given up: its delivery stops, flushes and commits."""
    HOLDING = "holding"
    """The partition is drained, and its owner node is kept for the grace period.

    A Java member may have read the committed offset before the last commit.
    """
    RELEASING = "releasing"
    """The partition's owner node is being deleted."""
    DROPPING = "dropping"
    """The partition is lost: records that are not delivered yet are being discarded."""


class PartitionTrigger(enum.Enum):
    """An event that takes a partition from one state to another."""

    GRANT = "grant"
    """The newest assignment gives the partition to this member."""
    CREATED = "created"
    TAKEN = "taken"
    """The owner node is another member's, or it could not be created."""
    UNKNOWN = "unknown"
    """The owner node may or may not have been created."""
    CONFIRMED = "confirmed"
    DENY = "deny"
    """The newest assignment does not give the partition to this member."""
    RENEW = "renew"
    """The partition's topic was re-created: records in delivery belong to the deleted topic."""
    DRAINED = "drained"
    ELAPSED = "elapsed"
    RELEASED = "released"
    LOSE = "lose"
    """The partition's owner node is gone, or another member's."""
    SESSION_OVER = "session over"
    DROPPED = "dropped"
    STRAY = "stray"
    """An owner node of this session was found that the state machine does not know.

    The outcome of its creation was lost.
    """


_M, _MT = MemberState, MemberTrigger

MEMBER_TRANSITIONS: Final[Mapping[tuple[MemberState, MemberTrigger], MemberState]] = {
    (_M.DETACHED, _MT.SESSION): _M.JOINING,
    (_M.JOINING, _MT.REGISTERED): _M.SETTLING,
    (_M.SETTLING, _MT.SETTLED): _M.READING,
    (_M.READING, _MT.VIEWED): _M.FOLLOWING,
    (_M.READING, _MT.UNREADABLE): _M.SETTLING,
    (_M.READING, _MT.UNLISTED): _M.JOINING,
    (_M.FOLLOWING, _MT.CHANGED): _M.SETTLING,
    (_M.FOLLOWING, _MT.STALE): _M.READING,
    (_M.SUSPENDED, _MT.RESUME): _M.READING,
    (_M.SUSPENDED, _MT.REJOIN): _M.JOINING,
    **{(state, _MT.SUSPEND): _M.SUSPENDED for state in (_M.JOINING, _M.SETTLING, _M.READING, _M.FOLLOWING)},
    **{
        (state, _MT.SESSION_OVER): _M.DETACHED
        for state in (_M.JOINING, _M.SETTLING, _M.READING, _M.FOLLOWING, _M.SUSPENDED)
    },
    **{
        (state, _MT.LEAVE): _M.LEAVING
        for state in (_M.DETACHED, _M.JOINING, _M.SETTLING, _M.READING, _M.FOLLOWING, _M.SUSPENDED)
    },
    (_M.LEAVING, _MT.LEFT): _M.STOPPED,
}
"""Next state of a member by state and trigger.

LEAVING survives the end of the session: the partitions that are left then are dropped.
"""

_P, _PT = PartitionState, PartitionTrigger

PARTITION_TRANSITIONS: Final[Mapping[tuple[PartitionState, PartitionTrigger], PartitionState]] = {
    (_P.ABSENT, _PT.GRANT): _P.CLAIMING,
    (_P.ABSENT, _PT.STRAY): _P.RELEASING,
    (_P.CLAIMING, _PT.CREATED): _P.CONFIRMING,
    (_P.CLAIMING, _PT.TAKEN): _P.CONTESTED,
    (_P.CLAIMING, _PT.UNKNOWN): _P.RELEASING,
    (_P.CONTESTED, _PT.GRANT): _P.CLAIMING,
    (_P.CONTESTED, _PT.DENY): _P.ABSENT,
    (_P.CONFIRMING, _PT.CONFIRMED): _P.OWNED,
    (_P.CONFIRMING, _PT.DENY): _P.RELEASING,
    (_P.OWNED, _PT.DENY): _P.QUIESCING,
    (_P.OWNED, _PT.RENEW): _P.DROPPING,
    (_P.QUIESCING, _PT.DRAINED): _P.HOLDING,
    (_P.HOLDING, _PT.GRANT): _P.CONFIRMING,
    (_P.HOLDING, _PT.ELAPSED): _P.RELEASING,
    (_P.RELEASING, _PT.RELEASED): _P.ABSENT,
    (_P.DROPPING, _PT.DROPPED): _P.ABSENT,
    (_P.OWNED, _PT.LOSE): _P.DROPPING,
    (_P.QUIESCING, _PT.LOSE): _P.DROPPING,
    (_P.CONFIRMING, _PT.LOSE): _P.ABSENT,
    (_P.HOLDING, _PT.LOSE): _P.ABSENT,
    (_P.OWNED, _PT.SESSION_OVER): _P.DROPPING,
    (_P.QUIESCING, _PT.SESSION_OVER): _P.DROPPING,
    (_P.DROPPING, _PT.SESSION_OVER): _P.DROPPING,
    **{
        (state, _PT.SESSION_OVER): _P.ABSENT
        for state in (_P.CLAIMING, _P.CONTESTED, _P.CONFIRMING, _P.HOLDING, _P.RELEASING)
    },
}
"""Next state of a partition by state and trigger."""

HELD: Final = frozenset({_P.CONFIRMING, _P.OWNED, _P.QUIESCING, _P.HOLDING})
"""States in which the owner node is this member's: if it is missing, the partition was lost."""

MOVING: Final = frozenset({_P.CLAIMING, _P.CONFIRMING, _P.QUIESCING, _P.HOLDING, _P.RELEASING, _P.DROPPING})
"""States of a partition that end by themselves; a rebalance lasts while one is in such a state."""
