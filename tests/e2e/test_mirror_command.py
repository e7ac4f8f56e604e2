# SPDX-License-Identifier: Apache-2.0
"""``consumerd mirror`` as a process: topics are made like those of the source, each record is copied once, and told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from consumerd.cli.main import main
from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedThread
from tests.support.mirroring import read_committed
from tests.support.registry import open_registry

pytestmark = [pytest.mark.records, pytest.mark.timeout(180), pytest.mark.drawn]

PARTITIONS = 3


@pytest.fixture
def target(tmp_path: Path) -> Iterator[EmbeddedThread]:
    """An empty cluster without ZooKeeper."""
    with EmbeddedThread(tmp_path / "target", None, auto_create_topics=False) as running:
        yield running


def settings_of(
    cluster: EmbeddedThread, target: EmbeddedThread, group: str, topic: str, /, **sink: Any
) -> dict[str, Any]:
    return {
        "cluster": {"zookeeper": cluster.zookeeper},
        "group": {"id": group},
        "subscriptions": [{"topics": [topic], "sink": "new"}],
        "sinks": {"new": {"type": "kafka", "bootstrap": target.bootstrap, "flush_ms": 50, **sink}},
        "offsets": {"commit_interval_ms": 100},
    }


def produce(cluster: EmbeddedThread, topic: str, begin: int, end: int) -> None:
    cluster.produce(topic, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(begin, end)))


def is_safe(daemon: Daemon) -> bool:
    return bool(daemon.status()["mirror"]["safe_to_cut_over"])


def copied(target: EmbeddedThread, topic: str, partitions: int = PARTITIONS) -> list[list[bytes | None]]:
    """Return the values of each partition, as a reader of committed records sees them."""
    return [[one.value for one in read_committed(target.bootstrap, topic, number)] for number in range(partitions)]


def originals(cluster: EmbeddedThread, topic: str) -> list[list[bytes | None]]:
    return [[one.value for one in read_committed(cluster.bootstrap, topic, number)] for number in range(PARTITIONS)]


def test_topics_are_made_and_records_are_copied_once_over_kills(
    cluster: EmbeddedThread, target: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """With the source's partitions and settings; and the page says when groups may move."""
    topic, group = unique("mirrored"), unique("mirror")
    cluster.create_topic(topic, PARTITIONS, retention_ms="86400000", cleanup_policy="compact")
    produce(cluster, topic, 0, 1000)
    settings = settings_of(cluster, target, group, topic, topic="old.{topic}")
    name = f"old.{topic}"
    with Daemon(tmp_path, "killed", settings, command="mirror", fail_points="before_mirror_commit=kill") as daemon:
        daemon.process.wait(60)
    with Daemon(tmp_path, "next", settings, command="mirror") as daemon:
        daemon.wait(lambda: is_safe(daemon), "everything is mirrored", timeout_s=60)
        produce(cluster, topic, 1000, 1500)
        daemon.wait(lambda: not is_safe(daemon) or sum(map(len, copied(target, name))) == 1500, "more is seen")
        daemon.wait(lambda: is_safe(daemon), "the rest is mirrored", timeout_s=60)
        assert originals(cluster, topic) == copied(target, name)
        _, page = daemon.get("/")
        assert 'safe to cut over</dt><dd class="main">yes' in page
        assert f"{name}/0" in page
        _, metrics = daemon.get("/metrics")
        assert "consumerd_mirror_safe_to_cut_over 1.0" in metrics
        assert f'consumerd_mirror_source_offset{{partition="0",topic="{topic}"}}' in metrics
        assert 'consumerd_mirror_transaction_seconds_count{result="committed",sink="new"}' in metrics
        assert [{"topic": topic, "partitions": PARTITIONS, "lag": 0}] == daemon.status()["mirror"]["topics"]
        assert 0 == daemon.terminate()
    assert {"retention.ms": "86400000", "cleanup.policy": "compact"} == own_settings(target, name)


def own_settings(target: EmbeddedThread, topic: str) -> Mapping[str, str]:
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: one.value for name, one in found.result(30).items() if one.source == 1}


