# SPDX-License-Identifier: Apache-2.0
"""Standing watches against a real server. AIOZK numbers are those of docs/aiozk.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.port import SetData, WatchKind
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import until
from tests.support.zookeeper import SET_WATCHES, make_client, opcode


async def settle(zk: AiozkClient) -> None:
    """Let everything arrive that was on its way: answers come in order, and callbacks soon after them."""
    for _ in range(3):
        await zk.exists("/")
        await asyncio.sleep(0)


class Bell:
    """Counts and remembers being rung."""

    def __init__(self) -> None:
        self.count = 0
        self._rung = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._rung.set()

    async def wait(self) -> None:
        """Wait until rung since the last wait or :meth:`reset`."""
        async with timeout(5):
            await self._rung.wait()
        self._rung.clear()

    def reset(self) -> None:
        """Forget what was rung so far."""
        self.count = 0
        self._rung.clear()


async def test_data_watch_tells_of_every_kind_of_change(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK W2: a node that is missing, made, changed, deleted and made again."""
    async with make_client(server.connect_string) as zk, make_client(server.connect_string) as other:
        bell = Bell()
        zk.watch(root, WatchKind.DATA, bell)
        await settle(zk)
        for change in (
            lambda: other.create(root, b"1"),
            lambda: other.set(root, b"2"),
            lambda: other.delete(root),
            lambda: other.create(root, b"3"),
            lambda: other.set(root, b"4"),
        ):
            await settle(zk)
            bell.reset()
            await change()
            await bell.wait()


