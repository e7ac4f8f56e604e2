# SPDX-License-Identifier: Apache-2.0
"""One group in the coordinator: members, generation, pending requests. Pure.

A *generation* is a set of members that agree on a protocol and have one assignment. Every change of the membership
begins a new one, with two barriers. First all members join (PREPARING_REBALANCE); those that have not done so within
the longest rebalance timeout are removed. Then the leader sends the assignment, and each member gets its part
(COMPLETING_REBALANCE). A request that waits at a barrier has a ticket; each ticket gets one response.

Example: A and B form generation 3, with A as leader. C joins.

1. The state is PREPARING_REBALANCE. C's JoinGroup waits. Heartbeats of A and B return REBALANCE_IN_PROGRESS.
2. A and B join again. All three responses have generation 4; A's, the leader's, has the members' subscriptions.
3. The state is COMPLETING_REBALANCE. B and C send SyncGroup and wait. A's SyncGroup brings the assignment.
4. The assignment is written to the log. All three get their part, and the state is STABLE.

Two rules hold:

* Methods return effects (``exchange.Effect``), in order, and do nothing else: the caller sends responses and writes to
  the log.
* The stored state is authoritative: an assignment is valid once ``stored`` reports that it is in the log.

A member that waits at a barrier does not expire, since it cannot send heartbeats. Kafka forgets a pending request whose
member left on another connection, or sent the request again. Here its ticket gets an error.

The states are few and each request depends on most of them, so the machine is one class. ``exchange`` has its values,
``member`` the members.

Sources: Kafka's ``GroupCoordinator.scala``, ``GroupMetadata.scala`` and ``DelayedJoin.scala`` of 1.1. Those of 0.9
behave alike, except for EMPTY (0.10.1: a group outlives its members) and the delay of the first rebalance (0.11,
KIP-134).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from consumerd.embedded.coordinator.exchange import (
    UNKNOWN_MEMBER,
    Effect,
    GroupDescription,
    GroupState,
    Join,
    Joined,
    JoinResult,
    Store,
    Synced,
    SyncResult,
)
from consumerd.embedded.coordinator.member import CoordinatedMember, Protocol, Ticket
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.offsets_topic import GroupMember, GroupValue


class CoordinatedGroup:
    """One group in the coordinator: its members, generation and pending requests.

    Methods return effects, such as responses, which the caller carries out in order.

    Args:
        initial_delay_s: Time, in seconds, that the first rebalance of an empty group waits for more members; 0 for
            none.
    """

    def __init__(self, group_id: str, *, initial_delay_s: float = 0.0) -> None:
        self.group_id = group_id
        self._initial_delay_s = initial_delay_s
        self.state = GroupState.EMPTY
        self.protocol_type = ""
        """The type of its present or last members, such as ``consumer``; empty without any."""
        self.generation = 0
        """The newest generation; 0 before the first."""
        self._protocol: str | None = None
        self._leader: str | None = None
        self._members: dict[str, CoordinatedMember] = {}
        self._join_deadline = math.inf
        self._more_delay_s: float | None = None
        """Time, in seconds, for which a first rebalance may be delayed further; None in all others."""
        self._more_joined = False
        self._effects: list[Effect] = []

    @classmethod
    def restore(
        cls, group_id: str, stored: GroupValue, now: float, *, initial_delay_s: float = 0.0
    ) -> CoordinatedGroup:
        """Return the group that the log has stored.

        The session timeouts of its members start at ``now``, in seconds of the coordinator's clock.
        """
        group = cls(group_id, initial_delay_s=initial_delay_s)
        group.protocol_type = stored.protocol_type
        group.generation = stored.generation
        if stored.members and stored.protocol is not None:
            group.state = GroupState.STABLE
            group._protocol = stored.protocol
            group._leader = stored.leader
            for one in stored.members:
                member = CoordinatedMember(
                    member_id=one.member_id,
                    client_id=one.client_id,
                    client_host=one.client_host,
                    session_timeout_ms=one.session_timeout_ms,
                    rebalance_timeout_ms=one.rebalance_timeout_ms,
                    protocols=(Protocol(stored.protocol, one.subscription),),
                    assignment=one.assignment,
                )
                member.heard(now)
                group._members[one.member_id] = member
            if group._leader not in group._members:
                group._leader = next(iter(group._members))
        return group

    # -- what others see

    @property
    def deadline(self) -> float:
        """Time at which :meth:`expire` must be called at the latest.

        In seconds of the clock whose time is passed to the methods as ``now``; infinite while nothing can expire.
        """
        return min(self._join_deadline, *(member.deadline for member in self._members.values()), math.inf)

    def describe(self) -> GroupDescription:
        """Return the group's description for DescribeGroups."""
        protocol = self._protocol if self.state is GroupState.STABLE else None
        return GroupDescription(
            state=self.state,
            protocol_type=self.protocol_type,
            protocol=protocol or "",
            members=tuple(
                _describe(member, member.metadata(protocol), member.assignment)
                if protocol is not None
                else _describe(member, b"", b"")
                for member in self._members.values()
            ),
        )

    # -- requests

    def join(self, request: Join, now: float) -> Sequence[Effect]:
        """Handle a JoinGroup; return the effects.

        The response is one of these effects, or one of a later call: it comes when all members have joined.
        """
        error = self._refuse(request)
        if error is not None:
            self._respond_to_join(request.ticket, JoinResult(error=error, member_id=request.member_id))
        elif request.member_id == UNKNOWN_MEMBER:
            self._add(request, now)
        else:
            self._rejoin(self._members[request.member_id], request, now)
        return self._take_effects(now)

    def sync(
        self, ticket: Ticket, member_id: str, generation: int, assignment: Mapping[str, bytes], now: float
    ) -> Sequence[Effect]:
        """Handle a SyncGroup request; return the effects.

        The response comes when the leader has sent the assignment, perhaps as an effect of a later call.

        Args:
            ticket: Number of the request, chosen by the caller.
            assignment: In the leader's request, the part of each member, by member id; otherwise empty.
        """
        member = self._members.get(member_id)
        if member is None or self.state in (GroupState.EMPTY, GroupState.DEAD):
            self._respond_to_sync(ticket, ErrorCode.UNKNOWN_MEMBER_ID)
        elif generation != self.generation:
            self._respond_to_sync(ticket, ErrorCode.ILLEGAL_GENERATION)
        elif self.state is GroupState.PREPARING_REBALANCE:
            self._respond_to_sync(ticket, ErrorCode.REBALANCE_IN_PROGRESS)
        elif self.state is GroupState.STABLE:
            self._effects.append(Synced(ticket, SyncResult(assignment=member.assignment)))
            member.heard(now)
        else:
            if member.syncing is not None:
                self._respond_to_sync(member.syncing, ErrorCode.REBALANCE_IN_PROGRESS)
            member.syncing = ticket
            if member_id == self._leader:
                complete = {one: assignment.get(one, b"") for one in self._members}
                self._effects.append(Store(self._snapshot(complete), complete))
        return self._take_effects(now)

    def stored(
        self, generation: int, assignment: Mapping[str, bytes], error: ErrorCode, now: float
    ) -> Sequence[Effect]:
        """Continue after the write that a :class:`Store` effect has requested; return the effects.

        A call with an earlier generation than the present one changes nothing.

        Args:
            generation: Generation of the written group.
            assignment: Assignment of the written group, by member id.
            error: NONE if it is in the log, else the error of the write.
        """
        if self.state is GroupState.COMPLETING_REBALANCE and generation == self.generation:
            if error is ErrorCode.NONE:
                for member in self._members.values():
                    member.assignment = assignment.get(member.member_id, b"")
                self._propagate(ErrorCode.NONE, now)
                self.state = GroupState.STABLE
            else:
                self._reset_assignment(error, now)
                self._prepare_rebalance(now)
        return self._take_effects(now)

    def heartbeat(self, member_id: str, generation: int, now: float) -> ErrorCode:
        """Restart a member's session timeout; return NONE, or the error for the member."""
        member = self._members.get(member_id)
        if member is None or self.state in (GroupState.EMPTY, GroupState.DEAD):
            return ErrorCode.UNKNOWN_MEMBER_ID
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member.heard(now)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE

    def leave(self, member_id: str, now: float) -> tuple[ErrorCode, Sequence[Effect]]:
        """Remove a member; return its error code (NONE for success), and the effects.

        The effects are for the other members, which have to join again.
        """
        if member_id not in self._members:
            return ErrorCode.UNKNOWN_MEMBER_ID, ()
        self._remove(member_id)
        self._after_removal(now)
        return ErrorCode.NONE, self._take_effects(now)

    def admit_commit(self, member_id: str, generation: int, now: float) -> ErrorCode:
        """Return NONE if a client may commit positions, else the error code for it.

        If allowed, a member's session timeout is restarted. A client that does not use group membership has a negative
        ``generation``, and may commit while the group has no members.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        member = self._members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member.heard(now)
        return ErrorCode.NONE

    # -- time, and the end

    def expire(self, now: float) -> Sequence[Effect]:
        """Remove expired members and those that have not joined in time; return effects.

        ``now`` is the time in seconds of the coordinator's clock.
        """
        for member in list(self._members.values()):
            # check each again: an earlier removal may begin a rebalance, which ends pending requests
            if member.member_id in self._members and member.deadline <= now:
                self._remove(member.member_id)
                self._after_removal(now)
        if self.state is GroupState.PREPARING_REBALANCE and self._join_deadline <= now:
            self._end_wait(now)
        return self._take_effects(now)

    def kill(self) -> Sequence[Effect]:
        """Make the group DEAD; return the effects: errors for its pending requests.

        Called if the group is empty and its positions have expired, or the coordinator stops.
        """
        for member in self._members.values():
            self._drop_waiting(member, ErrorCode.NOT_COORDINATOR)
        self._members.clear()
        self.state = GroupState.DEAD
        effects, self._effects = self._effects, []
        return effects

    # -- joining

    def _refuse(self, request: Join) -> ErrorCode | None:
        names = frozenset(protocol.name for protocol in request.protocols)
        if self.state is GroupState.EMPTY:
            consistent = bool(request.protocol_type)
        else:
            consistent = request.protocol_type == self.protocol_type and (
                not self._members or bool(names & self._candidates())
            )
        if not consistent or not names:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        known = request.member_id == UNKNOWN_MEMBER or request.member_id in self._members
        return None if known and self.state is not GroupState.DEAD else ErrorCode.UNKNOWN_MEMBER_ID

    def _add(self, request: Join, now: float) -> None:
        if not self._members:
            self.protocol_type = request.protocol_type
        member = CoordinatedMember(
            member_id=request.new_member_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            joining=request.ticket,
        )
        if self.state is GroupState.PREPARING_REBALANCE and self.generation == 0:
            self._more_joined = True
        self._members[member.member_id] = member
        if self._leader is None:
            self._leader = member.member_id
        self._prepare_rebalance(now)

    def _rejoin(self, member: CoordinatedMember, request: Join, now: float) -> None:
        unchanged = member.protocols == request.protocols
        leads = member.member_id == self._leader
        if (self.state is GroupState.COMPLETING_REBALANCE and unchanged) or (
            self.state is GroupState.STABLE and unchanged and not leads
        ):
            # repeat the response, which the member may not have received; a stable group's leader requests a rebalance
            self._respond_to_join(request.ticket, self._generation_for(member))
            return
        if member.joining is not None:
            superseded = JoinResult(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            self._respond_to_join(member.joining, superseded)
        member.protocols = request.protocols
        member.joining = request.ticket
        self._prepare_rebalance(now)

    def _prepare_rebalance(self, now: float) -> None:
        """Begin to wait for all members, unless that has begun."""
        if self.state is GroupState.PREPARING_REBALANCE:
            return
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignment(ErrorCode.REBALANCE_IN_PROGRESS, now)
        timeout_s = max((member.rebalance_timeout_ms for member in self._members.values()), default=0) / 1000
        if self.state is GroupState.EMPTY and self._initial_delay_s > 0:
            self._more_delay_s = max(timeout_s - self._initial_delay_s, 0.0)
            timeout_s = self._initial_delay_s
        self._join_deadline = now + timeout_s
        self.state = GroupState.PREPARING_REBALANCE

    def _end_wait(self, now: float) -> None:
        """Handle the end of the join time.

        A first rebalance may wait for more members; otherwise, those that have joined form the generation.
        """
        if self._more_delay_s and self._more_joined:
            self._more_joined = False
            delay_s = min(self._initial_delay_s, self._more_delay_s)
            self._more_delay_s -= delay_s
            self._join_deadline = now + delay_s
            return
        for member in [one for one in self._members.values() if one.joining is None]:
            self._remove(member.member_id)
        self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Begin the next generation with the members that have joined."""
        self._join_deadline = math.inf
        self._more_delay_s = None
        self._more_joined = False
        self.generation += 1
        if not self._members:
            self._protocol = None
            self.state = GroupState.EMPTY
            self._effects.append(Store(self._snapshot({}), {}))
            return
        self._protocol = self._elect_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        for member in self._members.values():
            assert member.joining is not None, "members that had not joined were removed"
            self._respond_to_join(member.joining, self._generation_for(member))
            member.joining = None
            member.heard(now)

    def _generation_for(self, member: CoordinatedMember) -> JoinResult:
        """Return a member's response; the leader of a new generation gets all members."""
        assert self._protocol is not None, "a generation with members has a protocol"
        members: tuple[tuple[str, bytes], ...] = ()
        if member.member_id == self._leader and self.state is GroupState.COMPLETING_REBALANCE:
            members = tuple((one.member_id, one.metadata(self._protocol)) for one in self._members.values())
        return JoinResult(
            member_id=member.member_id,
            generation=self.generation,
            protocol=self._protocol,
            leader=self._leader or "",
            members=members,
        )

    def _candidates(self) -> frozenset[str]:
        """Return the protocols that all members support."""
        return frozenset.intersection(*(member.protocol_names for member in self._members.values()))

    def _elect_protocol(self) -> str:
        """Return the candidate with the most votes; of several, the first one voted for."""
        candidates = self._candidates()
        return Counter(member.vote(candidates) for member in self._members.values()).most_common(1)[0][0]

    # -- leaving

    def _remove(self, member_id: str) -> None:
        member = self._members.pop(member_id)
        self._drop_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if self._leader == member_id:
            self._leader = next(iter(self._members), None)

    def _after_removal(self, now: float) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(now)
        self._complete_if_all_joined(now)

    def _complete_if_all_joined(self, now: float) -> None:
        """End the first barrier if all have joined; a first rebalance waits its full time."""
        if self.state is not GroupState.PREPARING_REBALANCE or self._more_delay_s is not None:
            return
        if all(member.joining is not None for member in self._members.values()):
            self._complete_join(now)

    def _drop_waiting(self, member: CoordinatedMember, error: ErrorCode) -> None:
        if member.joining is not None:
            self._respond_to_join(member.joining, JoinResult(error=error, member_id=member.member_id))
        if member.syncing is not None:
            self._respond_to_sync(member.syncing, error)
        member.joining = member.syncing = None

    # -- assignment

    def _reset_assignment(self, error: ErrorCode, now: float) -> None:
        for member in self._members.values():
            member.assignment = b""
        self._propagate(error, now)

    def _propagate(self, error: ErrorCode, now: float) -> None:
        """Respond to all pending SyncGroups."""
        for member in self._members.values():
            if member.syncing is not None:
                self._effects.append(Synced(member.syncing, SyncResult(error=error, assignment=member.assignment)))
                member.syncing = None
                member.heard(now)

    def _snapshot(self, assignment: Mapping[str, bytes]) -> GroupValue:
        protocol = self._protocol
        return GroupValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=protocol,
            leader=self._leader,
            members=tuple(
                _describe(member, member.metadata(protocol), assignment[member.member_id])
                for member in self._members.values()
                if protocol is not None
            ),
        )

    # -- effects

    def _respond_to_join(self, ticket: Ticket, result: JoinResult) -> None:
        self._effects.append(Joined(ticket, result))

    def _respond_to_sync(self, ticket: Ticket, error: ErrorCode) -> None:
        self._effects.append(Synced(ticket, SyncResult(error=error)))

    def _take_effects(self, now: float) -> Sequence[Effect]:
        self._complete_if_all_joined(now)
        effects, self._effects = self._effects, []
        return effects


def _describe(member: CoordinatedMember, subscription: bytes, assignment: bytes) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )
