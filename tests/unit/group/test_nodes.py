# SPDX-License-Identifier: Apache-2.0
"""Our nodes under ``ids`` and ``owners``, when ZooKeeper's answers get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from random import Random

import pytest

from consumerd.aio.parallel import map_bounded
from consumerd.errors import CoordinationError, RebalanceFailed, SessionLost
from consumerd.group import events as ev
from consumerd.group.events import Look
from consumerd.group.identity import MemberIdentity
from consumerd.group.owners import Inspection, PartitionOwners
from consumerd.group.plan import Grant, Holder
from consumerd.group.registry import GroupRegistry
from consumerd.group.subscription import Subscription
from consumerd.model import ConsumerId, Incarnation, SessionEpoch, ThreadId, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import BROKER_TOPICS, id_path, ids_path, owner_path
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import ANY_VERSION, NotConnected, OutcomeUnknown, Stat
from consumerd.zk.znodes import encode_registration
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper
from tests.support.virtual_time import run

P, Q, R = (TopicPartition.modern("t", number) for number in range(3))
GRANTS = {P: Grant(ThreadId("g_m-0"), Incarnation(1))}
FIRST = SessionEpoch(1)
WIDE = Subscription.to_topics({"t": 1})


class ForgetfulClient(FakeZkClient):
    """Loses the answers of its next writes, as told: before they take effect, or after."""

    fate: list[str]
    finds: int = 0

    async def find(self, path: str) -> tuple[bytes, Stat] | None:
        self.finds += 1
        return await super().find(path)

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, epoch: SessionEpoch | None = None
    ) -> None:
        await self._meet_fate(lambda: super(ForgetfulClient, self).create(path, data, ephemeral=ephemeral, epoch=epoch))

    async def set(
        self, path: str, data: bytes, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None
    ) -> Stat:
        stats: list[Stat] = []

        async def work() -> None:
            stats.append(await super(ForgetfulClient, self).set(path, data, version=version, epoch=epoch))

        await self._meet_fate(work)
        return stats[0]

    async def delete(self, path: str, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None) -> None:
        await self._meet_fate(lambda: super(ForgetfulClient, self).delete(path, version=version, epoch=epoch))

    async def _meet_fate(self, work: Callable[[], Awaitable[None]]) -> None:
        match self.fate.pop(0) if self.fate else "answered":
            case "before":
                raise OutcomeUnknown("lost on the way there")
            case "after":
                await work()
                raise OutcomeUnknown("lost on the way back")
            case "away":
                raise NotConnected("nobody there")
            case "refused":
                raise CoordinationError("no permission")
            case _:
                await work()


class Troubles(Hooks):
    """Notes what is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Trouble, TopicPartition | None]] = []

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        self.told.append((kind, partition))


class World:
    def __init__(self) -> None:
        self.hooks = Troubles()
        self.server = FakeZooKeeper()
        self.zk = ForgetfulClient(self.server, "m", session_timeout_s=6.0, call_timeout_s=1.0)
        self.zk.fate = []
        self.zk.connect()
        self.owners = PartitionOwners(self.zk, "g", hooks=self.hooks)
        self.registry = GroupRegistry(self.zk, "g", wall_ms=lambda: 7, random=Random(0), layout=MODERN)

    def stranger(self) -> FakeZkClient:
        other = self.server.client("stranger")
        other.connect()
        return other

    def own(self, partition: TopicPartition, data: bytes, session: int) -> None:
        path = owner_path("g", partition)
        self.server.put(path.rpartition("/")[0])
        self.server.apply_create(path, data, session)

    def node(self, partition: TopicPartition) -> tuple[bytes, int] | None:
        found = self.server.read(owner_path("g", partition))
        return None if found is None else (found[0], found[1].ephemeral_owner)


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def live() -> None:
        await scenario(World())

    run(live())


