# SPDX-License-Identifier: Apache-2.0
"""The brokers of the demo, and all that depends on their generation.

=====================  ============================  ===========================================================
                       Kafka 0.8 and later           Kafka 0.6 and 0.7
=====================  ============================  ===========================================================
brokers                one                           two; one is stopped for a while, and its partitions with it
partitions of a topic  8                             4 on each broker
codecs                 none, gzip, snappy, lz4       none, gzip, snappy
a record in the audit  is told by its offset         is told by its content
progress               in records, by offsets        in bytes of the log, by offsets
=====================  ============================  ===========================================================
"""

from __future__ import annotations

import asyncio
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.aio.tasks import alongside
from consumerd.client.log_range import LogRangeReader
from consumerd.client.opening import open_access
from consumerd.demo.audit import Landed, TopicAudit, audit, audit_sent
from consumerd.demo.children import Child
from consumerd.demo.group_watch import GroupWatch
from consumerd.demo.ledger import Ledger, ProducedRecords, SentLedger
from consumerd.demo.production import Producers, open_producers
from consumerd.demo.security import SERVICES_USER, DemoSecurity
from consumerd.demo.stream import LEGACY_SERVICES, SERVICES, TOPICS, Service
from consumerd.model import BrokerId, Generation, PartitionKey, TopicPartition
from consumerd.telemetry.wording import counted

_FOLDER: Final = "cluster"
_CLIENT: Final = "demo"
_START_TIMEOUT_S: Final = 60.0
_ENDS_INTERVAL_S: Final = 0.5
_ENDS_TIMEOUT_S: Final = 2.0
"""Time limit, in seconds, of reading the ends of logs for the display: a broker may be away."""
_WITHOUT_ZOOKEEPER: Final = "--without-zookeeper"
_PARTITIONS: Final = 8
_BROKERS: Final = 2
_PARTITIONS_PER_BROKER: Final = 4


class BrokerProcess:
    """``consumerd broker`` as a child process.

    It can be stopped and started again, with its logs. Leaving the ``async with`` block kills it.

    Args:
        name: Name of its log file.
        arguments: Options of the command, besides folder and ZooKeeper.
        partitions: Partitions that it has.
        folder: The demo's folder.
    """

    def __init__(self, name: str, *arguments: str, partitions: Sequence[TopicPartition], folder: Path) -> None:
        self.name = name
        self.partitions = partitions
        self.bootstrap = ""
        self.zookeeper = ""
        self._arguments = ("broker", "--directory", str(folder / _FOLDER / name), *arguments)
        self._folder = folder
        self._child: Child | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    async def start(self, zookeeper: str = "") -> None:
        """Start the process; return when clients can connect. Raises ChildFailed.

        Args:
            zookeeper: Connect string of a running ZooKeeper; empty to start one in the process.
        """
        register = ("--zookeeper", zookeeper) if zookeeper else ()
        child = Child(self.name, *self._arguments, *register, folder=self._folder)
        self._child = await self._stack.enter_async_context(child)
        self.bootstrap = await _read_address(child)
        if _WITHOUT_ZOOKEEPER not in self._arguments:
            self.zookeeper = await _read_address(child)

    async def stop(self, timeout_s: float) -> None:
        """Stop the process in order. Raises ChildFailed."""
        if self._child is not None:
            await self._child.stop(timeout_s)

    def check(self) -> None:
        """Raise ChildFailed if the process has ended without :meth:`stop`."""
        if self._child is not None:
            self._child.check()


async def _read_address(child: Child) -> str:
    return (await child.read_line(_START_TIMEOUT_S)).partition(" ")[2]


