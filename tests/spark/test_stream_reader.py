# SPDX-License-Identifier: Apache-2.0
"""What the stream reader tells Spark, on a cluster that is made up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from structlog.testing import capture_logs

from consumerd.cluster.identities import ClusterIdentities
from consumerd.cluster.view import Broker
from consumerd.errors import NotFound, OffsetError
from consumerd.model import Incarnation, LogRange, TopicPartition
from consumerd.spark.datasource.options import ReadOptions, Selection, Subscribe, parse_read_options
from consumerd.spark.datasource.stream import ConsumerdStreamReader

A, B = (TopicPartition.modern("orders", number) for number in range(2))
ALL = ReadAllAvailable()
OTHER_ID = "a5g7j1tvSx-Ob3bjRwaYgQ"


class _Cluster:
    """Logs by partition. ``hidden`` partitions are found from the nth look on, ``grown`` logs are there with the second."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, LogRange] = {}
        self.hidden: dict[TopicPartition, int] = {}
        self.grown: dict[TopicPartition, LogRange] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.made: dict[str, str] = {}
        self.identities = ClusterIdentities()
        self.open = 0
        self.slept = 0.0
        self.now = 0.0

    def __enter__(self) -> Self:
        self.open += 1
        return self

    def __exit__(self, *_exc: object) -> None:
        self.open -= 1

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.hidden = {one: looks - 1 for one, looks in self.hidden.items()}
        self.logs |= self.grown

    def bootstrap(self) -> str:
        return "elsewhere:9092"

    def find_brokers(self, _partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Broker]:
        return {}

    def find_segments(self, _partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Sequence[int]]:
        return {}

    def find_partitions(self, selection: Selection) -> tuple[TopicPartition, ...]:
        found = tuple(one for one in sorted(self.logs) if self.hidden.get(one, 0) <= 0)
        if isinstance(selection, Subscribe):
            for topic in selection.topics:
                if all(one.topic != topic for one in found):
                    raise NotFound(f"{topic}: no such topic")
            return tuple(one for one in found if one.topic in selection.topics)
        return found

    def log_ranges(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        return {one: self.logs[one] for one in partitions}

    def find_incarnations(self, topics: Collection[str]) -> Mapping[str, str]:
        return {topic: self.made[topic] for topic in topics if topic in self.made}

    def resolve_start(self, _options: ReadOptions, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {one: self.starts.get(one, self.logs[one].latest) for one in partitions}


def _reader(cluster: _Cluster, **options: str) -> ConsumerdStreamReader:
    given = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"} | options
    made: Any = lambda _options: cluster  # noqa: E731
    return ConsumerdStreamReader(
        parse_read_options(given, streaming=True), connect=made, now=lambda: cluster.now, sleep=cluster.sleep
    )


def _cluster(**logs: tuple[int, int]) -> _Cluster:
    cluster = _Cluster()
    cluster.logs = {TopicPartition.modern("orders", int(name[1:])): LogRange(*ends) for name, ends in logs.items()}
    return cluster


def test_a_query_begins_with_a_trigger_without_rows() -> None:
    """Else ``latest`` would mean another offset when the first trigger is repeated, and what came between be lost."""
    cluster = _cluster(p0=(0, 7), p1=(0, 3))
    reader = _reader(cluster)
    begin = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.logs[A] = LogRange(0, 9)
    end = reader.latestOffset(begin, ALL)

    assert {"orders": {"0": 7, "1": 3}} == begin
    assert [] == reader.partitions(reader.initialOffset(), begin)
    assert {"orders": {"0": 9, "1": 3}} == end
    assert ["orders/0 [7, 9)"] == [str(one.task.range) for one in reader.partitions(begin, end)]
    assert {"orders": {"0": 9, "1": 3}} == reader.reportLatestOffset()


def test_nothing_new_is_said_with_the_very_offsets_that_were_given() -> None:
    """Spark compares texts; a checkpoint of Spark's own source may order its partitions otherwise."""
    start = {"orders": {"1": 3, "0": 7}}

    assert list(start["orders"]) == list(_reader(_cluster(p0=(0, 7), p1=(0, 3))).latestOffset(start, ALL)["orders"])


def test_the_limit_is_the_one_that_spark_passes_on() -> None:
    """Spark says when a trigger is to take everything, whatever the option."""
    reader = _reader(_cluster(p0=(0, 100)), maxOffsetsPerTrigger="10")
    limit = reader.getDefaultReadLimit()

    assert ReadMaxRows(10) == limit
    assert {"orders": {"0": 15}} == reader.latestOffset({"orders": {"0": 5}}, limit)
    assert {"orders": {"0": 100}} == reader.latestOffset({"orders": {"0": 5}}, ALL)


def test_ranges_are_divided_as_for_a_batch() -> None:
    """More tasks than partitions."""
    ranges = _reader(_cluster(), minPartitions="4").partitions({"orders": {"0": 0}}, {"orders": {"0": 100}})

    assert 4 == len(ranges)


def test_available_now_ends_where_the_logs_ended_when_it_began() -> None:
    """Producers go on, the query must not."""
    cluster = _cluster(p0=(0, 10))
    reader = _reader(cluster, maxOffsetsPerTrigger="6")
    reader.prepareForTriggerAvailableNow()
    cluster.logs = {A: LogRange(0, 500), B: LogRange(0, 5)}
    positions = [{"orders": {"0": 0}}]
    for _ in range(3):
        positions.append(reader.latestOffset(positions[-1], ReadMaxRows(6)))

    assert [0, 6, 10, 10] == [one["orders"]["0"] for one in positions]
    assert positions[-1] is positions[-2]


def test_lost_offsets_end_the_query_and_say_what_would_not() -> None:
    """Retention has passed the position."""
    with pytest.raises(OffsetError) as lost:
        _reader(_cluster(p0=(50, 90))).latestOffset({"orders": {"0": 7}}, ALL)

    assert "orders/0: offset 7 is outside the broker's log [50, 90]" in str(lost.value)
    assert "failOnDataLoss" in str(lost.value)


def test_lost_offsets_are_told_where_they_are_allowed() -> None:
    """Allowed is not unnoticed."""
    reader = _reader(_cluster(p0=(50, 90)), failOnDataLoss="false")
    with capture_logs() as logs:
        assert {"orders": {"0": 90}} == reader.latestOffset({"orders": {"0": 7}}, ALL)

    assert ["records_lost"] == [line["event"] for line in logs]
    assert "offset 7" in logs[0]["reason"]


def test_a_partition_is_gone_only_if_it_is_missed_again_and_again() -> None:
    """A broker that has just started knows few partitions for a moment."""
    cluster = _cluster(p0=(0, 5), p1=(0, 5))
    cluster.hidden = {B: 2}

    assert {"orders": {"0": 5, "1": 5}} == _reader(cluster).latestOffset({"orders": {"0": 5, "1": 1}}, ALL)
    assert cluster.slept > 0


def test_a_log_has_lost_its_end_only_if_it_is_seen_again_and_again() -> None:
    """A new leader hears moments late up to where its predecessor has shown records."""
    cluster = _cluster(p0=(0, 95))
    cluster.grown = {A: LogRange(0, 102)}
    with capture_logs() as logs:
        end = _reader(cluster, failOnDataLoss="false").latestOffset({"orders": {"0": 100}}, ALL)

    assert {"orders": {"0": 102}} == end, "else what was read comes twice"
    assert [] == logs


def test_a_log_that_has_lost_its_end_is_believed_in_the_end() -> None:
    """A topic that was made again, say."""
    cluster = _cluster(p0=(0, 95))
    with pytest.raises(OffsetError, match=r"orders/0: offset 100 is outside the broker's log \[0, 95\]"):
        _reader(cluster).latestOffset({"orders": {"0": 100}}, ALL)

    assert 2.0 == cluster.slept


@pytest.mark.parametrize("start", [3, 91])
def test_a_start_that_the_log_does_not_hold_is_not_noted(start: int) -> None:
    """From a checkpoint on no other startingOffsets would count."""
    cluster = _cluster(p0=(50, 90))
    cluster.starts = {A: start}
    named = {"startingOffsets": f'{{"orders": {{"0": {start}}}}}'}
    with pytest.raises(OffsetError, match=f"orders/0: offset {start} is outside the broker's log .* failOnDataLoss"):
        _reader(cluster, **named).latestOffset({}, ALL)

    assert {"orders": {"0": start}} == _reader(cluster, failOnDataLoss="false", **named).latestOffset({}, ALL)


def test_an_assigned_partition_that_is_gone_is_left_out_where_that_is_allowed() -> None:
    """As with topics: the others go on."""
    cluster = _cluster(p0=(0, 5), p1=(0, 9))
    assigned = {"assign": '{"orders": [0, 3], "clicks": [0]}', "subscribe": ""}
    start = {"clicks": {"0": 9}, "orders": {"0": 1, "3": 4}}
    with capture_logs() as logs:
        end = _reader(cluster, failOnDataLoss="false", **assigned).latestOffset(start, ALL)

    assert {"orders": {"0": 5}} == end
    assert ["clicks/0", "orders/3"] == [line["reason"].partition(":")[0] for line in logs]


def test_a_partition_that_is_gone_ends_the_query() -> None:
    """Its topic was deleted, and perhaps made again with fewer."""
    with pytest.raises(OffsetError, match="orders/1: the partition is not there any more; it was read up to 4"):
        _reader(_cluster(p0=(0, 5))).latestOffset({"orders": {"0": 5, "1": 4}}, ALL)


def test_a_topic_that_is_gone_is_left_out_where_that_is_allowed() -> None:
    """The others go on; where there is none left the query stands."""
    cluster = _cluster(p0=(0, 5))
    reader = _reader(cluster, subscribe="orders,clicks", failOnDataLoss="false")
    with capture_logs() as logs:
        assert {"orders": {"0": 5}} == reader.latestOffset({"clicks": {"0": 9}, "orders": {"0": 1}}, ALL)

    assert ["clicks/0: the partition is not there any more; it was read up to 9"] == [one["reason"] for one in logs]
    cluster.logs = {}
    assert {"orders": {"0": 5}} == reader.latestOffset({"orders": {"0": 5}}, ALL)


def test_too_little_waits_for_more_but_not_for_ever() -> None:
    """Small triggers make small files; late ones make old data."""
    cluster = _cluster(p0=(0, 10))
    reader = _reader(cluster, minOffsetsPerTrigger="100", maxTriggerDelay="30s")
    first = reader.latestOffset({"orders": {"0": 0}}, ALL)
    cluster.logs[A] = LogRange(0, 60)
    cluster.now = 29.0
    held = reader.latestOffset(first, ALL)
    cluster.now = 30.0
    late = reader.latestOffset(first, ALL)
    cluster.logs[A] = LogRange(0, 160)
    enough = reader.latestOffset(late, ALL)

    assert [10, 10, 60, 160] == [one["orders"]["0"] for one in (first, held, late, enough)]


def test_too_little_is_read_where_the_query_is_to_end() -> None:
    """availableNow reads what there is."""
    cluster = _cluster(p0=(0, 10))
    reader = _reader(cluster, minOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset({"orders": {"0": 0}}, ReadMaxRows(5))

    assert {"orders": {"0": 10}} == reader.latestOffset(first, ReadMaxRows(5))


def test_executors_are_told_the_brokers_that_were_found() -> None:
    """They need not reach ZooKeeper."""
    (one,) = _reader(_cluster(), zookeeper="zk:2181").partitions({"orders": {"0": 0}}, {"orders": {"0": 1}})

    assert ("elsewhere:9092", None) == (one.task.cluster.bootstrap, one.task.cluster.zookeeper)


def test_the_connection_is_made_once_and_given_up_at_the_end() -> None:
    """A query may run for months."""
    cluster = _cluster(p0=(0, 10))
    reader = _reader(cluster)
    assert 0 == cluster.open
    reader.latestOffset({}, ALL)
    reader.latestOffset({"orders": {"0": 1}}, ALL)
    assert 1 == cluster.open
    reader.stop()
    reader.stop()

    assert 0 == cluster.open


def test_a_topic_that_was_made_again_is_read_from_its_beginning_however_far_it_has_grown() -> None:
    """Its offsets are other records; a position of the old one would pass over the new one's head."""
    cluster = _Cluster()
    cluster.logs, cluster.made = {A: LogRange(0, 100), B: LogRange(0, 10)}, {"orders": "7"}
    reader = _reader(cluster, startingOffsets="earliest", failOnDataLoss="false")
    cluster.starts = {A: 0, B: 0}
    begun = reader.latestOffset({}, ALL)
    assert begun == {"orders": {"0": 0, "1": 0}, "orders@7": {}}
    read = reader.latestOffset(begun, ALL)
    assert read == {"orders": {"0": 100, "1": 10}, "orders@7": {}}
    assert ["orders/0 [0, 100)", "orders/1 [0, 10)"] == _ranges(reader, begun, read)

    cluster.logs, cluster.made = {A: LogRange(5, 300), B: LogRange(0, 10)}, {"orders": "9"}
    with capture_logs() as logs:
        gone = reader.latestOffset(read, ALL)
    assert gone == {"orders@9": {}}
    assert ["records_lost"] * 2 == [one["event"] for one in logs]
    assert "orders/0: the topic was deleted and re-created since it was read up to 100" in logs[0]["reason"]
    assert [] == _ranges(reader, read, gone)
    new = reader.latestOffset(gone, ALL)
    assert new == {"orders": {"0": 5, "1": 0}, "orders@9": {}}
    end = reader.latestOffset(new, ALL)
    assert ["orders/0 [5, 300)", "orders/1 [0, 10)"] == _ranges(reader, new, end)
    assert end == reader.latestOffset(end, ALL)


def test_a_topic_that_was_made_again_ends_a_query_that_may_lose_nothing() -> None:
    """The records of the old one that were not read are gone."""
    cluster = _Cluster()
    cluster.logs, cluster.made = {A: LogRange(0, 300)}, {"orders": "9"}
    with pytest.raises(
        OffsetError, match=r"orders/0: the topic was deleted and re-created since it was read up to 100.*failOnDataLoss"
    ):
        _reader(cluster).latestOffset({"orders": {"0": 100}, "orders@7": {}}, ALL)


def test_a_checkpoint_of_sparks_own_source_learns_which_topic_it_is_of() -> None:
    """With the next trigger, and without rows where there are none."""
    cluster = _Cluster()
    cluster.logs, cluster.made = {A: LogRange(0, 100)}, {"orders": "7"}
    reader = _reader(cluster)
    noted = reader.latestOffset({"orders": {"0": 100}}, ALL)
    assert noted == {"orders": {"0": 100}, "orders@7": {}}
    assert noted == reader.latestOffset(noted, ALL)


def test_what_is_known_of_a_topic_stays_where_only_brokers_are_known() -> None:
    """Whoever gives ZooKeeper again is told of what happened meanwhile."""
    cluster = _Cluster()
    cluster.logs = {A: LogRange(0, 100)}
    end = _reader(cluster).latestOffset({"orders": {"0": 90}, "orders@7": {}}, ALL)
    assert end == {"orders": {"0": 100}, "orders@7": {}}


def test_a_checkpoint_of_zookeeper_goes_on_where_brokers_name_topic_ids() -> None:
    """Without a record the two identities cannot be compared, and the present one is noted."""
    cluster = _Cluster()
    cluster.logs, cluster.made = {A: LogRange(0, 100)}, {"orders": OTHER_ID}
    end = _reader(cluster).latestOffset({"orders": {"0": 90}, "orders@7": {}}, ALL)
    assert end == {"orders": {"0": 100}, f"orders@{OTHER_ID}": {}}


def test_a_topic_that_was_made_again_since_the_record_ends_a_query_that_may_lose_nothing() -> None:
    """The recorded topic id is another one than that of the topic now."""
    cluster = _Cluster()
    cluster.logs, cluster.made = {A: LogRange(0, 300)}, {"orders": OTHER_ID}
    recorded = ("orders", Incarnation.parse_topic("AAAAAAAAAAAAAAAAAAAAAQ"))
    cluster.identities = ClusterIdentities(cluster="25-17", cluster_id="one", topics={recorded: Incarnation(7)})
    with pytest.raises(OffsetError, match="orders/0: the topic was deleted and re-created"):
        _reader(cluster).latestOffset({"orders": {"0": 100}, "orders@7": {}}, ALL)


def test_partitions_that_are_not_there_for_a_moment_keep_their_places() -> None:
    """A topic that is gone altogether may come back, with the same records."""
    cluster = _Cluster()
    cluster.made = {"orders": "7"}
    start = {"orders": {"0": 90}, "orders@7": {}}
    assert start == _reader(cluster, failOnDataLoss="false").latestOffset(start, ALL)


def _ranges(reader: ConsumerdStreamReader, start: Any, end: Any) -> list[str]:
    return [str(part.task.range) for part in reader.partitions(start, end)]  # type: ignore[attr-defined]
