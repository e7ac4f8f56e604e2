# SPDX-License-Identifier: Apache-2.0
"""Moving positions: who does it, what is refused, and what an exported document must hold."""

import asyncio
import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.admin.offsets_export import (
    ExportedOffset,
    OffsetsExport,
    check_origin,
    encode_export,
    parse_export,
)
from consumerd.admin.operations import (
    OffsetMover,
    Target,
    Way,
    check_targets,
    choose_way,
    explain_undone,
    plan_moves,
)
from consumerd.errors import ConfigError, ConnectionLost, CoordinationError, OffsetError
from consumerd.model import Incarnation, LogRange, TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.positions import Position
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import ZOOKEEPER_ONLY, Commit, CommitOutcome, Place, Validity
from consumerd.offsets.zookeeper import ZooKeeperOffsetStore
from consumerd.zk.layout import ids_path, member_path, offset_path, owner_path, request_path, roots_root, topic_path
from consumerd.zk.port import OutcomeUnknown
from tests.support.delivery import FakeClaim
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.virtual_time import run

G = "lake"
P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)


@pytest.mark.parametrize(
    ("session", "ours", "alive", "landed", "plain", "forced"),
    [
        (7, {7}, True, True, Way.OWNER, Way.OWNER),
        (8, {7}, True, False, Way.REFUSED, Way.LEFT),
        (8, set(), True, True, Way.REFUSED, Way.LEFT),
        (None, {7}, True, True, Way.MEMBERS, Way.MEMBERS),
        (None, set(), True, False, Way.REFUSED, Way.LEFT),
        (None, set(), False, True, Way.LEFT, Way.LEFT),
        (None, set(), False, False, Way.DIRECTLY, Way.DIRECTLY),
    ],
)
def test_who_moves_a_partition_depends_on_who_has_it(session, ours, alive, landed, plain, forced):
    """Every combination that there is; what Java members hold is never written behind their back."""
    for force, expected in ((False, plain), (True, forced)):
        way, why = choose_way("m-0", session, ours, alive=alive, landed=landed, force=force)
        assert way is expected
        assert bool(why) == (plain is Way.REFUSED)


def test_positions_outside_the_log_are_refused_with_its_range():
    """A slip of a digit; the end itself is inside, since it is the next offset."""
    ranges = {P: LogRange(10, 20)}
    check_targets([Target(partition=P, position=at) for at in (10, 20)], ranges)
    for wrong in (9, 21):
        with pytest.raises(ConfigError, match=rf"t/0: {wrong} is outside the log \[10, 20\](.|\n)*--force"):
            check_targets([Target(partition=P, position=wrong)], ranges)


def test_a_log_that_cannot_be_asked_about_is_no_wrong_input():
    """The exit code says that a broker was not reached, unless a position is wrong in any case."""
    unknown, wrong = Target(partition=Q, position=1), Target(partition=P, position=21)
    with pytest.raises(ConnectionLost, match=r"t/1: its leader could not be asked(.|\n)*--force"):
        check_targets([unknown], {P: LogRange(10, 20)})
    with pytest.raises(ConfigError, match=r"t/0: 21 is outside(.|\n)*t/1: its leader could not be asked"):
        check_targets([unknown, wrong], {P: LogRange(10, 20)})


class Group:
    """A group in ZooKeeper, its members' sessions, and an operator with a mover."""

    def __init__(self):
        self.server = FakeZooKeeper()
        self.zk = self.server.client("operator")
        self.zk.connect()
        self.shown = []
        self.numbers = itertools.count(1)
        self.multi_hook = None
        self.server.put("/consumers")
        self.server.put(topic_path("t"))

    async def multi(self, operations, *, epoch=None):
        """The client's, with what a test puts before or after it."""
        hook, self.multi_hook = self.multi_hook, None
        if hook is None:
            return await self.zk.multi(operations, epoch=epoch)
        return await hook(operations)

    def __getattr__(self, name):
        return getattr(self.zk, name)

    async def join(self, name, *, ours, owns=()):
        member = self.server.client(name)
        member.connect()
        self.server.put(ids_path(G))
        await member.create(f"{ids_path(G)}/{name}", b"{}", ephemeral=True)
        if ours:
            path = member_path(G, member.state.session_id)
            await member.ensure_path(path.rpartition("/")[0])
            await member.create(path, b"{}", ephemeral=True)
        for partition in owns:
            path = owner_path(G, partition)
            await member.ensure_path(path.rpartition("/")[0])
            await member.create(path, name.encode() + b"-0", ephemeral=True)
        return member

    async def plan(self, *targets, force=False):
        return await plan_moves(
            self, GroupPositions(self, G), [Target(partition=p, position=at) for p, at in targets], force=force
        )

    async def carry_out(self, plan, *, new_chain=False, wait_s=5.0):
        mover = OffsetMover(
            self,
            GroupPositions(self, G),
            author="ops@desk",
            new_id=lambda: f"id-{next(self.numbers)}",
            wall_ms=lambda: 1_700_000_000_000,
        )
        return await mover.carry_out(plan, new_chain=new_chain, wait_s=wait_s, show=self.shown.append)

    def held(self, partition):
        found = self.server.read(offset_path(G, partition))
        return None if found is None else (found[0], found[1].version)

    @property
    def outcomes(self):
        return {row.partition: row.outcome for row in self.shown}


