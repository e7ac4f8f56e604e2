# SPDX-License-Identifier: Apache-2.0
"""The states of a member and of a partition, and every transition there is.

Pure, and nothing but tables. Two rules hold:

1. Everything that may follow anything stands here; :mod:`consumerd.group.machine` decides *when*, never *what then*.
2. This file knows no ZooKeeper, no listener and no clock.

**Theory.** A rebalance is not one procedure that runs from stop to start, as in the Java consumer, but a difference
between what a member *should* own and what each partition *is* doing. The member follows the group: it joins, lets
changes settle, reads, and follows what it read. Each partition then walks on its own from where it is towards where it
should be. So a partition that stays never leaves ``OWNED``; one that goes begins to drain the moment a view denies it,
whatever else is under way, which keeps every handover inside a Java member's patience; and a change in the middle of a
rebalance is only another difference.

A member's node ``ids/<id>`` and a partition's owner node live and die with the session. Hence two ways out of each
state: an orderly one, through ``QUIESCING``, ``HOLDING`` and ``RELEASING``; and ``SESSION_OVER`` or ``LOSE``, by which
a partition that somebody works on is dropped at once, and one that nobody works on is forgotten.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class MemberState(enum.Enum):
    """Where a member stands towards its group."""

    DETACHED = "detached"
    """No session."""
    JOINING = "joining"
    """There is a session; our node under ``ids`` is being created."""
    SETTLING = "settling"
    """Something changed; further changes are gathered for a moment before the group is read."""
    READING = "reading"
    """A view of the group is being read."""
    FOLLOWING = "following"
    """The newest view is applied; partitions walk towards it."""
    SUSPENDED = "suspended"
    """ZooKeeper has not answered for so long that another member may soon own what is ours; positions are kept."""
    LEAVING = "leaving"
    """Nothing is wanted any more: everything is drained and released, then our node is deleted."""
    STOPPED = "stopped"


class MemberTrigger(enum.Enum):
    """What moves a member."""

    SESSION = "session"
    REGISTERED = "registered"
    CHANGED = "changed"
    SETTLED = "settled"
    VIEWED = "viewed"
    UNREADABLE = "unreadable"
    UNLISTED = "unlisted"
    """Our node under ``ids`` is gone, or another session's."""
    STALE = "stale"
    """What was read no longer holds after partitions were claimed by it."""
    SUSPEND = "suspend"
    RESUME = "resume"
    """The same session answers again, and we had registered in it."""
    REJOIN = "rejoin"
    """The same session answers again before we had registered."""
    SESSION_OVER = "session over"
    LEAVE = "leave"
    LEFT = "left"


class PartitionState(enum.Enum):
    """Where a partition stands towards us."""

    ABSENT = "absent"
    """Not ours, and nothing is under way."""
    CLAIMING = "claiming"
    """Its owner node is being created."""
    CONTESTED = "contested"
    """It should be ours, and somebody else's node is there; watched, and tried again."""
    CONFIRMING = "confirming"
    """Its owner node is ours; whether the view by which it was claimed still holds is being read."""
    OWNED = "owned"
    """The listener has it."""
    QUIESCING = "quiescing"
    """It is to go: the listener stops, flushes and commits."""
    HOLDING = "holding"
    """Drained, and held a little longer for a Java member that read the committed offset before our last commit."""
    RELEASING = "releasing"
    """Its owner node is being deleted."""
    DROPPING = "dropping"
    """Lost: the listener throws away what it has of it."""


class PartitionTrigger(enum.Enum):
    """What moves a partition."""

    GRANT = "grant"
    """The view gives it to us."""
    CREATED = "created"
    TAKEN = "taken"
    """The owner node is another's, or creating it was not possible."""
    UNKNOWN = "unknown"
    """The owner node may or may not have been created."""
    CONFIRMED = "confirmed"
    DENY = "deny"
    """The view does not give it to us."""
    RENEW = "renew"
    """Its topic was deleted and made again: what runs belongs to the old one."""
    DRAINED = "drained"
    ELAPSED = "elapsed"
    RELEASED = "released"
    LOSE = "lose"
    """Its owner node is gone, or another's."""
    SESSION_OVER = "session over"
    DROPPED = "dropped"
    STRAY = "stray"
    """An owner node of our session that nothing accounts for: a claim whose outcome was never known."""


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
"""Every move of a member. LEAVING bears the end of the session: what is left to do then is to drop."""

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
"""Every move of a partition."""

HELD: Final = frozenset({_P.CONFIRMING, _P.OWNED, _P.QUIESCING, _P.HOLDING})
"""States in which the owner node is ours, so that its absence is a loss."""

MOVING: Final = frozenset({_P.CLAIMING, _P.CONFIRMING, _P.QUIESCING, _P.HOLDING, _P.RELEASING, _P.DROPPING})
"""States that pass by themselves; while there is one, a rebalance is not over."""
