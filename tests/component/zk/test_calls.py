# SPDX-License-Identifier: Apache-2.0
"""The port's calls against a real server. AIOZK numbers are those of docs/aiozk.md: what aiozk 0.32.0 gets wrong."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.errors import ConfigError, CoordinationError
from consumerd.zk.connection import RequestTooLarge
from consumerd.zk.node_acl import AclProfile
from consumerd.zk.port import (
    BadVersion,
    CheckVersion,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    SetData,
    WatchKind,
)
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import make_client


async def test_nodes_are_made_read_changed_and_deleted(server: EmbeddedZooKeeper, root: str) -> None:
    """The port's happy path, with stats."""
    async with make_client(server.connect_string) as zk:
        await zk.create(root, b"1")
        data, made = await zk.get(root)
        assert data == b"1"
        assert (made.version, made.data_length, made.ephemeral_owner) == (0, 1, 0)

        stat = await zk.set(root, b"22")
        assert stat.version == 1
        assert stat.czxid == made.czxid
        assert stat.mzxid > made.mzxid
        assert await zk.exists(root) == stat
        assert await zk.find(root) == (b"22", stat)

        await zk.create(f"{root}/b", b"", ephemeral=True)
        await zk.create(f"{root}/a", b"")
        names, parent = await zk.children(root)
        assert names == ["a", "b"]
        assert (parent.cversion, parent.num_children) == (2, 2)
        child = await zk.exists(f"{root}/b")
        assert child is not None
        assert child.ephemeral_owner == zk.state.session_id

        await zk.delete(f"{root}/a", version=0)
        assert await zk.find(f"{root}/a") is None
        assert await zk.exists(f"{root}/a") is None


async def test_refusals_are_told_apart(server: EmbeddedZooKeeper, root: str) -> None:
    """A claim that meets NodeExists is a conflict, one that meets NoNode is a parent to be made."""
    async with make_client(server.connect_string) as zk:
        await zk.ensure_path(f"{root}/a")
        with pytest.raises(NodeExists, match=root):
            await zk.create(root, b"")
        with pytest.raises(NoNode):
            await zk.create(f"{root}/x/y", b"")
        with pytest.raises(NoNode):
            await zk.get(f"{root}/x")
        with pytest.raises(NoNode):
            await zk.children(f"{root}/x")
        with pytest.raises(NoNode):
            await zk.set(f"{root}/x", b"")
        with pytest.raises(NotEmpty):
            await zk.delete(root)
        with pytest.raises(BadVersion):
            await zk.set(root, b"", version=7)
        with pytest.raises(BadVersion):
            await zk.delete(f"{root}/a", version=7)
        await zk.create(f"{root}/e", b"", ephemeral=True)
        with pytest.raises(CoordinationError, match="ephemeral node has no children"):
            await zk.create(f"{root}/e/x", b"")
        with pytest.raises(ValueError, match="path"):
            await zk.get("relative")


def held_entries(owner: object) -> int:
    """Return how many entries the containers hold that our objects below ``owner`` hold, however deep."""
    seen: set[int] = set()
    found, entries = [owner], 0
    while found:
        one = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | set | tuple | frozenset | deque):
            entries += len(one)
            found += [*one, *one.values()] if isinstance(one, dict) else one
        elif type(one).__module__.startswith("consumerd."):
            slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            found += [getattr(one, name) for name in slots if hasattr(one, name)]
            found.append(getattr(one, "__dict__", {}))
    return entries