@pytest.mark.parametrize(
    ("fate", "expected", "there"),
    [
        ([], ev.Created(), True),
        (["before"], ev.Created(), True),
        (["after"], ev.Created(), True),
        (["before", "after"], ev.Created(), True),
        (["before"] * 3, ev.Unknown(), False),
        (["after", "away"], ev.Unknown(), True),
        (["away"], ev.NotSent(), False),
        (["refused"], ev.NotSent(), False),
    ],
)
def test_a_claim_whose_answer_is_lost_is_made_again_and_recognised(
    fate: list[str], expected: ev.ClaimOutcome, *, there: bool
) -> None:
    """It is ours if its session is ours; what stays in doubt is reported as that, never guessed."""

    async def scenario(world: World) -> None:
        world.own(P, b"", 0)
        world.server.remove(owner_path("g", P))
        world.zk.fate = list(fate)
        assert await world.owners.claim(GRANTS, FIRST) == {P: expected}
        assert world.node(P) == ((b"g_m-0", world.zk.state.session_id) if there else None)

    play(scenario)


def test_a_claim_makes_its_parents() -> None:
    """The first member of a group finds nothing there."""

    async def scenario(world: World) -> None:
        assert await world.owners.claim(GRANTS, FIRST) == {P: ev.Created()}

    play(scenario)


def test_a_node_with_our_own_text_of_another_session_is_taken() -> None:
    """Java compares the text, and takes its own past for its present."""

    async def scenario(world: World) -> None:
        stranger = world.stranger()
        world.own(P, b"g_m-0", stranger.state.session_id)
        outcome = await world.owners.claim(GRANTS, FIRST)
        assert outcome == {P: ev.Taken(Holder("g_m-0", stranger.state.session_id))}

    play(scenario)


def test_a_node_of_our_session_with_another_thread_is_rewritten() -> None:
    """It is ours already, whatever it says."""

    async def scenario(world: World) -> None:
        world.own(P, b"g_m-7", world.zk.state.session_id)
        world.zk.fate = ["answered", "after"]
        assert await world.owners.claim(GRANTS, FIRST) == {P: ev.Created()}
        assert world.node(P) == (b"g_m-0", world.zk.state.session_id)

    play(scenario)


def test_nothing_is_claimed_in_a_session_that_is_over() -> None:
    """A claim of the old epoch in the new session would be nobody's."""

    async def scenario(world: World) -> None:
        world.zk.expire()
        assert await world.owners.claim(GRANTS, FIRST) == {P: ev.NotSent()}
        assert world.node(P) is None
        assert await world.owners.release([P], FIRST) == {P}
        world.server.put(id_path("g", ConsumerId("g_m")))
        with pytest.raises(SessionLost):
            await world.registry.unregister(ConsumerId("g_m"), FIRST)

    play(scenario)


@pytest.mark.parametrize(
    ("fate", "released"),
    [([], True), (["before"], True), (["after"], True), (["before"] * 3, False), (["away"], False)],
)
def test_a_release_whose_answer_is_lost_is_made_again(fate: list[str], *, released: bool) -> None:
    """What is not certainly released stays ours, and is released later."""

    async def scenario(world: World) -> None:
        world.own(P, b"g_m-0", world.zk.state.session_id)
        world.zk.fate = list(fate)
        assert await world.owners.release([P], FIRST) == ({P} if released else set())
        assert (world.node(P) is None) is released

    play(scenario)


@pytest.mark.parametrize("released", [[P], [P, Q]], ids=["one by one", "together"])
def test_only_what_is_ours_is_released(released: list[TopicPartition]) -> None:
    """The Java consumer deletes whatever stands there."""

    async def scenario(world: World) -> None:
        stranger = world.stranger()
        world.own(P, b"g_m-0", stranger.state.session_id)
        assert await world.owners.release(released, FIRST) == set(released)
        assert world.node(P) == (b"g_m-0", stranger.state.session_id)

    play(scenario)