def with_group(scenario):
    async def play():
        await scenario(Group())

    run(play())


def test_without_a_member_and_without_files_positions_are_written():
    """One that stands, one that does not, and nothing is left behind that would move them again."""

    async def scenario(group):
        group.server.put(offset_path(G, P), b"9")
        await ZooKeeperOffsetRequests(group.zk, G).put(
            (await make_request(group, P, 77)),
        )
        plan = await group.plan((P, 5), (Q, 3))
        assert [(move.way, move.effect) for move in plan.moves] == [
            (Way.DIRECTLY, "reads 4 again"),
            (Way.DIRECTLY, "first position"),
        ]
        assert await group.carry_out(plan) == ()
        assert (group.held(P), group.held(Q)) == ((b"5", 1), (b"3", 0))
        assert group.server.read(request_path(G, P)) is None
        assert group.outcomes == {"0": "written", "1": "written"}

    with_group(scenario)


async def make_request(group, partition, position, request_id="before"):
    plan = await group.plan((partition, position))
    mover = OffsetMover(group, GroupPositions(group, G), author="a", new_id=lambda: request_id, wall_ms=lambda: 1)
    return mover._make_request(plan.moves[0], new_chain=False)


def test_without_a_member_but_with_files_the_request_waits_for_the_next_start():
    """Only a member can begin the chain that a position below the landed end needs."""

    async def scenario(group):
        group.server.put(f"{roots_root(G)}/lake", b"root")
        group.server.put(offset_path(G, P), b"9")
        plan = await group.plan((P, 5))
        assert await group.carry_out(plan, new_chain=True) == ()
        left = await ZooKeeperOffsetRequests(group.zk, G).find(P)
        assert (left.position, left.new_chain, left.author) == (5, True, "ops@desk")
        assert group.held(P) == (b"9", 0)
        assert group.outcomes == {"0": "left for the next of ours that claims it"}

    with_group(scenario)


def test_what_a_java_member_holds_is_refused_or_left_for_one_of_ours():
    """It would go on, and commit over what is written."""

    async def scenario(group):
        await group.join("java", ours=False, owns=[P])
        plan = await group.plan((P, 5), (Q, 5))
        assert [move.way for move in plan.moves] == [Way.REFUSED] * 2
        assert "t/0: it is held by java-0" in plan.refusal()
        assert "--force" in plan.refusal()
        forced = await group.plan((P, 5), force=True)
        assert forced.refusal() is None
        assert await group.carry_out(forced) == ()
        assert group.held(P) is None
        assert (await ZooKeeperOffsetRequests(group.zk, G).find(P)).position == 5

    with_group(scenario)


