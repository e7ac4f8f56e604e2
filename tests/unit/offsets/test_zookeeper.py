# SPDX-License-Identifier: Apache-2.0
"""Positions in ZooKeeper: fenced, conditional, and honest about answers that never came."""

import asyncio
import dataclasses
import json

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import CoordinationError, SessionLost
from consumerd.model import TopicPartition
from consumerd.offsets.requests import ZooKeeperOffsetRequests, encode_request
from consumerd.offsets.store import Commit, CommitOutcome, OffsetRequest, StoredOffset
from consumerd.offsets.zookeeper import MULTI_BYTES, MULTI_WRITES, ZooKeeperOffsetStore
from consumerd.zk.layout import offset_path, offsets_path, owner_path, request_path, requests_path, topic_path
from consumerd.zk.port import MultiFailed, NotConnected, OutcomeUnknown
from tests.support.delivery import TOPIC_CZXID, FakeClaim
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.virtual_time import run

G = "lake"
P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)


class SpiedClient:
    """A client whose multis are noted; ``before`` and ``after`` may wait, raise or act."""

    def __init__(self, zk):
        self._zk = zk
        self.multis = []
        self.before = None
        self.after = None

    def __getattr__(self, name):
        return getattr(self._zk, name)

    async def multi(self, operations, *, epoch=None):
        self.multis.append(list(operations))
        if self.before is not None:
            await self.before(operations)
        stats = await self._zk.multi(operations, epoch=epoch)
        if self.after is not None:
            await self.after(operations)
        return stats


class Member:
    """A member with a session, owner nodes and a store."""

    def __init__(self, server, name="member"):
        self.server = server
        for topic in ("t", "short", "x" * 2000):
            server.put_topic(topic, TOPIC_CZXID)
        self.zk = server.client(name)
        self.zk.connect()
        self.spy = SpiedClient(self.zk)
        self.store = ZooKeeperOffsetStore(self.spy, G)

    async def claim(self, partition):
        path = owner_path(G, partition)
        await self.zk.ensure_path(path.rpartition("/")[0])
        await self.zk.create(path, b"member-0", ephemeral=True, epoch=self.zk.state.epoch)
        await self.store.load([partition])
        return FakeClaim(partition, self.zk.state.epoch)

    async def commit(self, *positions):
        """Commit (claim, position) pairs and return the outcomes in their order."""
        outcomes = await self.store.commit([Commit(claim, position) for claim, position in positions])
        return [outcomes[claim.partition] for claim, _ in positions]

    def held(self, partition):
        """What the node holds, and its version."""
        found = self.server.read(offset_path(G, partition))
        return None if found is None else (found[0], found[1].version)


def lose_next_answer(member, *, applied):
    """Break the connection around the next multi: after it took effect, or before."""

    async def lose(_):
        member.spy.before = member.spy.after = None
        raise OutcomeUnknown("the connection broke")

    if applied:
        member.spy.after = lose
    else:
        member.spy.before = lose


async def send_and_hear_nothing(member, claim, position):
    """Send a commit that takes no effect now, while nothing can be read back either: it may still arrive."""

    async def unreadable(path):
        raise CoordinationError("not connected")

    async def lose(_):
        raise OutcomeUnknown("the connection broke")

    member.spy.before = lose
    find, member.spy.find = member.zk.find, unreadable
    assert await member.commit((claim, position)) == [CommitOutcome.FAILED]
    member.spy.find, member.spy.before = find, None


def with_member(scenario):
    """Run a scenario that takes a member, on virtual time."""

    async def play():
        await scenario(Member(FakeZooKeeper()))

    run(play())


