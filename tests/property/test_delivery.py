# SPDX-License-Identifier: Apache-2.0
"""Delivery against random histories: whatever happens and in whatever order, each record lands once or is in a gap."""

import asyncio
import itertools

import pytest
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.errors import (
    ConnectionLost,
    CoordinationError,
    CorruptMessageError,
    PermanentSinkError,
    RecordTooLarge,
    RetriableSinkError,
)
from consumerd.model import GapReason, TopicPartition
from consumerd.offsets.store import CommitOutcome
from tests.support.delivery import TOPIC_CZXID, DeliveryRig, FakeSink
from tests.support.virtual_time import run
from tests.support.waiting import until

pytestmark = pytest.mark.records

P = TopicPartition.modern("t", 0)

EVENTS = st.sampled_from(
    [
        "append",
        "append",
        "append",
        "retention",
        "write fails",
        "flush fails",
        "flush drops",
        "sink refuses",
        "sink faults",
        "feed fails",
        "commit fails",
        "pause",
        "resume",
        "lose",
        "drain",
        "disappear",
        "unit is corrupt",
        "unit is oversized",
        "unit has no end",
        "record is rejected",
        "headers are corrupt",
        "quarantine fails",
        "start fails",
        "opening fails",
        "reading the store fails",
        "looking for requests fails",
        "commit is not heard of",
        "broker falls silent",
        "news",
    ]
)
BEGINNINGS = st.sampled_from(["request", "request new chain", "truncate", "make again"])
"""What contradicts what has landed, so that a new chain begins."""
PAUSES = st.sampled_from([0.0, 0.01, 0.3, 2.0, 15.0])
HISTORY = st.lists(st.tuples(EVENTS, st.integers(0, 25), PAUSES), max_size=40)
EVENTFUL = st.lists(st.tuples(st.one_of(EVENTS, BEGINNINGS), st.integers(0, 25), PAUSES), max_size=40)
POLICIES = st.sampled_from(["skip", "quarantine"])
CUT_BELOW_WHAT_A_REQUEST_WAITS_FOR = [
    ("append", 24, 0.3),
    ("request new chain", 20, 0.0),
    ("flush drops", 24, 0.0),
    ("truncate", 14, 0.3),
]
REQUEST_WHILE_MOVING_BACK = [("append", 2, 2.0), ("commit fails", 0, 0.0), ("truncate", 1, 0.0), ("request", 0, 0.0)]
CUT_BELOW_WHAT_IS_HELD = [
    ("unit is corrupt", 0, 0.0),
    ("request", 1, 0.01),
    ("unit is corrupt", 0, 0.0),
    ("truncate", 4, 0.0),
]