async def test_o2_versions_are_the_callers_own(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK O2: no hidden cached version makes an unconditional write fail after somebody else's."""
    async with make_client(server.connect_string) as zk, make_client(server.connect_string) as other:
        await zk.create(root, b"1")
        await zk.get(root)
        await other.set(root, b"2")

        assert (await zk.set(root, b"3")).version == 2
        await other.set(root, b"4")
        await zk.delete(root)


async def test_o2_nodes_that_were_used_leave_nothing_behind(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK O2: its cache of versions kept an entry for every path ever made, for good."""
    async with make_client(server.connect_string) as zk:
        await zk.create(root, b"")

        async def use(number: int) -> None:
            path = f"{root}/{number}"
            await zk.create(path, b"")
            await zk.set(path, b"1")
            await zk.get(path)
            await zk.multi([SetData(path, b"2", 1)])
            await zk.delete(path)

        await use(-1)
        await zk.exists(root)
        before = held_entries(zk)
        await asyncio.gather(*map(use, range(1000)))
        await zk.exists(root)

        assert held_entries(zk) <= before + 10


async def test_paths_are_made_with_what_is_missing_above(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK O4: plain persistent nodes; data goes to the last, and only when it is new."""
    async with make_client(server.connect_string) as zk:
        await zk.ensure_path(f"{root}/a/b", b"x")
        await zk.ensure_path(f"{root}/a/b", b"y")
        await zk.ensure_path("/")

        assert (await zk.get(f"{root}/a/b"))[0] == b"x"
        data, stat = await zk.get(f"{root}/a")
        assert (data, stat.ephemeral_owner) == (b"", 0)


async def test_paths_made_by_several_at_once_are_no_conflict(server: EmbeddedZooKeeper, root: str) -> None:
    """Replicas start together."""
    async with make_client(server.connect_string) as zk, make_client(server.connect_string) as other:
        await asyncio.gather(*(one.ensure_path(f"{root}/a/b/{i % 3}") for i in range(20) for one in (zk, other)))

        assert (await zk.children(f"{root}/a/b"))[0] == ["0", "1", "2"]


async def test_o1_multi_does_all_or_none_and_says_which_failed(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK O1: a failed transaction must raise, and name its operation."""
    async with make_client(server.connect_string) as zk:
        await zk.create(root, b"")
        results = await zk.multi(
            [
                Create(f"{root}/a", b"1"),
                SetData(root, b"2", 0),
                CheckVersion(root, 1),
                SetData(f"{root}/a", b"3"),
                Create(f"{root}/e", b"", ephemeral=True),
                Delete(f"{root}/a", 1),
            ]
        )
        assert [None if stat is None else stat.version for stat in results] == [None, 1, None, 1, None, None]
        assert (await zk.children(root))[0] == ["e"]

        with pytest.raises(MultiFailed, match=r"operation 1 .*SetData .*BadVersion") as failure:
            await zk.multi([Create(f"{root}/n", b""), SetData(root, b"", 0), Delete(f"{root}/none")])
        assert failure.value.index == 1
        assert isinstance(failure.value.cause, BadVersion)
        with pytest.raises(MultiFailed) as failure:
            await zk.multi([Create(f"{root}/e", b"")])
        assert isinstance(failure.value.cause, NodeExists)
        assert await zk.multi([]) == []
        assert (await zk.children(root))[0] == ["e"]


async def test_o1_results_of_a_multi_are_in_the_order_of_its_operations(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK O1: results were a set of names; whoever commits many offsets must know which version is whose."""
    async with make_client(server.connect_string) as zk:
        paths = [f"{root}/{number}" for number in range(40)]
        random.Random(1).shuffle(paths)
        await zk.create(root, b"")
        await zk.multi([Create(path, b"") for path in sorted(paths)])
        for turn, path in enumerate(paths):
            await asyncio.gather(*(zk.set(path, b"") for _ in range(turn % 7)))

        stats = await zk.multi([SetData(path, b"x" * turn) for turn, path in enumerate(paths)])
        assert [stat.version for stat in stats if stat] == [turn % 7 + 1 for turn in range(len(paths))]
        assert [stat.data_length for stat in stats if stat] == list(range(len(paths)))
        assert stats == [await zk.exists(path) for path in paths]


async def test_a11_request_larger_than_servers_read_is_refused_here(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK A11: a server drops the connection without a word, which would take the session's other work with it."""
    async with make_client(server.connect_string) as zk:
        await zk.create(root, b"")
        before = zk.state
        with pytest.raises(RequestTooLarge, match=rf"set {root}: a request of 20000\d\d bytes.*jute"):
            await zk.set(root, bytes(2_000_000))
        with pytest.raises(RequestTooLarge):
            await zk.multi([SetData(root, bytes(600_000))] * 2)
        largest = 0xFFFFF - len(root) - 20
        await zk.set(root, bytes(largest))

        assert len((await zk.get(root))[0]) == largest
        assert zk.state == before


async def test_o7_path_that_servers_refuse_says_why(server: EmbeddedZooKeeper) -> None:
    """AIOZK O7: characters beyond the basic plane are the server's limit, not a lost connection."""
    async with make_client(server.connect_string) as zk:
        with pytest.raises(CoordinationError, match="no characters beyond the basic plane"):
            await zk.create("/\N{GRINNING FACE}", b"")
        await zk.ensure_path("/käse/\u4e2d")
        assert (await zk.children("/käse"))[0] == ["\u4e2d"]


async def test_ten_thousand_children_are_listed(server: EmbeddedZooKeeper, root: str) -> None:
    """Owner folders of large topics; creates are pipelined, as a rebalance does them."""
    # each waits for those before it, and the server syncs its log between them: on a busy disk that takes its time
    async with make_client(server.connect_string, session_timeout_s=30.0) as zk:
        await zk.create(root, b"")
        await asyncio.gather(*(zk.create(f"{root}/{i:05}", b"", ephemeral=True) for i in range(10_000)))

        assert (await zk.children(root))[0] == [f"{i:05}" for i in range(10_000)]


async def test_leaving_ends_the_session_at_once(server: EmbeddedZooKeeper, root: str) -> None:
    """Whoever takes over must not wait for a session of ours to expire."""
    async with make_client(server.connect_string) as other:
        async with make_client(server.connect_string, session_timeout_s=20) as zk:
            await zk.create(root, b"", ephemeral=True)
            assert await other.exists(root) is not None

        assert await other.exists(root) is None


async def test_failure_of_the_body_is_not_wrapped(server: EmbeddedZooKeeper, root: str) -> None:
    """Who leaves by an error sees that error, and the session ends all the same."""
    async with make_client(server.connect_string) as other:
        with pytest.raises(NoNode):
            async with make_client(server.connect_string) as zk:
                await zk.create(root, b"", ephemeral=True)
                await zk.get(f"{root}-none")

        assert await other.exists(root) is None


def test_a9_run_returns_though_a_watch_lives(server: EmbeddedZooKeeper) -> None:
    """AIOZK A9: asyncio.run() never returned while a watcher lived."""

    async def main() -> None:
        async with make_client(server.connect_string) as zk:
            zk.watch("/brokers/ids", WatchKind.CHILDREN, lambda: None)
            await zk.exists("/")

    asyncio.run(main())


# -- chroot


async def test_chroot_is_added_to_everything(server: EmbeddedZooKeeper, root: str) -> None:
    """Several clusters share an ensemble."""
    async with make_client(server.connect_string) as plain:
        await plain.create(root, b"top")
        async with make_client(server.connect_string + root) as zk:
            await zk.wait_connected()
            await zk.ensure_path("/a/b")
            await zk.multi([Create("/a/m", b"1")])
            told = asyncio.Event()
            zk.watch("/a", WatchKind.CHILDREN, told.set)
            assert (await zk.children("/"))[0] == ["a"]
            assert (await zk.get("/"))[0] == b"top"
            told.clear()
            await plain.create(f"{root}/a/c", b"")
            async with timeout(5):
                await told.wait()

            assert (await zk.children("/a"))[0] == ["b", "c", "m"]


async def test_missing_chroot_is_a_configuration_error(server: EmbeddedZooKeeper, root: str) -> None:
    """A typing error in the connect string must not look like an empty cluster."""
    async with make_client(server.connect_string + root) as zk:
        with pytest.raises(ConfigError, match=r"chroot /.* does not exist"):
            await zk.wait_connected()
        with pytest.raises(NoNode):
            await zk.create("/a", b"")


# -- authentication


async def test_o5_credentials_are_replayed_on_every_connection(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str
) -> None:
    """AIOZK O5: after a reconnect, reads of protected nodes failed for ever."""
    auth = ("digest", b"us:secret")
    path = f"/consumers{root}"
    async with make_client(proxy.connect_string, auth=auth, acl=AclProfile.PRIVATE) as zk:
        await zk.ensure_path("/consumers")
        await zk.create(path, b"1")
        proxy.cut()
        await until(lambda: proxy.accepted == 2)

        assert (await zk.get(path))[0] == b"1"
        async with make_client(server.connect_string) as stranger:
            with pytest.raises(CoordinationError, match="no permission"):
                await stranger.get(path)
        async with make_client(server.connect_string, auth=auth) as friend:
            assert (await friend.get(path))[0] == b"1"
            await friend.create(f"{path}/open", b"2")
        async with make_client(server.connect_string) as stranger:
            assert (await stranger.get(f"{path}/open"))[0] == b"2"


async def test_refused_credentials_are_a_configuration_error(server: EmbeddedZooKeeper) -> None:
    """A scheme that the server does not have never works."""
    async with make_client(server.connect_string, auth=("nonsense", b"x")) as zk:
        with pytest.raises(ConfigError, match="refuses the credentials of scheme 'nonsense'"):
            await zk.wait_connected()


def test_private_nodes_need_credentials() -> None:
    """The server would refuse each create otherwise."""
    with pytest.raises(ConfigError, match="there is none: set"):
        make_client("h:1", acl=AclProfile.PRIVATE)
