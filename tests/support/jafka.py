# SPDX-License-Identifier: Apache-2.0
"""A cluster of the 0.7 generation on this machine: Jafka 3.0.6, a port of Kafka 0.7, with its Java producer and consumer.

Jafka speaks the 0.7 wire protocol and keeps the registries of 0.7 (``tests/vectors/znodes/jafka-3.0.6``). ZooKeeper is the
one of Kafka 1.1.1. Jars are copied by maven on first use, as those of Kafka.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kazoo.exceptions import NoNodeError

from tests.support import kafka
from tests.support.kafka import Cluster, KafkaUnavailable
from tests.support.programs import ProgramFailed
from tests.support.registry import open_registry

VERSION: Final = "3.0.6"
ZOOKEEPER_OF: Final = "1.1.1"

_SOURCES: Final = kafka.JAVA_SOURCES / "jafka"
_FETCH: Final = "python -m tests.support.jafka"


def jars() -> Path:
    """Return the folder with Jafka's jars and our client's class. Raises KafkaUnavailable."""
    folder = kafka.cache_folder() / f"jafka-{VERSION}"
    source = _SOURCES / "LegacyClient.java"
    marker = folder / ".complete"
    with kafka.fetching():
        if not marker.exists() or marker.read_text() != source.read_text():
            if shutil.which("mvn") is None or shutil.which("java") is None:
                raise KafkaUnavailable(
                    f"the jars of Jafka {VERSION} are not cached; with Java and maven installed, `{_FETCH}` provides them"
                )
            shutil.rmtree(folder, ignore_errors=True)
            copy = ["mvn", "-B", "-q", "-f", str(_SOURCES / "pom.xml"), "dependency:copy-dependencies"]
            _run([*copy, f"-DoutputDirectory={folder}"])
            _run(["javac", "-nowarn", "-cp", f"{folder}/*", "-d", str(folder), str(source)])
            marker.write_text(source.read_text())
    return folder


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KafkaUnavailable(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-1000:]}")


def client_command(*args: str, heap: str = "128m", brisk: bool = True) -> list[str]:
    """Return the command of our program on Jafka's library (``LegacyClient.java`` says its arguments).

    ``heap`` and ``brisk`` are those of :func:`tests.support.kafka.java_command`.
    """
    return _java("LegacyClient", *args, heap=heap, brisk=brisk)


def _java(main: str, *args: str, heap: str, brisk: bool) -> list[str]:
    folder = jars()
    return [
        "java", f"-Xmx{heap}", "-XX:+UseSerialGC", *(["-XX:TieredStopAtLevel=1"] if brisk else []),
        "-Djava.net.preferIPv4Stack=true",
        f"-Dlog4j.configuration=file:{kafka.JAVA_SOURCES}/log4j.properties", "-cp", f"{folder}:{folder}/*", main, *args,
    ]  # fmt: skip


class JafkaCluster(Cluster):
    """One ZooKeeper, and ``brokers`` brokers that give each topic ``partitions`` partitions; a context manager.

    Topics come into being when they are first written to.

    Args:
        properties: settings of the brokers, besides those that all tests need.
        heap: heap of a broker.
        brisk: False for brokers that are measured (see :func:`tests.support.kafka.java_command`).
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        partitions: int = 3,
        properties: Mapping[str, str] = MappingProxyType({}),
        heap: str = "128m",
        brisk: bool = True,
    ) -> None:
        values = {"num.partitions": str(partitions), **properties}
        super().__init__(ZOOKEEPER_OF, brokers, "/jafka", values, heap=heap, brisk=brisk)

    def start_zookeeper(self) -> None:
        """Start ZooKeeper, and make the chroot, which Jafka does not."""
        super().start_zookeeper()
        with open_registry(f"127.0.0.1:{self.zk_port}") as registry:
            registry.client.ensure_path(self.chroot)

    def start_broker(self, index: int, *, wait: bool = True) -> None:
        """Start broker ``index`` on its port, with the log that it had."""
        self._wait_unregistered(index)
        values = {
            "brokerid": str(index),
            "hostname": "127.0.0.1",
            "port": str(self.ports[index]),
            "log.dir": f"{self.directory}/log-{index}",
            "enable.zookeeper": "true",
            "zk.connect": self.zookeeper,
            "zk.connectiontimeout.ms": "6000",
            "num.threads": "2",
            "log.flush.interval": "1",
            "log.file.size": "1048576",
            **self.properties,
        }
        config = self.directory / f"broker-{index}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        self.spawn(f"broker-{index}", _java("io.jafka.Jafka", str(config), heap=self.heap, brisk=self.brisk))
        if wait:
            self.wait_broker(index)

    def wait_broker(self, index: int) -> None:
        """Wait until broker ``index`` has registered."""
        path = f"{self.chroot}/brokers/ids/{index}"
        self._wait(f"broker-{index}", lambda: path in kafka.four_letter(self.zk_port, b"dump").decode().split())

    def send(self, topic: str, count: int) -> None:
        """Send ``value-0``, ``value-1`` and so on with the Java producer."""
        done = subprocess.run(
            client_command("produce", self.zookeeper, topic, str(count)),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise ProgramFailed(f"the producer failed:\n{done.stderr[-2000:]}")

    def start_sender(self, topic: str, count: int, *, per_second: int) -> subprocess.Popen[bytes]:
        """Start to send ``value-0``, ``value-1`` and so on at a steady rate; the process ends with the last one."""
        return self.spawn("sender", client_command("produce", self.zookeeper, topic, str(count), str(per_second)))

    def segment_of(self, topic: str, key: str) -> Path:
        """Return the first segment of a partition's log; ``key`` is the partition as ZooKeeper names it, ``B-P``."""
        broker, _, partition = key.partition("-")
        return self.directory / f"log-{broker}" / f"{topic}-{partition}" / f"{0:020d}.jafka"

    def start_member(self, name: str, topic: str, group: str) -> JafkaMember:
        """Start a Java member of two streams."""
        values = self.directory / f"{name}.values"
        with values.open("wb") as out:
            self.spawn(name, client_command("consume", self.zookeeper, topic, group), stdout=out.fileno())
        return JafkaMember(self, name, values)


@dataclass(frozen=True, slots=True)
class JafkaMember:
    """A running Java consumer of the 0.7 generation; what it delivers goes to a file."""

    cluster: JafkaCluster
    name: str
    path: Path

    def values(self) -> list[str]:
        """Return what it has delivered so far."""
        return self.path.read_text().rpartition("\n")[0].splitlines()

    def log(self) -> str:
        """Return its log."""
        return self.cluster.log_of(self.name)

    def terminate(self) -> None:
        """Leave the group in an orderly way."""
        self.cluster.stop(self.name)


def dump(zookeeper: str, path: str = "/") -> Mapping[str, tuple[bytes, int, int]]:
    """Return every node from ``path`` down: data, version, and child version; what is equal twice was not written between.

    What is not there, or goes away meanwhile, is left out.
    """
    found: dict[str, tuple[bytes, int, int]] = {}
    with open_registry(zookeeper) as registry:
        waiting = [path]
        while waiting:
            at = waiting.pop()
            with contextlib.suppress(NoNodeError):
                data, stat = registry.client.get(at)
                found[at] = (data or b"", stat.version, stat.cversion)
                waiting += [f"{at.rstrip('/')}/{name}" for name in registry.client.get_children(at)]
    return found


if __name__ == "__main__":
    sys.stdout.write(f"{jars()}\n")
