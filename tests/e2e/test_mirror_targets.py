# SPDX-License-Identifier: Apache-2.0
"""A mirror, and groups that move, into targets as they are in production: with TLS and SASL, and of several brokers."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
import yaml
from confluent_kafka import Consumer

from consumerd.cli.main import DONE, FAILED, UNREACHABLE, main
from consumerd.embedded.acls import AclFile
from consumerd.embedded.sasl import make_users
from consumerd.mirror.positions import DEFAULT_TOPIC
from consumerd.model import TopicPartition
from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Sent, free_port
from tests.support.ledger import send_all
from tests.support.mirroring import read_committed
from tests.support.proxy_thread import ProxyThread
from tests.support.registry import open_registry
from tests.support.seeds import draw_seed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.records, pytest.mark.drawn, pytest.mark.timeout(300)]

PARTITIONS: Final = 3
PASSWORDS: Final = {"mirror": "mirror-secret", "mover": "mover-secret", "member": "member-secret"}
RECORDS: Final = 90


def put(zookeeper: str, group: str, topic: str, offset: int) -> None:
    """Write a group's positions as its members do: the same in each partition."""
    with open_registry(zookeeper) as registry:
        for partition in range(PARTITIONS):
            path = f"/consumers/{group}/offsets/{topic}/{partition}"
            registry.client.ensure_path(path)
            registry.client.set(path, b"%d" % offset)


def send(cluster: EmbeddedThread, topic: str, begin: int, end: int) -> None:
    """Send numbered records, in turn to each partition."""
    send_all(cluster.bootstrap, [Sent(topic, one % PARTITIONS, None, b"%d" % one) for one in range(begin, end)])


# -- TLS and SASL


@dataclass(frozen=True)
class Secured:
    """A target behind TLS, with SASL and ACLs."""

    address: str
    ca_file: Path
    folder: Path
    rules: Path

    def login(self, user: str, password: str = "") -> Mapping[str, Any]:
        """Return the settings of an identity."""
        path = self.folder / f"{user}-{'wrong' if password else 'right'}.password"
        path.write_text(password or PASSWORDS[user])
        path.chmod(0o600)
        return {"mechanism": "SCRAM-SHA-256", "username": user, "password_file": str(path)}

    def consumer(self, group: str) -> Consumer:
        """Return a member of a group, by another client."""
        security = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca_file),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "member",
            "sasl.password": PASSWORDS["member"],
        }
        reading = {"isolation.level": "read_committed", "auto.offset.reset": "error", "enable.auto.commit": False}
        return Consumer({"bootstrap.servers": self.address, "group.id": group, **security, **reading})


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    rules, port = tmp_path / "acls", free_port()
    rules.write_text("")
    with (
        ProxyThread(port, tls=context) as proxy,
        EmbeddedThread(
            tmp_path / "target",
            None,
            port=port,
            advertised_port=proxy.port,
            users=make_users(PASSWORDS),
            acls=AclFile(rules).allows,
        ),
    ):
        yield Secured(proxy.address, tmp_path / "ca.pem", tmp_path, rules)


def rights_of(topic: str, group: str) -> str:
    """Return the rights that docs/kafka-sink.md, docs/mirror.md and docs/migration.md name, and a member's own.

    The embedded authorizer is that of Kafka 1.1, where creating topics and listing groups are rights on the cluster;
    it takes the right to read settings on the cluster, too.
    """
    checkpoints = "source.checkpoints.internal"
    rules = {
        "mirror": {
            f"Topic:{topic}": "Write Describe Alter DescribeConfigs",
            f"Topic:{DEFAULT_TOPIC}": "Read Write Describe DescribeConfigs",
            "Cluster:kafka-cluster": "Create DescribeConfigs",
            "TransactionalId:*": "Write Describe",
        },
        "mover": {
            f"Topic:{topic}": "Describe Read DescribeConfigs",
            f"Group:{group}": "Read",
            f"Topic:{DEFAULT_TOPIC}": "Read Write",
            f"Topic:{checkpoints}": "Write",
            "Cluster:kafka-cluster": "Create Describe DescribeConfigs IdempotentWrite",
        },
        "member": {f"Topic:{topic}": "Read", f"Group:{group}": "Read"},
    }
    return "".join(
        f"allow User:{user} {operation} {resource}\n"
        for user, of_user in rules.items()
        for resource, operations in of_user.items()
        for operation in operations.split()
    )


