# SPDX-License-Identifier: Apache-2.0
"""Cost of a rebalance on a real ZooKeeper: time, and ZooKeeper operations by kind.

    python -m bench.rebalance members [--members 4] [--join 1] [--topics 10] [--partitions 100]
    python -m bench.rebalance processes [--java] [--per-second 20]

``members`` runs all members in this process. Each has a ZooKeeper session of its own and all parts of the daemon
between ZooKeeper and a sink; only the broker is simulated. The members join, ``--join`` more join, nothing happens for
15 s, each partition gets 5 records, and the members that joined last leave. With ``--members 0 --join 64``, all members
join right after each other; with ``--members 0 --join 1 --partitions 1000``, one member owns everything. Also printed
is the longest time for which the event loop was blocked; all members share that loop.

``processes`` runs ``consumerd run`` on a real Kafka 1.1.1, with a sink that notes when batches arrive: four processes
and then a fifth, while records flow into every seventh partition. With ``--java``, the same number of Java high-level
consumers follow. Times are taken from ZooKeeper's timestamps: from the creation of the fifth member's node to that of
the last owner node.

A proxy between the members and ZooKeeper counts the operations, without pings and probes. It counts until 10 s after
the last claim, to include what members do after a rebalance.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.layout import topic_path
from tests.support.counting_proxy import CountingProxy
from tests.support.daemon import Daemon, settings_for
from tests.support.delivering_member import DeliveringMember, MadeUpLogs, join_delivering
from tests.support.kafka import Cluster, JavaConsumer, Sent, four_letter
from tests.support.lag_probe import LagProbe
from tests.support.mixed_group import GIVEN_UP
from tests.support.noting_sink import install, read_notes
from tests.support.registry import open_registry
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until
from tests.support.zookeeper import make_client, make_server
from tests.support.zookeeper_operations import OperationCounter

ROOT: Final = Path(__file__).parents[1]
Partition = tuple[str, int]
QUIET_S: Final = 10.0
IDLE_S: Final = 15.0
GROUP: Final = "bench-rebalance"
PATIENCE_S: Final = 180.0


# -- one process


async def settle(members: Sequence[DeliveringMember], partitions: int) -> None:
    """Wait until the members own all partitions, all deliver, and no rebalance is running.

    Raises TimeoutError after :data:`PATIENCE_S` seconds.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        owned = sum(len(member.owned) for member in members)
        if owned == partitions and all(member.at_rest and member.delivering for member in members):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"owned: {[len(member.owned) for member in members]} of {partitions}")
        await asyncio.sleep(0.05 if partitions <= 1000 else 0.5)  # the status of many partitions takes long to compute


