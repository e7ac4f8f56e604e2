# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with the data itself: retention that overtakes a group, compaction, messages too large, bytes that a
disk has changed, transactions. Producers' ledgers and the brokers' own log files say what must have landed.

One scenario serves several tests: four groups, one for each way to answer, go through the same faults at the same time.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pytest

from consumerd.wire.records import Limits
from tests.interop.conftest import ClusterFactory
from tests.support import naive_records
from tests.support.daemon import Daemon, settings_for
from tests.support.damage import DamagedUnit, flip_byte
from tests.support.kafka import Cluster, Sent, has_headers, java_command
from tests.support.landing_reader import LandedPartition, LandedRecord, Landing, read_landing
from tests.support.registry import open_registry
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn(parts=3)]

MIB: Final = 1 << 20
EARLY, LATE, AFTER = 100, 100, 20
KEYS, UPDATES = 10, 300
FLIPPED_AMONG, FLIPPED = 30, 15
LARGE_BYTES: Final = 5 * MIB

POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "skip": {
        "offsets": {"on_below": "earliest"},
        "fetch": {"on_corrupt": "skip", "on_oversized": "skip", "max_message_bytes": 2 * MIB},
    },
    "quarantine": {
        "offsets": {"on_below": "nearest"},
        "fetch": {"on_corrupt": "quarantine", "on_oversized": "quarantine", "max_message_bytes": 2 * MIB},
    },
    "stop": {
        "offsets": {"on_below": "stop"},
        "fetch": {"on_corrupt": "stop", "on_oversized": "stop", "max_message_bytes": 2 * MIB},
    },
    # takes messages as large as they come
    "large": {"offsets": {"on_below": "latest"}, "fetch": {"on_corrupt": "skip"}},
}

OLD, COMPACTED, LARGE, DAMAGED = "old", "compacted", "large", "damaged"
TOPICS: Final = (OLD, COMPACTED, LARGE, DAMAGED)


@dataclass(slots=True, kw_only=True)
class Aftermath:
    """What is left of the scenario."""

    topics: Mapping[str, str]
    ledger: Mapping[tuple[str, int, int], Sent]
    log_start: int
    damaged: DamagedUnit
    quarantine: Path
    compacted: dict[int, bytes | None] = field(default_factory=dict)
    landings: dict[str, Landing] = field(default_factory=dict)
    status: dict[str, dict[str, Any]] = field(default_factory=dict)
    ready: dict[str, tuple[int, str]] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What each says in its log that it left out."""

    def landed(self, group: str, topic: str) -> LandedPartition:
        """Return what a group has of a topic's one partition; it must be whole and agree with the ledger."""
        partition = self.landings[group].partitions[self.topics[topic], "0"]
        assert partition.problems == []
        assert [one.offset for one in partition.records] == sorted({one.offset for one in partition.records})
        for record in partition.records:
            sent = self.ledger[self.topics[topic], 0, record.offset]
            assert (sent.key, sent.value) == (record.key, record.value)
        return partition

    def sent(self, topic: str) -> dict[int, bytes | None]:
        """Return offset and value of every record that was acknowledged."""
        return {offset: one.value for (name, _, offset), one in self.ledger.items() if name == self.topics[topic]}

    def state(self, group: str, topic: str) -> dict[str, Any]:
        """Return what a daemon says of a topic's one partition."""
        (one,) = (one for one in self.status[group]["partitions"] if one["topic"] == self.topics[topic])
        return dict(one)


def values_of(records: list[LandedRecord]) -> dict[int, bytes | None]:
    return {record.offset: record.value for record in records}


def gaps_of(partition: LandedPartition) -> list[tuple[int, int, str]]:
    return [(gap["start"], gap["end"], gap["reason"]) for gap in partition.gaps]