def test_a_group_moves_into_a_target_with_tls_and_scram_with_the_documented_rights(
    cluster: EmbeddedThread,
    secured: Secured,
    unique: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Mirror, mover and member have an identity each; a wrong password and a missing authority are told."""
    topic, group, mirrors = unique("guarded"), unique("billing"), unique("mirror")
    cluster.create_topic(topic, PARTITIONS)
    rights = rights_of(topic, group)
    secured.rules.write_text(rights)
    send(cluster, topic, 0, RECORDS)
    put(cluster.zookeeper, group, topic, 10)
    sink = {
        "type": "kafka",
        "bootstrap": secured.address,
        "flush_ms": 100,
        "tls": {"ca_file": str(secured.ca_file)},
        "sasl": secured.login("mirror"),
    }

    def write_target(**cluster_section: Any) -> Path:
        path = tmp_path / "target.yaml"
        trusted = {"tls": {"enabled": True, "ca_file": str(secured.ca_file)}}
        section = {"bootstrap": secured.address, **trusted, "sasl": secured.login("mover"), **cluster_section}
        path.write_text(yaml.safe_dump({"cluster": section}))
        return path

    def migrate(command: str, *arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        addresses = ["-z", cluster.zookeeper, "--target-config", str(tmp_path / "target.yaml")]
        code = main(["migrate", command, *addresses, "--mirror-group", mirrors, "--timeout", "10", *arguments])
        return code, capsys.readouterr().err

    write_target()
    settings = settings_for(cluster.zookeeper, mirrors, topics=(topic,), sink=sink)
    with Daemon(tmp_path, "mirror", settings, command="mirror") as mirror:
        mirror.wait(lambda: bool(mirror.status()["mirror"]["safe_to_cut_over"]), "all is mirrored", 90)
        secured.rules.write_text(rights.replace("allow User:mover Describe Cluster:kafka-cluster\n", ""))
        code, err = migrate("cutover", "-g", group)
        # a position or a member that is hidden is never taken for none
        assert (code, "allow `Describe` on `Cluster:kafka-cluster` for User:mover" in err) == (FAILED, True), err
        secured.rules.write_text(rights)
        code, err = migrate("cutover", "-g", group)
        assert code == DONE, err
        assert f"bootstrap.servers={secured.address}" in err
        assert {b"%d" % one for one in range(10 * PARTITIONS, RECORDS)} == read_as_member(secured, group, topic)
        code, err = migrate("rollback", "-g", group, "--yes")
        assert code == DONE, err
        code, err = migrate("verify", topic, "--full")
        assert code == DONE, err
        assert mirror.terminate(90) == 0
    with open_registry(cluster.zookeeper) as registry:
        assert registry.offsets(group, topic) == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
    write_target(sasl=secured.login("mover", "wrong"))
    code, err = migrate("status", "-g", group)
    assert (code, "check the user name and the password" in err) == (UNREACHABLE, True), err
    write_target(tls={"enabled": True})
    code, err = migrate("status", "-g", group)
    assert (code, "certificate" in err) == (UNREACHABLE, True), err


def read_as_member(secured: Secured, group: str, topic: str) -> set[bytes | None]:
    """Return the values of all records that are left for a group, and commit behind them."""
    consumer, found = secured.consumer(group), set[bytes | None]()
    consumer.subscribe([topic])

    def has_all() -> bool:
        for message in consumer.consume(100, 0.2):
            assert message.error() is None, message.error()
            found.add(message.value())
        return len(found) >= RECORDS - 10 * PARTITIONS

    try:
        wait_until(has_all, "the member reads all that is left", 60)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


# -- several brokers


def test_leaders_move_while_a_mirror_writes_and_a_group_moves(
    cluster: EmbeddedThread,
    unique: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Brokers are killed, stopped and started, and leaders are moved in order: each record is there once, in order."""
    topic, group, mirrors = unique("spread"), unique("billing"), unique("mirror")
    dice = random.Random(draw_seed("leaders of a mirror's target"))
    cluster.create_topic(topic, PARTITIONS)
    put(cluster.zookeeper, group, topic, 10)
    with EmbeddedThread(tmp_path / "target", None, nodes=3) as target:
        sink = {"type": "kafka", "bootstrap": target.bootstrap, "flush_ms": 50}
        settings = settings_for(cluster.zookeeper, mirrors, topics=(topic,), sink=sink)

        def migrate(command: str, *arguments: str) -> int:
            capsys.readouterr()
            return main(["migrate", command, "-c", str(tmp_path / "mirror.yaml"), "--timeout", "30", *arguments])

        def is_safe() -> bool:
            return bool(mirror.status()["mirror"]["safe_to_cut_over"])

        with Daemon(tmp_path, "mirror", settings, command="mirror") as mirror:
            send(cluster, topic, 0, RECORDS)
            mirror.wait(is_safe, "the first records are mirrored", 90)
            sent = RECORDS
            for away in dice.sample(range(3), 3):
                stop = dice.choice([target.kill_node, target.stop_node])
                stop(away)
                send(cluster, topic, sent, sent + RECORDS)
                mirror.wait(is_safe, f"all is mirrored without broker {away}", 90)
                target.start_node(away)
                send(cluster, topic, sent + RECORDS, sent + 2 * RECORDS)
                target.elect_preferred_leaders()
                sent += 2 * RECORDS
                for partition in range(PARTITIONS):
                    to, one = dice.randrange(3), TopicPartition.modern(topic, partition)
                    target.do(lambda running, one=one, to=to: running.move_leader(one, to))
            mirror.wait(is_safe, "all is mirrored", 90)
            target.kill_node(away)
            assert migrate("cutover", "-g", group) == DONE, capsys.readouterr().err
            assert migrate("verify", topic, "--full") == DONE, capsys.readouterr().err
            target.start_node(away)
            assert mirror.terminate(90) == 0
        for partition in range(PARTITIONS):
            copies = [one.value for one in read_committed(target.bootstrap, topic, partition)]
            assert copies == [b"%d" % one for one in range(partition, sent, PARTITIONS)]