async def measure_members(args: argparse.Namespace) -> None:
    """Measure members in this process: they join, more join, all idle, the last ones leave."""
    topics = [f"topic-{number:02}" for number in range(args.topics)]
    total = args.topics * args.partitions
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(make_server(tick_ms=1000))
        proxy = await stack.enter_async_context(TcpProxy(server.port))
        counter = proxy.on_frame = OperationCounter()
        zk = await stack.enter_async_context(make_client(server.connect_string))
        await make_topics(zk, topics, args.partitions)
        probe = LagProbe()
        tasks = await stack.enter_async_context(_background(probe))
        brokers = MadeUpLogs()
        streams = dict.fromkeys(topics, 1)

        def join(number: int) -> contextlib.AbstractAsyncContextManager[DeliveringMember]:
            return join_delivering(
                proxy.connect_string,
                GROUP,
                streams,
                brokers=brokers,
                consumer_id=f"{number:03}",
                session_timeout_s=30.0,
            )

        spent = time.process_time()

        async def report(what: str, began: float, moved: int) -> None:
            nonlocal spent
            seconds, cpu = time.monotonic() - began, time.process_time() - spent
            await asyncio.sleep(QUIET_S)
            print(f"{what}: {seconds:.2f} s ({cpu:.2f} s of processor time), {moved} claims,"
                  f" loop blocked at most {probe.take() * 1000:.0f} ms")  # fmt: skip
            print(f"    {counter}", flush=True)
            counter.clear()
            spent = time.process_time()

        members: list[DeliveringMember] = []
        rest = await stack.enter_async_context(contextlib.AsyncExitStack())
        began = time.monotonic()
        if args.members:
            members += await _enter_all(rest, [join(number) for number in range(args.members)])
            await settle(members, total)
            await report(f"{args.members} members join", began, total)
        async with contextlib.AsyncExitStack() as guests:
            before = {member: member.owned for member in members}
            began = time.monotonic()
            joined = await _enter_all(
                guests, [join(number) for number in range(args.members, args.members + args.join)]
            )
            await settle([*members, *joined], total)
            moved = total - sum(len(member.owned & before[member]) for member in members)
            await report(f"{args.join} more join", began, moved)
            probe.take()
            await asyncio.sleep(IDLE_S)
            print(
                f"nothing happens for {IDLE_S:.0f} s: loop blocked at most {probe.take() * 1000:.0f} ms\n    {counter}"
            )
            counter.clear()
            before = {member: member.owned for member in members}
            for partition in list(brokers.logs)[:total]:
                brokers.logs[partition].append(5)
            await asyncio.sleep(3)
            print(f"5 records for each partition: loop blocked at most {probe.take() * 1000:.0f} ms\n    {counter}")
            counter.clear()
            began = time.monotonic()
            await asyncio.gather(*(member.rebalancer.leave(60) for member in joined))
            print(f"{args.join} have left after {time.monotonic() - began:.2f} s")
            if members:
                await settle(members, total)
                moved = sum(len(member.owned - before[member]) for member in members)
                await report("those leave", began, moved)
        del tasks


async def _enter_all(
    stack: contextlib.AsyncExitStack, joining: Sequence[contextlib.AbstractAsyncContextManager[DeliveringMember]]
) -> list[DeliveringMember]:
    return [await stack.enter_async_context(one) for one in joining]


@contextlib.asynccontextmanager
async def _background(probe: LagProbe) -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(probe.run())
        yield tasks
        task.cancel()


async def make_topics(zk: AiozkClient, topics: Sequence[str], partitions: int) -> None:
    """Create the nodes of the topics that members read, as a controller does."""
    body = json.dumps({"version": 1, "partitions": {str(number): [0] for number in range(partitions)}})
    await zk.ensure_path("/brokers/topics")
    for topic in topics:
        await zk.ensure_path(topic_path(topic), body.encode())


# -- processes


class Flow:
    """Background producer that sends records to every seventh partition of each topic.

    Each of these partitions gets ``per_second`` records per second. The producer has a thread of its own.
    """

    def __init__(self, cluster: Cluster, topics: Sequence[str], partitions: int, per_second: int) -> None:
        self._producer = cluster.ledger_producer(linger_ms="1")
        self._places = [(topic, number) for topic in topics for number in range(0, partitions, 7)]
        self._per_second = per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            self._producer.send(Sent(topic, partition, None, bytes(100)) for topic, partition in self._places)
            due += 1 / self._per_second


@dataclass(frozen=True, slots=True)
class OwnerNodes:
    """Members and partition owners of a group, with the creation time of each node.

    Attributes:
        members: creation time of each member's node.
        owners: owner of each partition, and the creation time of the owner node.

    Times are in ms since the epoch, by ZooKeeper's clock.
    """

    members: Mapping[str, int]
    owners: Mapping[Partition, tuple[str, int]]

    def expected(self, partitions: Mapping[str, int]) -> dict[Partition, str]:
        """Return the member that should own each partition by range assignment.

        Args:
            partitions: number of partitions of each topic.
        """
        names = sorted(self.members)
        plan: dict[Partition, str] = {}
        for topic, count in partitions.items():
            share, extra = divmod(count, len(names))
            sizes = [share + (position < extra) for position in range(len(names))]
            dealt = (name for name, size in zip(names, sizes, strict=True) for _ in range(size))
            plan.update({(topic, number): name for number, name in enumerate(dealt)})
        return plan