class History:
    """One partition's fate: performs events, and checks each commit as it is made."""

    def __init__(self, policy):
        self.sink = FakeSink(buffered=True, keeps_chains=True, roll_s=1.0)
        self.policy = policy
        self.rig = DeliveryRig(
            sink=self.sink,
            settings=DeliverySettings(
                commit_interval_ms=300,
                offsets=OffsetPolicy(on_below="nearest", on_above="nearest"),
                on_corrupt=policy,
                on_oversized=policy,
            ),
            on_rejected=policy,
        )
        self.log = self.rig.log(P, 0, 0)
        self.claim = None
        self.epoch = 0
        self.incarnation = TOPIC_CZXID
        self.faults = []
        self.sink.trap = self.trap
        self.rig.store.before_commit = self.check_commit
        self.rig.store.after_commit = self.lose_answer
        self.unheard = 0
        self.committed = 0

    async def trap(self, step, writer, _):
        if self.faults and self.faults[0][0] == step:
            _, error = self.faults.pop(0)
            if error is RetriableSinkError and step == "flush":
                writer.drop()
                raise RetriableSinkError("dropped", resume_position=writer.safe)
            raise error

    async def check_commit(self, commits):
        for commit in commits:
            landed = self.sink.landed[P]
            if landed.incarnation is not None and landed.incarnation.czxid == commit.claim.incarnation.czxid:
                assert commit.position <= max(one.end for one in (landed, *landed.chains))
            if commit.claim is self.claim:
                moved_back = commit.position == landed.started.position
                assert commit.position >= self.committed or moved_back
                self.committed = commit.position

    async def lose_answer(self, _):
        if self.unheard:
            self.unheard -= 1
            raise CoordinationError("connection lost")

    async def claim_again(self):
        self.epoch += 1
        self.claim = await self.rig.claim(P, self.epoch, self.incarnation)

    async def perform(self, event, amount):
        match event:
            case "append":
                self.log.append(amount)
            case "retention":
                self.log.earliest = min(self.log.latest, self.log.earliest + amount)
            case "write fails":
                self.faults += [("write", RetriableSinkError("away"))] * (1 + amount % 3)
            case "flush fails":
                self.faults.append(("flush", RetriableSinkError("away")))
            case "flush drops":
                self.faults.append(("flush", RetriableSinkError))
            case "sink refuses":
                self.faults.append(("write", PermanentSinkError("no")))
            case "sink faults":
                self.faults.append(("write", ZeroDivisionError()))
            case "feed fails":
                self.log.faults.setdefault(self.log.latest, []).append(ConnectionLost("reset"))
            case "commit fails":
                self.rig.store.outcomes.setdefault(P, []).append(CommitOutcome.FAILED)
            case "quarantine fails":
                self.rig.quarantine.faults.append(RetriableSinkError("disk full"))
            case "start fails":
                self.faults.append(("start", RetriableSinkError("away")))
            case "opening fails":
                self.sink.open_faults.append(RetriableSinkError("away"))
            case "reading the store fails":
                self.rig.store.load_faults.append(CoordinationError("away"))
            case "looking for requests fails":
                self.rig.requests.find_faults.append(CoordinationError("away"))
            case "commit is not heard of":
                self.unheard += 1
            case "broker falls silent":
                self.log.silent_from = self.log.earliest + amount % (self.log.latest - self.log.earliest + 1)
                asyncio.get_running_loop().call_later(amount, setattr, self.log, "silent_from", None)
            case "news":
                for changed in self.rig.requests.watchers["t"]:
                    changed(P)
            case "pause":
                self.claim.lease.set("paused")
            case "resume":
                self.claim.lease.set("fresh")
            case "lose":
                self.claim.lease.set("lost")
                await self.rig.deliveries.lost([P])
                await self.claim_again()
            case "drain":
                await self.rig.deliveries.drain([P], 3)
                self.claim.lease.set("lost")
                await self.claim_again()
            case "disappear":
                self.claim.lease.set("lost")  # found out by the pipeline itself
                await asyncio.sleep(amount / 10)
                await self.claim_again()
            case "request" | "request new chain":
                span = max(1, self.log.latest - self.log.earliest + 1)
                position = self.log.earliest + amount % span
                self.rig.requests.put(P, position, new_chain=event == "request new chain")
            case "truncate":
                self.log.truncate(max(self.log.earliest, self.log.latest - amount))
            case "make again":
                self.incarnation = self.rig.store.next_zxid()
                self.claim.lease.set("changed" if amount % 2 else "lost")
                self.log = self.rig.log(P, 0, amount)
                self.rig.store.requests.clear()
                await self.rig.deliveries.lost([P])
                await self.claim_again()
            case _:
                self.damage(event, amount)

    def damage(self, event, amount):
        """Make a unit at the end of the log one that cannot be delivered; something readable always follows."""
        first = self.log.latest
        end = first + 1 + amount % 3
        if event == "unit is corrupt":
            self.log.lasting_faults[first] = CorruptMessageError(
                "bad", partition=P, offset=first, next_offset=end, raw=b"x"
            )
        elif event == "unit is oversized":
            self.log.lasting_faults[first] = RecordTooLarge(P, first, 10, 20, next_offset=end, raw=b"x")
        elif event == "unit has no end":
            for at in range(first, end):
                self.log.lasting_faults[at] = CorruptMessageError("bad", partition=P, offset=at)
        elif event == "record is rejected":
            self.sink.poison.add(first)
        else:
            self.log.bad_headers.add(first)
        self.log.append(end - first + 1)

    def check_landed(self, chain, end):
        """Each offset from the chain's beginning on is in it once, or in a gap."""
        assert chain.offsets == sorted(set(chain.offsets)), "landed twice, or out of order"
        skipped = {offset for gap in chain.gaps for offset in range(gap.start, gap.end)}
        assert not skipped.intersection(chain.offsets)
        assert set(range(chain.started.position, end)) == skipped.union(chain.offsets), "neither landed nor in a gap"

    def check_quarantine(self):
        """What the newest chain leaves out by a policy is kept."""
        left_out = {
            offset
            for gap in self.sink.landed[P].gaps
            if gap.reason in (GapReason.CORRUPT, GapReason.SKIPPED)
            for offset in range(gap.start, gap.end)
        }
        units = [unit for unit in self.rig.quarantine.units if unit.incarnation == self.sink.landed[P].incarnation]
        kept = {offset for unit in units for offset in range(unit.offset, unit.next_offset)}
        assert left_out <= kept if self.policy == "quarantine" else not self.rig.quarantine.units

    async def come_to_rest(self):
        self.unheard = 0
        self.faults.clear()
        self.rig.quarantine.faults.clear()
        if self.claim.lease.value == "paused":
            self.claim.lease.set("fresh")
        await until(lambda: not self.rig.store.requests)
        self.log.append(1)
        await until(self.rested)

    def rested(self):
        landed = self.sink.landed[P]
        ours = landed.incarnation is not None and landed.incarnation.czxid == self.incarnation
        # what a writer still holds of a log that was cut meanwhile would land at the end
        delivered = [status.position for status in self.rig.deliveries.statuses]
        return ours and self.rig.store.position(P) == self.log.latest == landed.end and delivered == [self.log.latest]

    async def live(self, history):
        await self.claim_again()
        await until(lambda: self.rig.store.position(P) == 0)  # from here on nothing may be missing
        for event, amount, pause_s in history:
            await self.perform(event, amount)
            await asyncio.sleep(pause_s)
        await self.come_to_rest()


