# SPDX-License-Identifier: Apache-2.0
"""What the driver hears when a cluster cannot be asked."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from consumerd.access.address import ClusterAddress, TlsFiles, ZooKeeperCredential
from consumerd.cluster.view import Broker, ClusterView
from consumerd.errors import ConfigError, ConnectionLost, CoordinationError
from consumerd.model import BrokerId
from consumerd.spark.datasource import lookup as lookups
from consumerd.spark.datasource.lookup import ClusterLookup
from consumerd.spark.datasource.options import Subscribe, SubscribePattern
from tests.support.kafka import free_port


def test_a_zookeeper_that_is_not_there_is_named() -> None:
    """Not after minutes, and with its address."""
    nowhere = f"127.0.0.1:{free_port()}"
    with (
        pytest.raises(CoordinationError, match=f"no ZooKeeper answers at {nowhere} within 0.2 s"),
        ClusterLookup(ClusterAddress(client_id="consumerd-spark", zookeeper=nowhere), timeout_s=0.2),
    ):
        pytest.fail("it was entered")


def test_brokers_that_are_not_there_are_named() -> None:
    """With the last of them, and why."""
    nowhere = f"127.0.0.1:{free_port()}"
    with (
        ClusterLookup(ClusterAddress(client_id="consumerd-spark", bootstrap=nowhere)) as lookup,
        pytest.raises(ConnectionLost, match=f"none of 1 brokers answered; last: {nowhere}: cannot connect"),
    ):
        lookup.find_partitions(Subscribe(("orders",)))


def test_a_cluster_that_is_silent_is_not_waited_for_for_ever() -> None:
    """Whatever it is that hangs."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            ClusterLookup(ClusterAddress(client_id="consumerd-spark", bootstrap=silent), timeout_s=0.2) as lookup,
            pytest.raises(ConnectionLost, match=r"the cluster has not answered within 0\.2 s"),
        ):
            lookup.find_partitions(Subscribe(("orders",)))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Before anything is connected to."""
    missing = tmp_path / "ca.pem"
    with (
        pytest.raises(ConfigError, match=rf"kafka\.ssl: {missing} cannot be used"),
        ClusterLookup(
            ClusterAddress(
                client_id="consumerd-spark", bootstrap="127.0.0.1:1", tls=TlsFiles(setting="kafka.ssl", trusted=missing)
            )
        ),
    ):
        pytest.fail("it was entered")
    auth = ClusterAddress(
        client_id="consumerd-spark",
        zookeeper="127.0.0.1:1",
        zookeeper_auth=ZooKeeperCredential(setting="zookeeper.auth.file", scheme="digest", file=missing),
    )
    with pytest.raises(ConfigError, match=r"zookeeper\.auth\.file: .* cannot be read"), ClusterLookup(auth):
        pytest.fail("it was entered")


def test_brokers_that_came_later_are_asked_when_the_first_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream runs for months, and its cluster moves from machine to machine meanwhile."""
    asked: list[list[str]] = []

    class Source:
        def __init__(self, _pool: object, known: Callable[[], Collection[Broker]], **_settings: object) -> None:
            self._known = known

        async def read(self, _topics: object) -> ClusterView:
            asked.append([one.host for one in self._known()])
            moved = Broker(id=BrokerId(1), host="new" if len(asked) == 1 else "newer", port=9092)
            return ClusterView(brokers={moved.id: moved}, topics={})

    monkeypatch.setattr(lookups, "BrokerSource", Source)
    with ClusterLookup(ClusterAddress(client_id="consumerd-spark", bootstrap="first:9092")) as lookup:
        for _ in range(3):
            lookup.find_partitions(SubscribePattern("orders"))

        assert [["first"], ["first", "new"], ["first", "newer"]] == asked
        assert "first:9092,newer:9092" == lookup.bootstrap()