def test_a_release_that_zookeeper_refuses_is_told() -> None:
    """Without the right to delete, the partition waits for the session's end; that ZooKeeper is away tells the session."""

    async def scenario(world: World) -> None:
        world.own(P, b"g_m-0", world.zk.state.session_id)
        world.zk.fate = ["away"]
        assert await world.owners.release([P], FIRST) == set()
        assert world.hooks.told == []
        world.zk.fate = ["refused", "refused"]  # together with others, and alone
        assert await world.owners.release([P], FIRST) == set()
        assert world.hooks.told == [(Trouble.RELEASE_FAILED, P)]

    play(scenario)


def test_a_thread_that_zookeeper_refuses_is_told() -> None:
    """The node then names a thread that does not consume the partition."""

    async def scenario(world: World) -> None:
        world.own(P, b"g_m-0", world.zk.state.session_id)
        world.zk.fate = ["refused", "refused"]
        assert await world.owners.rethread({P: ThreadId("g_m-1")}, FIRST) == {}
        assert world.hooks.told == [(Trouble.RETHREAD_FAILED, P)]

    play(scenario)


def test_rethreading_tells_what_was_certainly_written() -> None:
    """The rest is tried again."""

    async def scenario(world: World) -> None:
        for partition in (P, Q):
            world.own(partition, b"g_m-0", world.zk.state.session_id)
        world.zk.fate = ["answered", "after"]
        threads = {P: ThreadId("g_m-1"), Q: ThreadId("g_m-1")}
        assert await world.owners.rethread(threads, FIRST) == {P: "g_m-1"}
        assert world.node(Q) == (b"g_m-1", world.zk.state.session_id)

    play(scenario)


def test_inspection_reads_a_node_again_only_when_it_may_have_been_made_again() -> None:
    """Thousands of nodes need not be read because one has changed elsewhere."""

    async def scenario(world: World) -> None:
        mine = world.zk.state.session_id
        world.own(P, b"g_m-0", mine)
        found = await world.owners.inspect([P, Q], Look.PROOF)
        assert (found.nodes, found.there) == ({P: Holder("g_m-0", mine), Q: None}, frozenset())
        world.own(Q, b"\xff", mine)
        world.server.apply_set(owner_path("g", P), b"x", ANY_VERSION)
        found = await world.owners.inspect([P, Q], Look.PROOF)
        assert found.nodes[P] == Holder("g_m-0", mine), "nobody has made it again, and only its owner sets it"
        assert found.nodes[Q] is not None
        world.server.remove(owner_path("g", Q))
        world.own(Q, b"g_m-0", mine)
        assert (await world.owners.inspect([P], Look.PROOF)).nodes == {P: Holder("x", mine)}
        world.server.put("/consumers/g/owners/t/junk")
        assert (await world.owners.survey(["t", "gone"], {})).there == {P, Q}
        world.zk.cut()
        assert await world.owners.inspect([P], Look.PROOF) == ({}, frozenset(), frozenset())

    play(scenario)


def test_a_look_at_names_tells_what_has_gone_and_reads_nothing_that_is_there() -> None:
    """A handover of thousands of partitions changes the parent for seconds, and each change would read them all."""

    async def scenario(world: World) -> None:
        mine, theirs = world.zk.state.session_id, world.stranger().state.session_id
        every = [TopicPartition.modern("t", number) for number in range(200)]
        for partition in every:
            world.own(partition, b"g_m-0", mine)
        proved = await world.owners.inspect(every, Look.PROOF)
        assert set(proved.nodes.values()) == {Holder("g_m-0", mine)}
        world.server.remove(owner_path("g", P))
        world.server.remove(owner_path("g", Q))
        world.own(Q, b"g_x-0", theirs)
        assert await world.owners.inspect(every, Look.NAMES) == (
            {P: None},
            frozenset(every) - {P},
            frozenset(every) - {P},
        )
        thorough = await world.owners.inspect(every, Look.PROOF)
        assert (thorough.nodes[P], thorough.nodes[Q]) == (None, Holder("g_x-0", theirs))
        assert (thorough.there, thorough.doubtful) == (frozenset(), frozenset())

    play(scenario)


