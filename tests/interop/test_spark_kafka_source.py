# SPDX-License-Identifier: Apache-2.0
"""The data source ``consumerd`` gives what Spark's own Kafka source gives: the same columns, the same rows, as whole tables.

Spark's own runs on the pyspark that it is of (``tests.support.spark_kafka``), ours on that one and on the one that is
installed here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.interop.conftest import MAIN_RELEASE, ClusterFactory
from tests.interop.test_data_faults import Transactions
from tests.support.kafka import CODECS, Cluster, Sent
from tests.support.spark_kafka import SparkWithKafka, spark_with_kafka
from tests.support.spark_reads import SparkJob, SparkRead, run_reads
from tests.support.tools import require_jars

PARTITIONS = 4
IN_EACH_CODEC = 500

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.records, pytest.mark.drawn(parts=3)]

Ledger = Mapping[tuple[str, int, int], Sent]
Read = tuple[Mapping[str, str], bool]
"""Options, and whether it is a stream."""


@dataclass(frozen=True, slots=True)
class Produced:
    """Topics of a cluster, and what one of them holds; ``mark_ms`` lies between its first records and the others."""

    cluster: Cluster
    records: str
    transactions: str
    ledger: Ledger
    mark_ms: int


@pytest.fixture(scope="module")
def peer() -> SparkWithKafka:
    """Skip, or fail where CI requires Kafka, unless Spark's own source is or can be had."""
    with require_jars():
        return spark_with_kafka()


@pytest.fixture(scope="module")
def produced(shared_clusters: ClusterFactory, peer: SparkWithKafka) -> Produced:
    """Keys and values of all kinds in all codecs and several partitions, and a topic of transactions."""
    cluster = shared_clusters(MAIN_RELEASE, 2)
    records, transactions = f"spark-{os.getpid()}-records", f"spark-{os.getpid()}-transactions"
    cluster.create_topic(records, PARTITIONS)
    ledger: dict[tuple[str, int, int], Sent] = {}
    mark_ms = 0
    for number, codec in enumerate(CODECS[cluster.release]):
        producer = cluster.ledger_producer(codec)
        producer.send(_make_records(records, number))
        ledger |= producer.finish()
        if number == 0:
            # the next producer starts later than that, and everything before has been acknowledged
            mark_ms = time.time_ns() // 1_000_000 + 1
    cluster.create_topic(transactions)
    with Transactions(cluster, transactions) as producing:
        for end in ("commit", "abort", "commit", "abort"):
            producing.do("begin")
            producing.send(*(f"{end}-{number}" for number in range(5)))
            producing.do(end)
    return Produced(cluster, records, transactions, ledger, mark_ms)


def _make_records(topic: str, seed: int) -> Iterator[Sent]:
    source = random.Random(seed)
    data = (None, b"", b"x", "päivää".encode(), b"\xff\x00", source.randbytes(300), source.randbytes(5000))
    headers = ((), (("name", b"value"), ("null", None), ("name", b"")))
    for number in range(IN_EACH_CODEC):
        yield Sent(topic, number % PARTITIONS, source.choice(data), source.choice(data), source.choice(headers))


def _reads(produced: Produced) -> list[Read]:
    """Return the ways of asking that are compared."""
    some = {"0": 10, "1": -2, "3": 7}
    others = {"0": 60, "1": 50, "3": -1}
    everything = {"subscribe": produced.records, "includeHeaders": "true", "startingOffsets": "earliest"}
    return [
        (everything, False),
        ({"subscribe": f"{produced.records},{produced.transactions}", "minPartitions": "11"}, False),
        (
            {
                "assign": json.dumps({produced.records: [0, 1, 3]}),
                "startingOffsets": json.dumps({produced.records: some}),
                "endingOffsets": json.dumps({produced.records: others}),
                "kafka.max.partition.fetch.bytes": "20000",
            },
            False,
        ),
        ({"subscribePattern": f"{produced.records[:-2]}.*", "startingTimestamp": str(produced.mark_ms)}, False),
        ({"subscribePattern": f"{produced.records[:-2]}.*", "endingTimestamp": str(produced.mark_ms)}, False),
        ({"subscribe": produced.transactions, "kafka.isolation.level": "read_committed"}, False),
        ({**everything, "maxOffsetsPerTrigger": "700"}, True),
    ]


