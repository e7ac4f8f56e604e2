"""Delivery against random histories: whatever happens and in whatever order, each record lands once or is in a gap."""

import asyncio

import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.delivery.policy import OffsetPolicy
from consumerd.delivery.ports import DeliverySettings
from consumerd.errors import ConnectionLost, PermanentSinkError, RetriableSinkError
from consumerd.model import TopicPartition
from consumerd.offsets.store import CommitOutcome
from tests.support.delivery import DeliveryRig, FakeSink, until
from tests.support.virtual_time import run

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
    ]
)
HISTORY = st.lists(st.tuples(EVENTS, st.integers(0, 25), st.sampled_from([0.0, 0.01, 0.3, 2.0, 15.0])), max_size=40)


class History:
    """One partition's fate: performs events, and checks each commit as it is made."""

    def __init__(self):
        self.sink = FakeSink(buffered=True, keeps_chains=True, roll_s=1.0)
        self.rig = DeliveryRig(
            sink=self.sink,
            settings=DeliverySettings(commit_interval_ms=300, offsets=OffsetPolicy(on_below="nearest")),
        )
        self.log = self.rig.log(P, 0, 0)
        self.claim = None
        self.epoch = 0
        self.faults = []
        self.sink.trap = self.trap
        self.rig.store.before_commit = self.check_commit
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
            assert commit.position <= self.sink.landed[P].end
            if commit.claim is self.claim:
                assert commit.position >= self.committed
                self.committed = commit.position

    async def claim_again(self):
        self.epoch += 1
        self.claim = await self.rig.claim(P, self.epoch)

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

    def check_landed(self):
        landed = self.sink.landed[P]
        assert landed.offsets == sorted(set(landed.offsets)), "landed twice, or out of order"
        skipped = {offset for gap in landed.gaps for offset in range(gap.start, gap.end)}
        assert not skipped.intersection(landed.offsets)
        assert set(range(self.log.latest)) == skipped.union(landed.offsets), "neither landed nor in a gap"


@settings(max_examples=60, deadline=None)
@given(history=HISTORY)
def test_every_record_lands_once_or_is_in_a_gap(history):
    """At-least-once by positions, exactly-once by the sink's own record; and no commit is ahead of what landed."""

    async def scenario():
        fate = History()
        async with fate.rig:
            await fate.claim_again()
            await until(lambda: fate.rig.store.position(P) == 0)  # from here on nothing may be missing
            for event, amount, pause_s in history:
                await fate.perform(event, amount)
                await asyncio.sleep(pause_s)
            fate.faults.clear()
            if fate.claim.lease.value == "paused":
                fate.claim.lease.set("fresh")
            fate.log.append(1)
            await until(lambda: fate.rig.store.position(P) == fate.log.latest)
        fate.check_landed()
        assert not fate.rig.hooks.named("foreign_commit")

    with structlog.testing.capture_logs():  # rendering them takes longer than all the rest
        run(scenario())