@pytest.mark.parametrize(
    ("data", "position", "malformed"),
    [
        (b"42", 42, None),
        (b" 7\n", 7, None),
        (b"12x", -1, "12x"),
        (b"", -1, ""),
        (b"-1", -1, "-1"),
        (b"\xff", -1, "\ufffd"),
    ],
)
def test_whatever_a_node_holds_loading_tells_it_and_goes_on(data, position, malformed):
    """One node that somebody filled by hand must not keep a member from its other partitions."""

    async def scenario(member):
        member.server.put(offset_path(G, P), data)
        loaded = await member.store.load([P, Q])
        assert loaded[Q] is None
        assert isinstance(loaded[P], StoredOffset)
        assert (loaded[P].position, loaded[P].malformed) == (position, malformed)
        assert loaded[P].token.mark == member.server.read(offset_path(G, P))[1].mzxid

    with_member(scenario)


def test_the_first_commit_makes_the_node_and_its_parents_for_good():
    """As the Java consumer does; the next member reads it after we are gone."""

    async def scenario(member):
        claim = await member.claim(P)
        assert await member.commit((claim, 42)) == [CommitOutcome.WRITTEN]
        assert member.held(P) == (b"42", 0)
        member.zk.close()
        assert member.held(P) == (b"42", 0)
        assert member.server.read(offsets_path(G, "t"))[1].ephemeral_owner == 0

    with_member(scenario)


def test_each_commit_is_conditional_on_the_one_before():
    """One version a commit: nobody has written in between."""

    async def scenario(member):
        claim = await member.claim(P)
        for position in (10, 20, 15):
            assert await member.commit((claim, position)) == [CommitOutcome.WRITTEN]
        assert member.held(P) == (b"15", 2)
        assert [operation.version for (operation,) in member.spy.multis[1:]] == [0, 1]

    with_member(scenario)


def test_what_the_node_holds_already_is_not_written():
    """Idle partitions cost ZooKeeper nothing, over restarts too."""

    async def scenario(member):
        member.server.put(offset_path(G, P), b"42")
        claim = await member.claim(P)
        assert await member.commit((claim, 42)) == [CommitOutcome.UNCHANGED]
        assert member.spy.multis == []

    with_member(scenario)


def test_a_partition_never_loaded_is_read_first():
    """A commit without a load is slower, not blind."""

    async def scenario(member):
        member.server.put(offset_path(G, P), b"42")
        member.server.put(owner_path(G, P))
        assert await member.commit((FakeClaim(P, 1), 43)) == [CommitOutcome.WRITTEN]
        assert member.held(P) == (b"43", 1)

    with_member(scenario)


@pytest.mark.parametrize("theirs", [b"7", b"junk", None])
def test_a_foreign_write_under_our_ownership_is_written_over_and_told(theirs):
    """We deliver the partition, so our position is the true one; whoever interferes shows up in a metric."""

    async def scenario(member):
        claims = [await member.claim(partition) for partition in (P, Q)]
        assert await member.commit(*[(claim, 10) for claim in claims]) == [CommitOutcome.WRITTEN] * 2
        if theirs is None:
            member.server.remove(offset_path(G, P))
        else:
            member.server.put(offset_path(G, P), theirs)
        outcomes = await member.commit(*[(claim, 20) for claim in claims])
        assert outcomes == [CommitOutcome.FOREIGN_OVERWRITTEN, CommitOutcome.WRITTEN]
        assert member.held(P)[0] == b"20"
        assert member.held(Q) == (b"20", 1)
        assert await member.commit((claims[0], 30)) == [CommitOutcome.WRITTEN]

    with_member(scenario)


@pytest.mark.parametrize("successor", [True, False])
def test_a_commit_over_another_owners_write_is_dropped_and_the_rest_goes_out(successor):
    """The node is another member's now, and so is the position; a leftover of our claim proves nothing."""

    async def scenario(member):
        claims = [await member.claim(partition) for partition in (P, Q)]
        await member.commit(*[(claim, 10) for claim in claims])
        member.server.remove(owner_path(G, P))
        if successor:
            other = Member(member.server, "other")
            their_claim = await other.claim(P)
            assert await other.commit((their_claim, 50)) == [CommitOutcome.WRITTEN]
        else:
            member.server.put(offset_path(G, P), b"50")
        outcomes = await member.commit(*[(claim, 20) for claim in claims])
        assert outcomes == [CommitOutcome.NOT_OWNER, CommitOutcome.WRITTEN]
        assert member.held(P) == (b"50", 1)

    with_member(scenario)