def _job(
    produced: Produced, name: str, folder: Path, settings: Mapping[str, str] | None = None
) -> tuple[SparkJob, list[str]]:
    where = {"kafka.bootstrap.servers": produced.cluster.bootstrap}
    reads = [
        SparkRead(format=name, options={**where, **options}, to=str(folder / f"read-{number}"), streaming=streaming)
        for number, (options, streaming) in enumerate(_reads(produced))
    ]
    return SparkJob(reads=reads, settings=settings or {}), [read.to for read in reads]


def _load(folder: str) -> pa.Table:
    return pq.read_table(folder).sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


@pytest.fixture(scope="module")
def given(
    produced: Produced, peer: SparkWithKafka, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[Sequence[Any], Sequence[pa.Table]]]:
    """Schemas and tables, read by read, of Spark's own source and of ours on either pyspark."""
    folder = tmp_path_factory.mktemp("spark")
    jars = {"spark.jars": ",".join(map(str, peer.jars))}
    theirs, to_theirs = _job(produced, "kafka", folder / "theirs", jars)
    beside, to_beside = _job(produced, "consumerd", folder / "beside")
    ours, to_ours = _job(produced, "consumerd", folder / "ours")
    both = SparkJob(reads=[*theirs.reads, *beside.reads], settings=jars)
    schemas = run_reads(both, folder / "peer", environment=peer.environment(), timeout_s=300)
    found = {
        "theirs": (schemas[: len(to_theirs)], [_load(one) for one in to_theirs]),
        "beside": (schemas[len(to_theirs) :], [_load(one) for one in to_beside]),
    }
    return {**found, "ours": (run_reads(ours, folder / "here", timeout_s=200), [_load(one) for one in to_ours])}


@pytest.mark.parametrize("which", ["ours", "beside"])
def test_columns_and_rows_are_those_of_sparks_own_source(given: Mapping[str, Any], which: str) -> None:
    """Names, types, order, values, nulls, timestamps to the microsecond: a job cannot tell the two apart."""
    their_schemas, their_tables = given["theirs"]
    schemas, tables = given[which]
    for number, (theirs, ours) in enumerate(zip(their_tables, tables, strict=True)):
        assert their_schemas[number] == schemas[number]
        assert theirs.schema == ours.schema, number
        assert theirs.num_rows == ours.num_rows, number
        assert theirs.equals(ours), f"read {number}: {_first_difference(theirs, ours)}"


def test_it_is_what_was_produced(given: Mapping[str, Any], produced: Produced) -> None:
    """Two sources that agree could both be wrong."""
    for table in (given["ours"][1][0], given["ours"][1][-1]):
        found = {
            (row["topic"], row["partition"], row["offset"]): Sent(
                row["topic"],
                row["partition"],
                row["key"],
                row["value"],
                tuple((one["key"], one["value"]) for one in row["headers"] or ()),
            )
            for row in table.to_pylist()
        }
        assert found == dict(produced.ledger)
        assert table.num_rows == len(produced.ledger)


def test_the_ways_of_asking_differ(given: Mapping[str, Any], produced: Produced) -> None:
    """Each read selects what it should: tables that are empty, or all the same, would be equal as well."""
    everything, both, assigned, after, before, committed, streamed = given["ours"][1]
    at = Counter(place[1] for place in produced.ledger)
    assert both.num_rows == everything.num_rows + 20
    assert Counter(assigned["partition"].to_pylist()) == {0: 50, 1: 50, 3: at[3] - 7}
    assert after.num_rows + before.num_rows == everything.num_rows
    assert before.num_rows == IN_EACH_CODEC
    assert pc.unique(pc.binary_slice(committed["value"], 0, 6)).to_pylist() == [b"commit"]
    assert committed.num_rows == 10
    assert streamed.num_rows == everything.num_rows


def _first_difference(one: pa.Table, other: pa.Table) -> str:
    for left, right in itertools.zip_longest(one.to_pylist(), other.to_pylist()):
        if left != right:
            with contextlib.suppress(TypeError, AttributeError):
                left, right = ({key: row[key] for key in row if left[key] != right[key]} for row in (left, right))
            return f"{left} and {right}"
    return "none that Python sees"