@settings(max_examples=60, deadline=None)
@given(history=HISTORY, policy=POLICIES)
def test_every_record_lands_once_or_is_in_a_gap(history, policy):
    """At-least-once by positions, exactly-once by the sink's own record; and no commit is ahead of what landed."""

    async def scenario():
        fate = History(policy)
        async with fate.rig:
            await fate.live(history)
        landed = fate.sink.landed[P]
        assert [] == landed.chains
        assert 0 == landed.started.position
        fate.check_landed(landed, fate.log.latest)
        fate.check_quarantine()
        assert not fate.rig.hooks.named("foreign_commit")

    with structlog.testing.capture_logs():  # rendering them takes longer than all the rest
        run(scenario())


@settings(max_examples=60, deadline=None)
@given(history=EVENTFUL, policy=POLICIES)
@example(history=CUT_BELOW_WHAT_IS_HELD, policy="skip")
@example(history=CUT_BELOW_WHAT_A_REQUEST_WAITS_FOR, policy="skip")
@example(history=REQUEST_WHILE_MOVING_BACK, policy="skip")
def test_each_chain_holds_every_record_of_its_range_once_or_a_gap(history, policy):
    """Operators, elections and deletions begin new chains; none of them makes a hole in any."""

    async def scenario():
        fate = History(policy)
        async with fate.rig:
            await fate.live(history)
        landed = fate.sink.landed[P]
        for chain in landed.chains:
            fate.check_landed(chain, chain.end)
        fate.check_landed(landed, fate.log.latest)
        fate.check_quarantine()
        retained = "retention" not in {event for event, _, _ in history}
        for before, chain in itertools.pairwise((*landed.chains, landed)):
            if chain.started.reason == "new incarnation" and retained:
                assert 0 == chain.started.position
            if chain.started.reason == "on_above":
                assert chain.started.position <= before.end, "left out though the log held it"

    with structlog.testing.capture_logs():
        run(scenario())
