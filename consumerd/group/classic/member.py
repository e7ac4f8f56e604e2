# SPDX-License-Identifier: Apache-2.0
"""Takes part in a coordinated group: connects the machine to the coordinator and the listener.

One loop feeds events to the machine and carries out its effects, as in :mod:`consumerd.group.rebalancer`. An effect
that waits becomes a task, which reports back with an event; claims are revoked at once, in the loop. The machine makes
all decisions.

**Topics.** The coordinator knows none, so :class:`~consumerd.group.classic.topics.GroupTopics` is followed besides it:
by all members, since a pattern may match other topics; and by the leader, since partitions may have been added. A
member whose join no longer fits joins again.

Cancelling :meth:`ClassicMember.run` revokes every claim, and the coordinator removes the member after a session
timeout; :meth:`leave` is the orderly way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, assert_never

import structlog

from consumerd import failpoints
from consumerd.access.principal import OUR_PRINCIPAL, Principal
from consumerd.aio.cell import Cell
from consumerd.aio.sharing import SharedReads
from consumerd.aio.timeouts import timeout, wait_set
from consumerd.client.group_coordinator import CoordinatorClient, list_consumers
from consumerd.errors import BrokerError, ConnectionLost, ConsumerdError, CoordinationError, ProtocolError
from consumerd.group import events as ev
from consumerd.group.claimed import ClaimedPartitions
from consumerd.group.classic import events as cv
from consumerd.group.classic.assignment import GroupAssignor, assign
from consumerd.group.classic.claims import GenerationClaim
from consumerd.group.classic.machine import NO_GENERATION, ClassicMachine, ClassicSettings
from consumerd.group.classic.payloads import decode_partitions, decode_topics, encode_partitions, encode_topics
from consumerd.group.classic.refusals import explain, find_refusal
from consumerd.group.classic.topics import GroupTopics, KnownTopic
from consumerd.group.classic.transitions import ClassicState
from consumerd.group.java_regex import UnsupportedPattern
from consumerd.group.listener import PartitionListener
from consumerd.group.member_loop import MemberLoop
from consumerd.group.reports import GroupReports
from consumerd.group.status import Coordination, GroupStatus
from consumerd.group.subscription import Subscription, needs_topic_names, plan_streams
from consumerd.model import Claim, ConsumerId, Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.offsets.kafka_store import MemberGeneration
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.port import LeasePhase

_LEAVE_SLACK_S: Final = 5.0
"""Time, in seconds, to leave besides draining: a request, or a coordinator that does not answer."""
_TOPICS_RETRY_S: Final = 1.0
"""Pause, in seconds, after topics could not be read."""
_FAILURES: Final = (BrokerError, ConnectionLost, ProtocolError, CoordinationError)


@dataclass(frozen=True, slots=True)
class _Basis:
    """Topics from which a join was made.

    The member joins again when they no longer fit.

    Attributes:
        topics: the topics of our own metadata.
        counts: partitions of each topic that we have assigned as leader; None for a follower.
    """

    topics: frozenset[str]
    counts: Mapping[str, int] | None = None


class ClassicMember:
    """One member of a group that a broker coordinates.

    Args:
        coordinator: Sends requests to the group's coordinator.
        topics: Source of the cluster's topics.
        listener: Delivery, which learns of claimed, drained and lost partitions.
        generation: Receives the generation and member id, which commits of positions must name.
        assignor: The preferred assignor; the member supports the other assignor, too.
        now: Returns the seconds of a clock that goes on while the machine is suspended, for the lease.
        wall_ms: Returns calendar time in ms since the epoch, for display only.
        admit: Called before each join. After a CoordinationError it is called again later; any other error ends
            :meth:`run`, and the member with it.
        principal: Our identity at brokers, for advice.
    """

    def __init__(
        self,
        coordinator: CoordinatorClient,
        topics: GroupTopics,
        *,
        group: str,
        subscription: Subscription,
        listener: PartitionListener,
        generation: MemberGeneration,
        settings: ClassicSettings,
        assignor: GroupAssignor,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        random: Random,
        hooks: Hooks | None = None,
        admit: Callable[[], Awaitable[None]] | None = None,
        principal: Principal = OUR_PRINCIPAL,
    ) -> None:
        self._explain = partial(explain, group=group, principal=principal)
        self._coordinator = coordinator
        self._cluster = topics
        self._group = group
        self._subscription = subscription.register(0)
        self._generation = generation
        self._settings = settings
        self._assignors = sorted(GroupAssignor, key=lambda one: one is not assignor)
        self._now = now
        self._admit = admit
        self._hooks = hooks if hooks is not None else Hooks()
        self._log = structlog.get_logger(__name__).bind(group=group)
        self._machine = ClassicMachine(settings, random.random)
        self._reports = GroupReports(hooks=self._hooks, log=self._log, wall_ms=wall_ms)
        self._claims = ClaimedPartitions[GenerationClaim](listener, hooks=self._hooks, log=self._log)
        self._find_topic = SharedReads[str, Incarnation | None](self._read_incarnation)
        self._loop = MemberLoop[cv.Event](ev.Tick(), now=now, hooks=self._hooks, log=self._log)
        self._post, self._start = self._loop.post, self._loop.start
        self._requests: set[int] = set()
        """Keys of the tasks that wait for JoinGroup, SyncGroup or a heartbeat."""
        self._basis: _Basis | None = None
        self._topics_due = asyncio.Event()
        self._known: Mapping[str, KnownTopic | None] = {}
        self._members = 0
        self._was_assigned = False
        self._unidentified: str | None = None
        """Why the topics of assigned partitions could not be read the last time."""
        self._seen: tuple[int, LeasePhase] = (NO_GENERATION, LeasePhase.NONE)
        self._counted = (-1, -1)
        self.topics: Cell[frozenset[str]] = Cell(frozenset())
        """Our topics that exist, as last read."""

    # -- what others call

    async def run(self) -> None:
        """Take part in the group until :meth:`leave` is done. No timeout.

        Failures of the coordinator are retried. An error of ``admit`` other than CoordinationError ends the member, and
        is raised in an ExceptionGroup. A cancellation revokes every claim.
        """
        self._loop.begin()
        self._generation.refused = self._post_refused
        try:
            async with self._loop.tasks:
                self._start(self._follow_topics())
                self._post(ev.Tick())
                while self._machine.state is not ClassicState.STOPPED and not self._loop.abandoned:
                    await self._step(await self._loop.next_event(lambda: self._machine.deadline))
                if self._loop.abandoned:
                    self._generation.clear()
                    await self._claims.abandon()
                for key in self._loop.tasks.keys:
                    await self._loop.tasks.cancel(key)
        finally:
            self._generation.clear()
            self._claims.revoke_all("the member has stopped")
            self._cluster.close()
            self._loop.end()

    async def leave(self, timeout_s: float | None = None) -> bool:
        """Drain and commit all partitions, leave the group, and let :meth:`run` return.

        Returns True if that was done within ``timeout_s``. Otherwise the remaining partitions are dropped without a
        commit, and the coordinator removes the member after a session timeout. By default the timeout is the drain
        timeout and 5 s for the coordinator.
        """
        if timeout_s is None:
            timeout_s = self._settings.drain_timeout_s + _LEAVE_SLACK_S
        return await self._loop.leave(ev.LeaveRequested(), timeout_s)

    def report_denied(self, topic: str) -> None:
        """Do nothing: the status of each partition already names the permission that its commits lack.

        A member that ZooKeeper coordinates checks its permissions here.
        """

    def report_lost(self, claim: Claim, reason: str) -> None:
        """Report that delivery has found a claim to be invalid.

        The partition of the claim is dropped, and started again if it is still assigned to this member. A claim that
        was revoked already is ignored.
        """
        if self._claims.holds(claim):
            self._post(ev.Disowned(claim.partition, reason))

    @property
    def assigned(self) -> bool:
        """True once an assignment was received; it stays True during later rebalances."""
        return self._was_assigned

    @property
    def members(self) -> int:
        """Number of members of the group, as of this member's last join."""
        return self._members

    @property
    def group_partitions(self) -> int:
        """Number of partitions of the topics that this member has read.

        The leader has read all topics of the group; another member only those to which it subscribes.
        """
        return sum(topic.partitions for topic in self._known.values() if topic is not None)

    @property
    def denied(self) -> Mapping[str, str]:
        """An empty mapping: the status of each partition names the permissions that it lacks."""
        return {}

    @property
    def status(self) -> GroupStatus:
        """The member's current status."""
        machine, broker = self._machine, self._coordinator.broker
        thread = ThreadId(machine.member_id)
        return GroupStatus(
            group=self._group,
            state=machine.state,
            consumer=ConsumerId(machine.member_id) if machine.member_id else None,
            epoch=SessionEpoch(max(machine.generation, 0)),
            assigned=self.assigned,
            desired=dict.fromkeys(sorted(machine.assigned), thread),
            owned=dict.fromkeys(sorted(machine.owned), thread),
            moving={},
            conflicts=(),
            rebalances=self._reports.rebalances,
            disagreements=(),
            last_error=machine.problem,
            unreadable_topics={
                name: topic.problem
                for name, topic in sorted(self._known.items())
                if topic is not None and topic.problem is not None
            },
            coordination=Coordination(
                generation=machine.generation,
                member_id=machine.member_id,
                leader=machine.leader,
                assignor=machine.protocol,
                coordinator="" if broker is None else str(broker),
                phase=machine.phase(self._now()),
            ),
        )

    # -- the loop

    def _post_refused(self, generation: int, error: BrokerError) -> None:
        """Tell the machine that the coordinator refused a commit of this generation."""
        self._post(cv.CommitRefused(generation, find_refusal(error), self._explain(error)))

    async def _step(self, event: cv.Event) -> None:
        machine, before = self._machine, self._machine.state
        effects = machine.handle(event, self._now())
        # before any effect: commits of a drain carry this generation, and those of a fenced member none
        self._generation.set(machine.generation, machine.member_id)
        for effect in effects:
            await self._execute(effect)
        if machine.state is not before:
            self._log.debug("member_moved", state=machine.state.value, was=before.value)
        self._tell_lease()
        self._tell_problem()
        if (counted := (len(machine.assigned), len(machine.owned))) != self._counted:
            self._counted = counted
            self._hooks.assignment_changed(desired=counted[0], owned=counted[1])

    def _tell_lease(self) -> None:
        phase = self._machine.phase(self._now())
        # a generation counts from its assignment on
        seen = (NO_GENERATION if phase is LeasePhase.NONE else self._machine.generation, phase)
        if seen != self._seen:
            self._seen = seen
            self._hooks.group_lease_changed(seen[0], seen[1].value)
        # a claim may have paused and be renewed since the last step, so the phases alone do not tell
        self._claims.wake()

    def _tell_problem(self) -> None:
        problem = self._machine.problem
        if problem is None:
            self._reports.recover()
        elif problem == self._unidentified:
            self._reports.fail(Trouble.GROUP_TOPICS_UNREAD, CoordinationError(problem))
        elif self._machine.state in {ClassicState.STABLE, ClassicState.DRAINING}:
            self._reports.fail(Trouble.COORDINATOR_SILENT, CoordinationError(problem))
        else:
            self._reports.fail(Trouble.JOIN_FAILED, CoordinationError(problem))

    def _ask(self, work: Coroutine[object, object, None]) -> None:
        """Start a request that is given up when the member leaves."""
        self._requests = (self._requests & self._loop.tasks.keys) | {self._start(work)}

    async def _execute(self, effect: cv.Effect) -> None:
        match effect:
            case cv.JoinGroup():
                self._ask(self._join(effect))
            case cv.SyncGroup():
                self._ask(self._sync(effect))
            case cv.Heartbeat():
                self._ask(self._beat(effect))
            case cv.LeaveGroup():
                for key in self._requests:
                    self._loop.tasks.cancel_soon(key)
                self._start(self._leave(effect))
            case cv.Identify():
                self._start(self._identify(effect))
            case cv.StartAssigned():
                await self._give(effect)
            case ev.Drain():
                self._start(self._drain(effect))
            case ev.Drop():
                self._start(self._drop(effect))
            case ev.Revoke(partitions, reason):
                self._claims.revoke(partitions, reason)
            case ev.ReportRebalance(rebalance):
                self._reports.tell_rebalance(rebalance)
            case _:
                assert_never(effect)

    # -- what the coordinator is asked

    async def _join(self, effect: cv.JoinGroup) -> None:
        try:
            if self._admit is not None:
                await self._admit()
            topics = await self._find_subscribed()
            self._basis = _Basis(topics)
            metadata = encode_topics(topics)
            if failpoints.ENABLED:
                failpoints.reach("before_register")
            joined = await self._coordinator.join(
                effect.member_id, [(assignor.value, metadata) for assignor in self._assignors]
            )
            if failpoints.ENABLED:
                failpoints.reach("after_register")
        except _FAILURES as error:
            self._post_failed(effect.serial, error)
            return
        self._topics_due.set()
        answer = joined.answer
        if answer.members:
            self._members = len(answer.members)
        self._post(
            cv.GroupJoined(
                serial=effect.serial,
                generation=answer.generation_id,
                member_id=answer.member_id,
                protocol=answer.protocol_name,
                leader=answer.leader == answer.member_id,
                members={one.member_id: one.metadata for one in answer.members},
                rebalance_timeout_s=joined.rebalance_timeout_s,
            )
        )

    async def _sync(self, effect: cv.SyncGroup) -> None:
        joined = effect.joined
        try:
            assignments = await self._assign(joined) if joined.leader else {}
            if failpoints.ENABLED:
                failpoints.reach("before_claim")
            sent_at = self._now()
            partitions = decode_partitions(
                await self._coordinator.sync(joined.generation, joined.member_id, assignments)
            )
            if failpoints.ENABLED:
                failpoints.reach("after_claim")
        except _FAILURES as error:
            self._post_failed(effect.serial, error)
            return
        self._log.info(
            "group_joined",
            generation=joined.generation,
            member=joined.member_id,
            leader=joined.leader,
            assignor=joined.protocol,
            partitions=len(partitions),
        )
        self._was_assigned = True
        self._topics_due.set()
        self._post(cv.GroupSynced(serial=effect.serial, sent_at=sent_at, partitions=partitions))
        if not joined.leader:
            await self._count_members()

    async def _count_members(self) -> None:
        """Ask for the number of members, which only the leader is told."""
        try:
            self._members = len(list_consumers(await self._coordinator.describe()))
        except _FAILURES as error:
            self._log.debug("members_not_counted", error=str(error))

    def _post_failed(self, serial: int, error: ConsumerdError) -> None:
        self._post(cv.JoinFailed(serial=serial, refusal=find_refusal(error), reason=self._explain(error)))

    async def _assign(self, joined: cv.GroupJoined) -> Mapping[str, bytes]:
        """Return the assignment of all members, as their leader. Raises CoordinationError."""
        subscriptions = {}
        for member_id, metadata in joined.members.items():
            try:
                subscriptions[member_id] = decode_topics(metadata)
            except ProtocolError as error:
                # the others must not stand still for it
                subscriptions[member_id] = frozenset()
                self._log.warning("member_unreadable", member=member_id, error=str(error))
                self._hooks.trouble(Trouble.MEMBER_UNREADABLE, f"{member_id} gets no partitions: {error}")
        known = await self._cluster.find(frozenset[str]().union(*subscriptions.values()))
        counts = count_partitions(known)
        assert self._basis is not None  # made when the join was sent
        self._basis = _Basis(self._basis.topics, counts)
        plan = assign(GroupAssignor(joined.protocol), subscriptions, counts)
        return {member_id: encode_partitions(partitions) for member_id, partitions in plan.items()}

    async def _beat(self, effect: cv.Heartbeat) -> None:
        sent_at = self._now()
        error: ConsumerdError | None = None
        try:
            # to connect may take longer than the request
            async with timeout(self._settings.session_timeout_s / 2):
                await self._coordinator.heartbeat(effect.generation, effect.member_id)
        except TimeoutError:
            error = CoordinationError(f"no connection within {self._settings.session_timeout_s / 2:.1f} s")
        except _FAILURES as failure:
            error = failure
        if error is None:
            self._post(cv.HeartbeatEnded(serial=effect.serial, sent_at=sent_at))
            return
        refusal = find_refusal(error)
        self._post(
            cv.HeartbeatEnded(serial=effect.serial, sent_at=sent_at, refusal=refusal, reason=self._explain(error))
        )

    async def _leave(self, effect: cv.LeaveGroup) -> None:
        try:
            if failpoints.ENABLED:
                failpoints.reach("before_release")
            await self._coordinator.leave(effect.member_id)
            if failpoints.ENABLED:
                failpoints.reach("after_release")
        except _FAILURES as error:
            self._log.warning("leave_unanswered", member=effect.member_id, error=str(error))
            detail = f"{self._explain(error)}; the coordinator removes the member after the session timeout"
            self._hooks.trouble(Trouble.LEAVE_UNANSWERED, detail)
        self._post(cv.Left(effect.serial))

    # -- topics

    async def _find_subscribed(self) -> frozenset[str]:
        """Return the topics that we subscribe to. Raises CoordinationError."""
        names: Collection[str] = ()
        if needs_topic_names(self._subscription):
            names = await self._cluster.list_names()
        try:
            return frozenset(plan_streams(self._subscription, names))
        except UnsupportedPattern as error:
            raise CoordinationError(f"the subscription cannot be evaluated: {error}") from error

    async def _follow_topics(self) -> None:
        """Review the topics after each change. Ends by cancellation."""
        while True:
            self._topics_due.clear()
            try:
                await self._review_topics()
            except CoordinationError as error:
                self._log.info("group_topics_unread", error=str(error))
                self._hooks.trouble(Trouble.GROUP_TOPICS_UNREAD, str(error))
                await asyncio.sleep(_TOPICS_RETRY_S)
                continue
            await wait_set(self._topics_due, None)

    def _tell_unreadable(self, before: Mapping[str, KnownTopic | None]) -> None:
        for name, topic in sorted(self._known.items()):
            known = before.get(name)
            if topic is None or topic.problem is None or (known is not None and known.problem == topic.problem):
                continue
            self._log.warning("topic_unreadable", topic=name, error=topic.problem)
            self._hooks.trouble(Trouble.TOPIC_UNREADABLE, f"{name}: {topic.problem}")

    async def _review_topics(self) -> None:
        basis = self._basis
        topics = await self._find_subscribed()
        group = topics if basis is None or basis.counts is None else topics | basis.counts.keys()
        self._cluster.follow(group, names=needs_topic_names(self._subscription), changed=self._topics_due.set)
        before, self._known = self._known, await self._cluster.find(group)
        self._tell_unreadable(before)
        self.topics.set(frozenset(name for name in topics if self._known[name] is not None))
        self._disown_recreated()
        if basis is None or basis is not self._basis:
            return  # a later join is reviewed on its own
        if topics != basis.topics:
            self._post(cv.SubscriptionChanged("topics changed"))
        elif basis.counts is not None and count_partitions(self._known) != basis.counts:
            self._post(cv.SubscriptionChanged("partitions changed"))

    def _disown_recreated(self) -> None:
        """Give up the claims of re-created topics; they are claimed again with the new incarnation."""
        for partition, claim in list(self._claims.claims.items()):
            topic = self._known.get(partition.topic)
            if topic is None or topic.problem is not None or topic.incarnation.is_same_topic(claim.incarnation):
                continue
            reason = f"the topic was re-created (was {claim.incarnation}, now {topic.incarnation})"
            self._post(ev.Disowned(partition, reason))

    async def _read_incarnation(self, topic: str) -> Incarnation | None:
        found = (await self._cluster.find((topic,)))[topic]
        if found is not None and not found.incarnation.is_known:
            raise CoordinationError(f"{topic}: {found.problem}")
        return None if found is None else found.incarnation

    async def _identify(self, effect: cv.Identify) -> None:
        topics = {partition.topic for partition in effect.partitions}
        try:
            known = await self._cluster.find(topics)
        except CoordinationError as error:
            self._post_identified(effect.serial, {}, str(error))
            return
        # the directory must know the topics before their partitions are fetched
        self.topics.set(self.topics.value | {name for name, topic in known.items() if topic is not None})
        found, missing = {}, []
        for partition in sorted(effect.partitions):
            topic = known[partition.topic]
            if topic is not None and partition.partition.number < topic.partitions:
                found[partition] = topic.incarnation
            else:
                missing.append(str(partition))
        problem = f"assigned, but not in the cluster: {', '.join(missing[:3])}" if missing else None
        self._post_identified(effect.serial, found, problem)

    def _post_identified(self, serial: int, found: Mapping[TopicPartition, Incarnation], problem: str | None) -> None:
        self._unidentified = problem
        self._post(cv.Identified(serial=serial, incarnations=found, problem=problem))

    # -- what the listener is told

    async def _give(self, effect: cv.StartAssigned) -> None:
        claims: Sequence[GenerationClaim] = [
            GenerationClaim(
                self._claims.changes,
                partition=partition,
                member_id=self._machine.member_id,
                generation=effect.generation,
                incarnation=incarnation,
                phase=self._find_phase,
                find_incarnation=self._find_topic,
            )
            for partition, incarnation in sorted(effect.incarnations.items())
        ]
        await self._claims.give(claims)

    def _find_phase(self, generation: int) -> LeasePhase:
        if self._machine.generation != generation:
            return LeasePhase.NONE
        return self._machine.phase(self._now())

    async def _drain(self, effect: ev.Drain) -> None:
        await self._claims.drain(effect.partitions, effect.deadline_s)
        self._post(ev.DrainEnded(effect.serial))

    async def _drop(self, effect: ev.Drop) -> None:
        await self._claims.drop(effect.partitions, effect.reason)
        self._post(ev.DropEnded(effect.serial))


def count_partitions(known: Mapping[str, KnownTopic | None]) -> Mapping[str, int]:
    """Return the number of partitions of each topic.

    Topics that do not exist or cannot be read are left out.
    """
    return {name: topic.partitions for name, topic in known.items() if topic is not None and topic.partitions}