def test_a_member_of_ours_is_asked_and_waited_for():
    """Told apart by its session: the java member's name looks the same."""

    async def scenario(group):
        group.server.put(offset_path(G, P), b"9")
        member = await group.join("ours", ours=True, owns=[P])
        requests, store = ZooKeeperOffsetRequests(member, G), ZooKeeperOffsetStore(member, G)
        await store.load([P])

        turn = asyncio.Lock()

        async def carry_out(partition):
            async with turn:
                request = await requests.find(partition)
                if request is None:
                    return
                claim = FakeClaim(partition, member.state.epoch, group.server.read(topic_path("t"))[1].czxid)
                outcomes = await store.commit([Commit(claim, request.position, request)])
                assert outcomes[partition] is CommitOutcome.WRITTEN

        plan = await group.plan((P, 5), (Q, 3))
        assert [move.way for move in plan.moves] == [Way.OWNER, Way.MEMBERS]
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(requests.run())
            requests.watch("t", lambda partition: tasks.create_task(carry_out(partition)))
            undone = await group.carry_out(dataclasses.replace(plan, moves=plan.moves[:1]), wait_s=30)
            watching.cancel()
        assert undone == []
        assert group.outcomes == {"0": "carried out"}
        assert group.held(P) == (b"5", 1)

    with_group(scenario)


def test_a_member_that_cannot_leaves_the_request_and_the_command_fails():
    """A sink that is broken, a partition that nobody subscribes to: it is said, and the wish stands."""

    async def scenario(group):
        await group.join("ours", ours=True, owns=[P])
        plan = await group.plan((P, 5), (Q, 6))
        undone = await group.carry_out(plan, wait_s=2)
        assert [move.partition for move in undone] == [P, Q]
        assert set(group.outcomes.values()) == {"not yet: the request stays"}
        assert (await ZooKeeperOffsetRequests(group.zk, G).find(Q)).position == 6
        assert "t/0, t/1" in str(explain_undone(undone, 2))

    with_group(scenario)


def test_a_connection_that_is_away_while_it_waits_does_not_end_the_waiting():
    """What was asked stands; the member does not need the operator's connection."""

    async def scenario(group):
        group.server.put(offset_path(G, P), b"9")
        member = await group.join("ours", ours=True, owns=[P])
        plan = await group.plan((P, 5))

        async def carry_out_unseen():
            await asyncio.sleep(1)
            group.zk.cut()
            await asyncio.sleep(3)
            await member.delete(request_path(G, P))
            group.zk.heal()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(carry_out_unseen())
            assert await group.carry_out(plan, wait_s=30) == []
        assert group.outcomes == {"0": "carried out"}

    with_group(scenario)


def test_a_request_that_somebody_else_replaces_is_not_called_done():
    """Two operators at once: the first one must not believe that hers was carried out."""

    async def scenario(group):
        await group.join("ours", ours=True, owns=[P])
        plan = await group.plan((P, 5))
        other = await make_request(group, P, 6, "theirs")

        async def replace():
            await asyncio.sleep(1)
            await ZooKeeperOffsetRequests(group.zk, G).put(other)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(replace())
            undone = await group.carry_out(plan, wait_s=5)
        assert [move.partition for move in undone] == [P]
        assert group.outcomes == {"0": "replaced by a request of a"}

    with_group(scenario)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_member_that_joins_while_positions_are_written_is_noticed(when):
    """It may have read the old position already, and would commit over the new one."""

    async def scenario(group):
        plan = await group.plan((P, 5))

        async def join(operations):
            if when == "before":
                await group.join("java", ours=False)
            stats = await group.zk.multi(operations)
            if when == "after":
                await group.join("java", ours=False)
            return stats

        group.multi_hook = join
        with pytest.raises(OffsetError, match="a member joined"):
            await group.carry_out(plan)

    with_group(scenario)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("before", [None, b"9", b"5"])
def test_a_direct_write_that_was_never_answered_is_looked_at(before, applied):
    """Neither written twice over somebody else's, nor reported as a failure when it was done."""

    async def scenario(group):
        if before is not None:
            group.server.put(offset_path(G, P), before)
        plan = await group.plan((P, 5))

        async def lose(operations):
            if applied:
                await group.zk.multi(operations)
            raise OutcomeUnknown("the connection broke")

        group.multi_hook = lose
        assert await group.carry_out(plan) == ()
        assert group.held(P) == (b"5", 0 if before is None else 1)

    with_group(scenario)


@pytest.mark.parametrize("before", [None, b"9"])
def test_a_write_of_somebody_else_is_not_taken_for_the_one_that_was_never_answered(before):
    """The number is the same by chance; the request that stood went with neither."""

    async def scenario(group):
        if before is not None:
            group.server.put(offset_path(G, P), before)
        await ZooKeeperOffsetRequests(group.zk, G).put(await make_request(group, P, 3))
        plan = await group.plan((P, 5))

        async def lose(_operations):
            for data in (b"700", b"5"):
                group.server.put(offset_path(G, P), data)
            raise OutcomeUnknown("the connection broke")

        group.multi_hook = lose
        with pytest.raises(OffsetError, match="another client has written"):
            await group.carry_out(plan)
        assert group.server.read(request_path(G, P)) is not None

    with_group(scenario)


