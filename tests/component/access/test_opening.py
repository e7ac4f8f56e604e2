# SPDX-License-Identifier: Apache-2.0
"""How a process reaches its cluster."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.errors import CoordinationError, UnsupportedGeneration
from consumerd.model import BrokerId, Generation
from tests.support.topic_nodes import connected
from tests.support.waiting import until
from tests.support.zookeeper import run_server


async def test_the_lease_runs_on_a_clock_that_counts_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slept through its session wakes up and must not take its lease for fresh."""
    asked: list[int] = []
    read = time.clock_gettime

    def spy(clock: int) -> float:
        asked.append(clock)
        return read(clock)

    monkeypatch.setattr(time, "clock_gettime", spy)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with open_cluster(ClusterAddress(zookeeper=address, client_id="t", session_timeout_s=6), wait_s=None):
            await until(lambda: time.CLOCK_BOOTTIME in asked)


def test_brokers_of_0_7_beside_modern_ones_are_refused_unless_the_address_trusts_the_cluster() -> None:
    """A daemon, a command and a reader of Spark judge a cluster alike, since one function opens it for all."""
    modern = b'{"jmx_port":-1,"timestamp":"1","host":"127.0.0.1","version":1,"port":9092}'

    async def find(address: ClusterAddress) -> list[BrokerId]:
        async with open_cluster(address, wait_s=10) as cluster:
            return [broker.id for broker in await cluster.find_registered()]

    with run_server() as server:
        with connected(server.connect_string) as nodes:
            nodes.create("/brokers/ids/0", modern, makepath=True)
            nodes.create("/brokers/ids/1", b"127.0.0.1-1795255441685:127.0.0.1:22110")
        address = ClusterAddress(zookeeper=server.connect_string, client_id="t")

        with pytest.raises(UnsupportedGeneration, match="/brokers/ids/1 holds"):
            asyncio.run(find(address))
        assert [BrokerId(0)] == asyncio.run(find(replace(address, generation=Generation.MODERN)))


async def test_a_zookeeper_that_is_not_there_is_named_within_the_time() -> None:
    """A command must not hang on an address that was misspelt."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(CoordinationError, match=f"no ZooKeeper answers at {address} within 0.3 s"):
            async with open_cluster(ClusterAddress(zookeeper=address, client_id="t"), wait_s=0.3):
                pytest.fail("it was opened")
