# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the sink ``kafka``, with batches from memory, into a real broker.

    python -m bench.mirror [--partitions 1 4] [--seconds 6] [--rounds 5]
    python -m bench.mirror --many 1000

For each number of partitions the sink mirrors for some seconds, with transactions of 1 s and of 0.1 s. For comparison,
the same batches of 512 KiB are written by an idempotent producer's requests, without transactions, positions and maps.
They take turns in beginning a round; a ratio is the median of the ratios of the rounds. Beginning the partitions does
not count, the last commit does. Sink and broker share the cores.

``--many N`` instead begins N partitions, each of which then gets one small batch a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from bench.broker import resident_mib
from bench.machine import describe_machine
from bench.produce import in_turn
from bench.report import compare, millions, print_rows
from bench.results import Row
from bench.sinks import make_batch, shifted
from consumerd.access.address import ClusterAddress
from consumerd.access.opening import open_cluster
from consumerd.aio.clock import monotonic
from consumerd.aio.timeouts import timeout
from consumerd.client.produce_handler import ProduceRequests
from consumerd.client.producer_settings import ProducerSettings
from consumerd.client.producer_state import ProducerState
from consumerd.client.transaction_requests import TransactionRequests
from consumerd.errors import RetriableSinkError
from consumerd.mirror.positions import make_target_directory
from consumerd.model import TopicPartition
from consumerd.sinks.base import SinkContext, Start
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.sinks.kafka.sink import KafkaSink
from consumerd.telemetry.logs import configure_logging
from consumerd.wire.modern.building import ProducerBatch
from consumerd.wire.records import RecordBatch
from tests.support.claims import StubClaim
from tests.support.kafka import RELEASES
from tests.support.kraft import make_cluster

LEAST_RATIO: Final = 0.85
"""Target: rate in transactions of 1 s, divided by that of idempotent writes without transactions."""

BATCH_BYTES: Final = 512 << 10
_FLUSH_MS: Final = (1000, 100)
_CHECK_S: Final = 60.0
_CHECK_AGAIN_S: Final = 0.2
_PLAIN: Final = "idempotent writes"
_TOPIC: Final = "bench"


class _Gate:
    """Opens once a number of partitions have begun; then their time runs for some seconds."""

    def __init__(self, partitions: int, seconds: float) -> None:
        self._left = partitions
        self._seconds = seconds
        self._open = asyncio.Event()
        self.opened_at = 0.0
        self.until = 0.0

    async def wait(self) -> None:
        """Wait until all partitions wait here."""
        self._left -= 1
        if not self._left:
            self.opened_at = monotonic()
            self.until = self.opened_at + self._seconds
            self._open.set()
        await self._open.wait()


async def _mirror_one(sink: KafkaSink, batch: RecordBatch, number: int, gate: _Gate) -> int:
    """Mirror copies of a batch into one partition; return the number of records."""
    partition = TopicPartition.modern(_TOPIC, number)
    writer = await sink.open(StubClaim(partition))
    at = start = writer.resume_position or 0
    await writer.start(Start(position=start, reason="committed"))
    await gate.wait()
    while monotonic() < gate.until:
        await writer.write(replace(shifted(batch, at), partition=partition))
        at += len(batch)
        due = writer.deadline()
        if due is not None and monotonic() >= due:
            await writer.flush()
    await writer.flush()
    await writer.abandon()
    return at - start


def _context(group: str) -> SinkContext:
    return SinkContext(
        sink_name="new",
        group=group,
        cluster_id="1-1",
        writer_id="w",
        now=monotonic,
        charge=lambda _: None,
    )


async def _check(sink: KafkaSink) -> None:
    """Check a sink, as often as needed.

    A busy broker may not know the positions topic at once; daemons try again, too.
    """
    async with timeout(_CHECK_S):
        while True:
            try:
                return await sink.check()
            except RetriableSinkError:
                await asyncio.sleep(_CHECK_AGAIN_S)


