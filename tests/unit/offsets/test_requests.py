# SPDX-License-Identifier: Apache-2.0
"""Operators' requests: what a node may hold, that no change is missed, and that a newer one is never lost."""

import asyncio
import dataclasses
import json

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import CoordinationError, OffsetError
from consumerd.model import TopicPartition
from consumerd.offsets.requests import Cancelled, ZooKeeperOffsetRequests, encode_request, parse_request
from consumerd.offsets.store import OffsetRequest
from consumerd.zk.layout import request_path, requests_path, topic_path
from consumerd.zk.port import OutcomeUnknown
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.virtual_time import run

G = "lake"
P, Q = TopicPartition.modern("t", 0), TopicPartition.modern("t", 1)


def make_request(partition=P, position=42, *, id="a1", new_chain=False, version=0):  # noqa: A002 - the field's name
    return OffsetRequest(
        id=id,
        partition=partition,
        position=position,
        new_chain=new_chain,
        author="ops@desk",
        created_ms=1_700_000_000_000,
        version=version,
    )


@given(
    position=st.integers(0, 2**63 - 1),
    new_chain=st.booleans(),
    author=st.text(),
    created_ms=st.integers(0, 2**47),
    version=st.integers(0, 2**31),
)
def test_a_request_is_read_as_it_was_written(position, new_chain, author, created_ms, version):
    """Whoever carries it out must see what the operator typed."""
    request = OffsetRequest(
        id="a1",
        partition=P,
        position=position,
        new_chain=new_chain,
        author=author,
        created_ms=created_ms,
        version=version,
    )
    try:
        data = encode_request(request)
    except UnicodeEncodeError:
        return  # a lone surrogate is no text
    assert parse_request(data, partition=P, version=version) == request


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": 2}, "version: expected 1, got 2"),
        ({"id": ""}, "id: expected a text"),
        ({"id": None}, "id: expected a text"),
        ({"position": -1}, "position: expected a number from 0 on"),
        ({"position": True}, "position: expected a number from 0 on, got bool"),
        ({"position": "42"}, "position: expected a number from 0 on, got str"),
        ({"position": 2**63}, "position: expected a number from 0 on"),
        ({"new_chain": 1}, "new_chain: expected true or false"),
        ({"author": 7}, "author: expected a text"),
        ({"created_ms": 10**16}, "created_ms: expected a time in ms"),
        ({"created_ms": 1.5}, "created_ms: expected a time in ms"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_name_of_the_field(change, expected):
    """A wish that is half understood would move a partition somewhere."""
    payload = json.loads(encode_request(make_request())) | change
    with pytest.raises(OffsetError, match=expected):
        parse_request(json.dumps(payload).encode(), partition=P, version=0)


@given(
    data=st.binary()
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_any_bytes_are_a_request_or_an_offset_error(data):
    """The node is open to whoever has a shell."""
    with pytest.raises(OffsetError):
        parse_request(data, partition=P, version=0)


def with_requests(scenario):
    """Run a scenario that takes a server, an operator's and a member's requests; the member's are being watched."""

    async def play():
        server = FakeZooKeeper()
        clients = [server.client(name) for name in ("operator", "member")]
        for client in clients:
            client.connect()
        operator, member = (ZooKeeperOffsetRequests(client, G) for client in clients)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(member.run())
            await scenario(server, operator, member, clients[1])
            running.cancel()

    run(play())


def test_a_request_is_told_whether_it_was_there_before_or_comes_later():
    """A member may claim before or after the operator has spoken, and the folder may not exist yet."""

    async def scenario(_server, operator, member, _zk):
        heard = []
        member.watch("t", heard.append)
        await asyncio.sleep(1)
        assert heard == []
        await operator.put(make_request(P))
        await asyncio.sleep(1)
        assert set(heard) == {P}
        later = []
        member.watch("t", later.append)
        await asyncio.sleep(1)
        assert set(later) == {P}
        assert await member.find(P) == make_request(P)
        assert await member.find(Q) is None

    with_requests(scenario)


def test_a_request_put_over_another_is_told_and_grows_the_version():
    """The same node: only so can a commit that carries out the older one be refused."""

    async def scenario(server, operator, member, _zk):
        await operator.put(make_request(position=1, id="a1"))
        heard = []
        member.watch("t", heard.append)
        await asyncio.sleep(1)
        heard.clear()
        second = await operator.put(make_request(position=2, id="b2"))
        await asyncio.sleep(1)
        assert set(heard) == {P}
        assert second == make_request(position=2, id="b2", version=1)
        assert await member.find(P) == second
        assert server.names(requests_path(G, "t")) == ["0"]

    with_requests(scenario)


def test_nothing_is_told_after_closing():
    """A partition that has gone must not be woken."""

    async def scenario(_server, operator, member, zk):
        heard, kept = [], []
        subscription = member.watch("t", heard.append)
        other = member.watch("t", kept.append)
        subscription.close()
        subscription.close()
        await operator.put(make_request())
        await asyncio.sleep(1)
        assert (heard, set(kept)) == ([], {P})
        other.close()
        assert not any(zk.watches.values())

    with_requests(scenario)


def test_a_change_while_the_connection_is_away_is_told_when_it_is_back():
    """The operator reaches ZooKeeper before the member does."""

    async def scenario(_server, operator, member, zk):
        heard = []
        member.watch("t", heard.append)
        await asyncio.sleep(1)
        zk.cut()
        await operator.put(make_request())
        await asyncio.sleep(20)
        assert heard == []
        zk.heal()
        await asyncio.sleep(5)
        assert set(heard) == {P}

    with_requests(scenario)


def test_a_malformed_request_counts_as_none_and_is_told_once():
    """An operator has to see which node is in the way, and not a line a second."""

    async def scenario(server, operator, member, _zk):
        server.put(request_path(G, P), b'{"version":1}')
        server.put(f"{requests_path(G, 't')}/junk", b"")
        member.watch("t", lambda _: None)
        with structlog.testing.capture_logs() as logs:
            assert [await member.find(P) for _ in range(3)] == [None] * 3
            assert await member.list_requests() == []
            await asyncio.sleep(1)
        told = [entry["path"] for entry in logs if entry["event"] == "request_malformed"]
        assert sorted(told) == [request_path(G, P), f"{requests_path(G, 't')}/junk"]
        await operator.put(make_request())
        assert await member.find(P) == make_request(version=1)

    with_requests(scenario)


def test_a_request_for_an_earlier_making_of_the_topic_is_not_carried_out():
    """Its position is of records that are gone; in the new topic it would skip others."""

    async def scenario(server, operator, member, _zk):
        server.put(topic_path("t"))
        await operator.put(make_request(position=900))
        assert await member.find(P) is not None
        server.remove(topic_path("t"))
        server.put(topic_path("t"))
        with structlog.testing.capture_logs() as logs:
            assert [await member.find(P) for _ in range(2)] == [None] * 2
        assert [entry["event"] for entry in logs] == ["request_outdated"]
        await operator.put(make_request(position=1, id="b2"))
        assert (await member.find(P)).position == 1

    with_requests(scenario)


def test_every_request_of_a_group_can_be_listed():
    """For those who look from outside."""

    async def scenario(_server, operator, member, _zk):
        assert await member.list_requests() == []
        wishes = [make_request(TopicPartition.modern(topic, n)) for topic in "ba" for n in (10, 9)]
        for wish in wishes:
            await operator.put(wish)
        assert list(await member.list_requests()) == sorted(wishes, key=lambda wish: wish.partition)

    with_requests(scenario)


def test_a_put_whose_answer_was_lost_leaves_one_request():
    """The operator presses the key once."""

    async def scenario(server, operator, member, _zk):
        first = await operator.put(make_request())
        assert await operator.put(dataclasses.replace(first, version=9)) == first
        assert server.read(request_path(G, P))[1].version == 0

    with_requests(scenario)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("replaces", [True, False])
def test_a_put_whose_answer_was_lost_is_never_made_again_where_it_may_have_been_carried_out(applied, replaces):
    """The owner is quicker than a connection that comes back; a second one would move the partition a second time."""

    class Unheard:
        """A client whose first write is not answered; its owner carries out whatever came of it."""

        def __init__(self, zk):
            self._zk = zk
            self.writes = 0

        def __getattr__(self, name):
            return getattr(self._zk, name)

        async def create(self, path, data, **rest):
            return await self._lose(lambda: self._zk.create(path, data, **rest))

        async def multi(self, operations, **rest):
            return await self._lose(lambda: self._zk.multi(operations, **rest))

        async def _lose(self, write):
            self.writes += 1
            if self.writes > 1:
                return await write()
            if applied:
                await write()
                await self._zk.delete(request_path(G, P))
            raise OutcomeUnknown("connection lost")

    async def scenario():
        zk = FakeZooKeeper().client("ops")
        zk.connect()
        await zk.ensure_path(requests_path(G, "t"))
        if replaces:
            await ZooKeeperOffsetRequests(zk, G).put(make_request(id="earlier"))
        unheard = Unheard(zk)
        put = ZooKeeperOffsetRequests(unheard, G).put(make_request())
        if not applied:
            assert "a1" == (await put).id
            return
        with pytest.raises(CoordinationError, match="may have been carried out"):
            await put
        assert 1 == unheard.writes
        assert await zk.find(request_path(G, P)) is None

    run(scenario())


@pytest.mark.parametrize("replaces", [True, False])
def test_a_request_that_is_carried_out_at_once_is_not_written_again(replaces):
    """Else the partition would be moved as often as the desk looks for its request and does not find it."""

    class CarriedOut:
        """A client of a group whose member has carried out a request before its writer can look."""

        def __init__(self, zk):
            self._zk = zk
            self.writes = 0

        def __getattr__(self, name):
            return getattr(self._zk, name)

        async def create(self, path, data, **rest):
            await self._zk.create(path, data, **rest)
            await self._carry_out()

        async def multi(self, operations, **rest):
            await self._zk.multi(operations, **rest)
            await self._carry_out()

        async def _carry_out(self):
            self.writes += 1
            await self._zk.delete(request_path(G, P))

    async def scenario():
        zk = FakeZooKeeper().client("ops")
        zk.connect()
        await zk.ensure_path(requests_path(G, "t"))
        if replaces:
            await ZooKeeperOffsetRequests(zk, G).put(make_request(id="earlier"))
        written = CarriedOut(zk)
        request = await ZooKeeperOffsetRequests(written, G).put(make_request(version=9))
        assert 1 == written.writes
        assert make_request(version=1 if replaces else 0) == request

    run(scenario())


def test_the_requests_that_wait_are_known_for_as_long_as_they_do():
    """The status page shows them: an operator must see what nobody has carried out."""

    async def scenario():
        server = FakeZooKeeper()
        server.put_topic("t", 100)
        desk, member = server.client("desk"), server.client("member")
        desk.connect()
        member.connect()
        asking, carrying = ZooKeeperOffsetRequests(desk, G), ZooKeeperOffsetRequests(member, G)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(carrying.run())
            watch = carrying.watch("t", lambda _partition: None)
            await asking.put(make_request(Q, 7))
            await asking.put(make_request(P, 42))
            await asyncio.sleep(1)
            assert [(P, 42), (Q, 7)] == [(one.partition, one.position) for one in carrying.waiting]
            await asking.put(make_request(P, 43, id="a2"))
            await asyncio.sleep(1)
            assert [43, 7] == [one.position for one in carrying.waiting]
            assert Cancelled.CANCELLED is await asking.cancel(P)
            await asyncio.sleep(1)
            assert [Q] == [one.partition for one in carrying.waiting]
            watch.close()
            assert [] == carrying.waiting
            running.cancel()

    run(scenario())


@pytest.mark.parametrize("data", [None, b"what nobody can read"])
def test_a_request_is_cancelled_and_one_that_came_meanwhile_is_not(data):
    """Who cancels has seen one request, and means that one; also where it is spoilt."""

    async def scenario():
        server = FakeZooKeeper()
        server.put_topic("t", 100)
        zk = server.client("desk")
        zk.connect()
        requests = ZooKeeperOffsetRequests(zk, G)
        assert Cancelled.ABSENT is await requests.cancel(P)
        await requests.put(make_request())
        if data is not None:
            await zk.set(request_path(G, P), data)
        assert [P] == await requests.list_partitions()
        delete = zk.delete

        async def replace_first(path, *, version=-1, epoch=None):
            zk.delete = delete
            await zk.set(path, encode_request(make_request(position=99, id="a2")))
            await delete(path, version=version, epoch=epoch)

        zk.delete = replace_first
        assert Cancelled.REPLACED is await requests.cancel(P)
        assert 99 == (await requests.find(P)).position
        assert Cancelled.CANCELLED is await requests.cancel(P)
        assert [] == await requests.list_partitions()

        await requests.put(make_request())

        async def lose(path, *, version=-1, epoch=None):
            zk.delete = delete
            await delete(path, version=version, epoch=epoch)
            raise OutcomeUnknown("the connection broke")

        zk.delete = lose
        assert Cancelled.GONE is await requests.cancel(P)

    run(scenario())


def test_a_cancellation_of_unknown_outcome_does_not_take_a_newer_request():
    """The first try took effect; nodes begin at version 0 again, so that the version alone names another request, too."""

    async def scenario():
        zk = FakeZooKeeper().client("desk")
        zk.connect()
        requests = ZooKeeperOffsetRequests(zk, G)
        await requests.put(make_request())
        delete = zk.delete

        async def lose(path, *, version=-1, epoch=None):
            zk.delete = delete
            await delete(path, version=version, epoch=epoch)
            await requests.put(make_request(position=99, id="a2"))
            raise OutcomeUnknown("the connection broke")

        zk.delete = lose
        assert Cancelled.GONE is await requests.cancel(P)
        assert 99 == (await requests.find(P)).position

    run(scenario())