def test_a_lease_that_pauses_or_ends_sends_nothing():
    """The check stands right before the request: what fails it never leaves."""

    async def scenario(member):
        paused, lost = await member.claim(P), await member.claim(Q)
        paused.lease.set("paused")
        lost.lease.set("lost")
        assert await member.commit((paused, 10), (lost, 10)) == [CommitOutcome.FAILED, CommitOutcome.NOT_OWNER]
        assert member.spy.multis == []
        paused.lease.set("fresh")
        assert await member.commit((paused, 11)) == [CommitOutcome.WRITTEN]

    with_member(scenario)


def test_a_claim_of_an_ended_session_commits_nothing_in_the_next_one():
    """The lease may not have noticed yet: the session itself is the fence."""

    async def scenario(member):
        old = await member.claim(P)
        await member.commit((old, 10))
        member.zk.expire()
        assert await member.commit((old, 20)) == [CommitOutcome.NOT_OWNER]
        assert member.held(P) == (b"10", 0)
        new = await member.claim(P)
        assert await member.commit((new, 15)) == [CommitOutcome.WRITTEN]
        # both at once: each goes by its own session
        other = await member.claim(Q)
        assert await member.commit((FakeClaim(P, old.epoch), 99), (other, 5)) == [
            CommitOutcome.NOT_OWNER,
            CommitOutcome.WRITTEN,
        ]
        assert member.held(P)[0] == b"15"

    with_member(scenario)


def test_without_a_connection_everything_fails_and_later_the_newest_is_written():
    """A failed commit leaves no trace."""

    async def scenario(member):
        claim = await member.claim(P)
        member.zk.cut(heard_ago_s=0)
        assert await member.commit((claim, 10)) == [CommitOutcome.FAILED]
        member.zk.heal()
        assert await member.commit((claim, 20)) == [CommitOutcome.WRITTEN]
        assert member.held(P) == (b"20", 0)

    with_member(scenario)


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("applied", [True, False])
def test_an_answer_that_never_comes_is_read_from_the_nodes(applied, exists):
    """Repeating blindly would count our own write as a foreign one; believing blindly would lose it."""

    async def scenario(member):
        if exists:
            member.server.put(offset_path(G, P), b"1")
        claim = await member.claim(P)

        lose_next_answer(member, applied=applied)
        assert await member.commit((claim, 10)) == [CommitOutcome.WRITTEN]
        assert member.held(P) == (b"10", 1 if exists else 0)
        assert len(member.spy.multis) == (1 if applied else 2)
        assert await member.commit((claim, 20)) == [CommitOutcome.WRITTEN]

    with_member(scenario)


def test_a_cancelled_commit_that_took_effect_is_recognised_by_the_next():
    """A drain that runs out of time cancels; its write must not look like somebody else's afterwards."""

    async def scenario(member):
        claim = await member.claim(P)
        await member.commit((claim, 1))

        async def never_answer(_):
            await asyncio.Event().wait()

        member.spy.after = never_answer
        with pytest.raises(TimeoutError):
            async with timeout(1):
                await member.commit((claim, 10))
        member.spy.after = None
        assert member.held(P) == (b"10", 1)
        assert await member.commit((claim, 20)) == [CommitOutcome.WRITTEN]
        assert member.held(P) == (b"20", 2)

    with_member(scenario)


def test_a_cancelled_commit_that_took_effect_is_enough_for_the_same_position():
    """Nothing has moved since: there is nothing to write."""

    async def scenario(member):
        claim = await member.claim(P)

        async def never_answer(_):
            await asyncio.Event().wait()

        member.spy.after = never_answer
        with pytest.raises(TimeoutError):
            async with timeout(1):
                await member.commit((claim, 10))
        member.spy.after = None
        assert await member.commit((claim, 10)) == [CommitOutcome.WRITTEN]
        assert member.held(P) == (b"10", 0)

    with_member(scenario)


