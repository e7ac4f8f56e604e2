# SPDX-License-Identifier: Apache-2.0
"""Measurement of the pipeline's cases: their workers take turns, round after round."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from bench.report import millions
from bench.spark import landing, logs, memory
from bench.spark.cases import Case, Work, Worker
from bench.spark.report import MIB
from bench.spark.session import Reading, Session, SessionFailed
from bench.spark.works import Done, Order, Proof
from tests.support.kafka import Cluster
from tests.support.spark_kafka import spark_with_kafka

RELEASE: Final = "1.1.1"
TOPIC: Final = "bench"
PARTITIONS: Final = 4
TRIGGERS: Final = 4

_NOBODY_SWEEPS: Final = {"log.segment.bytes": "1073741824", "log.retention.check.interval.ms": "300000"}
"""Kafka's default values, some of which the test cluster shortens."""

Found = tuple[Mapping[Worker, Sequence[Reading]], Sequence[str]]
"""Readings of each worker in the order of the rounds, and texts of what failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Sizes of a run.

    Attributes:
        rounds: number of rounds that count.
        records: records of a topic, or of a landing zone.
        names: file names for an audit.
        keys: keys of a table of latest values.
        commits: commits of a long log.
        files: landed files that a driver plans.
        holes: offset gaps of a compacted topic that a driver plans.
    """

    rounds: int
    records: int
    names: int
    keys: int
    commits: int
    files: int
    holes: int


class ProofDiffers(Exception):
    """A worker read a wrong number of rows, or other rows than another worker."""


def measure(cases: Sequence[Case], effort: Effort) -> Iterator[tuple[Case, Found]]:
    """Measure cases one after another; yield each with its readings and failures.

    Raises ProofDiffers.
    """
    with scratch() as folder, _Sessions(folder) as sessions:
        for of_a_topic, some in itertools.groupby(cases, lambda case: case.of_a_topic):
            with topic(effort.records) if of_a_topic else contextlib.nullcontext("") as bootstrap:
                for case in some:
                    print(f"\n{case.name}: {case.what}", flush=True)
                    home = folder / case.name
                    home.mkdir()
                    yield case, _measure(case, effort, home, sessions, bootstrap)
                    shutil.rmtree(home)


def _measure(case: Case, effort: Effort, home: Path, sessions: _Sessions, bootstrap: str) -> Found:
    if case.work is Work.AUDIT:
        return _audit(home / "landing", effort), ()
    if case.work is Work.LOG:
        return _log(home, effort), ()
    if case.work is Work.MEMORY:
        return _memory(home, effort), ()
    rows = dict.fromkeys(case.workers, effort.records)
    if case.work is Work.LANDED:
        rows[Worker.BRONZE], rows[Worker.COPY] = landing.land(home / "landing", case.payload, effort.records)
    if case.work is Work.LATEST:
        rows = dict.fromkeys(case.workers, effort.keys)
        sessions.of(Worker.LATEST).do(order_latest("prepare", home, effort.keys))
    readings: dict[Worker, list[Reading]] = {worker: [] for worker in case.workers}
    failures = []
    proofs: dict[int, Proof] = {}
    # every second round runs in reverse order; the first one is a warm-up
    for number in range(effort.rounds + 1):
        for worker in case.workers if number % 2 == 0 else reversed(case.workers):
            order = order_of(case, worker, home, bootstrap, effort)
            try:
                reading, done = sessions.of(worker).do(order)
            except SessionFailed as error:
                failures.append(f"{case.name}: {worker}, round {number}: {textwrap.shorten(str(error)[-600:], 600)}")
                print(f"    round {number}: {worker:24} {error}", flush=True)
                continue
            finally:
                for path in home.glob("out*"):
                    shutil.rmtree(path)
            check(worker, done, rows[worker], proofs)
            said = f"{millions(reading.rows / reading.seconds):>8} over {reading.seconds:.2f} s"
            print(f"    round {number}: {worker:24} {said}, processor {reading.processor_s:.1f} s", flush=True)
            if number:
                readings[worker].append(reading)
    return readings, failures


def check(worker: Worker, done: Done, rows: int, proofs: dict[int, Proof]) -> None:
    """Check the row count of a result, and its proof against those of other workers.

    Args:
        worker: name for the message.
        done: the result.
        rows: expected number of rows.
        proofs: the first proof for each number of rows. The result's is added if it is the first.

    Raises ProofDiffers.
    """
    if done.rows != rows:
        raise ProofDiffers(f"{worker} had {done.rows} rows; there are {rows}")
    if proofs.setdefault(rows, done.proof) != done.proof:
        raise ProofDiffers(f"{worker} had {done.proof}; somebody before had {proofs[rows]}")


