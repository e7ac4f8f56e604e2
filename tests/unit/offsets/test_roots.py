# SPDX-License-Identifier: Apache-2.0
"""The roots of file sinks in ZooKeeper: written once, whoever comes first, and found again."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from consumerd.errors import CoordinationError
from consumerd.model import TopicPartition
from consumerd.offsets.roots import ZooKeeperRootRegistry
from consumerd.zk.layout import root_path
from consumerd.zk.port import OutcomeUnknown
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper
from tests.support.virtual_time import run

Scenario = Callable[[FakeZooKeeper, Callable[[], ZooKeeperRootRegistry]], Awaitable[None]]


def play(scenario: Scenario, client: Callable[[FakeZkClient], FakeZkClient] = lambda zk: zk) -> None:
    async def run_it() -> None:
        server, numbers = FakeZooKeeper(), itertools.count()

        def member() -> ZooKeeperRootRegistry:
            zk = server.client(f"member{next(numbers)}")
            zk.connect()
            return ZooKeeperRootRegistry(client(zk), "g")

        await scenario(server, member)

    run(run_it())


@pytest.mark.parametrize(
    ("sink", "consumer_id", "path"),
    [
        ("lake", None, "/consumers/g/consumerd/roots/lake"),
        ("lake", "replica-1", "/consumers/g/consumerd/roots/lake/replica-1"),
        ("a/b ü", None, "/consumers/g/consumerd/roots/a%2Fb%20%C3%BC"),
        ("..", None, "/consumers/g/consumerd/roots/%2E%2E"),
    ],
)
def test_root_is_kept_under_the_sinks_name(sink: str, consumer_id: str | None, path: str):
    """The message of a refused path names the node, and whoever deletes it must find it there."""

    async def scenario(server, member):
        registry = member()
        assert await registry.find(sink, consumer_id=consumer_id) is None
        assert await registry.record(sink, "r1", consumer_id=consumer_id) == "r1"
        assert await member().find(sink, consumer_id=consumer_id) == "r1"
        assert registry.describe(sink, consumer_id=consumer_id) == path
        assert server.read(path)[0] == b"r1"

    play(scenario)


def test_landed_end_is_noted_and_noted_again():
    """The newest end counts; a root, a topic and a partition have one each."""
    orders = TopicPartition.modern("orders", 3)

    async def scenario(server, member):
        assert await member().find_landed_end("r1", orders) is None
        await member().note_landed_end("r1", orders, b"10")
        await member().note_landed_end("r1", orders, b"20")
        assert await member().find_landed_end("r1", orders) == b"20"
        assert await member().find_landed_end("r2", orders) is None
        assert server.read("/consumers/g/consumerd/landed/r1/orders/3")[0] == b"20"

    play(scenario)


def test_first_root_stays():
    """Two members start at once on two volumes: the second must learn that its is not the one."""

    async def scenario(server, member):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(member().record("lake", f"r{n}", consumer_id=None)) for n in range(4)]
        kept = {task.result() for task in tasks}
        assert len(kept) == 1
        assert await member().record("lake", "late", consumer_id=None) in kept

    play(scenario)


def test_empty_node_is_no_root():
    """It is the parent of what replicas had of their own before they were told to share one path."""

    async def scenario(server, member):
        await member().record("lake", "own", consumer_id="a")
        assert await member().find("lake", consumer_id=None) is None
        assert await member().record("lake", "shared", consumer_id=None) == "shared"
        assert await member().find("lake", consumer_id="a") == "own"

    play(scenario)


@pytest.mark.parametrize("took_effect", [True, False])
def test_write_whose_outcome_is_unknown_is_read_back(took_effect: bool):
    """The connection broke: nobody knows, and the next read does."""

    def forget_once(zk: FakeZkClient) -> FakeZkClient:
        create, forgotten = zk.create, []

        async def forgetful_create(path: str, data: bytes, **given: object) -> None:
            if not forgotten:
                forgotten.append(path)
                if took_effect:
                    await create(path, data)
                raise OutcomeUnknown("the connection broke")
            await create(path, data)

        zk.create = forgetful_create  # type: ignore[method-assign]
        return zk

    async def scenario(server, member):
        assert await member().record("lake", "r1", consumer_id=None) == "r1"
        assert server.read(root_path("g", "lake"))[0] == b"r1"

    play(scenario, forget_once)


def test_zookeeper_that_does_not_answer_is_an_error():
    """The sink waits then; it must not take the path for a new one."""

    async def scenario(server, member):
        registry = ZooKeeperRootRegistry(server.client("cut"), "g")
        with pytest.raises(CoordinationError):
            await registry.find("lake", consumer_id=None)

    play(scenario)