def test_a_refused_node_does_not_hold_up_the_others():
    """An ACL on one node is one partition's trouble."""

    async def scenario(member):
        claims = [await member.claim(partition) for partition in (P, Q)]

        async def refuse(operations):
            for index, operation in enumerate(operations):
                if operation.path == offset_path(G, P):
                    raise MultiFailed(index, CoordinationError("no permission"))

        member.spy.before = refuse
        outcomes = await member.commit(*[(claim, 10) for claim in claims])
        assert outcomes == [CommitOutcome.FAILED, CommitOutcome.WRITTEN]
        member.spy.before = None
        assert await member.commit((claims[0], 10)) == [CommitOutcome.WRITTEN]

    with_member(scenario)


def test_a_folder_that_may_not_be_made_does_not_hold_up_other_topics():
    """Somebody else's permissions below one topic must not keep what other topics have from being committed."""

    async def scenario(member):
        elsewhere = TopicPartition.modern("short", 0)
        claims = [await member.claim(partition) for partition in (P, Q, elsewhere)]

        async def ensure_path(path, data=b""):
            if path == offsets_path(G, "t"):
                raise CoordinationError("no permission")
            await member.zk.ensure_path(path, data)

        member.spy.ensure_path = ensure_path
        for _ in range(2):
            outcomes = await member.commit(*((claim, 7) for claim in claims))
            assert [CommitOutcome.FAILED] * 2 == outcomes[:2]
            assert (b"7", 0) == member.held(elsewhere)
        del member.spy.ensure_path
        assert [CommitOutcome.WRITTEN] * 2 == await member.commit(*((claim, 8) for claim in claims[:2]))

    with_member(scenario)


@pytest.mark.parametrize("error", [NotConnected, SessionLost, OutcomeUnknown])
def test_a_connection_that_breaks_while_folders_are_made_fails_what_was_to_follow(error):
    """Then nothing is known of the rest, and the session may be over: it must not go out."""

    async def scenario(member):
        claims = [await member.claim(partition) for partition in (P, TopicPartition.modern("short", 0))]

        async def ensure_path(path, data=b""):
            raise error("gone")

        member.spy.ensure_path = ensure_path
        outcomes = await member.commit(*((claim, 7) for claim in claims))
        assert {CommitOutcome.NOT_OWNER if error is SessionLost else CommitOutcome.FAILED} == set(outcomes)
        assert [] == member.spy.multis

    with_member(scenario)


def test_however_many_nodes_are_refused_the_others_go_out():
    """Somebody else's permissions on a whole topic must not keep what other topics have from being committed."""

    async def scenario(member):
        partitions = [TopicPartition.modern("t", number) for number in range(8)]
        claims = [await member.claim(partition) for partition in partitions]
        refused = {offset_path(G, partition) for partition in partitions[:6]}

        async def refuse(operations):
            for index, operation in enumerate(operations):
                if operation.path in refused:
                    raise MultiFailed(index, CoordinationError("no permission"))

        member.spy.before = refuse
        outcomes = await member.commit(*[(claim, 10) for claim in claims])
        assert outcomes == [CommitOutcome.FAILED] * 6 + [CommitOutcome.WRITTEN] * 2

    with_member(scenario)


def test_a_node_that_was_removed_and_made_by_somebody_else_is_not_taken_for_ours():
    """Its version begins at 0 again, which may be the one that we know."""

    async def scenario(member):
        claim = await member.claim(P)
        assert await member.commit((claim, 100)) == [CommitOutcome.WRITTEN]
        await member.zk.delete(offset_path(G, P))
        await member.zk.create(offset_path(G, P), b"50")
        await member.store.load([P])
        assert await member.commit((claim, 100)) == [CommitOutcome.WRITTEN]
        assert b"100" == member.held(P)[0]

    with_member(scenario)