async def count_reads(world: World, look: Look, partitions: Collection[TopicPartition]) -> tuple[int, Inspection]:
    """Look, and tell how many nodes were read for it."""
    before = world.zk.finds
    found = await world.owners.inspect(partitions, look)
    return world.zk.finds - before, found


def test_what_the_names_explain_is_not_read_and_what_they_do_not_is_read_at_once() -> None:
    """The parent counts each creation and each deletion: one too many, and something was made again."""

    async def scenario(world: World) -> None:
        theirs = world.stranger().state.session_id
        every = [TopicPartition.modern("t", number) for number in range(100)]
        grants = {partition: Grant(ThreadId("g_m-0"), Incarnation(1)) for partition in every}
        assert set((await world.owners.claim(grants, FIRST, first=every)).values()) == {ev.Created()}
        ours = every[:50]
        reads, found = await count_reads(world, Look.REMADE, ours)
        assert (reads, found.there, found.doubtful) == (0, frozenset(ours), frozenset())
        for partition in every[60:70]:
            world.server.remove(owner_path("g", partition))
        world.server.put("/consumers/g/owners/t/junk")
        assert (await count_reads(world, Look.REMADE, ours))[0] == 0
        world.own(every[60], b"g_x-0", theirs)
        assert (await count_reads(world, Look.REMADE, ours))[0] == 0
        world.server.remove(owner_path("g", Q))
        world.own(Q, b"g_x-0", theirs)
        reads, found = await count_reads(world, Look.NAMES, ours)
        assert (reads, found.doubtful) == (0, frozenset(ours))
        reads, found = await count_reads(world, Look.REMADE, ours)
        assert (reads, found.doubtful) == (50, frozenset())
        assert found.nodes[Q] == Holder("g_x-0", theirs)
        reads, found = await count_reads(world, Look.REMADE, ours)
        assert (reads, found.nodes[Q]) == (0, Holder("g_x-0", theirs))

    play(scenario)


def test_a_node_that_others_saw_go_and_come_again_is_read() -> None:
    """Between its end and its return somebody else's look may have listed the names, so that each step is explained."""

    async def scenario(world: World) -> None:
        theirs = world.stranger().state.session_id
        every = [TopicPartition.modern("t", number) for number in range(5)]
        grants = {partition: Grant(ThreadId("g_m-0"), Incarnation(1)) for partition in every}
        await world.owners.claim(grants, FIRST, first=every)
        await world.owners.inspect(every, Look.REMADE)
        world.server.remove(owner_path("g", Q))
        await world.owners.survey(["t"], {})
        world.own(Q, b"g_x-0", theirs)
        found = await world.owners.inspect(every, Look.REMADE)
        assert found.nodes[Q] == Holder("g_x-0", theirs)

    play(scenario)


def test_a_node_that_went_and_came_again_while_it_was_read_is_read_again() -> None:
    """The names explain both steps; what was read is of before."""

    async def scenario(world: World) -> None:
        theirs = world.stranger().state.session_id
        world.own(P, b"g_x-0", theirs)
        answered, late = asyncio.Event(), asyncio.Event()
        ask = world.zk.find

        async def find(path: str) -> tuple[bytes, Stat] | None:
            answer = await ask(path)
            if not late.is_set():
                answered.set()
                await late.wait()
            return answer

        world.zk.find = find  # type: ignore[method-assign]  # an answer that takes its time
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.owners.inspect([P], Look.PROOF))
            await answered.wait()
            world.server.remove(owner_path("g", P))
            await world.owners.inspect([P], Look.NAMES)
            world.own(P, b"g_y-0", theirs)
            await world.owners.inspect([P], Look.NAMES)
            late.set()
        found = await world.owners.inspect([P], Look.PROOF)
        assert found.nodes[P] == Holder("g_y-0", theirs)

    play(scenario)