def order_of(case: Case, worker: Worker, home: Path, bootstrap: str, effort: Effort) -> Order:
    """Return the order for a worker of a case.

    Args:
        home: folder of the case, for the input and the output of the work.
        bootstrap: addresses of the broker that has the topic.
    """
    if case.work is Work.LATEST:
        return order_latest("refresh" if worker is Worker.LATEST else "anew", home, effort.keys)
    if case.work is Work.LANDED:
        name = {Worker.COPY: "copy", Worker.BRONZE: "bronze"}[worker]
        return Order(work=case.work, folder=f"{home}/out", format=name, options={}, source=f"{home}/landing")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    if case.work is Work.STREAM:
        options["maxOffsetsPerTrigger"] = str(-(-effort.records // TRIGGERS))
    name = "kafka" if worker is Worker.THEIRS else "consumerd"
    return Order(work=case.work, folder=f"{home}/out", format=name, options=options)


def _audit(root: Path, effort: Effort) -> Mapping[Worker, Sequence[Reading]]:
    """Measure the audit of file names.

    The first round is a warm-up: the operating system reads the names from the disk.
    """
    landing.name(root, effort.names)
    readings = []
    for number in range(effort.rounds + 1):
        began, worked = time.perf_counter(), time.process_time()
        files = landing.audit_names(root)
        seconds, processor_s = time.perf_counter() - began, time.process_time() - worked
        if files != effort.names:
            raise ProofDiffers(f"{Worker.AUDIT} saw {files} files; there are {effort.names}")
        print(f"    round {number}: {Worker.AUDIT:24} {seconds:.2f} s", flush=True)
        if number:
            readings.append(Reading(seconds=seconds, processor_s=processor_s, rows=files))
    return {Worker.AUDIT: readings}


def order_latest(how: str, home: Path, keys: int) -> Order:
    """Return an order for a table of latest values.

    Args:
        how: ``prepare`` creates the table, ``refresh`` adds the new rows, ``anew`` computes it from all rows.
        home: folder of the case.
        keys: number of keys.
    """
    return Order(work=Work.LATEST, folder=f"{home}/out", format=how, options={"keys": str(keys)}, source=f"{home}/lake")


def _log(home: Path, effort: Effort) -> Mapping[Worker, Sequence[Reading]]:
    """Measure the opening of two tables that are equally far from their checkpoints."""
    commits = {Worker.LONG: effort.commits + logs.BEHIND, Worker.SHORT: logs.SHORT + logs.BEHIND}
    for worker, count in commits.items():
        print(f"    making {worker}: {count}", flush=True)
        logs.make_log(home / worker.name, count)
    readings: dict[Worker, list[Reading]] = {worker: [] for worker in commits}
    for number in range(effort.rounds + 1):
        for worker, count in commits.items():
            reading = logs.open_often(home / worker.name, count)
            size = f"{(reading.size or 0) / 1e6:.1f} MB of log"
            processor = f"processor {reading.processor_s * 1e3:.1f} ms"
            print(f"    round {number}: {worker:24} {reading.seconds * 1e3:.1f} ms, {processor}, {size}", flush=True)
            if number:
                readings[worker].append(reading)
    return readings


def _memory(home: Path, effort: Effort) -> Mapping[Worker, Sequence[Reading]]:
    """Measure the memory of drivers that plan, each in a process of its own."""
    readings = []
    for number in range(effort.rounds):
        reading = memory.measure_driver(home / f"out-{number}", effort.files, effort.holes)
        size = f"at most {(reading.size or 0) / MIB:.0f} MiB"
        print(f"    round {number}: {Worker.DRIVER:24} {size} over {reading.seconds:.1f} s", flush=True)
        readings.append(reading)
        for path in home.glob("out*"):
            shutil.rmtree(path)
    return {Worker.DRIVER: readings}


class _Sessions:
    """Spark sessions, each started at its first use. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: dict[bool, Session] = {}
        self._end = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.close()

    def of(self, worker: Worker) -> Session:
        """Return the session of a worker. Raises SessionFailed, KafkaUnavailable."""
        with_kafka = worker in (Worker.THEIRS, Worker.BESIDE)
        if with_kafka not in self._started:
            session = self._of_kafka() if with_kafka else Session(self._folder / "session", {})
            self._started[with_kafka] = self._end.enter_context(session)
        return self._started[with_kafka]

    def _of_kafka(self) -> Session:
        spark = spark_with_kafka()
        jars = {"spark.jars": ",".join(map(str, spark.jars))}
        return Session(self._folder / "session-with-kafka", jars, spark.environment())


@contextmanager
def topic(records: int) -> Iterator[str]:
    """Start a broker with the filled topic; yield its bootstrap addresses."""
    with Cluster(RELEASE, heap="1g", properties=_NOBODY_SWEEPS, brisk=False) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.perf_produce(TOPIC, records)
        yield cluster.bootstrap


@contextmanager
def scratch() -> Iterator[Path]:
    """Create a temporary folder and delete it at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="consumerd-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