def test_somebody_who_writes_as_often_as_we_do_does_not_keep_us_for_ever():
    """A bounded number of rounds, then the next commit tries again."""

    async def scenario(member):
        claim = await member.claim(P)

        async def interfere(_):
            member.server.put(offset_path(G, P), b"%d" % len(member.spy.multis))

        member.spy.before = interfere
        assert await member.commit((claim, 10)) == [CommitOutcome.FAILED]
        assert len(member.spy.multis) == 3
        member.spy.before = None
        assert await member.commit((claim, 10)) == [CommitOutcome.WRITTEN]

    with_member(scenario)


def test_a_position_in_a_topic_that_was_made_again_is_dropped():
    """It would be younger than the new topic, count there, and have everything below it skipped."""

    async def scenario(member):
        claim = await member.claim(P)
        assert await member.commit((claim, 40)) == [CommitOutcome.WRITTEN]
        member.server.remove(topic_path("t"))
        assert await member.commit((claim, 41)) == [CommitOutcome.NOT_OWNER]
        member.server.put(topic_path("t"))
        assert await member.commit((claim, 42)) == [CommitOutcome.NOT_OWNER]
        assert member.held(P) == (b"40", 0)

    with_member(scenario)


def test_a_position_does_not_wait_for_a_connection_while_the_topic_may_be_made_again():
    """What was seen of the topic must not be older than a round trip when the position goes out."""

    async def scenario(member):
        claim = await member.claim(P)
        assert await member.commit((claim, 40)) == [CommitOutcome.WRITTEN]

        def cut_off():
            member.zk.cut(heard_ago_s=0)
            member.server.remove(topic_path("t"))
            member.server.put(topic_path("t"))
            asyncio.get_running_loop().call_later(0.5, member.zk.heal)

        claim.check = cut_off  # type: ignore[method-assign]  # the last thing asked before the write
        assert await member.commit((claim, 41)) == [CommitOutcome.FAILED]
        await asyncio.sleep(1)
        assert member.held(P) == (b"40", 0)

    with_member(scenario)


def test_a_position_that_waited_for_another_topic_over_a_new_connection_does_not_go_out():
    """One topic was seen before the connection broke, another one after: what was seen of the first is old."""

    async def scenario(member):
        claim, other = await member.claim(P), await member.claim(TopicPartition.modern("short", 0))
        assert await member.commit((claim, 40), (other, 7)) == [CommitOutcome.WRITTEN, CommitOutcome.WRITTEN]

        async def see(path):
            if path == topic_path("short"):
                await asyncio.sleep(0.1)  # the other topic's answer is here
                member.zk.cut(heard_ago_s=0)
                member.server.remove(topic_path("t"))
                member.server.put(topic_path("t"))
                asyncio.get_running_loop().call_later(0.5, member.zk.heal)
            return await member.zk.exists(path)

        member.spy.exists = see
        assert await member.commit((claim, 41), (other, 8)) == [CommitOutcome.FAILED, CommitOutcome.FAILED]
        assert member.held(P) == (b"40", 0)

    with_member(scenario)


def test_multis_stay_within_their_limits():
    """A server drops the connection of whoever sends more than ``jute.maxbuffer``, and says nothing."""

    async def scenario(member):
        long = "x" * 2000
        claims = [FakeClaim(TopicPartition.modern(long, n), 1) for n in range(200)]
        claims += [FakeClaim(TopicPartition.modern("short", n), 1) for n in range(MULTI_WRITES + 10)]
        outcomes = await member.store.commit([Commit(claim, 10**18) for claim in claims])
        assert set(outcomes.values()) == {CommitOutcome.WRITTEN}
        sizes = [sum(len(op.path) + len(op.data) for op in multi) for multi in member.spy.multis]
        assert sum(len(multi) for multi in member.spy.multis) == len(claims)
        assert max(sizes) <= MULTI_BYTES
        assert max(len(multi) for multi in member.spy.multis) <= MULTI_WRITES
        assert len(member.spy.multis) == 3  # two by size, one of which takes short ones too, and one by count

    with_member(scenario)


