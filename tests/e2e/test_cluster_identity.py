"""A daemon as a process while what ZooKeeper holds is not there yet, or is not what it was."""

from __future__ import annotations

import shutil
from pathlib import Path

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.model import TopicPartition
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import BROKER_IDS, BROKER_TOPICS, ids_path, members_root, offset_path, owner_path, topic_path
from consumerd.zk.layout_modern import partition_state_path
from tests.support.daemon import Daemon, settings_for
from tests.support.zookeeper import eventually, make_client

G = "lake"
P = TopicPartition.modern("orders", 0)


async def make_registry(zk: AiozkClient, chroot: str = "") -> None:
    """Write what brokers write when they start, and a topic; no broker is there."""
    await zk.ensure_path(chroot + BROKER_IDS)
    await zk.ensure_path(chroot + BROKER_TOPICS)
    await zk.ensure_path(chroot + topic_path(P.topic), b'{"version":1,"partitions":{"0":[0]}}')
    state = b'{"controller_epoch":1,"leader":-1,"version":1,"leader_epoch":0,"isr":[]}'
    await zk.ensure_path(chroot + partition_state_path(P), state)


async def test_a_chroot_that_brokers_have_yet_to_make_is_waited_for(tmp_path: Path) -> None:
    """Everything starts at once after a power cut, or with one command: ending with a setting's error would be wrong."""
    async with EmbeddedZooKeeper() as server, make_client(server.connect_string) as zk:
        with Daemon(tmp_path, "d", settings_for(f"{server.connect_string}/kafka", G, topics=(P.topic,))) as daemon:
            daemon.wait(lambda: bool(daemon.events("chroot_missing")), "the chroot is missed")
            daemon.wait(lambda: "/kafka" in daemon.get("/readyz")[1], "the reason names the chroot")
            assert 'consumerd_troubles_total{kind="chroot_missing"} 1.0' in daemon.get("/metrics")[1]
            assert "chroot missing" in daemon.get("/")[1]
            await make_registry(zk, "/kafka")
            daemon.wait(lambda: bool(daemon.events("member_registered")), "registered")
            assert await zk.children(f"/kafka{ids_path(G)}")
            assert daemon.terminate() == 0


async def test_a_zookeeper_that_lost_its_data_ends_it_and_nothing_is_written_there(tmp_path: Path) -> None:
    """Delivering on would begin everything again at offsets that mean nothing; the end says what has happened."""
    async with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        async with make_client(server.connect_string) as zk:
            await make_registry(zk)
        settings = settings_for(server.connect_string, G, topics=(P.topic,), group={"session_timeout_ms": 2000})
        with Daemon(tmp_path, "d", settings) as daemon:
            daemon.wait(lambda: daemon.owned() == {(P.topic, 0)}, "the partition is owned")
            async with make_client(server.connect_string) as zk:
                owner = await zk.exists(owner_path(G, P))
                (sign,), _ = await zk.children(members_root(G))
                assert owner is not None
                assert int(sign, 16) == owner.ephemeral_owner
            await server.kill()
            for left in (tmp_path / "zookeeper").iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
            await server.restart()
            async with make_client(server.connect_string) as zk:
                await make_registry(zk)
                assert daemon.wait_end() == 1
                assert await zk.exists(ids_path(G)) is None
                assert await zk.exists(offset_path(G, P)) is None
            assert "another cluster" in daemon.log()


async def test_a_session_that_expires_on_the_same_cluster_is_followed_by_another(tmp_path: Path) -> None:
    """The check must not mistake a restart of ZooKeeper for another one."""
    async with EmbeddedZooKeeper(tick_ms=250) as server:
        async with make_client(server.connect_string) as zk:
            await make_registry(zk)
        settings = settings_for(server.connect_string, G, topics=(P.topic,), group={"session_timeout_ms": 1000})
        with Daemon(tmp_path, "d", settings) as daemon:
            daemon.wait(lambda: daemon.owned() == {(P.topic, 0)}, "the partition is owned")
            daemon.stop()
            async with make_client(server.connect_string) as zk:

                async def is_gone() -> bool:
                    return await zk.exists(owner_path(G, P)) is None

                await eventually(is_gone)
                daemon.resume()
                daemon.wait(lambda: len(daemon.events("member_registered")) == 2, "registered anew")
                await eventually(lambda: daemon.owned() == {(P.topic, 0)})
                assert len((await zk.children(members_root(G)))[0]) == 1