class Onlooker:
    """Observer of a group that does not go through the counting proxy.

    :meth:`is_settled` is cheap: one ``dump`` command. :meth:`read` is exact: it reads each node.
    """

    def __init__(self, port: int, partitions: Mapping[str, int]) -> None:
        self._port = port
        self._partitions = partitions

    def is_settled(self, members: int) -> bool:
        """Return True if ``members`` members exist and each owns the partitions that it should.

        Owners are compared by session: that of an owner node must be that of the member's node.
        """
        sessions: dict[str, str] = {}
        session = ""
        for line in four_letter(self._port, b"dump").decode().splitlines():
            line = line.strip()
            if line.startswith("0x"):
                session = line.rstrip(":")
            elif line.startswith(f"/consumers/{GROUP}/"):
                sessions[line] = session
        ids = {path.rpartition("/")[2]: session for path, session in sessions.items() if "/ids/" in path}
        if len(ids) != members:
            return False
        plan = OwnerNodes(dict.fromkeys(ids, 0), {}).expected(self._partitions)
        return all(
            sessions.get(f"/consumers/{GROUP}/owners/{topic}/{number}") == ids[member]
            for (topic, number), member in plan.items()
        )

    def read(self) -> OwnerNodes:
        """Read the nodes of all members and of all owners."""
        with open_registry(f"127.0.0.1:{self._port}") as registry:
            zk = registry.client
            paths = {name: f"/consumers/{GROUP}/ids/{name}" for name in zk.get_children(f"/consumers/{GROUP}/ids")}
            owners = {}
            for topic, count in self._partitions.items():
                for number in range(count):
                    data, stat = zk.get(f"/consumers/{GROUP}/owners/{topic}/{number}")
                    owners[topic, number] = (data.decode().rpartition("-")[0], stat.ctime)
            return OwnerNodes({name: zk.get(path)[1].ctime for name, path in paths.items()}, owners)


def measure_processes(args: argparse.Namespace) -> None:
    """Measure groups that grow from four processes to five: ours, then Java's."""
    partitions = {f"topic-{number:02}": args.partitions for number in range(args.topics)}
    with (
        tempfile.TemporaryDirectory(prefix="consumerd-bench-") as name,
        Cluster(args.release, heap="1g", brisk=False) as cluster,
    ):
        folder = Path(name)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda topic: cluster.create_topic(topic, args.partitions), partitions))
        onlooker = Onlooker(cluster.zk_port, partitions)
        with Flow(cluster, list(partitions), args.partitions, args.per_second):
            for round_number in range(args.rounds):
                with CountingProxy(cluster.zk_port) as proxy, contextlib.ExitStack() as stack:
                    sinks = install(folder / f"sinks-{round_number}")
                    daemons: list[Daemon] = []

                    def start(
                        stack: contextlib.ExitStack = stack,
                        proxy: CountingProxy = proxy,
                        sinks: Path = sinks,
                        daemons: list[Daemon] = daemons,
                    ) -> None:
                        number = len(daemons)
                        settings = settings_for(
                            proxy.connect_string, GROUP, topics=tuple(partitions),
                            sink={"type": "noting", "notes": str(folder / f"notes-{number}")},
                            log={"level": "info"}, offsets={"commit_interval_ms": 1000, "on_missing": "earliest"},
                        )  # fmt: skip
                        daemon = Daemon(folder, f"daemon-{number}", settings, python_path=(str(sinks), str(ROOT)))
                        daemons.append(stack.enter_context(daemon))

                    span = join_one(f"consumerd, round {round_number + 1}", start, onlooker, proxy.counter)
                    for daemon in daemons:
                        daemon.terminate()
                    report_gaps(folder, span)
                    forget_group(cluster)
            if args.java:
                with CountingProxy(cluster.zk_port) as proxy:
                    consumers: list[JavaConsumer] = []

                    def start_java(proxy: CountingProxy = proxy, consumers: list[JavaConsumer] = consumers) -> None:
                        consumers.append(
                            cluster.java_consumer(GROUP, ",".join(partitions), zookeeper_connect=proxy.connect_string)
                        )

                    join_one("Java high-level consumer", start_java, onlooker, proxy.counter)
                    given_up = sum(GIVEN_UP.search(consumer.log()) is not None for consumer in consumers)
                    print(f"    members that have given up at some time: {given_up}")