def test_reloading_while_an_answer_is_missing_keeps_what_was_sent():
    """A stopped partition looks at its node from time to time."""

    async def scenario(member):
        claim = await member.claim(P)

        await send_and_hear_nothing(member, claim, 10)
        await member.store.load([P])
        member.server.put(offset_path(G, P), b"10")  # it arrives after all
        assert await member.commit((claim, 20)) == [CommitOutcome.WRITTEN]

    with_member(scenario)


# -- commits that carry an operator's request out


def ask(member, position=5, *, id="a1", partition=P):  # noqa: A002 - the field's name
    """Leave a request as an operator does; returns it with its version."""
    path = request_path(G, partition)
    request = OffsetRequest(
        id=id, partition=partition, position=position, new_chain=False, author="ops", created_ms=1, version=0
    )
    member.server.put(path, encode_request(request))
    return dataclasses.replace(request, version=member.server.read(path)[1].version)


async def fulfil(member, claim, request):
    """Commit what a request asks for."""
    outcomes = await member.store.commit([Commit(claim, request.position, request)])
    return outcomes[claim.partition]


def asked(member, partition=P):
    """The id of the request that stands, if any."""
    found = member.server.read(request_path(G, partition))
    return None if found is None else json.loads(found[0])["id"]


@pytest.mark.parametrize("before", [None, b"9", b"5"])
def test_a_request_goes_with_the_commit_that_carries_it_out(before):
    """Backwards, to where the store stands already, or where there was nothing: the version tells that it happened."""

    async def scenario(member):
        if before is not None:
            member.server.put(offset_path(G, P), before)
        claim, other = await member.claim(P), await member.claim(Q)
        request = ask(member)
        outcomes = await member.store.commit([Commit(other, 7), Commit(claim, 5, request)])
        assert outcomes == {P: CommitOutcome.WRITTEN, Q: CommitOutcome.WRITTEN}
        assert len(member.spy.multis) == 1
        assert asked(member) is None
        assert member.held(P) == (b"5", 0 if before is None else 1)
        assert await member.commit((claim, 6)) == [CommitOutcome.WRITTEN]

    with_member(scenario)


@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("change", ["replaced", "gone", "malformed"])
def test_a_request_that_has_changed_is_not_carried_out(change, when):
    """The operator has thought again: nothing of the old wish takes effect, and the newer one stays."""

    async def scenario(member):
        member.server.put(offset_path(G, P), b"9")
        claim, other = await member.claim(P), await member.claim(Q)
        request = ask(member)

        def change_it():
            match change:
                case "replaced":
                    ask(member, 3, id="b2")
                case "gone":
                    member.server.remove(request_path(G, P))
                case "malformed":
                    member.server.put(request_path(G, P), b"junk")

        async def interfere(_):
            member.spy.before = None
            change_it()

        if when == "before":
            change_it()
        else:
            member.spy.before = interfere
        outcomes = await member.store.commit([Commit(claim, 5, request), Commit(other, 7)])
        assert outcomes == {P: CommitOutcome.REQUEST_CHANGED, Q: CommitOutcome.WRITTEN}
        assert member.held(P) == (b"9", 0)
        if change == "replaced":
            assert asked(member) == "b2"
            newer = await ZooKeeperOffsetRequests(member.zk, G).find(P)
            assert await fulfil(member, claim, newer) is CommitOutcome.WRITTEN
            assert member.held(P) == (b"3", 1)

    with_member(scenario)


def test_a_request_made_anew_is_not_taken_for_the_old_one():
    """Somebody deleted the node by hand and asked again: the version is the same, the wish is not."""

    async def scenario(member):
        claim = await member.claim(P)
        request = ask(member)
        member.server.remove(request_path(G, P))
        assert ask(member, 3, id="b2").version == request.version
        assert await fulfil(member, claim, request) is CommitOutcome.REQUEST_CHANGED
        assert asked(member) == "b2"

    with_member(scenario)


