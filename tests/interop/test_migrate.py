# SPDX-License-Identifier: Apache-2.0
"""Groups move from Kafka with ZooKeeper to Kafka 4.3.1, and back. Java and librdkafka are the judges."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pytest

from consumerd.access.address import ClusterAddress
from consumerd.cli.main import main
from consumerd.mirror.checkpoint import Checkpoint, encode_checkpoint
from consumerd.mirror.offset_map import OffsetMap
from consumerd.mirror.positions import open_mirror_positions
from tests.interop.conftest import FULL, MAIN_RELEASE, ClusterFactory, Figure
from tests.support import mirror_client
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, JavaConsumer, Sent, has_headers, java_command
from tests.support.kraft import KraftCluster
from tests.support.ledger import send_all
from tests.support.moved_logs import (
    MovedLog,
    create_again,
    create_topics,
    delete_before,
    fill,
    fill_and_expire,
    fill_with_holes,
    read_all,
    read_committed_positions,
    read_range,
)
from tests.support.registry import open_registry
from tests.support.seeds import draw_seed, some_of
from tests.support.small_mirror import GROUP, SmallMirror
from tests.support.tools import require_jars
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(3000 if FULL else 600), pytest.mark.drawn(parts=5)]

TARGET: Final = "4.3.1"
POSITIONS: Final = 1000 if FULL else 50
"""Random positions of each partition."""
GROUPS: Final = 100 if FULL else 8
"""Groups that are committed in the target at such positions."""
KINDS: Final = ("aborted", "holes", "deleted", "retained", "thinned", "recreated")
"""Names of logs that differ in what makes them hard to translate."""
MEMBERS: Final = 3
PARTITIONS: Final = 6


@dataclass
class Clusters:
    """Source and target, with a mirror of a group between them."""

    source: Cluster
    target: Cluster
    mirror_group: str = GROUP

    def migrate(self, command: str, *arguments: str) -> int:
        """Run a command, and return its exit code."""
        addresses = ["-z", self.source.zookeeper, "--target", self.target.bootstrap]
        return main(
            ["migrate", command, *addresses, "--mirror-group", self.mirror_group, "--timeout", "30", *arguments]
        )


@pytest.fixture(scope="module")
def target() -> Iterator[Cluster]:
    """The cluster without ZooKeeper into which is mirrored."""
    with require_jars(), KraftCluster(TARGET) as cluster:
        yield cluster


def put(cluster: Cluster, groups: Mapping[str, Mapping[str, int]]) -> None:
    """Write positions of groups in partition 0 of topics, as members do."""
    with open_registry(cluster.zookeeper) as registry:
        client = registry.client
        for group, positions in groups.items():
            client.create(f"/consumers/{group}/offsets", makepath=True)
            # all at once: a thousand groups are some ten thousand nodes
            created = [client.create_async(f"/consumers/{group}/offsets/{topic}") for topic in positions]
            for topic, position in positions.items():
                path = f"/consumers/{group}/offsets/{topic}/0"
                created.append(client.create_async(path, b"%d" % position))
            for one in created:
                one.get(60)


@pytest.mark.parametrize("library", mirror_client.RELEASES)
def test_checkpoints_are_those_of_mirrormaker(library: str) -> None:
    """Its own classes read ours, and encode them to the same bytes."""
    chosen = random.Random(5)
    made = [
        Checkpoint(
            group=f"group ä {number}",
            topic="t" * chosen.randrange(1, 249),
            partition=chosen.randrange(2**31),
            source=chosen.randrange(2**63),
            target=chosen.randrange(2**63),
            metadata="" if number % 2 else "metadata €",
        )
        for number in range(50)
    ]
    with require_jars():
        found = mirror_client.decode_checkpoints(library, map(encode_checkpoint, made))

    assert found == [
        [one.group, one.topic, str(one.partition), str(one.source), str(one.target), one.metadata] for one in made
    ]


def copy_topics(source: Cluster, target: Cluster, topics: Mapping[str, str]) -> dict[str, MovedLog]:
    """Fill topics of the source and mirror them; return their logs by topic.

    Then retention goes on in both clusters, further in the source (``retained``) or in the target (``thinned``), where
    the mirror removes the begin of its map; and a topic is deleted and re-created, and mirrored again.

    Args:
        topics: topic of each kind.
    """
    mirror = SmallMirror(ClusterAddress(zookeeper=source.zookeeper, client_id="t"), target.bootstrap, most_runs=4)
    compacted = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}
    create_topics(source, {topics[kind]: compacted if kind == "holes" else {"segment.bytes": "1500"} for kind in KINDS})
    fill_with_holes(source, topics["holes"])
    fill_and_expire(source, topics["deleted"])
    for kind in ("aborted", "retained", "thinned", "recreated"):
        fill(source, topics[kind], 60, "old-")
    mirror.create_topics(dict.fromkeys(topics.values(), 1))
    for topic in topics.values():
        mirror.copy(topic)
    recreated = topics["recreated"]
    put(source, {f"behind-{recreated}": {recreated: 7}})
    create_again(source, recreated)
    fill(source, recreated, 60, "new-")
    mirror.copy(recreated)

    records, copies = ({topic: read_all(cluster, topic) for topic in topics.values()} for cluster in (source, target))
    for topic, found in records.items():
        expected = list(copies[topic].values())
        assert list(found.values()) == (expected[-len(found) :] if topic == recreated else expected)
    for kind, of_source, of_target in (("retained", 0.6, 0.4), ("thinned", 0.3, 0.7)):
        topic = topics[kind]
        for cluster, logs, share in ((source, records, of_source), (target, copies, of_target)):
            offsets = sorted(logs[topic])
            delete_before(cluster, topic, offsets[int(len(offsets) * share)])
        assert mirror.thin(topic, read_range(target, topic)[0]) > 1
    return {
        topic: MovedLog(found, *read_range(source, topic), read_all(target, topic)) for topic, found in records.items()
    }


def draw_positions(logs: Mapping[str, MovedLog], stem: str) -> dict[str, dict[str, int]]:
    """Return positions of groups, whose names begin with a stem: all edges of each log, and random ones."""
    dice = random.Random(draw_seed("positions of groups that move"))
    edges = {topic: log.find_edges() for topic, log in logs.items()}
    rows = [
        {topic: found[number % len(found)] for topic, found in edges.items()}
        for number in range(max(map(len, edges.values())))
    ]
    rows += [{topic: dice.randrange(log.end + 1) for topic, log in logs.items()} for _ in range(POSITIONS)]
    return {f"{stem}-{number}": row for number, row in enumerate(rows)}


async def read_maps(target: Cluster, topics: Collection[str]) -> dict[str, OffsetMap]:
    """Return the offset map of the newest log of each topic."""
    async with open_mirror_positions(ClusterAddress(bootstrap=target.bootstrap, client_id="t")) as positions:
        await positions.refresh()
        newest = {log.topic: log for log in sorted(positions.list(), key=lambda log: int(log.incarnation))}
        states = {topic: positions.find(newest[topic]) for topic in topics}
        return {topic: state.offset_map() for topic, state in states.items() if state is not None}


def check_plan(row: Mapping[str, Any], log: MovedLog, offsets: OffsetMap) -> bool:
    """Compare what a position becomes with the records of both clusters; return True if it is translated."""
    try:
        expected = log.find_next(row["position"])
    except LookupError:
        assert row["verdict"] == "refused", row
        assert "the target's log begins at" in row["note"] or "the mirror begins at" in row["note"], row
        return False
    assert row["verdict"] == "ready", row
    assert log.find_copy(row["translated"]) == (None if expected is None else log.records[expected]), row
    back = offsets.translate_back(row["translated"]).offset
    assert log.find_next(back) == expected, row
    if expected is not None:
        assert back == expected, row
        assert offsets.translate(back).offset in {row["translated"], offsets.translate(expected).offset}, row
    return True


def read_rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_position_names_the_record_that_the_group_would_have_read_next(
    target: Cluster,
    shared_clusters: ClusterFactory,
    unique: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    figure: Figure,
) -> None:
    """Aborted transactions, compaction, retention under way, a re-created topic: all edges and random positions."""
    clusters, topics = Clusters(shared_clusters(MAIN_RELEASE), target), {kind: unique(kind) for kind in KINDS}
    logs = copy_topics(clusters.source, target, topics)
    groups = draw_positions(logs, unique("at"))
    put(clusters.source, groups)
    capsys.readouterr()
    assert clusters.migrate("plan", "--json", *logs) == 0
    rows = read_rows(capsys)
    (behind,) = (row for row in rows if row["group"] == f"behind-{topics['recreated']}")
    assert (behind["verdict"], "deleted topic of the same name" in behind["note"]) == ("left out", True)

    maps, verdicts = asyncio.run(read_maps(target, logs)), Counter[tuple[str, str]]()
    planned: dict[str, dict[tuple[str, int], int]] = {group: {} for group in groups}
    for row in rows:
        if row["group"] in groups:
            assert row["position"] == groups[row["group"]][row["topic"]]
            if check_plan(row, logs[row["topic"]], maps[row["topic"]]):
                planned[row["group"]][row["topic"], 0] = row["translated"]
            verdicts[row["topic"], row["verdict"]] += 1
    assert sum(verdicts.values()) == len(groups) * len(logs)
    assert {topic for topic, verdict in verdicts if verdict == "refused"} == {topics["thinned"]}
    figure("positions compared", sum(verdicts.values()))

    whole = [group for group, found in planned.items() if len(found) == len(logs)]
    chosen = random.Random(draw_seed("groups that move")).sample(whole, GROUPS)
    alias = unique("old")
    for group in chosen:
        assert clusters.migrate("translate", "-g", group, "--yes", "--alias", alias) == 0, capsys.readouterr().err
    expected = {group: planned[group] for group in chosen}
    assert read_committed_positions(target, chosen) == expected
    with require_jars():
        for library in mirror_client.RELEASES:
            assert mirror_client.translate_offsets(library, target.bootstrap, alias, chosen) == expected
    figure("groups of which RemoteClusterUtils agrees", len(chosen))
    shown = target.describe_group(chosen[0])
    for (topic, _), offset in expected[chosen[0]].items():
        assert re.search(rf"^{chosen[0]} +{topic} +0 +{offset} ", shown, re.MULTILINE), shown
    capsys.readouterr()
    assert clusters.migrate("verify", "--full", "--json", *logs) == 0
    compared = {row["topic"]: row["compared"] for row in read_rows(capsys)}
    for kind in ("aborted", "holes", "deleted", "recreated"):
        assert compared[topics[kind]] == len(logs[topics[kind]].records)


def start_console(cluster: Cluster, group: str, topic: str, number: int) -> str:
    """Start Java's console consumer, which reads committed records, in a group; return its name."""
    name = f"console-{group}-{number}"
    arguments = ["--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group", group]
    arguments += ["--isolation-level", "read_committed", "--command-property", "auto.offset.reset=none"]
    main_class = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    path = cluster.directory / f"{name}.out"
    with path.open("wb") as out:
        cluster.spawn(name, java_command(TARGET, main_class, *arguments, brisk=True), stdout=out.fileno())
    return name


