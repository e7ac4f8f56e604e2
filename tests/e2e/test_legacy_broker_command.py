# SPDX-License-Identifier: Apache-2.0
"""``consumerd broker --generation legacy`` as a process."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from consumerd.wire.legacy.stored_message import encode_message
from tests.support.embedded import EmbeddedFailed, EmbeddedProcess
from tests.support.legacy_client import legacy_client
from tests.support.processes import wait_gone
from tests.support.waiting import wait_until

OLD = encode_message(b"old", magic=0)


async def test_brokers_of_kafka_0_6_serve_keep_their_data_and_end_in_order(tmp_path: Path) -> None:
    """Two of them, each with its partitions; the data is there after a restart."""
    arguments = ("--generation", "legacy", "--magic", "0", "--nodes", "2", "--partitions", "3")
    for stored in (OLD, OLD + OLD):
        with EmbeddedProcess(tmp_path, *arguments) as cluster, closing(KazooClient(cluster.zookeeper)) as zookeeper:
            zookeeper.start()
            assert ["0", "1"] == sorted(zookeeper.get_children("/brokers/ids"))
            first, second = (int(address.rpartition(":")[2]) for address in cluster.bootstrap.split(","))
            async with legacy_client(first) as client, legacy_client(second) as other:
                await client.produce(OLD, partition=2)
                assert ((0, stored), (0, b"")) == (await client.fetch(partition=2), await other.fetch(partition=2))
            wait_until(lambda: zookeeper.exists("/brokers/topics/t/0"), "the topic is registered")
            assert b"3" == zookeeper.get("/brokers/topics/t/0")[0]
            assert cluster.stop() == 0
            assert "Traceback" not in cluster.log()
            zookeeper.stop()
        wait_gone(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--generation", "legacy", "--message-format", "0"), "--message-format: does not exist with --generation"),
        (("--generation", "legacy", "--topic", "t"), "--topic: does not exist with --generation legacy"),
        (("--magic", "0"), "--magic: needs --generation legacy"),
        (("--broker-id", "1"), "--broker-id: needs --generation legacy"),
    ],
)
def test_options_of_the_other_generation_are_refused(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    """Nothing is started that is not what was asked for."""
    with pytest.raises(EmbeddedFailed, match=told), EmbeddedProcess(tmp_path, *arguments):
        pass