@pytest.mark.parametrize("before", [None, b"9", b"5"])
@pytest.mark.parametrize("applied", [True, False])
def test_a_fulfilment_that_was_never_answered_is_read_from_the_nodes(applied, before):
    """Taken for undone it would move the partition a second time; taken for done it would never be moved."""

    async def scenario(member):
        if before is not None:
            member.server.put(offset_path(G, P), before)
        claim = await member.claim(P)
        request = ask(member)

        lose_next_answer(member, applied=applied)
        assert await fulfil(member, claim, request) is CommitOutcome.WRITTEN
        assert len(member.spy.multis) == (1 if applied else 2)
        assert asked(member) is None
        assert member.held(P) == (b"5", 0 if before is None else 1)

    with_member(scenario)


@pytest.mark.parametrize("newer", [False, True])
def test_a_fulfilment_that_was_cancelled_after_it_took_effect_is_not_repeated(newer):
    """The pipeline is told to stop at that very moment, and begins again; the next request may be there already."""

    async def scenario(member):
        member.server.put(offset_path(G, P), b"9")
        claim = await member.claim(P)
        request = ask(member)

        async def never_answer(_):
            await asyncio.Event().wait()

        member.spy.after = never_answer
        with pytest.raises(TimeoutError):
            async with timeout(1):
                await fulfil(member, claim, request)
        member.spy.after = None
        if newer:
            ask(member, 3, id="b2")
        assert await fulfil(member, claim, request) is CommitOutcome.WRITTEN
        assert member.held(P) == (b"5", 1)
        assert asked(member) == ("b2" if newer else None)

    with_member(scenario)


def test_a_plain_commit_to_the_same_place_that_lands_late_does_not_pass_for_the_fulfilment():
    """It was sent before the operator spoke, and its answer was lost: the request has still to go."""

    async def scenario(member):
        claim = await member.claim(P)

        await send_and_hear_nothing(member, claim, 5)
        request = ask(member)

        async def land(_):
            member.spy.before = None
            member.server.put(offset_path(G, P), b"5")

        member.spy.before = land
        assert await fulfil(member, claim, request) is CommitOutcome.WRITTEN
        assert asked(member) is None
        assert member.held(P) == (b"5", 1)

    with_member(scenario)


def test_a_request_is_carried_out_over_a_foreign_write_by_the_owner_only():
    """The wish names a position, not a difference; who has lost the partition leaves the wish to the next owner."""

    async def scenario(member):
        member.server.put(offset_path(G, P), b"9")
        claim = await member.claim(P)
        member.server.put(offset_path(G, P), b"70")
        assert await fulfil(member, claim, ask(member)) is CommitOutcome.FOREIGN_OVERWRITTEN
        assert (member.held(P)[0], asked(member)) == (b"5", None)
        request = ask(member, 3, id="b2")
        member.server.put(offset_path(G, P), b"80")
        member.server.remove(owner_path(G, P))
        assert await fulfil(member, claim, request) is CommitOutcome.NOT_OWNER
        assert (member.held(P)[0], asked(member)) == (b"80", "b2")

    with_member(scenario)


def test_requests_count_in_what_a_multi_may_hold():
    """Two operations a partition, one of which has no data but a path."""

    async def scenario(member):
        partitions = [TopicPartition.modern("x" * 2000, n) for n in range(120)]
        commits = [Commit(FakeClaim(one, 1), 5, ask(member, partition=one)) for one in partitions]
        outcomes = await member.store.commit(commits)
        assert set(outcomes.values()) == {CommitOutcome.WRITTEN}
        sizes = [sum(len(op.path) for op in multi) for multi in member.spy.multis]
        assert sum(sizes) > MULTI_BYTES > max(sizes)
        assert not member.server.names(requests_path(G, "x" * 2000))

    with_member(scenario)
