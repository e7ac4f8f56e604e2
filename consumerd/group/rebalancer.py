# SPDX-License-Identifier: Apache-2.0
"""Takes part in a group: connects the machine to ZooKeeper and to the listener.

One loop feeds events to the machine and carries out its effects. An effect that waits becomes a task, which reports
back with an event; claims are revoked at once, in the loop. The machine makes all decisions. This module knows how:
which calls an effect stands for, and what is logged. :mod:`consumerd.group.watches` feeds the machine with changes.

Cancelling :meth:`Rebalancer.run` revokes every claim, and the nodes go with the session; :meth:`leave` is the orderly
way out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from random import Random
from typing import Final, assert_never

import structlog

from consumerd import model
from consumerd.aio.cell import Cell
from consumerd.aio.sharing import SharedReads
from consumerd.errors import CoordinationError, SessionLost
from consumerd.group import events as ev
from consumerd.group.assignors import Strategy
from consumerd.group.claimed import ClaimedPartitions
from consumerd.group.claims import OwnedClaim
from consumerd.group.identity import MemberIdentity
from consumerd.group.listener import PartitionListener
from consumerd.group.machine import GroupMachine
from consumerd.group.member_loop import MemberLoop
from consumerd.group.owners import Inspection, PartitionOwners
from consumerd.group.plan import (
    Grant,
    MemberView,
    plan_assignment,
    plan_grants,
    plan_kept,
)
from consumerd.group.registry import GroupRegistry, get_session_id
from consumerd.group.reports import GroupReports
from consumerd.group.review import GroupReview
from consumerd.group.rights import PermittedSubscription
from consumerd.group.settings import RebalanceSettings
from consumerd.group.status import Conflict, GroupStatus
from consumerd.group.subscription import Subscription
from consumerd.group.transitions import MOVING, MemberState, PartitionState
from consumerd.group.watches import GroupWatches
from consumerd.model import SessionEpoch, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import ids_path, topic_path
from consumerd.zk.port import NotConnected, NotPermitted, Right, Stat, ZkClient
from consumerd.zk.registry_layout import RegistryLayout
from consumerd.zk.rights import explain_refusal

_LEAVE_SLACK_S: Final = 5.0
"""Time, in seconds, to leave besides draining and the grace: a few round trips, or a lost connection."""
_TOPICS_PER_PASS: Final = 256
"""Topics checked per reconcile pass; more topics take turns."""


class Rebalancer:
    """One member of a group that ZooKeeper coordinates.

    Args:
        identity: The group, and the source of the member's id.
        listener: Delivery, which learns of claimed, drained and lost partitions.
        now: Returns the seconds of a monotonic clock, that of the event loop.
        wall_ms: Returns calendar time in ms since the epoch, for display only.
        admit: Called before each registration. After a CoordinationError it is called again later; any other error ends
            :meth:`run`, and the member with it.
        layout: Paths and formats of the cluster's nodes in ZooKeeper.
    """

    def __init__(
        self,
        zk: ZkClient,
        *,
        identity: MemberIdentity,
        subscription: Subscription,
        listener: PartitionListener,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        random: Random,
        strategy: Strategy = Strategy.RANGE,
        settings: RebalanceSettings | None = None,
        hooks: Hooks | None = None,
        admit: Callable[[SessionEpoch], Awaitable[None]] | None = None,
        layout: RegistryLayout,
    ) -> None:
        self._zk = zk
        self._identity = identity
        self._now = now
        self._wall_ms = wall_ms
        self._strategy = strategy
        self._settings = settings if settings is not None else RebalanceSettings()
        self._hooks = hooks if hooks is not None else Hooks()
        self._admit = admit
        self._log = structlog.get_logger(__name__).bind(group=identity.group)
        self._registry = GroupRegistry(
            zk, identity.group, wall_ms=wall_ms, random=random, hooks=self._hooks, layout=layout
        )
        self._permitted = PermittedSubscription(
            zk,
            identity.group,
            subscription,
            hooks=self._hooks,
            log=self._log,
            layout=layout,
            needs_equal=strategy is Strategy.ROUNDROBIN_0_8,
        )
        self._owners = PartitionOwners(zk, identity.group, hooks=self._hooks, denied=self._permitted.report)
        self._find_topic = SharedReads[str, Stat | None](lambda topic: zk.exists(topic_path(topic)))
        self._machine = GroupMachine(self._settings, random.random)
        self._reports = GroupReports(hooks=self._hooks, log=self._log, wall_ms=wall_ms)
        self._review = GroupReview(
            zk,
            self._owners,
            self._machine,
            strategy,
            reports=self._reports,
            hooks=self._hooks,
            log=self._log,
        )
        self._loop = MemberLoop[ev.Event](ev.Tick(), now=now, hooks=self._hooks, log=self._log)
        self._post, self._start = self._loop.post, self._loop.start
        self._claimed = ClaimedPartitions[OwnedClaim](listener, hooks=self._hooks, log=self._log)
        self._watches = GroupWatches(zk, identity.group, layout, self._post)
        self.topics: Cell[frozenset[str]] = Cell(frozenset())
        """The topics of the last view: our own, or those of all members if the assignor needs them."""
        self._next_topic = 0
        self._counted = (-1, -1)
        self._moves_seen = -1

    # -- what others call

    async def run(self) -> None:
        """Take part in the group until :meth:`leave` is done. No timeout.

        ZooKeeper errors are retried, not raised. The callback ``admit`` is called before each registration. If it
        raises an error other than CoordinationError, the member ends, and the error is raised in an ExceptionGroup. A
        cancellation revokes every claim; the member's ephemeral nodes end with the session.
        """
        self._loop.begin()
        try:
            async with self._loop.tasks:
                self._start(self._follow_session())
                self._start(self._follow_rights())
                self._watches.watch_members()
                while self._machine.state is not MemberState.STOPPED and not self._loop.abandoned:
                    await self._step(await self._loop.next_event(lambda: self._machine.deadline))
                if self._loop.abandoned:
                    await self._claimed.abandon()
                for key in self._loop.tasks.keys:
                    await self._loop.tasks.cancel(key)
        finally:
            self._claimed.revoke_all("the member has stopped")
            self._watches.close()
            self._loop.end()

    async def leave(self, timeout_s: float | None = None) -> bool:
        """Drain, commit and release all partitions, leave the group, and let :meth:`run` return.

        Returns True if that was done within ``timeout_s``. Otherwise the remaining partitions are dropped without a
        commit, and the member's ephemeral nodes end with the session. By default the timeout is the sum of the drain
        timeout, the grace period before a release, and 5 s for ZooKeeper.
        """
        if timeout_s is None:
            timeout_s = self._settings.drain_timeout_s + self._settings.release_grace_s + _LEAVE_SLACK_S
        return await self._loop.leave(ev.LeaveRequested(), timeout_s)

    def report_denied(self, topic: str) -> None:
        """Report that a ZooKeeper ACL refused a commit of this topic.

        The member then checks its permissions again.
        """
        self._permitted.report(topic)

    def report_lost(self, claim: model.Claim, reason: str) -> None:
        """Report that delivery has found a claim to be invalid.

        The partition of the claim is dropped, and claimed again if it is still assigned to this member. A claim that
        was revoked already is ignored.
        """
        if self._claimed.holds(claim):
            self._post(ev.Disowned(claim.partition, reason))
            self._post(ev.Changed("a claim was lost"))

    @property
    def assigned(self) -> bool:
        """True once the member has read the group and knows its assignment in this session.

        Cheaper than :attr:`status` with many partitions.
        """
        return self._machine.stamp is not None

    @property
    def members(self) -> int:
        """Number of members of the group when it was last read."""
        snapshot = self._review.snapshot
        return len(snapshot.members) if snapshot is not None else 0

    @property
    def group_partitions(self) -> int:
        """Number of partitions of all the group's topics, as last read.

        Other members' partitions are included.
        """
        snapshot = self._review.snapshot
        return sum(map(len, snapshot.partitions.values())) if snapshot is not None else 0

    @property
    def denied(self) -> Mapping[str, str]:
        """Topics whose ZooKeeper ACLs forbid this member to claim or commit, each with the reason.

        The member registers without these topics (:class:`~consumerd.group.rights.PermittedSubscription`).
        """
        return {topic: str(denial) for topic, denial in sorted(self._permitted.denied.items())}

    @property
    def status(self) -> GroupStatus:
        """The member's current status."""
        machine, snapshot, now = self._machine, self._review.snapshot, self._now()
        records = sorted(machine.records.items())
        return GroupStatus(
            group=self._identity.group,
            state=machine.state,
            consumer=machine.consumer,
            epoch=machine.epoch,
            assigned=machine.stamp is not None,
            desired={partition: grant.thread for partition, grant in sorted(machine.grants.items())},
            owned={p: record.grant.thread for p, record in records if record.state is PartitionState.OWNED},
            moving={p: record.state for p, record in records if record.state in MOVING},
            conflicts=tuple(
                Conflict(
                    partition=partition,
                    holder=record.holder,
                    attempts=record.attempts,
                    seconds=now - record.since,
                    starved=machine.is_starved(record),
                )
                for partition, record in records
                if record.state is PartitionState.CONTESTED
            ),
            rebalances=self._reports.rebalances,
            disagreements=self._review.disagreements,
            last_error=self._reports.last_error,
            unreadable_topics=snapshot.unreadable if snapshot is not None else {},
        )

    # -- the loop

    async def _step(self, event: ev.Event) -> None:
        before = self._machine.state
        for effect in self._machine.handle(event, self._now()):
            await self._execute(effect)
        if self._machine.state is not before:
            self._log.debug("member_moved", state=self._machine.state.value, was=before.value)
        if self._machine.moves == self._moves_seen:
            return
        self._moves_seen = self._machine.moves
        owned = sum(record.state is PartitionState.OWNED for record in self._machine.records.values())
        if (counted := (len(self._machine.grants), owned)) != self._counted:
            self._counted = counted
            self._hooks.assignment_changed(desired=counted[0], owned=counted[1])

    async def _follow_session(self) -> None:
        """Report every change of the session. Ends by cancellation."""
        while True:
            state = self._zk.state
            self._hooks.session_changed(state.epoch, state.phase.value)
            self._claimed.wake()
            self._post(ev.SessionChanged(state.epoch, state.phase))
            await self._zk.wait_state(state)

    async def _follow_rights(self) -> None:
        """Review rights after a refusal, and register again if the subscription changes.

        Ends by cancellation. Raises MemberNotPermitted, which ends the member.
        """
        while True:
            await self._permitted.wait_due()
            consumer, epoch = self._machine.consumer, self._machine.epoch
            if consumer is None:
                continue  # the next registration reviews them
            try:
                changed = await self._permitted.review(joined=True)
                if changed and (consumer, epoch) == (self._machine.consumer, self._machine.epoch):
                    # watches of other members report created and deleted nodes, not changed data
                    await self._registry.unregister(consumer, epoch)
                    self._post(ev.Changed("rights changed"))
            except CoordinationError as error:
                self._log.info("rights_unread", error=str(error))
                self._hooks.trouble(Trouble.RIGHTS_UNREAD, str(error))

    async def _execute(self, effect: ev.Effect) -> None:  # noqa: C901 - one case an effect, each one line
        match effect:
            case ev.Register():
                self._start(self._register(effect))
            case ev.Read():
                self._start(self._read(effect))
            case ev.Verify():
                self._start(self._reconcile(effect) if effect.reconcile else self._verify(effect))
            case ev.ClaimPartitions():
                self._start(self._claim(effect))
            case ev.Release():
                self._start(self._release(effect))
            case ev.Rethread():
                self._start(self._rethread(effect))
            case ev.Inspect():
                self._start(self._inspect(effect))
            case ev.Unregister():
                self._start(self._unregister(effect))
            case ev.StartPartitions():
                await self._give(effect)
            case ev.Drain():
                self._start(self._drain(effect))
            case ev.Drop():
                self._start(self._drop(effect))
            case ev.Revoke(partitions, reason):
                self._claimed.revoke(partitions, reason)
            case ev.Suspend():
                self._hold(self._claimed.claims, held=True)
            case ev.Resume(partitions):
                self._hold(partitions, held=False)
            case ev.ReportConflict():
                self._reports.tell_conflict(effect)
            case ev.ReportRebalance(rebalance):
                self._reports.tell_rebalance(rebalance)
            case _:
                assert_never(effect)

    # -- what ZooKeeper is asked

    async def _register(self, effect: ev.Register) -> None:
        try:
            # before admission, which writes: a member that may not consume leaves no trace
            await self._permitted.review()
            if self._admit is not None:
                await self._admit(effect.epoch)
            consumer = await self._registry.register(self._identity, self._permitted.registered, effect.epoch)
        except NotPermitted as error:
            reason = await explain_refusal(self._zk, ids_path(self._identity.group), Right.CREATE)
            self._reports.fail(Trouble.REGISTRATION_FAILED, NotPermitted(f"{error}: {reason}", error.path))
            self._post(ev.RegisterFailed(effect.serial))
            return
        except CoordinationError as error:
            self._reports.fail(Trouble.REGISTRATION_FAILED, error)
            self._post(ev.RegisterFailed(effect.serial))
            return
        self._reports.recover()
        self._log.info("member_registered", member=consumer, epoch=effect.epoch)
        self._post(ev.Registered(effect.serial, consumer))

    async def _unregister(self, effect: ev.Unregister) -> None:
        try:
            await self._registry.unregister(effect.consumer, effect.epoch)
        except CoordinationError as error:
            self._log.warning("unregistration_failed", member=effect.consumer, error=str(error))
            self._hooks.trouble(Trouble.UNREGISTRATION_FAILED, f"{effect.consumer}: {error}")
        self._post(ev.Unregistered(effect.serial))

    async def _read(self, effect: ev.Read) -> None:
        # range assigns each topic alone, so only our own topics matter; round robin deals out all topics at once
        subscriber = effect.consumer if self._strategy is Strategy.RANGE else None
        try:
            snapshot = await self._registry.read(subscriber, self._watches.watch_topics, self._watches.watch_names)
            session_id = get_session_id(self._zk, effect.epoch)
            if self._is_spoilt(snapshot.find_member(effect.consumer), session_id):
                self._log.warning("registration_spoilt", member=effect.consumer)
                detail = f"another process overwrote {effect.consumer}; it is written again"
                self._hooks.trouble(Trouble.REGISTRATION_SPOILT, detail)
                await self._registry.restore(effect.consumer, self._permitted.registered, effect.epoch)
                snapshot = await self._registry.read(subscriber, self._watches.watch_topics, self._watches.watch_names)
        except CoordinationError as error:
            self._reports.fail(Trouble.GROUP_UNREADABLE, error)
            self._post(ev.ReadFailed(effect.serial))
            return
        self._reports.recover()
        self._review.take(snapshot)
        self.topics.set(frozenset(snapshot.topics))
        me = snapshot.find_member(effect.consumer)
        grants = {
            **plan_grants(snapshot, plan_assignment(snapshot, self._strategy), effect.consumer),
            **plan_kept(snapshot, self._owned_grants()),
        }
        self._watches.watch_owners({partition.topic for partition in (*grants, *self._machine.records)})
        listed = me is not None and me.session_id == session_id
        self._post(ev.ViewRead(effect.serial, grants, snapshot.stamp, listed))

    def _owned_grants(self) -> dict[TopicPartition, Grant]:
        return {p: one.grant for p, one in self._machine.records.items() if one.state is PartitionState.OWNED}

    def _is_spoilt(self, me: MemberView | None, session_id: int) -> bool:
        """Return True if our own node does not hold what we wrote.

        Other members would then compute an assignment without us, and our partitions would have no owner.
        """
        if me is None or me.session_id != session_id:
            return False
        written, found = self._permitted.registered.register(0), me.registration
        return found is None or (found.pattern, found.subscription) != (written.pattern, written.subscription)

    async def _verify(self, effect: ev.Verify) -> None:
        topics = frozenset(effect.stamp.topics)
        if self._strategy is Strategy.RANGE:
            topics = frozenset(partition.topic for partition in effect.partitions)
        self._post(ev.Verified(effect.serial, await self._is_current(effect, topics)))

    async def _is_current(self, effect: ev.Verify, topics: Collection[str]) -> bool:
        try:
            return await self._registry.is_current(effect.stamp, topics)
        except CoordinationError as error:
            self._reports.fail(Trouble.GROUP_UNREADABLE, error)
            return False

    async def _reconcile(self, effect: ev.Verify) -> None:
        """Check for missed changes: some topics in each pass, and all owners in some passes."""
        ordered = sorted(effect.stamp.topics)
        start = self._next_topic if self._next_topic < len(ordered) else 0
        self._next_topic = start + _TOPICS_PER_PASS
        self._registry.forget()
        unchanged = await self._is_current(effect, ordered[start : self._next_topic])
        if unchanged and (strays := await self._review.compare_owners(effect.stamp, self._claimed.claims)):
            self._post(ev.StraysFound(strays))
        self._post(ev.Verified(effect.serial, unchanged))

    async def _claim(self, effect: ev.ClaimPartitions) -> None:
        outcomes = await self._owners.claim(effect.grants, effect.epoch, first=effect.first)
        self._post(ev.ClaimsEnded(effect.serial, outcomes))

    async def _release(self, effect: ev.Release) -> None:
        self._post(ev.ReleasesEnded(effect.serial, await self._owners.release(effect.partitions, effect.epoch)))

    async def _rethread(self, effect: ev.Rethread) -> None:
        written = await self._owners.rethread(effect.threads, effect.epoch)
        for partition, thread in written.items():
            claim = self._claimed.claims.get(partition)
            if claim is not None and claim.epoch == effect.epoch:
                claim.rethread(thread)
        self._post(ev.RethreadsEnded(effect.serial, written))

    async def _inspect(self, effect: ev.Inspect) -> None:
        seen = Inspection({}, frozenset())
        session_id = 0
        try:
            session_id = get_session_id(self._zk, effect.epoch)
            seen = await self._owners.inspect(effect.partitions, effect.look)
        except (NotConnected, SessionLost):
            pass  # the session reports it through its own hooks, and the machine gets an event
        except CoordinationError as error:
            self._reports.tell_owners_unread(error)
        self._post(ev.Inspected(effect.serial, seen.nodes, session_id, seen.there, seen.doubtful))

    # -- what the listener is told

    async def _give(self, effect: ev.StartPartitions) -> None:
        claims = [
            OwnedClaim(
                self._zk,
                self._claimed.changes,
                partition=partition,
                thread=grant.thread,
                epoch=effect.epoch,
                incarnation=grant.incarnation,
                find_topic=self._find_topic,
            )
            for partition, grant in sorted(effect.grants.items())
        ]
        await self._claimed.give(claims)

    async def _drain(self, effect: ev.Drain) -> None:
        await self._claimed.drain(effect.partitions, effect.deadline_s)
        self._post(ev.DrainEnded(effect.serial))

    async def _drop(self, effect: ev.Drop) -> None:
        await self._claimed.drop(effect.partitions, effect.reason)
        self._post(ev.DropEnded(effect.serial))

    def _hold(self, partitions: Collection[TopicPartition], *, held: bool) -> None:
        for partition in partitions:
            if partition in self._claimed.claims:
                self._claimed.claims[partition].hold(held=held)
        self._claimed.wake()
