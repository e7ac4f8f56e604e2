# SPDX-License-Identifier: Apache-2.0
"""`consumerd offsets migrate` beside running daemons, and for a stopped group as docs/positions-in-kafka.md has it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from consumerd.cli.main import main
from tests.support.daemon import Daemon, settings_for
from tests.support.documented import as_typed, commands
from tests.support.documents import DOCS, find_blocks
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Sent
from tests.support.ledger import Ledger, send_all
from tests.support.load import SteadyLoad
from tests.support.offset_commands import offsets
from tests.support.registry import open_registry
from tests.support.waiting import wait_until

pytestmark = pytest.mark.records

PARTITIONS = 4
HERE = "tests/e2e/test_offsets_migration.py"


def start(
    cluster: EmbeddedThread, folder: Path, name: str, group: str, topic: str, section: Mapping[str, object]
) -> Daemon:
    settings = settings_for(cluster.zookeeper, group, topics=(topic,), offsets={"commit_interval_ms": 200, **section})
    return Daemon(folder, name, settings)


def own_share(running: Sequence[Daemon], share: int) -> bool:
    return all(len(one.owned()) == share for one in running)


@pytest.mark.timeout(400)
def test_two_daemons_move_to_kafka_and_back_while_records_come(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Each step by a rolling restart, each checked by the command; no record twice, none left out."""
    topic, group = unique("moving"), unique("movers")
    cluster.create_topic(topic, PARTITIONS)
    producer = Ledger(cluster.bootstrap)
    running: list[Daemon] = []
    every: list[Daemon] = []

    def replace(section: Mapping[str, object]) -> None:
        for _ in range(2):
            if len(running) == 2:
                assert running.pop(0).terminate(90) == 0
            daemon = start(cluster, tmp_path, f"member-{len(every)}", group, topic, section)
            running.append(daemon)
            every.append(daemon)
            share = PARTITIONS // len(running)
            wait_until(partial(own_share, running, share), "each owns its share", 120)

    def ask(verb: str, *arguments: str) -> tuple[int, str]:
        done = offsets(cluster.zookeeper, group, f"migrate {verb}", "--timeout", "60", *arguments)
        return done.returncode, done.stderr

    both, kafka = {"storage": "kafka", "dual_commit": True}, {"storage": "kafka", "dual_commit": False}
    try:
        with SteadyLoad(producer, {topic: PARTITIONS}, per_second=20):
            replace({"storage": "zookeeper"})
            code, said = ask("plan", "--observe", "2")
            assert (code, "positions move in ZooKeeper alone: step 1 is to be done" in said) == (0, True), said
            code, said = ask("verify", "--wait", "1")
            assert (code, "do not set offsets.dual_commit: false" in said) == (1, True), said
            code, said = ask("apply", "--yes")
            assert (code, "live members consume left alone" in said) == (1, True), said

            replace(both)
            assert "positions move in both places" in ask("plan", "--observe", "2")[1]
            assert ask("verify")[0] == 0
            replace(kafka)
            assert "positions move in Kafka alone: step 3 is done" in ask("plan", "--observe", "2")[1]
            assert ask("verify", "--to", "zookeeper", "--wait", "1")[0] == 1
            replace(both)
            assert ask("verify", "--to", "zookeeper")[0] == 0
            replace({"storage": "zookeeper"})
        ledger = producer.finish()
        wait_until(lambda: sum(len(one.deliveries) for one in every) >= len(ledger), "all delivered", 120)
        assert [one.terminate(90) for one in running] == [0, 0]
    finally:
        for daemon in every:
            daemon.__exit__()

    delivered = Counter((one.topic, one.partition, one.offset) for daemon in every for one in daemon.deliveries)
    assert delivered == Counter(ledger.keys())


@pytest.mark.timeout(300)
def test_a_stopped_group_moves_as_documented(
    cluster: EmbeddedThread,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After `apply`, a member starts with Kafka alone, exactly where the group stood; `rollback` is refused then."""
    topic, group = unique("stopped"), unique("sleepers")
    cluster.create_topic(topic, PARTITIONS)
    send_all(cluster.bootstrap, (Sent(topic, one % PARTITIONS, None, b"v%d" % one) for one in range(40)))
    with start(cluster, tmp_path, "before", group, topic, {"storage": "zookeeper"}) as before:
        before.wait(lambda: len(before.deliveries) == 40, "all records", 90)
        assert before.terminate(90) == 0
    monkeypatch.chdir(tmp_path)
    (block,) = (one for one in find_blocks(DOCS / "positions-in-kafka.md", "sh") if HERE in one.tests)
    apply, verify, rollback = (
        as_typed(command).replace("zk1:2181/kafka", cluster.zookeeper).replace("-g lake", f"-g {group}").split()[1:]
        for command in commands(block)
    )

    assert main([*apply, "--yes"]) == 0
    assert main(verify) == 0
    assert main([*rollback, "--dry-run"]) == 0
    assert main([*rollback, "--yes"]) == 0
    assert "it keeps 10, and forgets it" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "before.json").read_text())["offsets"]) == PARTITIONS

    alone = {"storage": "kafka", "dual_commit": False}
    send_all(cluster.bootstrap, [Sent(topic, 0, None, b"new")])
    with start(cluster, tmp_path, "after", group, topic, alone) as after:
        after.wait(lambda: len(after.deliveries) == 1, "what is new", 90)
        after.wait(lambda: read_kafka(cluster, group, topic)[0] == 11, "it is committed")
        assert after.terminate(90) == 0
    assert [(one.partition, one.offset) for one in after.deliveries] == [(0, 10)]
    assert main([*rollback, "--yes"]) == 1
    assert f"{topic}/0 (11 now, 10 was written): moved since" in capsys.readouterr().err
    with open_registry(cluster.zookeeper) as registry:
        assert registry.offsets(group, topic) == dict.fromkeys(range(PARTITIONS), 10)


def read_kafka(cluster: EmbeddedThread, group: str, topic: str) -> dict[int, int]:
    """Return the positions in Kafka, by a client that is not ours."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        wanted = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return {one.partition: one.offset for one in consumer.committed(wanted, timeout=10)}
    finally:
        consumer.close()