def read_console(cluster: Cluster, name: str) -> list[bytes]:
    return (Path(cluster.directory) / f"{name}.out").read_bytes().splitlines()


@dataclass
class JavaGroup:
    """A group whose members are Java's, of a release's high-level consumer or of the new one in the target."""

    clusters: Clusters
    group: str
    topic: str

    def start_old(self) -> list[JavaConsumer]:
        """Start members in the source, and wait until each has its partitions."""
        members = [self.clusters.source.java_consumer(self.group, self.topic) for _ in range(MEMBERS)]
        with open_registry(self.clusters.source.zookeeper) as registry:
            wait_until(
                lambda: (
                    len(registry.members(self.group)) == MEMBERS
                    and registry.is_settled(self.group, self.topic, PARTITIONS)
                ),
                f"{MEMBERS} members share out the partitions",
                120,
            )
        return members

    def start_new(self, turn: int) -> list[str]:
        """Start members in the target; return their names."""
        return [start_console(self.clusters.target, self.group, self.topic, turn + one) for one in range(MEMBERS)]

    def read_new(self, names: Sequence[str]) -> list[bytes]:
        """Return the values that members in the target have read."""
        return [value for name in names for value in read_console(self.clusters.target, name)]

    def read_described(self) -> dict[int, int]:
        """Return the positions in the target by partition, as kafka-consumer-groups shows them."""
        shown = self.clusters.target.describe_group(self.group)
        found = re.findall(rf"^{self.group} +{self.topic} +(\d+) +(\d+) ", shown, re.MULTILINE)
        return {int(partition): int(offset) for partition, offset in found}


