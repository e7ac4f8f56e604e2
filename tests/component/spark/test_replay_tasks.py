# SPDX-License-Identifier: Apache-2.0
"""Tasks of a restore, without Spark, into an embedded cluster; librdkafka reads what is committed there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from consumerd.client.new_topic import NewTopic
from consumerd.errors import BrokerError, ConfigError, OwnershipLost, PermanentSinkError, RetriableSinkError
from consumerd.mirror.positions_index import MirrorState
from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition
from consumerd.sinks.base import Start
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.spark.replay_mapped import prepare_target, read_positions
from consumerd.spark.replay_plan import PlannedLog
from consumerd.spark.replay_tasks import ReplayTarget, replay_rows, retry_target
from consumerd.wire.apikeys import ApiKey
from tests.support.claims import StubClaim
from tests.support.embedded import EmbeddedThread
from tests.support.mirroring import MirrorRig, P, numbers, open_mirror, read_committed
from tests.support.replay_rows import end_row, make_rows, row
from tests.support.topic_checks import topic_admin

pytestmark = pytest.mark.records

CLUSTER = "2-1700000000000"
MADE = Incarnation(7)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedThread]:
    with EmbeddedThread(tmp_path, None) as running:
        yield running


def plan(end: int, *, start: int = 0, partition: TopicPartition = P, incarnation: Incarnation = MADE) -> PlannedLog:
    return PlannedLog(partition=partition, incarnation=incarnation, start=start, end=end, position=start)


def name(broker: EmbeddedThread, **options: Any) -> ReplayTarget:
    options = {"bootstrap": broker.bootstrap, **options}
    return ReplayTarget(options=KafkaOptions.model_validate(options), group="mirror", cluster=CLUSTER)


def prepare(broker: EmbeddedThread, *logs: PlannedLog, **options: Any) -> ReplayTarget:
    target = name(broker, **options)
    prepare_target(target, logs)
    return target


def start(target: ReplayTarget, logs: Sequence[PlannedLog], batches: Sequence[pa.RecordBatch]) -> Iterator[Any]:
    return replay_rows(target, {log.name: log for log in logs}, iter(batches))


def run(target: ReplayTarget, logs: Sequence[PlannedLog], *batches: pa.RecordBatch) -> list[tuple[str, int, int, int]]:
    results = [one for batch in start(target, logs, batches) for one in batch.to_pylist()]
    return [(one["incarnation"], one["first"], one["position"], one["records"]) for one in results]


def offsets(broker: EmbeddedThread, topic: str = "orders") -> list[int]:
    return [int(one.value or b"-1") for one in read_committed(broker.bootstrap, topic)]


def rows(*offsets: int, **changes: Any) -> pa.RecordBatch:
    return make_rows(*(row(offset, **changes) for offset in offsets))


def find(broker: EmbeddedThread, source: TopicPartition = P) -> MirrorState:
    state = asyncio.run(MirrorRig(broker.bootstrap).find(source))
    assert state is not None
    return state


async def look(broker: EmbeddedThread, topic: str) -> str | None:
    """Return the topic's ``retention.ms``."""
    async with topic_admin(broker.bootstrap) as admin:
        found = (await admin.describe_topics([topic]))[topic]
        assert not isinstance(found, BrokerError)
        return found["retention.ms"].value


async def create_small(broker: EmbeddedThread) -> None:
    """Create the topic ``orders``, for small records."""
    async with topic_admin(broker.bootstrap) as admin:
        small = NewTopic(name="orders", partitions=1, replication_factor=1, configs={"max.message.bytes": "3000"})
        assert {"orders": None} == await admin.create_topics([small])


def test_a_later_attempt_fences_the_earlier_one_and_goes_on(broker: EmbeddedThread) -> None:
    """Spark runs a slow task twice at the same time: the first must not begin again."""
    logs = [plan(30)]
    target = prepare(broker, *logs)
    batches = [rows(*range(10)), rows(*range(10, 20)), rows(*range(20, 30)), make_rows(end_row(30))]
    came = [0]

    def slowly() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            came[0] += 1
            if came[0] == 1:  # the first batch is committed, and the twin does all the rest
                assert [("7", 10, 30, 20)] == run(target, logs, *batches)

    with pytest.raises(OwnershipLost, match="orders/0: another writer of group mirror has begun in the target"):
        list(replay_rows(target, {logs[0].name: logs[0]}, slowly()))
    assert [("7", 30, 30, 0)] == run(target, logs, *batches)
    assert list(range(30)) == offsets(broker)


def test_lost_answers_repeat_nothing(broker: EmbeddedThread) -> None:
    """The transaction was committed, or was not: the writer asks the target, not its memory."""
    logs = [plan(30)]
    target = prepare(broker, *logs, request_timeout_ms=500)
    for api in (ApiKey.END_TXN, ApiKey.PRODUCE, ApiKey.ADD_PARTITIONS_TO_TXN):
        broker.arm(lambda faults, api=api: faults.drop(api))  # type: ignore[misc]

    assert [("7", 0, 30, 30)] == run(target, logs, rows(*range(20)), rows(*range(20, 30)), make_rows(end_row(30)))
    assert list(range(30)) == offsets(broker)
    state = find(broker)
    seen = read_committed(broker.bootstrap, "orders")
    assert [one.offset for one in seen] == [state.offset_map().translate(position).offset for position in range(30)]