@pytest.fixture(scope="session")
def aftermath(release: str, shared_clusters: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Aftermath:
    """Consume a little, stop, let everything go wrong that can, and consume on."""
    cluster = shared_clusters(release)
    folder = tmp_path_factory.mktemp(f"faults-{release}")
    topics = {one: f"faults-{one}" for one in TOPICS}
    small = {"segment_bytes": "2000"}
    cluster.create_topic(topics[OLD], **small)
    cluster.create_topic(topics[COMPACTED], cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", **small)
    cluster.create_topic(topics[LARGE])
    cluster.create_topic(topics[DAMAGED])
    ledger = _send(cluster, [Sent(topics[OLD], 0, b"k", b"early %d" % one) for one in range(EARLY)])
    with _daemons(cluster, folder, topics, "first") as daemons:
        for one in daemons.values():
            one.wait(lambda one=one: _committed(one) == EARLY, "the early ones have landed")
        for one in daemons.values():
            one.process.terminate()
        assert [one.wait_end() for one in daemons.values()] == [0] * len(daemons)

    ledger |= _send(cluster, _late(topics)) | _send_large(cluster, topics[LARGE])
    log_start = cluster.expire(topics[OLD])
    assert EARLY < log_start < EARLY + LATE
    wait_until(lambda: len(_stored(cluster, topics[COMPACTED])) < UPDATES // 2, "the log is compacted", 40)
    cluster.stop("broker-0")
    (segment,) = cluster.segments(topics[DAMAGED])
    damaged = flip_byte(segment, b"damaged %d " % FLIPPED)
    cluster.start_broker(0)
    cluster.wait_topic(topics[DAMAGED], 1)

    left = Aftermath(
        topics=topics,
        ledger=ledger,
        log_start=log_start,
        damaged=damaged,
        quarantine=folder / "kept",
    )
    with _daemons(cluster, folder, topics, "second") as daemons:
        for group, one in daemons.items():
            stopped = 3 if group == "stop" else 0
            one.wait(lambda one=one, stopped=stopped: _settled(one, stopped), f"{group}: all that can be has landed")
        ledger |= _send(cluster, [Sent(topics[OLD], 0, b"k", b"after %d" % one) for one in range(AFTER)])
        for group, one in daemons.items():
            if group != "stop":
                one.wait(lambda one=one: _position(one, topics[OLD]) == EARLY + LATE + AFTER, "the newest have landed")
            left.status[group], left.ready[group] = one.status(), one.get("/readyz")
            left.metrics[group] = one.get("/metrics")[1]
            left.skipped[group] = one.events("range_skipped")
        for one in daemons.values():
            one.process.terminate()
        assert [one.wait_end() for one in daemons.values()] == [0] * len(daemons)
    # what is still there now was there when they read
    left.compacted = _stored(cluster, topics[COMPACTED])
    left.landings = {group: read_landing(folder / group) for group in POLICIES}
    return left


def _send(cluster: Cluster, records: list[Sent]) -> dict[tuple[str, int, int], Sent]:
    producer = cluster.ledger_producer(linger_ms="20", batch_size="300")
    producer.send(records)
    return producer.finish()


def _send_large(cluster: Cluster, topic: str) -> dict[tuple[str, int, int], Sent]:
    """Send one that is large between two that are not, each in a batch of its own."""
    producer = cluster.ledger_producer()
    for count, value in enumerate((b"before", random.Random(1).randbytes(LARGE_BYTES), b"behind"), start=1):
        producer.send([Sent(topic, 0, None, value)])
        wait_until(lambda count=count: len(producer.acknowledged()) == count, "it is acknowledged")
    return producer.finish()


def _late(topics: Mapping[str, str]) -> list[Sent]:
    records = [Sent(topics[OLD], 0, b"k", b"late %d" % one) for one in range(LATE)]
    records += [Sent(topics[COMPACTED], 0, b"key %d" % (one % KEYS), b"update %d" % one) for one in range(UPDATES)]
    records += [Sent(topics[DAMAGED], 0, b"k", b"damaged %d " % one + b"v" * 40) for one in range(FLIPPED_AMONG)]
    return records


@contextlib.contextmanager
def _daemons(cluster: Cluster, folder: Path, topics: Mapping[str, str], turn: str) -> Iterator[dict[str, Daemon]]:
    """Run one daemon for each way to answer, each in a group of its own."""
    with contextlib.ExitStack() as stack:
        daemons = {}
        for group, sections in POLICIES.items():
            settings = settings_for(
                cluster.zookeeper,
                f"faults-{group}",
                topics=tuple(topics.values()),
                sink={"type": "jsonl", "path": str(folder / group), "roll_ms": 300},
                offsets=sections["offsets"],
                fetch={"max_partition_bytes": MIB, **sections["fetch"]},
                quarantine={"path": str(folder / "kept")} if group == "quarantine" else {},
            )
            daemons[group] = stack.enter_context(Daemon(folder, f"{turn}-{group}", settings))
        yield daemons


def _committed(member: Daemon) -> int:
    return sum(one["committed"] or 0 for one in member.status()["partitions"])


def _position(member: Daemon, topic: str) -> int | None:
    return next((one["committed"] for one in member.status()["partitions"] if one["topic"] == topic), None)


def _settled(member: Daemon, stopped: int) -> bool:
    """Whether so many partitions are stopped, and the others committed up to the end of what was sent."""
    partitions = member.status()["partitions"]
    running = [one for one in partitions if one["state"] == "running"]
    ends = {OLD: EARLY + LATE, COMPACTED: UPDATES, LARGE: 3, DAMAGED: FLIPPED_AMONG}
    return (
        len(partitions) == len(TOPICS)
        and len(running) == len(TOPICS) - stopped
        and sum(one["state"] == "stopped" for one in partitions) == stopped
        and all(one["committed"] == ends[one["topic"].removeprefix("faults-")] for one in running)
    )


def _stored(cluster: Cluster, topic: str) -> dict[int, bytes | None]:
    """Return offset and value of what the broker's log files hold, read without anything of ours but the codecs."""
    held: dict[int, bytes | None] = {}
    for segment in cluster.segments(topic):
        decoded = naive_records.decode(segment.read_bytes(), int(segment.stem), Limits())
        held |= {row[0]: row[4] for row in decoded.rows}
    return held


# -- retention


@pytest.mark.smoke
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("group", "goes_on_at"), [("skip", None), ("quarantine", None), ("large", EARLY + LATE)])
def test_what_retention_took_is_a_gap_and_the_policy_says_where_it_goes_on(
    aftermath: Aftermath, group: str, goes_on_at: int | None
) -> None:
    """``earliest`` and ``nearest`` lose only what is gone; ``latest`` says of the rest that it was its own doing."""
    start = aftermath.log_start
    sent = aftermath.sent(OLD)
    landed = aftermath.landed(group, OLD)

    kept = {offset: value for offset, value in sent.items() if offset < EARLY or offset >= (goes_on_at or start)}
    assert values_of(landed.records) == kept
    expected = [(EARLY, start, "retention"), *([(start, goes_on_at, "reset")] if goes_on_at else [])]
    assert gaps_of(landed) == expected
    told = [one for one in aftermath.skipped[group] if one["topic"] == aftermath.topics[OLD]]
    assert [(one["start"], one["end"], one["reason"]) for one in told] == expected
    labels = f'{{partition="0",reason="retention",topic="{aftermath.topics[OLD]}"}}'
    assert f"consumerd_gap_offsets_total{labels} {start - EARLY}.0" in aftermath.metrics[group]
    assert {"gap", "position reset"} <= {event["kind"] for event in aftermath.status[group]["events"]}
    assert len(landed.chains) == 1


@pytest.mark.smoke
@pytest.mark.timeout(240)
def test_a_group_that_is_told_to_stops_where_retention_has_overtaken_it(aftermath: Aftermath) -> None:
    """It stays where it was, and says what can be done."""
    assert values_of(aftermath.landed("stop", OLD).records).keys() == set(range(EARLY))
    state = aftermath.state("stop", OLD)
    assert (state["state"], state["committed"]) == ("stopped", EARLY)
    assert "retention" in state["reason"]
    code, reasons = aftermath.ready["stop"]
    assert code == 200
    assert "consumerd offsets set" in reasons


# -- compaction


@pytest.mark.smoke
@pytest.mark.timeout(240)
@pytest.mark.parametrize("group", POLICIES)
def test_what_compaction_left_lands_once_and_the_rest_is_explained(aftermath: Aftermath, group: str) -> None:
    """Every record that the log holds, and the newest of each key among them."""
    landed = aftermath.landed(group, COMPACTED)

    assert values_of(landed.records).items() >= aftermath.compacted.items()
    assert {record.key for record in landed.records} == {b"key %d" % one for one in range(KEYS)}
    newest = {record.key: record.value for record in landed.records}
    assert newest == {b"key %d" % (one % KEYS): b"update %d" % one for one in range(UPDATES - KEYS, UPDATES)}
    assert {reason for _, _, reason in gaps_of(landed)} == {"compaction"}
    assert len(landed.records) + sum(end - start for start, end, _ in gaps_of(landed)) == UPDATES


# -- messages that are too large


@pytest.mark.smoke
@pytest.mark.timeout(240)
def test_a_message_five_times_the_fetch_size_is_delivered(aftermath: Aftermath) -> None:
    """Releases before 0.10.1 cut it off until the fetch has grown to hold it."""
    assert values_of(aftermath.landed("large", LARGE).records) == aftermath.sent(LARGE)


@pytest.mark.smoke
@pytest.mark.timeout(240)
@pytest.mark.parametrize("group", ["skip", "quarantine"])
def test_a_message_that_is_too_large_is_passed_over_alone(aftermath: Aftermath, group: str) -> None:
    """What is around it lands, and it is a gap with its reason."""
    landed = aftermath.landed(group, LARGE)

    sent = aftermath.sent(LARGE)
    assert values_of(landed.records) == {offset: sent[offset] for offset in (0, 2)}
    assert gaps_of(landed) == [(1, 2, "skipped")]


@pytest.mark.smoke
@pytest.mark.timeout(240)
def test_a_message_that_is_too_large_stops_its_partition_where_that_is_the_policy(aftermath: Aftermath) -> None:
    """Nothing behind it is delivered, and the page names the setting."""
    assert list(values_of(aftermath.landed("stop", LARGE).records)) == [0]
    state = aftermath.state("stop", LARGE)
    assert (state["state"], state["committed"]) == ("stopped", 1)
    assert "max_message_bytes" in state["reason"]


# -- damage


@pytest.mark.smoke
@pytest.mark.timeout(240)
@pytest.mark.parametrize("group", ["skip", "quarantine", "large"])
def test_what_a_disk_has_changed_is_passed_over_and_never_delivered(aftermath: Aftermath, group: str) -> None:
    """In each format; what is around it lands once."""
    unit = aftermath.damaged
    landed = aftermath.landed(group, DAMAGED)

    sent = aftermath.sent(DAMAGED)
    assert values_of(landed.records) == {one: sent[one] for one in sent if not unit.first <= one < unit.end}
    assert unit.first <= FLIPPED < unit.end
    assert gaps_of(landed) == [(unit.first, unit.end, "corrupt")]
    assert not any(unit.changed_value in (record.value or b"") for record in landed.records)


@pytest.mark.smoke
@pytest.mark.timeout(240)
def test_what_a_disk_has_changed_stops_its_partition_where_that_is_the_policy(aftermath: Aftermath) -> None:
    """All before it has landed and is committed; nothing behind it is."""
    unit = aftermath.damaged
    assert list(values_of(aftermath.landed("stop", DAMAGED).records)) == list(range(unit.first))
    state = aftermath.state("stop", DAMAGED)
    assert (state["state"], state["committed"]) == ("stopped", unit.first)
    assert "CRC" in state["reason"]


@pytest.mark.smoke
@pytest.mark.timeout(240)
def test_quarantine_holds_what_was_passed_over_byte_for_byte(aftermath: Aftermath) -> None:
    """The damaged unit as it is in the broker's log, and of the large one where it is and how much it would be."""
    kept = {topic: _quarantined(aftermath, topic) for topic in (LARGE, DAMAGED)}
    unit = aftermath.damaged

    assert (kept[DAMAGED]["offset"], kept[DAMAGED]["next_offset"]) == (unit.first, unit.end)
    assert base64.b64decode(kept[DAMAGED]["raw_base64"]) == unit.raw
    assert kept[DAMAGED]["complete"] is True
    assert (kept[LARGE]["offset"], kept[LARGE]["next_offset"]) == (1, 2)
    assert kept[LARGE]["size"] > LARGE_BYTES


def _quarantined(aftermath: Aftermath, topic: str) -> dict[str, Any]:
    (path,) = aftermath.quarantine.glob(f"{aftermath.topics[topic]}/0/*/*.jsonl")
    fields: dict[str, Any] = json.loads(path.read_bytes())
    assert path.name.startswith(f"{fields['offset']:020d}-")
    return fields


# -- transactions


class Transactions:
    """A transactional producer of Kafka's own; every call returns when it is done. A context manager."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        source = Path(__file__).with_name("TransactionalProducer.java")
        command = java_command(cluster.release, str(source), cluster.bootstrap, topic, heap="256m", brisk=True)
        self._process = cluster.spawn(f"transactions-{topic}", command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._end = contextlib.ExitStack()
        self._end.callback(cluster.stop, f"transactions-{topic}")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in = self._end.enter_context(self._process.stdin)
        self._out = self._end.enter_context(self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.close()

    def do(self, what: str) -> str:
        """Carry one line out and return the answer."""
        self._in.write(f"{what}\n".encode())
        self._in.flush()
        answer = self._out.readline()
        assert answer, f"{what}: the producer has ended"
        return answer.decode().strip()

    def send(self, *values: str) -> dict[int, bytes | None]:
        """Send within the open transaction and return what is where."""
        return {int(self.do(f"send {value}")): value.encode() for value in values}


@pytest.mark.timeout(120)
def test_transactions_land_by_the_isolation_that_is_set(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """An aborted one never lands under ``read_committed``, one that is open holds back what is behind it, and progress
    over markers alone is committed."""
    if not has_headers(release):
        pytest.skip(f"{release} has no transactions; they came with headers, in 0.11")
    cluster = shared_clusters(release)
    topic = unique("transactions")
    cluster.create_topic(topic)
    levels = ("read_committed", "read_uncommitted")
    with contextlib.ExitStack() as stack:
        members = {
            level: stack.enter_context(
                Daemon(
                    tmp_path,
                    level,
                    settings_for(
                        cluster.zookeeper,
                        f"{topic}-{level}",
                        topics=(topic,),
                        sink={"type": "jsonl", "path": str(tmp_path / f"landing-{level}"), "roll_ms": 300},
                        fetch={"isolation": level},
                    ),
                )
            )
            for level in levels
        }
        producer = stack.enter_context(Transactions(cluster, topic))
        producer.do("begin")
        kept = producer.send("kept 0", "kept 1")
        producer.do("commit")
        producer.do("begin")
        dropped = producer.send("dropped 0", "dropped 1", "dropped 2")
        producer.do("abort")
        producer.do("begin")
        held_back = producer.send("open 0", "open 1")
        dropped |= held_back
        plain = {
            offset: sent.value for (_, _, offset), sent in _send(cluster, [Sent(topic, 0, None, b"behind")]).items()
        }
        end = max(plain) + 1
        members["read_uncommitted"].wait(lambda: _position(members["read_uncommitted"], topic) == end, "all has landed")
        members["read_committed"].wait(
            lambda: _position(members["read_committed"], topic) == min(held_back), "what is stable"
        )
        assert _position(members["read_committed"], topic) == min(held_back), (
            "an open transaction holds back what is behind it"
        )
        producer.do("abort")
        producer.do("begin")
        kept |= producer.send("last")
        producer.do("commit")
        producer.do("begin")
        dropped |= producer.send("never")
        producer.do("abort")
        end = max(dropped) + 2
        for member in members.values():
            member.wait(lambda member=member: _position(member, topic) == end, "the last marker is passed")
        assert all(member.terminate() == 0 for member in members.values())

    landed = {}
    for level in levels:
        (landed[level],) = read_landing(tmp_path / f"landing-{level}").partitions.values()
        assert landed[level].problems == []
    assert values_of(landed["read_uncommitted"].records) == kept | dropped | plain
    assert {reason for _, _, reason in gaps_of(landed["read_uncommitted"])} == {"control"}
    assert values_of(landed["read_committed"].records) == kept | plain
    spans = [(start, stop) for start, stop, reason in gaps_of(landed["read_committed"]) if reason == "aborted"]
    assert {offset for start, stop in spans for offset in range(start, stop)} == set(dropped)


@pytest.mark.timeout(120)
def test_a_position_beyond_an_open_transaction_is_waited_for(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A Java member reads uncommitted and commits past it; ``read_committed`` takes nothing for a truncated log."""
    if not has_headers(release):
        pytest.skip(f"{release} has no transactions; they came with headers, in 0.11")
    cluster = shared_clusters(release)
    topic = unique("passed")
    cluster.create_topic(topic)
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(Transactions(cluster, topic))
        producer.do("begin")
        held_back = producer.send("open 0", "open 1")
        sent = _send(cluster, [Sent(topic, 0, None, b"behind %d" % number) for number in range(4)])
        plain = {offset: one.value for (_, _, offset), one in sent.items()}
        passed = min(plain) + 2
        registry = stack.enter_context(open_registry(cluster.zookeeper))
        registry.client.create(f"/consumers/{topic}/offsets/{topic}/0", str(passed).encode(), makepath=True)
        settings = settings_for(
            cluster.zookeeper,
            topic,
            topics=(topic,),
            sink={"type": "jsonl", "path": str(tmp_path / "landing"), "roll_ms": 300},
            fetch={"isolation": "read_committed"},
            offsets={"on_above": "stop"},
        )
        member = stack.enter_context(Daemon(tmp_path, "committed", settings))
        member.wait(lambda: member.events("open_transaction_awaited"), "it waits, and says so")
        assert min(held_back) == member.events("open_transaction_awaited")[0]["last_stable_offset"]
        assert "running" == member.status()["partitions"][0]["state"]
        producer.do("commit")
        end = max(plain) + 2  # behind the marker
        member.wait(lambda: _position(member, topic) == end, "all behind the position has landed")
        assert member.terminate() == 0
        assert not member.events("log_truncated")

    (landed,) = read_landing(tmp_path / "landing").partitions.values()
    assert landed.problems == []
    assert values_of(landed.records) == {offset: value for offset, value in plain.items() if offset >= passed}