def read_old(members: Sequence[JavaConsumer]) -> list[bytes]:
    """Return the values that members in the source have read."""
    return [find_value(record[3]) for member in members for record in member.records()]


def sender(cluster: Cluster, topic: str) -> Callable[[int], list[bytes]]:
    """Return a function that writes new values, and returns all that were written."""
    sent: list[bytes] = []

    def send(count: int) -> list[bytes]:
        made = [b"%d" % (len(sent) + one) for one in range(count)]
        records = [Sent(topic, int(one) % PARTITIONS, None, one) for one in made]
        if has_headers(cluster.release):
            send_all(cluster.bootstrap, records)
        else:
            producer = cluster.ledger_producer()
            producer.send(records)
            producer.finish()
        sent.extend(made)
        return sent

    return send


@pytest.mark.parametrize("origin", some_of("source of a Java group that moves", ("0.8.2.2", "1.1.1"), 1))
def test_a_java_group_is_cut_over_to_new_consumers_and_comes_back(
    origin: str,
    target: Cluster,
    shared_clusters: ClusterFactory,
    unique: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    figure: Figure,
) -> None:
    """Three members each way, while a daemon mirrors: each record once over both clusters."""
    source, topic = shared_clusters(origin), unique("invoices")
    clusters = Clusters(source, target, unique("mirror"))
    java = JavaGroup(clusters, unique("billing"), topic)
    source.create_topic(topic, PARTITIONS)
    send = sender(source, topic)
    options = settings_for(
        source.zookeeper,
        clusters.mirror_group,
        topics=(topic,),
        sink={"type": "kafka", "bootstrap": target.bootstrap, "flush_ms": 200},
    )
    with Daemon(tmp_path, "mirror", options, command="mirror") as mirror:
        old = java.start_old()
        send(300)
        wait_until(lambda: len(read_old(old)) >= 300, "Java's high-level consumers read", 120)
        wait_until(lambda: clusters.migrate("status", "-g", java.group) == 0, "the mirror has come to them", 120)
        capsys.readouterr()
        assert clusters.migrate("cutover", "-g", java.group, "--wait", "0") != 0
        assert f"{MEMBERS} live members in the source: stop them" in capsys.readouterr().err

        began = monotonic()
        for member in old:
            member.process.terminate()
        for member in old:
            member.terminate()
        stopped = monotonic()
        send(60)
        capsys.readouterr()
        cut = monotonic()
        assert clusters.migrate("cutover", "-g", java.group, "--json") == 0, capsys.readouterr().err
        translated = monotonic()
        said = {int(row["partition"]): row["there"] for row in read_rows(capsys)}
        assert len(said) == PARTITIONS
        described = java.read_described()
        starting = monotonic()
        new = java.start_new(0)
        wait_until(lambda: java.read_new(new), "Java's new consumers read", 120)
        steps = (stopped - began, translated - cut, monotonic() - starting)
        names = ("to stop three members", "of the cut-over command", "to start three members, to the first record")
        for name, taken in zip((*names, "without a reader"), (*steps, sum(steps)), strict=True):
            figure(f"seconds {name}", round(taken, 1))
        assert described == said
        wait_until(lambda: len(java.read_new(new)) >= 60, "Java's new consumers go on", 120)
        assert clusters.migrate("rollback", "-g", java.group, "--yes") != 0
        for name in new:
            target.stop(name)

        send(45)
        second = java.start_new(MEMBERS)
        wait_until(lambda: len(java.read_new(second)) >= 45, "the group goes on in the target", 120)
        for name in second:
            target.stop(name)

        sent = send(30)
        capsys.readouterr()
        assert clusters.migrate("rollback", "-g", java.group, "--dry-run", "--json") == 0, capsys.readouterr().err
        assert java.read_described() == {int(row["partition"]): row["there"] for row in read_rows(capsys)}
        assert clusters.migrate("rollback", "-g", java.group, "--yes", "--json") == 0, capsys.readouterr().err
        again = java.start_old()
        wait_until(lambda: len(read_old(again)) >= 30, "Java's high-level consumers go on", 120)
        for member in again:
            member.terminate()
        assert mirror.terminate(60) == 0

    values = read_old(old) + java.read_new(new) + java.read_new(second) + read_old(again)
    assert Counter(values) == Counter(sent)


def find_value(line: bytes) -> bytes:
    """Return the value in a line of the high-level consumer: key and value in base64."""
    return base64.b64decode(line.split(b"\t")[1])