def test_nothing_that_was_known_in_one_session_is_taken_for_granted_in_the_next() -> None:
    """Its server may be behind the last one's."""

    async def scenario(world: World) -> None:
        theirs = world.stranger().state.session_id
        world.own(P, b"g_x-0", theirs)
        await world.owners.inspect([P], Look.PROOF)
        assert (await count_reads(world, Look.PROOF, [P]))[0] == 0
        world.zk.expire()
        await asyncio.sleep(1)
        assert (await count_reads(world, Look.NAMES, [P]))[1].doubtful == {P}
        assert (await count_reads(world, Look.REMADE, [P]))[0] == 1

    play(scenario)


def test_a_folder_that_was_made_again_explains_nothing() -> None:
    """Its counter begins anew."""

    async def scenario(world: World) -> None:
        theirs = world.stranger().state.session_id
        grants = {partition: Grant(ThreadId("g_m-0"), Incarnation(1)) for partition in (P, Q, R)}
        await world.owners.claim(grants, FIRST, first=grants)
        world.server.remove(owner_path("g", P).rpartition("/")[0])
        for partition in (P, Q, R):
            world.own(partition, b"g_x-0", theirs)
        found = await world.owners.inspect(list(grants), Look.REMADE)
        assert set(found.nodes.values()) == {Holder("g_x-0", theirs)}

    play(scenario)


def test_a_survey_reads_first_what_a_claim_left_in_doubt() -> None:
    """Nobody else can know of such a node, and it keeps a partition from its owner for as long as we live."""

    async def scenario(world: World) -> None:
        theirs = world.stranger().state.session_id
        every = [TopicPartition.modern("t", number) for number in range(200)]
        for partition in every[:-1]:
            world.own(partition, b"g_x-0", theirs)
        stray = every[-1]
        plan = dict.fromkeys(every, ThreadId("g_x-0"))
        world.zk.fate = ["after", "away"]
        outcome = await world.owners.claim({stray: Grant(ThreadId("g_m-0"), Incarnation(1))}, FIRST)
        assert outcome == {stray: ev.Unknown()}
        seen = await world.owners.survey(["t", "gone"], plan)
        assert seen.there == set(every)
        assert seen.holders[stray] == Holder("g_m-0", world.zk.state.session_id)
        assert len(seen.holders) < 50
        for _ in range(15):
            seen = await world.owners.survey(["t", "gone"], plan)
        assert seen.holders.keys() == seen.there
        world.server.apply_set(owner_path("g", Q), b"g_x-1", ANY_VERSION)
        seen = await world.owners.survey(["t"], {**plan, Q: ThreadId("g_x-1")})
        assert seen.holders[Q].thread == "g_x-1", "the counter of the parent does not tell of it"

    play(scenario)


def test_nodes_in_the_way_of_a_first_claim_are_left_to_their_holders() -> None:
    """In a handover they go by themselves; each look at one would cost more than all claims together."""

    async def scenario(world: World) -> None:
        theirs = world.stranger().state.session_id
        every = [TopicPartition.modern("t", number) for number in range(10)]
        world.own(every[3], b"g_x-0", theirs)
        grants = {partition: Grant(ThreadId("g_m-0"), Incarnation(1)) for partition in every}
        outcomes = await world.owners.claim(grants, FIRST, first=every)
        assert outcomes == {one: ev.Occupied() if one == every[3] else ev.Created() for one in every}
        outcomes = await world.owners.claim({every[3]: grants[every[3]]}, FIRST)
        assert outcomes == {every[3]: ev.Taken(Holder("g_x-0", theirs))}

    play(scenario)


