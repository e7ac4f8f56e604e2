# SPDX-License-Identifier: Apache-2.0
"""Real Kafka and real ZooKeeper on this machine, from Maven coordinates, for the interop tests and the benchmarks.

Jars are copied by maven on first use and kept under ``$CONSUMERD_KAFKA_CACHE`` (by default the user's cache folder);
everything runs on the system's Java, listens on 127.0.0.1 on free ports, and is stopped by its own pid.

Fetch the jars of a release ahead of time with ``python -m tests.support.kafka fetch 1.1.1``; start one by hand with
``python -m tests.support.kafka up 1.1.1 --brokers 2`` (it prints its addresses as JSON, and stops on Ctrl-C).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Self

from tests.support.programs import ProgramFailed
from tests.support.serving import find_missing

JAVA_SOURCES: Final = Path(__file__).with_name("java")

RELEASES: Final[Mapping[str, str]] = {
    "0.8.2.2": "2.11",
    "0.9.0.1": "2.11",
    "0.10.2.2": "2.11",
    "0.11.0.3": "2.11",
    "1.1.1": "2.11",
    "2.8.2": "2.12",
    "4.0.2": "2.13",
    "4.3.1": "2.13",
}
"""Release to the Scala build of it that is used."""

CODECS: Final[Mapping[str, tuple[str, ...]]] = {
    "0.8.2.2": ("none", "gzip", "snappy", "lz4"),
    "0.9.0.1": ("none", "gzip", "snappy", "lz4"),
    "0.10.2.2": ("none", "gzip", "snappy", "lz4"),
    "0.11.0.3": ("none", "gzip", "snappy", "lz4"),
    "1.1.1": ("none", "gzip", "snappy", "lz4"),
    "2.8.2": ("none", "gzip", "snappy", "lz4", "zstd"),
    "4.0.2": ("none", "gzip", "snappy", "lz4", "zstd"),
    "4.3.1": ("none", "gzip", "snappy", "lz4", "zstd"),
}

_FIRST_WITHOUT_ZOOKEEPER: Final = (4,)
_FIRST_WITHOUT_OLD_CONSUMER: Final = (2,)
_LAST_OLD_CONSUMER: Final = "1.1.1"
"""Release whose jars run Java's ZooKeeper-based consumer beside brokers of 2.0 and later, which came without it.

Programs that still use this consumer keep the jars of 1.1.1 when their brokers are upgraded. The brokers still answer
its requests, and convert newer record formats for it.
"""


class KafkaUnavailable(Exception):
    """The jars of a release are not there, and nothing that could fetch them is."""


def parse_release(release: str) -> tuple[int, ...]:
    """Return a release as numbers, for comparison."""
    return tuple(int(part) for part in release.split("."))


def has_headers(release: str) -> bool:
    """Whether records of this release carry headers (0.11 on)."""
    return parse_release(release) >= (0, 11)


def has_zookeeper(release: str) -> bool:
    """Whether brokers of this release need ZooKeeper (up to 3)."""
    return parse_release(release) < _FIRST_WITHOUT_ZOOKEEPER


def old_consumer_release(release: str) -> str:
    """Return the release whose ZooKeeper-based Java consumer is used beside brokers of ``release``.

    It is their own release, or 1.1.1 where that has no such consumer.
    """
    return release if parse_release(release) < _FIRST_WITHOUT_OLD_CONSUMER else _LAST_OLD_CONSUMER


def cache_folder() -> Path:
    """Return where what was fetched is kept."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "consumerd-kafka"
    return Path(os.environ.get("CONSUMERD_KAFKA_CACHE", default))


@contextlib.contextmanager
def fetching() -> Iterator[None]:
    """Have the cache to oneself: maven's own does not bear two at a time."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / ".fetching").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def jars(release: str) -> Path:
    """Return the folder with a release's jars, copying them by maven on first use. Raises KafkaUnavailable."""
    folder = cache_folder() / release
    if not (folder / ".complete").exists():
        with fetching():
            _copy_jars(release, folder)
    return folder