def test_a_position_that_somebody_else_has_written_meanwhile_is_left():
    """The operator has decided by what was shown; it is not true any more."""

    async def scenario(group):
        group.server.put(offset_path(G, P), b"9")
        plan = await group.plan((P, 5))
        group.server.put(offset_path(G, P), b"700")
        with pytest.raises(OffsetError, match="another client has written"):
            await group.carry_out(plan)
        assert group.held(P) == (b"700", 1)

    with_group(scenario)


# -- the exported document

EXPORTS = st.builds(
    OffsetsExport,
    group=st.text(),
    cluster=st.text(),
    exported_ms=st.integers(0, 2**60),
    offsets=st.lists(
        st.builds(
            ExportedOffset,
            topic=st.text(),
            partition=st.integers(0, 2**31 - 1).map(str),
            position=st.integers(0, 2**63 - 1),
            incarnation=st.none() | st.text(),
        )
    ),
)


@given(export=EXPORTS)
def test_an_export_is_read_as_it_was_written(export):
    """What was kept before an operation is what it is undone with."""
    text = encode_export(export)
    assert parse_export(text, "f") == export
    assert len(text.splitlines()) >= len(export.offsets)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected JSON"),
        ("[]", "expected a document"),
        ('{"format":"other"}', "expected a document"),
        ('{"format":"consumerd offsets","version":2}', "newer release"),
        ('{"format":"consumerd offsets","version":1}', "expected group and cluster"),
    ],
)
def test_what_is_no_export_is_refused_with_the_name_of_the_file(text, expected):
    """Somebody gave another file."""
    with pytest.raises(ConfigError, match=f"lake.json: .*{expected}"):
        parse_export(text, "lake.json")


@pytest.mark.parametrize(
    "change",
    [{"position": -1}, {"position": "5"}, {"position": True}, {"partition": 0}, {"partition": "x"}, {"topic": None}],
)
def test_one_position_that_makes_no_sense_refuses_the_document(change):
    """A document that was edited by hand; the place is named."""
    document = json.loads(
        encode_export(
            OffsetsExport(
                group="g",
                cluster="c",
                exported_ms=1,
                offsets=[ExportedOffset(topic="t", partition="0", position=5, incarnation="7")],
            )
        )
    )
    document["offsets"][0] |= change
    with pytest.raises(ConfigError, match=r"f: offsets\[0\]"):
        parse_export(json.dumps(document), "f")


def test_an_export_of_another_cluster_or_of_a_topic_made_again_is_refused():
    """Its numbers would be taken for positions of other records."""
    export = OffsetsExport(
        group="g",
        cluster="1-2",
        exported_ms=1,
        offsets=[ExportedOffset(topic="t", partition="0", position=5, incarnation="7")],
    )
    check_origin(export, source="f", cluster="1-2", incarnations={"t": "7"})
    with pytest.raises(ConfigError, match="from cluster 1-2, this is 3-4"):
        check_origin(export, source="f", cluster="3-4", incarnations={"t": "7"})
    with pytest.raises(ConfigError, match="topic t was deleted and re-created"):
        check_origin(export, source="f", cluster="1-2", incarnations={"t": "8"})


# -- positions in Kafka

BOTH, KAFKA = frozenset(Place), frozenset({Place.KAFKA})


class Kept(GroupPositions):
    """Positions whose part in Kafka a test makes; ``journal`` has the writes to both places."""

    def __init__(self, group, in_kafka, *, unknown=""):
        super().__init__(group, G)
        self.in_kafka, self.unknown, self.journal = in_kafka, unknown, []
        self.failure = None

    async def find_kept(self, partitions):
        kept = await super().find_kept(partitions)
        kafka = {
            one: Position(value=at, validity=Validity.UNKNOWN_AGE, place=Place.KAFKA, incarnation=Incarnation(1))
            for one, at in self.in_kafka.items()
        }
        return dataclasses.replace(kept, kafka=kafka, unknown=self.unknown)

    async def write(self, partition, position, incarnation):
        """Stand in for the writer to Kafka."""
        if self.failure is not None:
            raise self.failure
        self.journal.append((partition, position, incarnation is not None))

    async def move(self, group, places, *targets):
        plan = await plan_moves(
            group, self, [Target(partition=p, position=at) for p, at in targets], places, force=False
        )
        mover = OffsetMover(group, self, author="a", new_id=lambda: "i", wall_ms=lambda: 1, kafka=self)
        await mover.carry_out(plan, new_chain=False, wait_s=1, show=group.shown.append)
        return plan