def test_each_of_two_members_names_the_other(
    cluster: EmbeddedThread, target: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Nobody must take one member's word for the whole group."""
    topic, group = unique("mirrored"), unique("mirror")
    cluster.create_topic(topic, PARTITIONS)
    produce(cluster, topic, 0, 100)
    settings = settings_of(cluster, target, group, topic)
    with (
        Daemon(tmp_path, "first", settings, command="mirror") as first,
        Daemon(tmp_path, "second", settings, command="mirror") as second,
    ):
        both = (first, second)
        first.wait(lambda: sum(one.status()["owned"] for one in both) == PARTITIONS, "all is owned")
        first.wait(lambda: all(one.status()["owned"] for one in both), "both own some")
        first.wait(lambda: sum(map(len, copied(target, topic))) == 100, "everything is mirrored")
        for one in both:
            others = PARTITIONS - one.status()["owned"]
            one.wait(
                lambda one=one, others=others: (
                    one.status()["mirror"]["unsafe"]  # type: ignore[misc]
                    == [
                        f"{others} partition{'s' * (others > 1)} of the group are not owned here: look at the other members, too"
                    ]
                ),
                "the other member is named",
            )


def test_small_topic_of_another_maker_is_refused_until_it_is_settled(
    cluster: EmbeddedThread, target: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """With the remedy; and nothing needs a restart."""
    topic, group = unique("mirrored"), unique("mirror")
    cluster.create_topic(topic, PARTITIONS)
    produce(cluster, topic, 0, 100)

    async def create(embedded: Any) -> None:
        await embedded.broker.create_topic(topic, 1)

    target.do(create)
    with Daemon(tmp_path, "mirror", settings_of(cluster, target, group, topic), command="mirror") as daemon:
        daemon.wait(lambda: "add_partitions: true" in daemon.get("/")[1], "the refusal is shown")

        async def extend(embedded: Any) -> None:
            await embedded.broker.topics.extend(topic, PARTITIONS)

        target.do(extend)
        daemon.wait(lambda: is_safe(daemon), "everything is mirrored", timeout_s=60)
    assert originals(cluster, topic) == copied(target, topic)


def test_groups_at_the_end_of_idle_partitions_may_be_cut_over(
    cluster: EmbeddedThread,
    target: EmbeddedThread,
    unique: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An empty topic, and one whose records are older than the mirror: nothing comes, and all the same it is known."""
    empty, idle, mirrors, group = unique("empty"), unique("idle"), unique("mirror"), unique("billing")
    for topic in (empty, idle):
        cluster.create_topic(topic, PARTITIONS)
    produce(cluster, idle, 0, 300)
    ends = [len(one) for one in originals(cluster, idle)]
    settings = settings_of(cluster, target, mirrors, empty)
    settings["subscriptions"] = [{"topics": [empty, idle], "sink": "new"}]
    settings["offsets"]["on_missing"] = "latest"
    with open_registry(cluster.zookeeper) as registry:
        for topic, positions in ((empty, [0] * PARTITIONS), (idle, ends)):
            for partition, position in enumerate(positions):
                path = f"/consumers/{group}/offsets/{topic}/{partition}"
                registry.client.ensure_path(path)
                registry.client.set(path, b"%d" % position)
    config = tmp_path / "mirror.yaml"
    with Daemon(tmp_path, "mirror", settings, command="mirror") as daemon:

        def migrate(command: str, *arguments: str) -> tuple[int, str]:
            capsys.readouterr()
            code = main(["migrate", command, "-c", str(config), "-g", group, "--timeout", "30", *arguments])
            return code, capsys.readouterr().err

        daemon.wait(lambda: is_safe(daemon), "the page says that groups may move", timeout_s=60)
        daemon.wait(lambda: migrate("status")[0] == 0, "the command says so, too", timeout_s=60)
        code, err = migrate("cutover", "--wait", "0")
        assert code == 0, err
        produce(cluster, idle, 300, 330)
        produce(cluster, empty, 0, 30)
        news = [one[end:] for one, end in zip(originals(cluster, idle), ends, strict=True)]
        daemon.wait(lambda: copied(target, idle) == news, "what comes is mirrored, and nothing else", timeout_s=60)
        daemon.wait(lambda: copied(target, empty) == originals(cluster, empty), "the empty one, too", timeout_s=60)
        reader = Consumer({"bootstrap.servers": target.bootstrap, "group.id": group, "auto.offset.reset": "error"})
        places = [TopicPartition(topic, number) for topic in (empty, idle) for number in range(PARTITIONS)]
        try:
            assert [0] * len(places) == [one.offset for one in reader.committed(places, timeout=30)]
        finally:
            reader.close()
        assert 0 == daemon.terminate()


def test_a_source_topic_made_again_is_mirrored_from_its_first_record(
    cluster: EmbeddedThread, target: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """While the mirror runs. Its offsets begin anew, and those of the deleted topic say nothing of them."""
    topic, group = unique("again"), unique("mirror")
    cluster.create_topic(topic, 1)
    produce(cluster, topic, 0, 50)
    with Daemon(tmp_path, "mirror", settings_of(cluster, target, group, topic), command="mirror") as daemon:
        daemon.wait(lambda: len(copied(target, topic, 1)[0]) == 50, "the first one is mirrored", timeout_s=60)

        async def delete(embedded: Any) -> None:
            await embedded.broker.topics.delete(topic)

        cluster.do(delete)
        cluster.create_topic(topic, 1)
        produce(cluster, topic, 50, 80)
        daemon.wait(lambda: len(copied(target, topic, 1)[0]) == 80, "the second one, behind it", timeout_s=60)
        assert [b"v%d" % one for one in range(80)] == copied(target, topic, 1)[0]
        daemon.wait(lambda: is_safe(daemon), "it is known to be whole", timeout_s=60)
        assert 0 == daemon.terminate()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "consumerd", "mirror", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_settings_are_checked_without_connecting() -> None:
    """From addresses alone; each value with its origin, and the mirror's own defaults."""
    done = run(
        "--zookeeper", "old:2181", "--topics", "a,b", "--bootstrap", "new:9092", "--name", "x.{topic}", "--check"
    )
    assert (0, "") == (done.returncode, done.stderr)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["group.id", "consumerd-mirror", *["default", "of", "consumerd", "mirror"]] in lines
    assert ["fetch.isolation", "read_committed", *["default", "of", "consumerd", "mirror"]] in lines
    assert ["sinks.mirror.topic", "x.{topic}", "command", "line"] in lines
    done = run("--from", "old:9092", "--topics", "a", "--bootstrap", "new:9092", "--group", "g", "--check")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["group.membership", "kafka", "command", "line"] in lines
    assert ["offsets.storage", "kafka", "command", "line"] in lines
    assert ["group.id", "g", "command", "line"] in lines


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--topics", "a"), "need --bootstrap HOST:PORT, brokers of the target"),
        (("--bootstrap", "new:9092"), "go with --topics, --pattern or --blacklist"),
        (("--topics", "a", "--bootstrap", "new"), "bootstrap: expected host:port"),
        (("--topics", "a", "--bootstrap", "new:1", "--name", "x"), "expected {topic} once"),
    ],
)
def test_mistakes_are_told_with_the_option(arguments: tuple[str, ...], told: str) -> None:
    done = run("--zookeeper", "old:2181", *arguments)
    assert 2 == done.returncode
    assert told in done.stderr


def test_settings_without_a_mirror_are_refused(tmp_path: Path) -> None:
    """`consumerd mirror` that lands files would surprise."""
    file = tmp_path / "run.yaml"
    file.write_text(
        "cluster: {zookeeper: 'old:2181'}\nsubscriptions: [{topics: [a], sink: out}]\nsinks: {out: {type: stdout}}\n"
    )
    done = run("--config", str(file))
    assert 2 == done.returncode
    assert "none has a sink of type kafka" in done.stderr