Span = tuple[float, float, frozenset[Partition]]
"""Monotonic times of the fifth member's join and of the last claim, and the partitions that kept their owner."""


def join_one(what: str, start: Callable[[], None], onlooker: Onlooker, counter: OperationCounter) -> Span:
    """Start four members, then a fifth, and print the cost of its join.

    Args:
        what: name of the group in the output.
        start: starts one more member.
        onlooker: observer of the group.
        counter: counts the ZooKeeper operations of the members.
    """
    for _ in range(4):
        start()
    wait_until(lambda: onlooker.is_settled(4), "four members that own everything", PATIENCE_S, 0.2)
    time.sleep(2 * QUIET_S)
    before = onlooker.read()
    counter.clear()
    start()
    wait_until(lambda: onlooker.is_settled(5), "five members that own everything", PATIENCE_S, 0.05)
    offset_s = time.monotonic() - time.time()
    time.sleep(QUIET_S)
    counted = str(counter)
    after = onlooker.read()
    (joined,) = (made for name, made in after.members.items() if name not in before.members)
    last = max(made for _, made in after.owners.values())
    stayed = frozenset(one for one, (name, _) in after.owners.items() if before.owners[one][0] == name)
    untouched = sum(after.owners[one] == before.owners[one] for one in stayed)
    print(
        f"{what}: all claimed {(last - joined) / 1000:.2f} s after the join;"
        f" {len(after.owners) - len(stayed)} partitions moved, {len(stayed)} stayed, {untouched} of them untouched"
    )
    print(f"    {counted}", flush=True)
    return joined / 1000 + offset_s, last / 1000 + offset_s, stayed


def report_gaps(folder: Path, span: Span) -> None:
    """Print the longest times without a batch in partitions that kept their owner.

    There is one line for the rebalance, and one for an equally long time before it.
    """
    joined, claimed, stayed = span
    times: dict[Partition, list[float]] = {}
    for path in folder.glob("notes-*"):
        for place, noted in read_notes(path).items():
            times.setdefault(place, []).extend(noted)
    length = claimed - joined + 1
    for what, begin in (("before", joined - 3 - length), ("during", joined)):
        gaps = sorted(
            (right - left for place in stayed & times.keys() for left, right in pairwise(sorted(times[place]))
             if left < begin + length and right > begin),
            reverse=True,
        )  # fmt: skip
        shown = f"longest {gaps[0] * 1000:.0f} ms, p99 {gaps[len(gaps) // 100] * 1000:.0f} ms" if gaps else "none"
        print(f"    gaps between batches of partitions that stayed, {what} ({length:.1f} s): {shown}", flush=True)


def forget_group(cluster: Cluster) -> None:
    """Delete the nodes of the group, so that the next group starts from nothing."""
    with open_registry(cluster.zookeeper) as registry:
        registry.client.delete(f"/consumers/{GROUP}", recursive=True)


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(required=True)
    members = modes.add_parser("members")
    members.add_argument("--members", type=int, default=4)
    members.add_argument("--join", type=int, default=1)
    members.set_defaults(run=lambda args: asyncio.run(measure_members(args)))
    processes = modes.add_parser("processes")
    processes.add_argument("--rounds", type=int, default=1)
    processes.add_argument("--java", action="store_true")
    processes.add_argument("--release", default="1.1.1")
    processes.add_argument("--per-second", type=int, default=10)
    processes.set_defaults(run=measure_processes)
    for mode in (members, processes):
        mode.add_argument("--topics", type=int, default=10)
        mode.add_argument("--partitions", type=int, default=100)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}", flush=True)
    args.run(args)


if __name__ == "__main__":
    main()