async def test_children_watch_tells_of_every_kind_of_change(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK W2: a parent that is missing is watched too, and again after it was deleted."""
    async with make_client(server.connect_string) as zk, make_client(server.connect_string) as other:
        bell = Bell()
        zk.watch(root, WatchKind.CHILDREN, bell)
        for change in (
            lambda: other.create(root, b""),
            lambda: other.create(f"{root}/a", b""),
            lambda: other.create(f"{root}/b", b""),
            lambda: other.delete(f"{root}/a"),
            lambda: other.delete(f"{root}/b"),
            lambda: other.delete(root),
            lambda: other.create(root, b""),
            lambda: other.create(f"{root}/c", b""),
        ):
            await settle(zk)
            bell.reset()
            await change()
            await bell.wait()


async def test_children_watch_is_silent_about_data(server: EmbeddedZooKeeper, root: str) -> None:
    """A change that does not concern the watch must not cost a read."""
    async with make_client(server.connect_string) as zk:
        await zk.create(root, b"")
        children, data = Bell(), Bell()
        zk.watch(root, WatchKind.CHILDREN, children)
        zk.watch(root, WatchKind.DATA, data)
        await settle(zk)
        await zk.set(root, b"x")
        await data.wait()
        await settle(zk)
        assert (children.count, data.count) == (0, 1)
        await zk.create(f"{root}/a", b"")
        await children.wait()
        await settle(zk)
        assert (children.count, data.count) == (1, 1)


async def test_watch_is_set_before_the_read_that_follows_it(server: EmbeddedZooKeeper, root: str) -> None:
    """Whoever watches, then reads, misses nothing: no change falls between the two."""
    async with make_client(server.connect_string) as zk, make_client(server.connect_string) as other:
        await zk.create(root, b"0")
        for turn in range(50):
            bell = Bell()
            async with asyncio.TaskGroup() as group:
                group.create_task(other.set(root, str(turn).encode()))
                watch = zk.watch(root, WatchKind.DATA, bell)
                data, _ = await zk.get(root)
            if data != str(turn).encode():
                await bell.wait()
            watch.close()


async def test_w3_reader_ends_with_the_last_value(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK W3: values arrived out of order, the stale one last. Here none arrives: the owner reads, at each call anew and
    without waiting for the reads before.
    """
    async with make_client(server.connect_string) as zk, make_client(server.connect_string) as other:
        await zk.create(root, b"")
        seen: list[tuple[int, bytes]] = []

        async def look() -> None:
            data, stat = await zk.get(root)
            seen.append((stat.mzxid, data))

        async with asyncio.TaskGroup() as group:
            zk.watch(root, WatchKind.DATA, lambda: group.create_task(look()))
            await settle(zk)
            for value in range(2000):
                group.create_task(other.set(root, b"%d" % value))
                if value % 20 == 0:
                    await asyncio.sleep(0)
            # the last call comes after the last change, without another one that would help it
            await until(lambda: bool(seen) and seen[-1][1] == b"1999")

        assert len(seen) > 2, "nothing that could come in another order"
        assert seen == sorted(seen, key=lambda one: one[0])


async def test_w1_owner_that_raises_disturbs_nobody(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK W1: an exception in a callback ended the watch, and nobody heard of it."""
    reported: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context.get("exception")))
    async with make_client(server.connect_string) as zk:
        await zk.create(root, b"")
        calls = 0
        bell = Bell()

        def fail() -> None:
            nonlocal calls
            calls += 1
            raise RuntimeError("owner's bug")

        zk.watch(root, WatchKind.DATA, fail)
        zk.watch(root, WatchKind.DATA, bell)
        for _ in range(6):
            await settle(zk)
            await zk.set(root, b"")
            await bell.wait()
        await settle(zk)

    assert calls == 6
    assert [str(error) for error in reported] == ["owner's bug"] * 6


async def test_w5_closed_watches_leave_nothing_and_call_nobody(server: EmbeddedZooKeeper, root: str) -> None:
    """AIOZK W5: each closed watch left an entry, which was sent again after each reconnect."""
    async with make_client(server.connect_string) as zk:
        await zk.create(root, b"")
        bell, kept = Bell(), Bell()
        watches = [zk.watch(f"{root}/{i}", WatchKind.DATA, bell) for i in range(1000)]
        last = zk.watch(root, WatchKind.CHILDREN, bell)
        zk.watch(root, WatchKind.CHILDREN, kept)
        await settle(zk)
        bell.reset()
        for watch in [*watches, last]:
            watch.close()
            watch.close()
        await zk.create(f"{root}/1", b"")
        await kept.wait()
        await settle(zk)

        assert bell.count == 0
        assert len(zk._session.watches) == 1
        assert len(zk._session.watches._watches) == 1


async def test_watch_closed_between_event_and_call_is_not_called(server: EmbeddedZooKeeper, root: str) -> None:
    """An owner that went away must not be called back."""
    async with make_client(server.connect_string) as zk:
        await zk.create(root, b"")
        second = Bell()
        watches = []

        def close_other() -> None:
            watches[1].close()

        watches.append(zk.watch(root, WatchKind.DATA, close_other))
        watches.append(zk.watch(root, WatchKind.DATA, second))
        await settle(zk)
        await zk.set(root, b"")
        await settle(zk)

        assert second.count == 0


@pytest.mark.parametrize("lose", [TcpProxy.cut, TcpProxy.fin], ids=["reset", "closed in order"])
async def test_watches_are_set_again_and_told_after_a_reconnect(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str, lose: Callable[[TcpProxy], None]
) -> None:
    """What changed meanwhile is found by reading; what changes afterwards is told."""
    async with make_client(proxy.connect_string) as zk, make_client(server.connect_string) as other:
        await zk.create(root, b"")
        bells = {path: Bell() for path in (root, f"{root}/missing")}
        zk.watch(root, WatchKind.CHILDREN, bells[root])
        zk.watch(f"{root}/missing", WatchKind.DATA, bells[f"{root}/missing"])
        await settle(zk)
        for bell in bells.values():
            bell.reset()
        lose(proxy)
        for bell in bells.values():
            await bell.wait()
        await settle(zk)
        for bell in bells.values():
            bell.reset()
        await other.create(f"{root}/missing", b"")
        for bell in bells.values():
            await bell.wait()


async def test_watch_made_without_a_connection_is_set_with_the_next_one(
    server: EmbeddedZooKeeper, proxy: TcpProxy, root: str
) -> None:
    """Members are set up while ZooKeeper is away."""
    proxy.refuse()
    async with (
        make_client(proxy.connect_string, session_timeout_s=2) as zk,
        make_client(server.connect_string) as other,
    ):
        bell = Bell()
        zk.watch(root, WatchKind.DATA, bell)
        await proxy.listen()
        await bell.wait()
        await settle(zk)
        bell.reset()
        await other.create(root, b"")
        await bell.wait()


async def test_many_events_are_set_again_in_few_requests(server: EmbeddedZooKeeper, proxy: TcpProxy, root: str) -> None:
    """A group that goes away fires a watch for each topic at once."""
    async with make_client(proxy.connect_string) as zk, make_client(server.connect_string) as other:
        await zk.create(root, b"")
        told: set[int] = set()
        for i in range(200):
            await zk.create(f"{root}/{i}", b"")
            zk.watch(f"{root}/{i}", WatchKind.DATA, lambda i=i: told.add(i))
        await settle(zk)
        requests = 0

        def count(way: Direction, frame: bytes) -> Action:
            nonlocal requests
            requests += way is Direction.TO_SERVER and opcode(frame) == SET_WATCHES
            return Action.FORWARD

        proxy.on_frame = count
        await other.multi([SetData(f"{root}/{i}", b"x") for i in range(200)])
        await until(lambda: len(told) == 200 and requests > 0)
        await settle(zk)

        assert requests < 100
