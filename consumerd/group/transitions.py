# SPDX-License-Identifier: Apache-2.0
"""The states of a member and of a partition, and every transition between them.

Pure: nothing but tables. Two rules hold:

1. Everything that affects transitions stands here; :mod:`consumerd.group.machine` decides *when* a trigger fires, never
   *what follows*.
2. This file knows no ZooKeeper, no listener and no clock.

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
    """No session."""
    JOINING = "joining"
    """There is a session; our node under ``ids`` is being created."""
    SETTLING = "settling"
    """Something changed; the member waits a moment for further changes before it reads the group."""
    READING = "reading"
    """A view of the group is being read."""
    FOLLOWING = "following"
    """The newest view is applied; partitions move towards it."""
    SUSPENDED = "suspended"
    """ZooKeeper has been silent for two thirds of the session timeout; nothing is done, positions are kept."""
    LEAVING = "leaving"
    """Nothing is wanted any more: everything is drained and released, then our node is deleted."""
    STOPPED = "stopped"


class MemberTrigger(enum.Enum):
    """An event that moves a member."""

    SESSION = "session"
    REGISTERED = "registered"
    CHANGED = "changed"
    SETTLED = "settled"
    VIEWED = "viewed"
    UNREADABLE = "unreadable"
    UNLISTED = "unlisted"
    """Our node under ``ids`` is gone, or belongs to another session."""
    STALE = "stale"
    """The view changed after partitions were claimed by it."""
    SUSPEND = "suspend"
    RESUME = "resume"
    """The same session answers again, and we are registered in it."""
    REJOIN = "rejoin"
    """The same session answers again, and we are not registered in it yet."""
    SESSION_OVER = "session over"
    LEAVE = "leave"
    LEFT = "left"


class PartitionState(enum.Enum):
    """The state of a partition in this member."""

    ABSENT = "absent"
    """Not ours, and nothing is in progress."""
    CLAIMING = "claiming"
    """Its owner node is being created."""
    CONTESTED = "contested"
    """It should be ours, but another member's owner node exists. The node is watched, and the claim is retried."""
    CONFIRMING = "confirming"
    """Its owner node is ours; a read checks whether the view that granted it is still current."""
    OWNED = "owned"
    """The listener delivers it."""
    QUIESCING = "quiescing"
    """It is being given up: the listener stops, flushes and commits."""
    HOLDING = "holding"
    """Drained, and kept a moment longer for a Java member that read the committed offset before our last commit."""
    RELEASING = "releasing"
    """Its owner node is being deleted."""
    DROPPING = "dropping"
    """Lost: the listener discards what it has not delivered."""


class PartitionTrigger(enum.Enum):
    """An event that moves a partition."""

    GRANT = "grant"
    """The newest view gives it to us."""
    CREATED = "created"
    TAKEN = "taken"
    """The owner node is another member's, or it could not be created."""
    UNKNOWN = "unknown"
    """The owner node may or may not have been created."""
    CONFIRMED = "confirmed"
    DENY = "deny"
    """The newest view does not give it to us."""
    RENEW = "renew"
    """Its topic was deleted and re-created: what runs belongs to the old topic."""
    DRAINED = "drained"
    ELAPSED = "elapsed"
    RELEASED = "released"
    LOSE = "lose"
    """Its owner node is gone, or another member's."""
    SESSION_OVER = "session over"
    DROPPED = "dropped"
    STRAY = "stray"
    """An owner node of our session that no record explains: its claim's outcome never became known."""


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
"""Every transition of a member. LEAVING survives the end of the session: what is left then is to drop."""

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
"""Every transition of a partition."""

HELD: Final = frozenset({_P.CONFIRMING, _P.OWNED, _P.QUIESCING, _P.HOLDING})
"""States in which the owner node is ours, so a missing node means that the partition was lost."""

MOVING: Final = frozenset({_P.CLAIMING, _P.CONFIRMING, _P.QUIESCING, _P.HOLDING, _P.RELEASING, _P.DROPPING})
"""States that end by themselves; a rebalance lasts while a partition is in one of them."""
