# SPDX-License-Identifier: Apache-2.0
"""A daemon as a process while what ZooKeeper holds is not there yet, or is not what it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.model import TopicPartition
from consumerd.zk.layout import ids_path, members_root, offset_path, owner_path
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedProcess, EmbeddedThread
from tests.support.kafka import Sent
from tests.support.ledger import send_all
from tests.support.waiting import until
from tests.support.zookeeper import make_client

P = TopicPartition.modern("orders", 0)


def position(daemon: Daemon) -> int | None:
    """Return where the partition is, if it is owned."""
    return next((one["position"] for one in daemon.status()["partitions"]), None)


async def test_a_chroot_that_brokers_have_yet_to_make_is_waited_for(
    zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Everything starts at once after a power cut, or with one command: ending with a setting's error would be wrong."""
    chroot = unique("kafka")
    at = f"{zookeeper.connect_string}/{chroot}"
    with Daemon(tmp_path, "d", settings_for(at, "lake", topics=(P.topic,))) as daemon:
        daemon.wait(lambda: bool(daemon.events("chroot_missing")), "the chroot is missed")
        daemon.wait(lambda: f"/{chroot}" in daemon.get("/readyz")[1], "the reason names the chroot")
        assert 'consumerd_troubles_total{kind="chroot_missing"} 1.0' in daemon.get("/metrics")[1]
        assert "chroot missing" in daemon.get("/")[1]
        with EmbeddedThread(tmp_path / "broker", at) as broker:
            broker.create_topic(P.topic)
            send_all(broker.bootstrap, [Sent(P.topic, 0, None, b"v")])
            daemon.wait(lambda: position(daemon) == 1, "it consumes")
            assert daemon.terminate() == 0


async def test_a_zookeeper_that_lost_its_data_ends_it_and_nothing_is_written_there(tmp_path: Path) -> None:
    """Delivering on would begin everything again at offsets that mean nothing; the end says what has happened."""
    async with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        arguments = ("--zookeeper", server.connect_string, "--topic", P.topic)
        settings = settings_for(server.connect_string, "lake", topics=(P.topic,), group={"session_timeout_ms": 2000})
        with (
            EmbeddedProcess(tmp_path / "broker", *arguments) as broker,
            Daemon(tmp_path, "d", settings) as daemon,
        ):
            broker.produce(P.topic, b"key\tvalue\n")
            daemon.wait(lambda: position(daemon) == 1, "the partition is consumed")
            async with make_client(server.connect_string) as zk:
                owner = await zk.exists(owner_path("lake", P))
                (sign,), _ = await zk.children(members_root("lake"))
                assert owner is not None
                assert int(sign, 16) == owner.ephemeral_owner
            await server.kill()
            for left in (tmp_path / "zookeeper").iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
            await server.restart()
            # the broker makes its nodes anew, as brokers do
            assert daemon.wait_end() == 1
            async with make_client(server.connect_string) as zk:
                assert await zk.exists(ids_path("lake")) is None
                assert await zk.exists(offset_path("lake", P)) is None
            assert "another cluster" in daemon.log()


async def test_a_session_that_expires_on_the_same_cluster_is_followed_by_another(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The check must not mistake a process that has slept for another cluster."""
    group, partition = unique("lake"), TopicPartition.modern(unique("orders"), 0)
    cluster.create_topic(partition.topic)
    settings = settings_for(cluster.zookeeper, group, topics=(partition.topic,), group={"session_timeout_ms": 1000})
    with Daemon(tmp_path, "d", settings) as daemon:
        daemon.wait(lambda: daemon.owned() == {(partition.topic, 0)}, "the partition is owned")
        daemon.stop()
        async with make_client(cluster.zookeeper) as zk:

            async def is_gone() -> bool:
                return await zk.exists(owner_path(group, partition)) is None

            await until(is_gone)
            daemon.resume()
            daemon.wait(lambda: len(daemon.events("member_registered")) == 2, "registered anew")
            await until(lambda: daemon.owned() == {(partition.topic, 0)})
            assert len((await zk.children(members_root(group)))[0]) == 1