@pytest.mark.parametrize("fate", [[], ["after"], ["before", "before"], ["before", "after"]])
def test_a_registration_whose_answer_is_lost_leaves_one_node(fate: list[str]) -> None:
    """A second id of ours would be given partitions that nobody consumes."""

    async def scenario(world: World) -> None:
        await world.zk.ensure_path(ids_path("g"))
        world.zk.fate = list(fate)
        consumer = await world.registry.register(MemberIdentity(group="g", host="h"), WIDE, FIRST)
        assert world.server.names(ids_path("g")) == [consumer]
        await world.registry.unregister(consumer, FIRST)
        assert world.server.names(ids_path("g")) == []

    play(scenario)


def test_a_registration_that_does_not_come_about_keeps_its_id_for_the_next_try() -> None:
    """The last try may yet have taken effect."""

    async def scenario(world: World) -> None:
        await world.zk.ensure_path(ids_path("g"))
        identity = MemberIdentity(group="g", host="h")
        world.zk.fate = ["before", "before", "before", "after"]
        with pytest.raises(RebalanceFailed):
            await world.registry.register(identity, WIDE, FIRST)
        consumer = await world.registry.register(identity, WIDE, FIRST)
        assert world.server.names(ids_path("g")) == [consumer]

    play(scenario)


def test_unregistering_is_repeated_and_takes_only_our_own_node() -> None:
    """A configured id may be another process's by now."""

    async def scenario(world: World) -> None:
        identity = MemberIdentity(group="g", host="h", consumer_id="c")
        consumer = await world.registry.register(identity, WIDE, FIRST)
        world.zk.fate = ["after"]
        await world.registry.unregister(consumer, FIRST)
        assert world.server.names(ids_path("g")) == []
        stranger = world.stranger()
        world.server.apply_create(id_path("g", consumer), b"", stranger.state.session_id)
        await world.registry.unregister(consumer, FIRST)
        assert world.server.names(ids_path("g")) == [consumer]
        world.server.remove(id_path("g", consumer))
        await world.registry.register(identity, WIDE, FIRST)
        world.zk.fate = ["before"] * 4
        with pytest.raises(RebalanceFailed):
            await world.registry.unregister(consumer, FIRST)

    play(scenario)


def test_a_view_of_nothing_is_empty_and_what_cannot_be_read_has_no_partitions() -> None:
    """No group, no topics, no brokers ever: not an error. A malformed topic is one without partitions, as for Java."""

    async def scenario(world: World) -> None:
        empty = await world.registry.read(None, lambda topics: None)
        assert (empty.members, empty.topics) == ((), {})
        assert not await world.registry.is_current(empty.stamp, [])
        subscription = Subscription.to_white_list(["t|u"], 1)
        await world.registry.register(MemberIdentity(group="g", host="h"), subscription, FIRST)
        nothing = await world.registry.read(None, lambda topics: None)
        assert nothing.stamp.names == (0, 0)
        world.server.put(f"{BROKER_TOPICS}/t", b"junk")
        watched: list[str] = []
        snapshot = await world.registry.read(None, watched.extend)
        assert watched == ["t"]
        assert snapshot.partitions == {"t": ()}
        assert await world.registry.is_current(snapshot.stamp, ["t"])
        world.server.put(f"{BROKER_TOPICS}/t", b"other junk")
        assert not await world.registry.is_current(snapshot.stamp, ["t"])
        assert await world.registry.is_current(snapshot.stamp, [])
        world.server.put(f"{BROKER_TOPICS}/u")
        assert not await world.registry.is_current(snapshot.stamp, [])

    play(scenario)