class DemoBrokers(ABC):
    """Brokers and ZooKeeper of the demo.

    ``async with`` starts them, and kills those that still run at its end.

    Attributes:
        services: Services that produce, with codecs that the brokers know.
        has_tombstones: True if records may have no value.
        unit: Text that is shown after the names of the progress in files.
        ledger: Records that the brokers have acknowledged.
    """

    services: ClassVar[Sequence[Service]]
    has_tombstones: ClassVar[bool]
    unit: ClassVar[str]
    ledger: ProducedRecords

    def __init__(self, processes: Sequence[BrokerProcess]) -> None:
        self._processes = processes
        self._stack = AsyncExitStack()
        self._meanwhile = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start ZooKeeper and the brokers. Raises ChildFailed."""
        async with AsyncExitStack() as stack:
            for process in self._processes:
                await stack.enter_async_context(process)
                await process.start(self.zookeeper)  # the first one starts ZooKeeper
            self._meanwhile = await stack.enter_async_context(AsyncExitStack())
            await self._look_after(self._meanwhile)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connect string."""
        return self._processes[0].zookeeper

    @property
    def partitions(self) -> Sequence[TopicPartition]:
        """All partitions of all topics."""
        return [partition for process in self._processes for partition in process.partitions]

    @property
    def sasl_settings(self) -> Mapping[str, Any] | None:
        """The members' settings for SASL; None for brokers without it."""
        return None

    async def try_out(self) -> Sequence[str]:
        """Try what the brokers must refuse; return a line for each refusal. Raises ConsumerdError."""
        return ()

    @property
    def restless(self) -> BrokerProcess | None:
        """Broker that the demo stops for a while; None without one."""
        return None

    def check(self) -> None:
        """Raise ChildFailed if a process has ended unexpectedly."""
        for process in self._processes:
            process.check()

    async def stop(self, timeout_s: float) -> None:
        """Stop all processes in order, ZooKeeper last. Raises ChildFailed."""
        await self._meanwhile.aclose()
        for process in reversed(self._processes):
            await process.stop(timeout_s)

    def open_producers(self) -> AbstractAsyncContextManager[Producers]:
        """Run a producer for each service while the block runs."""
        return open_producers(self._address, self.services)

    async def _look_after(self, stack: AsyncExitStack) -> None:  # noqa: B027 - most brokers need nothing
        """Begin further work beside the brokers; ``stack`` ends it."""

    @abstractmethod
    def describe(self) -> str:
        """Return a sentence about addresses and partitions."""

    @abstractmethod
    async def read_ends(self) -> Mapping[TopicPartition, int]:
        """Return the log end of each partition with records.

        No record may be on its way. Raises BrokerError, ConnectionLost, CoordinationError, ProtocolError.
        """

    @abstractmethod
    def measure(self, topic: str, records: int, watch: GroupWatch) -> tuple[int, int]:
        """Return how much of a topic is safe in files, and of how much.

        Args:
            topic: Name of the topic.
            records: Number of the topic's events.
            watch: What the group has reported.
        """

    @abstractmethod
    def audit(self, landed: Iterable[Landed]) -> Sequence[TopicAudit]:
        """Compare the ledger with the landed records; return the result of each topic."""

    @property
    @abstractmethod
    def _address(self) -> ClusterAddress:
        """Address of the brokers for the producers."""


class ModernBrokers(DemoBrokers):
    """One broker of Kafka 0.8 or later, with a ZooKeeper.

    Args:
        is_secured: True to run it with SASL and ACLs.
    """

    services = SERVICES
    has_tombstones = True
    unit = ""

    def __init__(self, folder: Path, *, is_secured: bool = False) -> None:
        self.ledger: Ledger = Ledger()
        self._security = DemoSecurity(folder / _FOLDER / "secrets", TOPICS) if is_secured else None
        options = [word for topic in TOPICS for word in ("--topic", f"{topic}:{_PARTITIONS}")]
        if self._security is not None:
            options += self._security.broker_options
        self._broker = BrokerProcess(_FOLDER, *options, partitions=_list_partitions(_PARTITIONS), folder=folder)
        super().__init__([self._broker])

    async def __aenter__(self) -> Self:
        """Start ZooKeeper and the broker. Raises ChildFailed."""
        if self._security is not None:
            await asyncio.to_thread(self._security.write_files)
        return await super().__aenter__()

    @property
    def sasl_settings(self) -> Mapping[str, Any] | None:
        """The members' settings for SASL; None without it."""
        return None if self._security is None else self._security.member_settings

    async def try_out(self) -> Sequence[str]:
        """Try what the broker must refuse; return a line for each refusal. Raises ConsumerdError."""
        return () if self._security is None else await self._security.try_out(self._address)

    def describe(self) -> str:
        """Return a sentence about addresses and partitions."""
        return (
            f"ZooKeeper on {self.zookeeper}, a broker on {self._broker.bootstrap}, topics {' and '.join(TOPICS)} with "
            f"{counted(_PARTITIONS, 'partition')} each"
        ) + ("; clients log in by SCRAM-SHA-256, and ACLs say what each may do" if self._security else "")

    async def read_ends(self) -> Mapping[TopicPartition, int]:
        """Return the offsets behind the last acknowledged records."""
        return self.ledger.ends

    def measure(self, topic: str, records: int, watch: GroupWatch) -> tuple[int, int]:
        """Return the numbers of a topic's records in files, and of its events."""
        return _sum_of(topic, watch.landed), records

    def audit(self, landed: Iterable[Landed]) -> Sequence[TopicAudit]:
        """Compare places and contents of the landed records with the ledger."""
        return audit(self.ledger.digests, landed)

    @property
    def _address(self) -> ClusterAddress:
        sasl = None if self._security is None else self._security.login(SERVICES_USER)
        return ClusterAddress(bootstrap=self._broker.bootstrap, client_id=_CLIENT, sasl=sasl)