async def measure_sink(bootstrap: str, partitions: int, seconds: float, flush_ms: int, size: int) -> float:
    """Return the rate of the sink in records/s, for values of ``size`` bytes."""
    options = KafkaOptions.model_validate({"bootstrap": bootstrap, "flush_ms": flush_ms, "batch_bytes": BATCH_BYTES})
    sink = KafkaSink(_context(f"bench-{flush_ms}-{partitions}"), options)
    batch = make_batch("repeated", size)
    await _check(sink)
    gate = _Gate(partitions, seconds)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_mirror_one(sink, batch, number, gate)) for number in range(partitions)]
    taken = monotonic() - gate.opened_at
    await sink.close()
    return sum(task.result() for task in running) / taken


async def measure_plain(bootstrap: str, partitions: int, seconds: float, size: int) -> float:
    """Return the rate of idempotent Produce requests with the same batches, in records/s."""
    batch = make_batch("repeated", size)
    address = ClusterAddress(bootstrap=bootstrap, client_id="bench")
    gate = _Gate(partitions, seconds)
    async with open_cluster(address, wait_s=None) as cluster:
        directory = make_target_directory(cluster)
        directory.follow_also((_TOPIC,))
        await directory.refresh(_TOPIC)
        settings = ProducerSettings(enable_idempotence=True)
        requests = ProduceRequests(cluster.pool, directory, settings)

        async def write(number: int) -> int:
            state = ProducerState(None)
            identity = TransactionRequests(cluster.pool, directory, settings, random=lambda: 0.5)
            action = state.next_action()
            assert action is not None
            found = await identity.perform(action, None)
            assert found is not None
            state.identified(found)
            partition = TopicPartition.modern(_TOPIC, number)
            count, step = 0, max(1, BATCH_BYTES // (size + 12))
            await gate.wait()
            while monotonic() < gate.until:
                for begin in range(0, len(batch), step):
                    end = min(begin + step, len(batch))
                    content = ProducerBatch()
                    content.add_columns(batch, begin, end)
                    sealed = content.seal(state.number(partition, end - begin), transactional=False)
                    leader = directory.find_leader(partition)
                    assert leader is not None
                    await requests.send_encoded(leader, partition, sealed)
                    count += end - begin
            return count

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(write(number)) for number in range(partitions)]
        return sum(task.result() for task in running) / (monotonic() - gate.opened_at)