@pytest.mark.parametrize("places", [ZOOKEEPER_ONLY, BOTH])
def test_a_rewind_moves_both_places(places):
    """Kafka's larger position would be read, or refuse the next start."""

    async def scenario(group):
        group.server.put(offset_path(G, P), b"9")
        kept = Kept(group, {P: 9})
        plan = await kept.move(group, places, (P, 5))
        assert [(P, 5, True)] == kept.journal
        assert (b"5", 1) == group.held(P)
        assert {"0": "written to ZooKeeper and Kafka"} == group.outcomes
        assert "reads 4 again" == plan.moves[0].effect

    with_group(scenario)


def test_a_partition_without_a_position_in_kafka_is_written_where_members_read():
    """A group in ZooKeeper gets none in Kafka; with both, a first position is one in both."""

    async def scenario(group):
        kept = Kept(group, {})
        await kept.move(group, ZOOKEEPER_ONLY, (P, 5))
        assert [] == kept.journal
        await kept.move(group, BOTH, (Q, 3))
        assert [(Q, 3, True)] == kept.journal
        assert (b"3", 0) == group.held(Q)

    with_group(scenario)


def test_in_kafka_alone_zookeeper_is_left_alone_and_an_earlier_request_ends():
    """A request that stood would move the partition again at the next start."""

    async def scenario(group):
        group.server.put(offset_path(G, P), b"9")
        await ZooKeeperOffsetRequests(group.zk, G).put(await make_request(group, P, 77))
        kept = Kept(group, {P: 300})
        plan = await kept.move(group, KAFKA, (P, 5))
        assert ([(P, 5, True)], (b"9", 0)) == (kept.journal, group.held(P))
        assert group.server.read(request_path(G, P)) is None
        assert {"0": "written to Kafka"} == group.outcomes
        assert 300 == plan.moves[0].position

    with_group(scenario)


@pytest.mark.parametrize(
    ("in_kafka", "held", "said"),
    [(9, b"9", "ZooKeeper's is as it was"), (3, b"5", "ZooKeeper has it already")],
    ids=["back", "forward"],
)
def test_kafka_that_cannot_be_written_is_an_error_that_says_what_stands(in_kafka, held, said):
    """A rewind begins in Kafka, so that a failure between both writes leaves everything as it was."""

    async def scenario(group):
        group.server.put(offset_path(G, P), b"9" if in_kafka == 9 else b"3")
        kept = Kept(group, {P: in_kafka})
        kept.failure = CoordinationError("away")
        with pytest.raises(CoordinationError, match=f"t/0: Kafka has not confirmed position 5, {said}.*away"):
            await kept.move(group, BOTH, (P, 5))
        assert held == group.held(P)[0]
        assert {} == group.outcomes

    with_group(scenario)


def test_a_node_that_another_client_writes_meanwhile_is_said_with_what_kafka_has():
    """Kafka was first, and has moved."""

    async def scenario(group):
        group.server.put(offset_path(G, P), b"9")
        kept = Kept(group, {P: 9})

        async def interfere(operations):
            group.server.put(offset_path(G, P), b"8")
            return await group.zk.multi(operations)

        group.multi_hook = interfere
        with pytest.raises(OffsetError, match=r"another client has written.*Kafka has position 5 of t/0 already"):
            await kept.move(group, BOTH, (P, 5))

    with_group(scenario)


def test_positions_that_kafka_does_not_tell_are_said_to_be_unknown():
    """It may hold a larger one, which refuses the next start."""

    async def scenario(group):
        kept = Kept(group, {}, unknown="no coordinator")
        await kept.move(group, ZOOKEEPER_ONLY, (P, 5))
        assert {"0": "written to ZooKeeper; Kafka's is unknown: no coordinator"} == group.outcomes

    with_group(scenario)