class LegacyBrokers(DemoBrokers):
    """Two brokers of Kafka 0.7, of which the first one has a ZooKeeper.

    Each has partitions of its own, which are away while it is stopped. A topic comes into being on a broker with its
    first record there.
    """

    services = LEGACY_SERVICES
    has_tombstones = False
    unit = ", bytes"

    def __init__(self, folder: Path) -> None:
        self.ledger: SentLedger = SentLedger()
        self._ranges: LogRangeReader | None = None
        self._ends: dict[TopicPartition, int] = {}
        options = ("--generation", "legacy", "--partitions", str(_PARTITIONS_PER_BROKER), "--broker-id")
        super().__init__(
            [
                BrokerProcess(
                    f"broker-{number}",
                    *options,
                    str(number),
                    partitions=_list_partitions(_PARTITIONS_PER_BROKER, BrokerId(number)),
                    folder=folder,
                )
                for number in range(_BROKERS)
            ]
        )

    @property
    def restless(self) -> BrokerProcess:
        """The last broker: ZooKeeper is in the process of the first one."""
        return self._processes[-1]

    def describe(self) -> str:
        """Return a sentence about addresses and partitions."""
        addresses = " and ".join(process.bootstrap for process in self._processes)
        return (
            f"ZooKeeper on {self.zookeeper}, brokers of Kafka 0.7 on {addresses}, topics {' and '.join(TOPICS)} with "
            f"{counted(_PARTITIONS_PER_BROKER, 'partition')} each on each broker"
        )

    async def _look_after(self, stack: AsyncExitStack) -> None:
        cluster = open_cluster(self._address, wait_s=_START_TIMEOUT_S, await_broker=True)
        access = await stack.enter_async_context(open_access(await stack.enter_async_context(cluster)))
        access.directory.follow(TOPICS)
        self._ranges = access.ranges
        await stack.enter_async_context(alongside(self._keep_ends(access.ranges), name="read the ends of the logs"))

    async def _keep_ends(self, ranges: LogRangeReader) -> None:
        """Read the ends of the logs periodically, until cancelled."""
        while True:
            found = await ranges.find(self.partitions, timeout_s=_ENDS_TIMEOUT_S)
            self._ends.update({partition: one.latest for partition, one in found.items()})
            await asyncio.sleep(_ENDS_INTERVAL_S)

    async def read_ends(self) -> Mapping[TopicPartition, int]:
        """Ask the brokers for the ends of their logs."""
        assert self._ranges is not None, "the brokers run"
        return {partition: found.latest for partition, found in (await self._ranges.read(self.partitions)).items()}

    def measure(self, topic: str, records: int, watch: GroupWatch) -> tuple[int, int]:  # noqa: ARG002 - bytes count
        """Return the bytes of a topic's logs that are safe in files, and of all.

        The ends of the logs are as a moment ago, and may be behind what has landed meanwhile.
        """
        landed = _sum_of(topic, watch.landed)
        return landed, max(landed, _sum_of(topic, self._ends))

    def audit(self, landed: Iterable[Landed]) -> Sequence[TopicAudit]:
        """Compare partitions and contents of the landed records with the ledger."""
        return audit_sent(self.ledger.places, landed)

    @property
    def _address(self) -> ClusterAddress:
        return ClusterAddress(zookeeper=self.zookeeper, client_id=_CLIENT)


def make_target(name: str, folder: Path) -> BrokerProcess:
    """Return a broker without ZooKeeper and topics; it is not started.

    Args:
        name: Name of its log file.
        folder: The demo's folder.
    """
    return BrokerProcess(name, _WITHOUT_ZOOKEEPER, partitions=(), folder=folder)


def make_brokers(generation: Generation, folder: Path, *, is_secured: bool = False) -> DemoBrokers:
    """Return the brokers of a demo; they are not started.

    Args:
        is_secured: True for SASL and ACLs, which brokers of Kafka 0.6 and 0.7 do not have.
        folder: The demo's folder, for logs and data.
    """
    if generation is Generation.LEGACY:
        return LegacyBrokers(folder)
    return ModernBrokers(folder, is_secured=is_secured)


def remove_logs(folder: Path) -> None:
    """Delete the data of stopped brokers and ZooKeeper, which nothing needs after the demo."""
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)


def _list_partitions(count: int, broker: BrokerId | None = None) -> list[TopicPartition]:
    return [TopicPartition(topic, PartitionKey(number, broker)) for topic in TOPICS for number in range(count)]


def _sum_of(topic: str, offsets: Mapping[TopicPartition, int]) -> int:
    return sum(offset for partition, offset in offsets.items() if partition.topic == topic)