def measure_transactions(
    seconds: float,
    rounds: int,
    *,
    release: str = "4.3.1",
    partitions: Sequence[int] = (1, 4),
    value_bytes: int = 100,
) -> list[Row]:
    """Let the sink and plain requests write in turns; return the rows."""
    configure_logging("warning")
    rows = []
    with make_cluster(release, heap="1g", brisk=False) as cluster:
        cluster.create_topic(_TOPIC, max(partitions), retention_bytes="1000000000")
        for count in partitions:
            given = (cluster.bootstrap, count, seconds)
            contestants: dict[str, Callable[[], Coroutine[Any, Any, float]]] = {
                f"transactions of {ms} ms": partial(measure_sink, *given, ms, value_bytes) for ms in _FLUSH_MS
            }
            contestants[_PLAIN] = partial(measure_plain, *given, value_bytes)
            rates: dict[str, list[float]] = {name: [] for name in contestants}
            for turn in range(rounds):
                for name in in_turn(list(contestants), turn):
                    rates[name].append(asyncio.run(contestants[name]()))
                    print(f"  {count} partitions, {name:24} {millions(rates[name][-1])}", flush=True)
            for ms in _FLUSH_MS:
                ours = f"transactions of {ms} ms"
                work = (
                    f"{release}, values of {value_bytes} bytes from memory into {count} partitions: sink kafka, {ours}"
                )
                least = LEAST_RATIO if ms == _FLUSH_MS[0] else None
                rows.append(compare(work, rates[ours], rates[_PLAIN], _PLAIN, least))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Cost of many partitions: to begin, and with a small batch a second each.

    Times are in seconds.

    Attributes:
        begun_s: until all have begun.
        begun_cpu_s: CPU time of this process until then.
        transactions: number of transactions a second.
        cores: share of a core that this process takes for them.
        flush_s: median time of a flush.
        resident_mib: memory of this process.
        read_s: time to read the positions of all.
    """

    begun_s: float
    begun_cpu_s: float
    transactions: float
    cores: float
    flush_s: float
    resident_mib: float
    read_s: float


async def measure_many(bootstrap: str, partitions: int, seconds: float) -> Many:
    """Begin many partitions; then mirror one small batch a second into each."""
    context = _context(f"many-{partitions}-{time.monotonic_ns()}")
    sink = KafkaSink(context, KafkaOptions.model_validate({"bootstrap": bootstrap}))
    await _check(sink)
    small = make_batch("repeated", 100).rows(0, 10)
    small = replace(small, next_offset=small.start + 10)
    admitted = asyncio.Semaphore(64)
    flushes: list[float] = []
    gate = _Gate(partitions + 1, seconds)

    async def run(number: int) -> None:
        partition = TopicPartition.modern(_TOPIC, number)
        async with admitted:
            writer = await sink.open(StubClaim(partition))
            await writer.start(Start(position=0, reason="committed"))
        await gate.wait()
        await asyncio.sleep(number / partitions)
        at = 0
        while monotonic() < gate.until:
            await writer.write(replace(shifted(small, at), partition=partition))
            at += len(small)
            await asyncio.sleep(1.0)
            flushed = monotonic()
            await writer.flush()
            flushes.append(monotonic() - flushed)

    began, cpu = monotonic(), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for number in range(partitions):
            tasks.create_task(run(number))
        await gate.wait()
        begun_s, begun_cpu_s = gate.opened_at - began, time.process_time() - cpu
        cpu = time.process_time()
        await asyncio.sleep(gate.until - monotonic())
        done, cores = len(flushes), (time.process_time() - cpu) / seconds
        resident = resident_mib(os.getpid())
    began = monotonic()
    again = KafkaSink(context, KafkaOptions.model_validate({"bootstrap": bootstrap}))
    await again.open(StubClaim(TopicPartition.modern(_TOPIC, 0)))
    read_s = monotonic() - began
    await again.close()
    await sink.close()
    return Many(
        begun_s=begun_s,
        begun_cpu_s=begun_cpu_s,
        transactions=done / seconds,
        cores=cores,
        flush_s=statistics.median(flushes),
        resident_mib=resident,
        read_s=read_s,
    )


def measure_start(partitions: int, seconds: float, rounds: int, *, release: str = "4.3.1") -> list[Row]:
    """Begin many partitions in each round, and return the row."""
    configure_logging("warning")
    found = []
    with make_cluster(release, heap="1g", brisk=False) as cluster:
        cluster.create_topic(_TOPIC, partitions)
        for _ in range(rounds):
            found.append(asyncio.run(measure_many(cluster.bootstrap, partitions, seconds)))
            print(f"  {found[-1]}", flush=True)
    begun = [one.begun_s for one in found]

    def median(name: str) -> float:
        values: list[float] = [getattr(one, name) for one in found]
        return statistics.median(values)

    return [
        Row(
            work=f"{release}, {partitions} partitions: sink kafka, until all have begun; then one transaction a second "
            "in each",
            target="",
            figure=f"**{statistics.median(begun):.1f} s** ({min(begun):.1f} to {max(begun):.1f}), "
            f"{median('begun_cpu_s'):.1f} s of CPU; then {median('transactions'):,.0f} transactions/s at "
            f"{median('cores'):.2f} of a core, {1000 * median('flush_s'):.0f} ms each, "
            f"{median('resident_mib'):.0f} MiB; positions read again in {median('read_s'):.2f} s",
        )
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", choices=RELEASES, default="4.3.1")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each reading")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--many", type=int, metavar="N", help="begin N partitions, each with one small batch a second")
    given = parser.parse_args()
    print(f"{describe_machine()}; records/s", flush=True)
    if given.many:
        print_rows(measure_start(given.many, given.seconds, given.rounds, release=given.release))
        return
    rows = measure_transactions(
        given.seconds,
        given.rounds,
        release=given.release,
        partitions=given.partitions,
        value_bytes=given.value_bytes,
    )
    print_rows(rows)


if __name__ == "__main__":
    main()