def _copy_jars(release: str, folder: Path) -> None:
    if (folder / ".complete").exists():  # another run was first
        return
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise KafkaUnavailable(
            f"the jars of Kafka {release} are not cached; with Java and maven installed, "
            f"`python -m tests.support.kafka fetch {release}` provides them"
        )
    shutil.rmtree(folder, ignore_errors=True)
    pom = "pom.xml" if has_zookeeper(release) else "kraft-pom.xml"
    command = ["mvn", "-B", "-q", "-f", str(JAVA_SOURCES / pom), "dependency:copy-dependencies"]
    command += [f"-Dkafka.scala={RELEASES[release]}", f"-Dkafka.version={release}", f"-DoutputDirectory={folder}"]
    command += [] if release.startswith("0.8") or pom != "pom.xml" else ["-Ptools"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KafkaUnavailable(
            f"maven could not copy the jars of Kafka {release}:\n{done.stdout[-2000:]}{done.stderr[-500:]}"
        )
    (folder / ".complete").touch()


def _java_program(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / name) if home else name


def compile_clients(release: str) -> Path:
    """Compile our Java clients against a release, once, and return the folder of their classes. Raises KafkaUnavailable."""
    has_old_consumer = old_consumer_release(release) == release
    sources = JAVA_SOURCES.glob("*.java")
    return compile_java(release, (one for one in sources if has_old_consumer or one.stem != "HighLevelConsumer"))


def compile_java(release: str, sources: Iterable[Path]) -> Path:
    """Compile source files against a release, once, and return the folder of their classes. Raises KafkaUnavailable."""
    folder, sources = jars(release), sorted(sources)
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    classes = folder / f"classes-{digest[:12]}"
    if classes.exists():
        return classes
    made = Path(tempfile.mkdtemp(dir=folder))
    command = [_java_program("javac"), "-nowarn", "-cp", f"{folder}/*", "-d", str(made), *map(str, sources)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(made)
        raise KafkaUnavailable(f"javac could not compile against Kafka {release}:\n{done.stderr[-2000:]}")
    try:
        made.rename(classes)
    except OSError:  # another run was first
        shutil.rmtree(made)
    return classes


def java_command(
    release: str, main: str, *args: str, heap: str = "512m", classes: Path | None = None, brisk: bool = False
) -> list[str]:
    """Return the command that runs ``main`` (a class, or a source file) on a release's class path.

    ``brisk`` is for what starts often and works little: it starts sooner and takes less of the processor doing so.
    """
    return class_command(jars(release), main, *args, heap=heap, classes=classes, brisk=brisk)


def class_command(
    folder: Path, main: str, *args: str, heap: str, classes: Path | None = None, brisk: bool = False
) -> list[str]:
    """Return the command of :func:`java_command` for a folder of jars."""
    opened = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.lang")
    return [
        _java_program("java"),
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1" if brisk else "-XX:+TieredCompilation",
        "-Dfile.encoding=UTF-8",
        "-Djava.net.preferIPv4Stack=true",
        "-Dzookeeper.sasl.client=false",
        "-Dzookeeper.admin.enableServer=false",
        "-Dzookeeper.4lw.commands.whitelist=*",
        "-Dzookeeper.jmx.log4j.disable=true",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in opened),
        "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        f"-Dlog4j.configuration=file:{JAVA_SOURCES}/log4j.properties",
        f"-Dlog4j2.configurationFile={JAVA_SOURCES}/log4j2.properties",
        "-cp",
        f"{folder}/*" if classes is None else f"{classes}:{folder}/*",
        main,
        *args,
    ]


def nice_command(niceness: int) -> list[str]:
    """Return what to put before a command so that it leaves the processor to others (0: nothing)."""
    return ["nice", "-n", str(niceness)] if niceness else []


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_properties(path: Path, values: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


@dataclass
class Cluster:
    """One ZooKeeper and ``brokers`` brokers of one release; a context manager.

    Ports stay the same over restarts. ``properties`` adds to server.properties or overrides it. Brokers that are ``brisk``
    (see :func:`java_command`) take half as much of the processor until they serve, and serve slower: not to be measured.
    """

    release: str
    brokers: int = 1
    chroot: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    heap: str = "512m"
    tick_ms: int = 500
    brisk: bool = True

    def __post_init__(self) -> None:
        self.zk_port = free_port()
        self.ports = [free_port() for _ in range(self.brokers)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.directory = Path()

    @property
    def zookeeper(self) -> str:
        """The connect string, chroot included."""
        return f"127.0.0.1:{self.zk_port}{self.chroot}"

    @property
    def bootstrap(self) -> str:
        """The broker list."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def cluster_settings(self) -> Mapping[str, Any]:
        """The ``cluster`` section of a daemon's settings."""
        return {"zookeeper": self.zookeeper}

    @property
    def zookeeper_properties(self) -> Mapping[str, str]:
        """What is added to ZooKeeper's own configuration."""
        return {}

    def advertise(self, port: int) -> None:
        """Have the brokers that start from now on send their clients to another port, such as that of a proxy."""
        self.properties = {**self.properties, "advertised.port": str(port)}

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="consumerd-kafka-"))
        try:
            self.start_zookeeper()
            for index in range(self.brokers):
                self.start_broker(index, wait=False)
            for index in range(self.brokers):
                self.wait_broker(index)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything that was started, ZooKeeper last, and remove the folder."""
        for name in sorted(self.processes, key=lambda name: name == "zookeeper"):
            self.stop(name, timeout_s=2.0 if name.startswith("broker") else 10.0)
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- processes

    def secure_command(self, name: str, command: list[str]) -> list[str]:
        """Return a Java command with the logins that the program needs in a secured cluster; here there are none."""
        del name
        return command

    def spawn(
        self, name: str, command: list[str], *, stdin: int = subprocess.DEVNULL, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a child whose stderr (and stdout, unless given) goes to ``<name>.log``."""
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.secure_command(name, command),
                stdin=stdin,
                stdout=log if stdout is None else stdout,
                stderr=log,
                cwd=self.directory,
            )
        self.processes[name] = process
        return process

    def log_of(self, name: str) -> str:
        """Return what a child has logged."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def stop(self, name: str, *, timeout_s: float = 15.0) -> None:
        """SIGTERM, and SIGKILL after ``timeout_s``."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def kill(self, name: str) -> None:
        """SIGKILL, as a crashed machine would."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def start_zookeeper(self) -> None:
        """Start ZooKeeper on its port, with the data it had."""
        config = write_properties(
            self.directory / "zoo.cfg",
            {
                "tickTime": str(self.tick_ms),
                "dataDir": f"{self.directory}/zookeeper",
                "clientPort": str(self.zk_port),
                "clientPortAddress": "127.0.0.1",
                "maxClientCnxns": "0",
                "minSessionTimeout": "1000",
                "maxSessionTimeout": "60000",
                **self.zookeeper_properties,
            },
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self.spawn("zookeeper", java_command(self.release, main, str(config), heap="128m", brisk=True))
        self._wait("zookeeper", lambda: four_letter(self.zk_port, b"srvr").startswith(b"Zookeeper version"))

    def stop_zookeeper(self) -> None:
        """Stop ZooKeeper in an orderly way."""
        self.stop("zookeeper")

    def kill_zookeeper(self) -> None:
        """SIGKILL to ZooKeeper."""
        self.kill("zookeeper")

    def start_broker(self, index: int, *, wait: bool = True) -> None:
        """Start broker ``index`` on its port, with the log it had; not before a killed one's session has ended."""
        self._wait_unregistered(index)
        values = {
            "broker.id": str(index),
            "port": str(self.ports[index]),
            "host.name": "127.0.0.1",
            "advertised.host.name": "127.0.0.1",
            "log.dirs": f"{self.directory}/log-{index}",
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": "6000",
            "auto.create.topics.enable": "false",
            "delete.topic.enable": "true",
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "controlled.shutdown.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "message.max.bytes": "8000000",
            "replica.fetch.max.bytes": "8000000",
            # what topics ask for by their own configs happens soon
            "log.retention.check.interval.ms": "500",
            "log.cleaner.enable": "true",
            "log.cleaner.backoff.ms": "500",
            "log.cleaner.dedupe.buffer.size": "8388608",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            **self.properties,
        }
        config = write_properties(self.directory / f"broker-{index}.properties", values)
        with contextlib.suppress(FileNotFoundError):
            (self.directory / f"broker-{index}.log").replace(
                self.directory / f"broker-{index}.{time.monotonic_ns()}.log"
            )
        command = java_command(self.release, "kafka.Kafka", str(config), heap=self.heap, brisk=self.brisk)
        self.spawn(f"broker-{index}", command)
        if wait:
            self.wait_broker(index)

    def wait_broker(self, index: int) -> None:
        """Wait until broker ``index`` says that it has started."""
        name = f"broker-{index}"
        self._wait(name, lambda: re.search(r"(\]|\d\]?,?) started\b", self.log_of(name)) is not None)

    def kill_broker(self, index: int) -> None:
        """SIGKILL to broker ``index``."""
        self.kill(f"broker-{index}")

    def restart_broker(self, index: int) -> None:
        """Start broker ``index`` again; after a SIGKILL it waits for its own ZooKeeper session to expire."""
        self.stop(f"broker-{index}")
        self.start_broker(index)

    def _wait_unregistered(self, index: int) -> None:
        """Wait for ZooKeeper to forget a broker that was killed: its successor would give up over its node."""
        path = f"{self.chroot}/brokers/ids/{index}"
        deadline = time.monotonic() + 60.0
        with contextlib.suppress(OSError):  # no ZooKeeper, no node
            while path in four_letter(self.zk_port, b"dump").decode().split():
                if time.monotonic() > deadline:
                    raise ProgramFailed(f"{path} of Kafka {self.release} does not go")
                time.sleep(0.05)

    def _wait(self, name: str, ready: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.processes[name].poll() is None:
            with contextlib.suppress(OSError):
                if ready():
                    return
            time.sleep(0.05)
        raise ProgramFailed(f"{name} of Kafka {self.release} did not come up:\n{self.log_of(name)[-3000:]}")

    # -- Kafka's own tools

    def run_tool(self, main: str, *args: str, stdin: bytes = b"", brisk: bool = False) -> str:
        """Run one of the release's classes to its end and return its stdout."""
        command = self.secure_command("tool", java_command(self.release, main, *args, brisk=brisk))
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        if done.returncode != 0:
            raise ProgramFailed(f"{main} failed ({done.returncode}): {done.stdout[-1000:]!r} {done.stderr[-2000:]!r}")
        return done.stdout.decode(errors="replace")

    def create_topic(self, topic: str, partitions: int = 1, replication: int = 1, **configs: str) -> None:
        """Create a topic and wait until every partition has a leader that serves it; ``configs`` with ``_`` for ``.``."""
        extra = [word for key, value in configs.items() for word in ("--config", f"{key.replace('_', '.')}={value}")]
        self._topics(
            "--create",
            "--topic",
            topic,
            "--partitions",
            str(partitions),
            "--replication-factor",
            str(replication),
            *extra,
        )
        self.wait_topic(topic, partitions)

    def wait_topic(self, topic: str, partitions: int) -> None:
        """Wait until every broker knows the leaders and they serve: ZooKeeper names them before they do."""
        deadline = time.monotonic() + 30
        while (
            missing := find_missing(
                self.bootstrap, topic, partitions, list_offsets=int(not has_zookeeper(self.release))
            )
        ) is not None:
            if time.monotonic() > deadline:
                raise ProgramFailed(f"topic {topic} is not served: {missing}")
            time.sleep(0.02)

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow a topic to ``total`` partitions."""
        self._topics("--alter", "--topic", topic, "--partitions", str(total))

    def configure_topic(self, topic: str, **configs: str) -> None:
        """Change configs of a topic, ``_`` for ``.``; the brokers heed them in a moment."""
        words = [word for key, value in configs.items() for word in ("--config", f"{key.replace('_', '.')}={value}")]
        self._topics("--alter", "--topic", topic, *words)

    def segments(self, topic: str, partition: int = 0, broker: int = 0) -> list[Path]:
        """Return the log's files of a partition at a broker, by offset; those that it has given up are not among them."""
        return sorted((self.directory / f"log-{broker}" / f"{topic}-{partition}").glob("*.log"))

    def expire(self, topic: str) -> int:
        """Have retention take all of partition 0 that it can, which is all but the newest segment; return the first offset
        that is left. Broker 0 must be its leader, and have been up for half a minute or be waited for.
        """
        self.configure_topic(topic, retention_bytes="1")
        deadline = time.monotonic() + 60
        while len(self.segments(topic)) > 1:
            if time.monotonic() > deadline:
                raise ProgramFailed(f"retention leaves {self.segments(topic)}:\n{self.log_of('broker-0')[-2000:]}")
            time.sleep(0.05)
        self.configure_topic(topic, retention_bytes="-1")
        return int(self.segments(topic)[0].stem)

    def delete_topic(self, topic: str) -> None:
        """Ask for a topic's deletion; the controller carries it out in a moment."""
        self._topics("--delete", "--topic", topic)

    def describe_group(self, group: str) -> str:
        """Return what Kafka's tool says of a group that a broker coordinates."""
        old = ["--new-consumer"] if self.release.startswith(("0.9", "0.10")) else []
        return self._groups("kafka.admin.ConsumerGroupCommand", group, *old)

    def _groups(self, main: str, group: str, *args: str) -> str:
        words = ["--bootstrap-server", self.bootstrap, "--describe", "--group", group, *args]
        return self.run_tool(main, *words, brisk=True)

    def _topics(self, *args: str) -> None:
        self.run_tool("kafka.admin.TopicCommand", "--zookeeper", self.zookeeper, *args, brisk=True)

    def produce(self, topic: str, lines: bytes, codec: str = "none", acks: int = -1) -> None:
        """Send ``key<TAB>value`` lines with the release's console producer."""
        self.run_tool(
            "kafka.tools.ConsoleProducer", "--broker-list", self.bootstrap, "--topic", topic,
            f"--compression-codec={codec}", f"--request-required-acks={acks}",
            "--property", "parse.key=true", "--property", "key.separator=\t", stdin=lines,
        )  # fmt: skip

    def perf_produce(
        self, topic: str, records: int, size: int = 100, codec: str = "none", payload_file: Path | None = None
    ) -> None:
        """Send ``records`` values of ``size`` bytes (one repeated, or the lines of a file) as fast as it goes (0.9 on)."""
        what = ["--payload-file", str(payload_file)] if payload_file else ["--record-size", str(size)]
        self.run_tool(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records), *what,
            "--throughput", "-1", "--producer-props", f"bootstrap.servers={self.bootstrap}", f"compression.type={codec}",
            "acks=1", "batch.size=65536",
        )  # fmt: skip

    def ledger_producer(self, codec: str = "none", **properties: str) -> LedgerProducer:
        """Start the release's own producer, which says at which offset each record was acknowledged."""
        name = f"ledger-{time.monotonic_ns()}"
        values = {
            "bootstrap.servers": self.bootstrap,
            "compression.type": codec,
            "acks": "all",
            "retries": "100",
            "max.in.flight.requests.per.connection": "1",
            "max.request.size": "8000000",
            "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
            "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
        config = write_properties(self.directory / f"{name}.properties", values)
        acks = self.directory / f"{name}.acks"
        with acks.open("wb") as out:
            process = self.spawn(
                name,
                self._client(self.release, "LedgerProducer", str(config)),
                stdin=subprocess.PIPE,
                stdout=out.fileno(),
            )
        return LedgerProducer(self, name, process, acks)

    def java_consumer(
        self,
        group: str,
        topic: str | None = None,
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        streams: int = 1,
        niceness: int = 0,
        **properties: str,
    ) -> JavaConsumer:
        """Start the ZooKeeper-based Java high-level consumer: the cluster's own, or 1.1.1's where it has none.

        ``topic`` may name several, separated by commas. ``properties`` are its own with ``_`` for ``.``.
        """
        name = f"java-consumer-{group}-{time.monotonic_ns()}"
        values = {
            "zookeeper.connect": self.zookeeper,
            "group.id": group,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": "1000",
            "fetch.message.max.bytes": "4000000",
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
        config = write_properties(self.directory / f"{name}.properties", values)
        what = f"topic:{topic}:{streams}" if topic else f"whitelist:{whitelist}:{streams}"
        if blacklist is not None:
            what = f"blacklist:{blacklist}:{streams}"
        records = self.directory / f"{name}.records"
        command = self._client(old_consumer_release(self.release), "HighLevelConsumer", str(config), what)
        with records.open("wb") as out:
            process = self.spawn(name, [*nice_command(niceness), *command], stdout=out.fileno())
        return JavaConsumer(self, name, process, records)

    def _client(self, release: str, main: str, *args: str) -> list[str]:
        """Return the command that runs one of our Java clients on the jars of ``release``."""
        return java_command(release, main, *args, heap="256m", classes=compile_clients(release), brisk=True)


@dataclass
class JavaConsumer:
    """A running Java high-level consumer; what it delivers goes to a file."""

    cluster: Cluster
    name: str
    process: subprocess.Popen[bytes]
    path: Path

    def records(self) -> list[tuple[str, int, int, bytes]]:
        """Return what it has delivered so far: topic, partition, offset, and the raw ``key TAB value`` text in base64."""
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        rows = [line.split(b"\t", 4) for line in whole.split(b"\n")] if whole else []
        return [(row[1].decode(), int(row[2]), int(row[3]), row[4]) for row in rows]

    def log(self) -> str:
        """Return its log."""
        return self.cluster.log_of(self.name)

    def terminate(self) -> None:
        """Leave cleanly: it commits, releases and deletes its nodes."""
        self.cluster.stop(self.name)

    def kill(self) -> None:
        """Crash."""
        self.cluster.kill(self.name)


@dataclass(frozen=True, slots=True)
class Sent:
    """One record as given to the producer."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def line(self) -> bytes:
        """Return it in the producer's line format."""
        fields = [self.topic, str(self.partition), _base64(self.key), _base64(self.value)]
        fields.append(",".join(f"{name}={_base64(value)}" for name, value in self.headers))
        return "\t".join(fields).encode() + b"\n"


def _base64(data: bytes | None) -> str:
    return "-" if data is None else b64encode(data).decode()


@dataclass
class LedgerProducer:
    """A running producer; :meth:`finish` gives the acknowledged offset of each record sent."""

    cluster: Cluster
    name: str
    process: subprocess.Popen[bytes]
    path: Path
    sent: list[Sent] = field(default_factory=list)

    def send(self, records: Iterable[Sent]) -> None:
        """Hand over records; the producer sends them in this order."""
        records = list(records)
        self.sent += records
        pipe = self._stdin()
        pipe.write(b"".join(record.line() for record in records))
        pipe.flush()

    def acknowledged(self) -> dict[tuple[str, int, int], Sent]:
        """Return what was acknowledged so far, by (topic, partition, offset). Raises ProgramFailed if one failed."""
        ledger: dict[tuple[str, int, int], Sent] = {}
        for line in self.path.read_text().rpartition("\n")[0].splitlines():
            number, topic, partition, *offset = line.split("\t")
            if topic == "ERROR":
                raise ProgramFailed(f"record {number} was not acknowledged: {partition}")
            ledger[topic, int(partition), int(offset[0])] = self.sent[int(number)]
        return ledger

    def finish(self, timeout_s: float = 60.0) -> dict[tuple[str, int, int], Sent]:
        """Close the input, wait until all is acknowledged, and return the ledger."""
        self._stdin().close()
        self.process.wait(timeout_s)
        self.cluster.processes.pop(self.name, None)
        ledger = self.acknowledged()
        if len(ledger) != len(self.sent):
            raise ProgramFailed(
                f"{len(self.sent)} sent, {len(ledger)} acknowledged:\n{self.cluster.log_of(self.name)[-2000:]}"
            )
        return ledger

    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin


def four_letter(port: int, word: bytes) -> bytes:
    """Ask ZooKeeper a four-letter word."""
    with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
        connection.sendall(word)
        connection.settimeout(1.0)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


def main() -> None:
    """Fetch a release's jars, or start a cluster by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="copy the jars of releases")
    fetch.add_argument("release", choices=RELEASES, nargs="+")
    up = commands.add_parser("up", help="start a cluster and print its addresses")
    up.add_argument("release", choices=RELEASES)
    up.add_argument("--brokers", type=int, default=1)
    up.add_argument("--chroot", default="")
    args = parser.parse_args()
    if args.command == "fetch":
        for release in args.release:
            sys.stdout.write(f"{jars(release)}\n")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Cluster(args.release, args.brokers, args.chroot) as cluster, contextlib.suppress(KeyboardInterrupt):
        sys.stdout.write(json.dumps({"zookeeper": cluster.zookeeper, "bootstrap": cluster.bootstrap}) + "\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
