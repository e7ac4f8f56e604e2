# SPDX-License-Identifier: Apache-2.0
"""The ZooKeeper store against a connection that breaks at any moment and sessions that end."""

import asyncio
import random

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.aio.timeouts import timeout
from consumerd.errors import CoordinationError
from consumerd.model import TopicPartition
from consumerd.offsets.requests import ZooKeeperOffsetRequests, parse_request
from consumerd.offsets.store import Commit, CommitOutcome, OffsetRequest
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.zk.layout import offset_path, owner_path, request_path
from consumerd.zk.port import LeasePhase, NodeExists
from tests.support.delivery import TOPIC_CZXID, FakeClaim
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.virtual_time import run

pytestmark = pytest.mark.records

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


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_request_is_carried_out_once_replaced_or_still_there(seed):
    """An operator who asks again and again, over connections that break: no wish is lost, none is half carried out."""

    async def scenario():
        chance = random.Random(seed)
        server = FakeZooKeeper(seed=seed, latency_s=(0.0005, 0.02))
        server.put_topic("t", TOPIC_CZXID)
        zk, desk = server.client("member"), server.client("operator")
        zk.connect()
        desk.connect()
        store, requests, operator = (
            ZooKeeperOffsetStore(zk, G),
            ZooKeeperOffsetRequests(zk, G),
            ZooKeeperOffsetRequests(desk, G),
        )
        (partition, *_) = PARTITIONS
        path = request_path(G, partition)
        asked, standing, carried_out = {}, [], []

        def note(changed):
            if changed != path:
                return
            found = server.read(path)
            if found is not None:
                standing.append(parse_request(found[0], partition=partition, version=found[1].version).id)
            else:
                # nothing but the commit of its position takes a request away
                assert int(server.read(offset_path(G, partition))[0]) == asked[standing[-1]]
                carried_out.append(standing[-1])

        server.on_change = note

        async def ask():
            for number in range(12):
                await asyncio.sleep(chance.uniform(0.0, 8.0))
                request = OffsetRequest(
                    id=f"r{number}",
                    partition=partition,
                    position=chance.randrange(5),
                    new_chain=False,
                    author="ops",
                    created_ms=1,
                    version=0,
                )
                asked[request.id] = request.position
                await operator.put(request)

        async def look(claims):
            """One look at the requests, one commit; what is answered with REQUEST_CHANGED is looked at again."""
            request = await requests.find(partition)
            commits = [
                Commit(claim, request.position, request)
                if request is not None and claim.partition == partition
                else Commit(claim, chance.randrange(5))
                for claim in claims
            ]
            async with timeout(chance.choice([0.002, 0.01, 5.0])):
                outcomes = await store.commit(commits)
            assert request is not None or CommitOutcome.REQUEST_CHANGED not in outcomes.values()
            if request is not None and outcomes.get(partition) is CommitOutcome.WRITTEN:
                assert int(server.read(offset_path(G, partition))[0]) == request.position

        claims, epoch = [], None
        async with asyncio.TaskGroup() as tasks:
            noise = tasks.create_task(disturb(zk, chance, until=60.0))
            asking = tasks.create_task(ask())
            while not (noise.done() and asking.done()):
                await asyncio.sleep(chance.uniform(0.0, 0.2))
                try:
                    if zk.state.epoch != epoch or len(claims) < len(PARTITIONS):
                        epoch = zk.state.epoch
                        claims = await claim_all(zk, store)
                    await look(claims)
                except (TimeoutError, CoordinationError):
                    continue
        zk.heal()
        await asyncio.sleep(20)
        claims = await claim_all(zk, store)
        while await requests.find(partition) is not None:
            try:
                await look(claims)
            except TimeoutError:
                continue
        assert standing[-1] == "r11"
        assert carried_out[-1] == "r11"
        assert len(carried_out) == len(set(carried_out))

    with structlog.testing.capture_logs():
        run(scenario())
