# SPDX-License-Identifier: Apache-2.0
"""Real Kafka without ZooKeeper (KRaft, 4.x) on this machine, for the interop tests.

Jars come as those of :mod:`tests.support.kafka` do. The one node is broker and controller.
"""

from __future__ import annotations

import base64
import contextlib
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.kafka import (
    Cluster,
    free_port,
    has_zookeeper,
    java_command,
    write_properties,
)


@dataclass
class KraftCluster(Cluster):
    """One node of one release; a context manager. Its port stays the same over restarts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.brokers == 1, "one node"
        self.controller_port = free_port()
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

    @property
    def zookeeper(self) -> str:
        """There is none."""
        raise AssertionError("this cluster has no ZooKeeper")

    @property
    def cluster_settings(self) -> Mapping[str, Any]:
        """See Cluster."""
        return {"zookeeper": None, "bootstrap": self.bootstrap}

    def advertise(self, port: int) -> None:
        """See Cluster."""
        self.properties = {**self.properties, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="consumerd-kraft-"))
        try:
            config = self._write_config()
            # with "=", since one id in 64 begins with a hyphen
            self.run_tool(
                "kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster_id}", "-c", str(config), brisk=True
            )
            self.start_broker(0)
        except BaseException:
            self.close()
            raise
        return self

    def _write_config(self) -> Path:
        values = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[0]},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.ports[0]}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": f"{self.directory}/log-0",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "controlled.shutdown.enable": "false",
            "log.cleaner.dedupe.buffer.size": "16777216",
            **self.properties,
        }
        return write_properties(self.directory / "broker-0.properties", values)

    def start_broker(self, index: int, *, wait: bool = True) -> None:
        """Start the node on its port, with the log it had."""
        config = self.directory / f"broker-{index}.properties"
        with contextlib.suppress(FileNotFoundError):
            (self.directory / f"broker-{index}.log").unlink()
        self.spawn(
            f"broker-{index}",
            java_command(self.release, "kafka.Kafka", str(config), heap=self.heap, brisk=self.brisk),
        )
        if wait:
            self.wait_broker(index)

    def wait_broker(self, index: int) -> None:
        """Wait until the node says that it has started."""
        name = f"broker-{index}"
        self._wait(name, lambda: "Kafka Server started" in self.log_of(name))

    def restart_broker(self, index: int) -> None:
        """Start the node again."""
        self.stop(f"broker-{index}", timeout_s=2.0)
        self.start_broker(index)

    def describe_group(self, group: str) -> str:
        """See Cluster."""
        return self._groups("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", group)

    def _topics(self, *args: str) -> None:
        self.run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.bootstrap, *args, brisk=True)

    def console_consumer(self, group: str, topic: str) -> subprocess.Popen[bytes]:
        """Start the release's console consumer in a classic group; it is stopped with the cluster."""
        main = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        args = ["--bootstrap-server", self.bootstrap, "--topic", topic, "--group", group, "--from-beginning"]
        return self.spawn(f"consumer-{group}", java_command(self.release, main, *args, brisk=True))


def make_cluster(release: str, brokers: int = 1, **options: Any) -> Cluster:
    """Return a cluster of the release, of whichever kind it is; ``options`` are those of Cluster."""
    kind = Cluster if has_zookeeper(release) else KraftCluster
    return kind(release, brokers, **options)