def test_registrations_are_kept_while_the_names_explain_every_change() -> None:
    """When 64 members join one after the other, each reads all that are there for each that comes."""

    async def scenario(world: World) -> None:
        stranger = world.stranger()
        data = encode_registration(Subscription.to_topics({"t": 2}).register(7))

        def join(name: str) -> None:
            world.server.apply_create(id_path("g", ConsumerId(name)), data, stranger.state.session_id)

        async def read() -> tuple[int, dict[str, int]]:
            before = world.zk.finds
            snapshot = await world.registry.read(None, lambda topics: None)
            streams = {one.consumer: one.registration.subscription["t"] for one in snapshot.members if one.registration}
            return world.zk.finds - before - len(snapshot.stamp.topics), dict[str, int](streams)

        ours = await world.registry.register(MemberIdentity(group="g", host="h", consumer_id="m"), WIDE, FIRST)
        others = [f"g_x{number}" for number in range(10)]
        for name in others:
            join(name)
        everybody = {**dict.fromkeys(others, 2), ours: 1}
        assert await read() == (11, everybody)
        assert await read() == (1, everybody), "our own is always read"
        join("g_y")
        world.server.remove(id_path("g", ConsumerId("g_x3")))
        del everybody["g_x3"]
        everybody["g_y"] = 2
        assert await read() == (2, everybody)
        data = encode_registration(Subscription.to_topics({"t": 5}).register(7))
        world.server.remove(id_path("g", ConsumerId("g_x4")))
        join("g_x4")
        everybody["g_x4"] = 5
        assert await read() == (11, everybody), "one was made again, and it is not known which"
        world.server.remove(id_path("g", ConsumerId("g_x6")))
        assert (await read())[0] == 1
        join("g_x6")
        everybody["g_x6"] = 5
        assert await read() == (2, everybody), "it has come again, each step explained"
        world.server.apply_set(id_path("g", ConsumerId("g_x5")), data, ANY_VERSION)
        world.server.apply_set(id_path("g", ours), data, ANY_VERSION)
        everybody[ours] = 5
        assert await read() == (1, everybody)
        world.registry.forget()
        everybody["g_x5"] = 5
        assert await read() == (11, everybody)
        reads = [(await read())[0] for _ in range(40)]
        assert (reads.count(1), reads.count(11)) == (38, 2), "what nobody tells us of is seen some views on"
        world.zk.expire()
        await asyncio.sleep(1)
        assert (await read())[0] == 10, "nothing is kept from one session to the next"

    play(scenario)


def test_many_reads_stop_at_the_first_failure() -> None:
    """What has not begun need not begin."""

    async def scenario() -> None:
        begun = []

        async def work(number: int) -> int:
            begun.append(number)
            await asyncio.sleep(0.01 * number)
            if number == 1:
                raise CoordinationError("no")
            return number

        with pytest.raises(CoordinationError, match="no"):
            await map_bounded(range(10), work, in_flight=2)
        assert begun == [0, 1, 2]
        assert await map_bounded([], work) == {}
        assert list(await map_bounded([5, 3, 4], work)) == [5, 3, 4]

    run(scenario())


def test_many_are_written_at_once_and_each_still_has_its_own_fate() -> None:
    """One that is taken must not keep the others from being claimed, nor one that is not ours from being released."""

    async def scenario(world: World) -> None:
        mine, theirs = world.zk.state.session_id, world.stranger().state.session_id
        every = [TopicPartition.modern("t", number) for number in range(70)]
        world.own(every[3], b"g_x-0", theirs)
        grants = {partition: Grant(ThreadId("g_m-0"), Incarnation(1)) for partition in every}
        outcomes = await world.owners.claim(grants, FIRST)
        assert {p: o for p, o in outcomes.items() if o != ev.Created()} == {every[3]: ev.Taken(Holder("g_x-0", theirs))}
        assert list(outcomes) == every
        assert all(world.node(partition) == (b"g_m-0", mine) for partition in every if partition != every[3])
        assert await world.owners.release(every, FIRST) == set(every)
        assert [partition for partition in every if world.node(partition) is not None] == [every[3]]
        world.zk.cut()
        assert set((await world.owners.claim(grants, FIRST)).values()) == {ev.NotSent()}
        assert await world.owners.release(every, FIRST) == set()

    play(scenario)
