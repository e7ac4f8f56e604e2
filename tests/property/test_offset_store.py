"""The ZooKeeper store against a connection that breaks at any moment and sessions that end."""

import asyncio
import random

import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.aio.timeouts import timeout
from consumerd.errors import CoordinationError
from consumerd.model import TopicPartition
from consumerd.offsets.store import Commit, CommitOutcome
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.zk.layout import offset_path, owner_path
from consumerd.zk.port import LeasePhase, NodeExists
from tests.support.delivery import TOPIC_CZXID, FakeClaim
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.virtual_time import run

G = "g"
PARTITIONS = [TopicPartition.modern("t", n) for n in range(3)]


class LeasedClaim(FakeClaim):
    """A claim whose lease is the session's, as the group makes them."""

    def __init__(self, partition, zk):
        super().__init__(partition, zk.state.epoch)
        self._zk = zk

    def check(self):
        state = self._zk.state
        if state.epoch != self.epoch:
            self.lease.set("lost")
        else:
            self.lease.set("fresh" if state.phase is LeasePhase.FRESH else "paused")
        super().check()


async def disturb(zk, chance, until):
    """Cut, heal and cancel the connection at random."""
    while asyncio.get_running_loop().time() < until:
        await asyncio.sleep(chance.uniform(0.0, 3.0))
        zk.cut()
        await asyncio.sleep(chance.choice([0.0, 0.01, 1.0, 9.0]))
        zk.heal()


async def claim_all(zk, store):
    """Claim what the last session has let go of; what it has not is tried again later."""
    claims = []
    for partition in PARTITIONS:
        path = owner_path(G, partition)
        try:
            await zk.ensure_path(path.rpartition("/")[0])
            await zk.create(path, b"m-0", ephemeral=True, epoch=zk.state.epoch)
        except NodeExists:
            stat = await zk.exists(path)
            if stat is None or stat.ephemeral_owner != zk.state.session_id:
                continue
        claims.append(LeasedClaim(partition, zk))
    await store.load([claim.partition for claim in claims])
    return claims


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_alone_in_a_group_nothing_looks_foreign_and_no_position_goes_back(seed):
    """Whatever breaks and whenever, a commit is ours, lands at most once and is never undone by an older one."""

    async def scenario():
        chance = random.Random(seed)
        server = FakeZooKeeper(seed=seed, latency_s=(0.0005, 0.02))
        server.put_topic("t", TOPIC_CZXID)
        zk = server.client("member")
        zk.connect()
        store = ZooKeeperOffsetStore(zk, G)
        written = {partition: [] for partition in PARTITIONS}

        def note(path):
            for partition in PARTITIONS:
                if path == offset_path(G, partition) and (found := server.read(path)):
                    written[partition].append(int(found[0]))

        server.on_change = note
        outcomes = []
        positions = dict.fromkeys(PARTITIONS, 0)
        claims, epoch = [], None
        async with asyncio.TaskGroup() as tasks:
            noise = tasks.create_task(disturb(zk, chance, until=60.0))
            while not noise.done():
                await asyncio.sleep(chance.uniform(0.0, 0.2))
                try:
                    if zk.state.epoch != epoch or len(claims) < len(PARTITIONS):
                        epoch = zk.state.epoch
                        claims = await claim_all(zk, store)
                    for claim in claims:
                        positions[claim.partition] += chance.randrange(3)
                    async with timeout(chance.choice([0.002, 0.01, 5.0])):
                        found = await store.commit([Commit(claim, positions[claim.partition]) for claim in claims])
                    outcomes += found.values()
                except (TimeoutError, CoordinationError):
                    continue
        zk.heal()
        await asyncio.sleep(20)  # a session that was given up has ended by now
        claims = await claim_all(zk, store)
        assert len(claims) == len(PARTITIONS)
        outcomes += (await store.commit([Commit(claim, positions[claim.partition]) for claim in claims])).values()
        assert CommitOutcome.FOREIGN_OVERWRITTEN not in outcomes
        assert outcomes.count(CommitOutcome.WRITTEN) >= len(PARTITIONS)
        for partition in PARTITIONS:
            assert written[partition] == sorted(set(written[partition]))
            assert positions[partition] == written[partition][-1]

    with structlog.testing.capture_logs():  # rendering them takes longer than all the rest
        run(scenario())