def test_a_log_without_records_has_its_end_as_position(broker: EmbeddedThread) -> None:
    """Retention has removed all rows: a mirror goes on behind them, and positions are translated to the end."""
    logs = [plan(50, start=20), plan(60, start=40, incarnation=Incarnation(7, 1))]
    target = prepare(broker, *logs)

    result = run(target, logs, make_rows(end_row(50), row(45, incarnation="7.1"), end_row(60, incarnation="7.1")))

    assert [("7", 20, 50, 0), ("7.1", 40, 60, 1)] == result
    assert 50 == find(broker).stored.source
    assert [50, 60] == [stored.source for stored in read_positions(target, "orders").values()]
    # a log that the target has passed gets no more records
    assert [("7", 50, 50, 0)] == run(target, logs, rows(30), make_rows(end_row(50)))
    assert [45] == offsets(broker)


def test_large_batches_are_several_transactions(broker: EmbeddedThread) -> None:
    """No transaction may take longer than the target allows."""
    value = b"%d" + b" " * 900_000
    batch = make_rows(*(row(offset, value=value % offset) for offset in range(40)), end_row(40))
    target = prepare(broker, plan(40))

    assert [("7", 0, 40, 40)] == run(target, [plan(40)], batch)
    seen = read_committed(broker.bootstrap, "orders")
    assert list(range(40)) == [int(one.value or b"") for one in seen]
    # a marker ends each transaction, and takes an offset
    assert [*range(18), *range(19, 37), *range(38, 42)] == [one.offset for one in seen]


def test_a_refused_record_is_named(broker: EmbeddedThread) -> None:
    """What is before its transaction stays, and the next run goes on there."""
    asyncio.run(create_small(broker))
    logs = [plan(60)]
    target = prepare(broker, *logs)
    first = rows(*range(10))
    second = make_rows(
        *(row(offset, value=b"x" * 4000 if offset == 37 else b"%d" % offset) for offset in range(10, 60))
    )

    with pytest.raises(
        PermanentSinkError, match=r"orders/0: .*record at offset 37, and nothing from 10 on .*max.message"
    ):
        run(target, logs, first, second)
    assert list(range(10)) == offsets(broker)
    assert 10 == find(broker).stored.source


def test_bytes_are_offsets_in_kafka_0_7(broker: EmbeddedThread) -> None:
    """Positions are those of whole messages, and a mirror of the same group goes on at the next one."""
    legacy = TopicPartition("orders", PartitionKey(0, BrokerId(3)))
    logs = [plan(800, partition=legacy)]
    target = prepare(broker, *logs)
    given = [
        row(40 * message, next_offset=40 * message + 40, index=index, broker=3, value=b"%d" % (40 * message))
        for message in range(20)
        for index in range(3)
    ]

    whole = make_rows(*given, end_row(800, broker=3))
    assert [("7", 0, 800, 60)] == run(target, logs, whole.slice(0, 31), whole.slice(31))

    seen = read_committed(broker.bootstrap, "orders")
    state = find(broker, legacy)
    assert state.stored.counts_bytes
    by_offset = {one.offset: int(one.value or b"") for one in seen}
    for message in range(20):
        assert 40 * message == by_offset[state.offset_map().translate(40 * message).offset]
    assert 60 == len(seen)


async def test_a_mirror_is_fenced_and_goes_on_afterwards(broker: EmbeddedThread) -> None:
    """The daemon still owns the partition: it begins again, behind what was restored."""
    logs = [plan(30)]
    target = await asyncio.to_thread(prepare, broker, *logs)
    async with open_mirror(broker.bootstrap) as rig:
        writer = await rig.sink.open(StubClaim(P))
        await writer.start(Start(position=0, reason="committed"))
        await writer.write(numbers(0, 10))
        result = await asyncio.to_thread(run, target, logs, rows(*range(30)), make_rows(end_row(30)))
        assert [("7", 0, 30, 30)] == result
        with pytest.raises(RetriableSinkError, match="fenced") as fenced:
            await writer.flush()
        assert 30 == fenced.value.resume_position
        await writer.write(numbers(30, 35))
        assert 35 == await writer.flush()
    assert list(range(35)) == await asyncio.to_thread(offsets, broker)


def test_what_is_missing_in_the_target_is_created(broker: EmbeddedThread) -> None:
    """With a partition for each one in bronze, and no retention: records keep their old timestamps."""
    target = name(broker, topic="old.{topic}")
    assert {} == read_positions(target, "orders")

    prepare_target(target, [plan(5), plan(5, partition=TopicPartition.modern("orders", 2))])

    assert "-1" == asyncio.run(look(broker, "old.orders"))
    assert 3 == len(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics().topics["old.orders"].partitions)
    assert {} == read_positions(target, "orders")
    with pytest.raises(ConfigError, match=r"cleanup\.policy"):
        prepare(broker, plan(5), positions_topic="old.orders")


async def test_a_target_that_fails_is_asked_for_a_while() -> None:
    """Then the error is raised as it was."""
    asked = []

    async def fail() -> None:
        asked.append(1)
        raise RetriableSinkError("not yet")

    with pytest.raises(RetriableSinkError, match="not yet"):
        await retry_target(fail, patience_s=0.3)
    assert len(asked) > 1
