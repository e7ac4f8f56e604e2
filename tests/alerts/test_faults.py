# SPDX-License-Identifier: Apache-2.0
"""Each alert fires from the fault that it is for, as one page or one ticket, and is quiet otherwise.

Real daemons, scraped by a real Prometheus with the shipped rules, and a real Alertmanager with the shipped routes and
inhibition rules; times are divided by `SPEED`. All faults happen at the same time, each to a group of its own; one group
works all the while. Targets are found as under Compose, systemd and Kubernetes in turn.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from confluent_kafka import Producer
from kazoo.security import make_acl, make_digest_acl

from consumerd.config.job import JobSettings
from consumerd.model import BrokerId, TopicPartition
from consumerd.spark.job import JobName, Summary
from consumerd.spark.job_metrics import SERIES, JobEnd, report_metrics
from consumerd.wire.apikeys import ApiKey
from tests.architecture.queries import DEPLOY
from tests.support.daemon import Daemon, settings_for
from tests.support.damage import flip_byte
from tests.support.embedded import EmbeddedThread
from tests.support.embedded_legacy import LegacyThread
from tests.support.kafka import free_port
from tests.support.kdc import Kdc
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad
from tests.support.monitoring import SPEED, Monitoring, Notified, Target, names, run_monitoring
from tests.support.proxy_thread import ProxyThread
from tests.support.registry import Registry, open_registry
from tests.support.tools import require_kerberos, require_tool
from tests.support.waiting import wait_until
from tests.support.zookeeper import run_server

KINDS: Final = ("compose", "kubernetes", "systemd")
LONGEST_S: Final = 2 * 3600 / SPEED + 60
"""Time within which each alert must have fired."""
MOST_TOPICS: Final = 150
"""Topics after which a storm of rebalances must have been told."""
AT_ONCE: Final = 6
"""Faults that are prepared, and caused, at the same time."""
MOST_BATCHES: Final = 1000
"""Batches of records after which two mirrors must have fenced each other."""
MANY: Final = 50
"""Partitions of a sink that is slow."""
EACH: Final = 200
"""Records of 1 kB in each of them."""
READ_AT_ONCE: Final = 10_000
"""Bytes that a slow reader takes at once."""
READ_EVERY_S: Final = 0.05
"""Pause of a slow reader, in seconds. A batch of each partition must go through in less than a call's patience."""
Act = Callable[[], None]


@dataclass
class World:
    """Everything that runs."""

    folder: Path
    cluster: EmbeddedThread
    zookeeper_port: int
    registry: Registry
    monitoring: Monitoring
    stack: contextlib.ExitStack
    groups: dict[str, Group] = field(default_factory=dict)
    fired: set[tuple[str, str]] = field(default_factory=set)
    """Alert and group of what has fired, at any time, whether somebody was told or not."""
    empty_panels: set[str] = field(default_factory=set)
    """Panels of the dashboard that showed nothing while all faults lasted."""


@dataclass
class Group:
    """A group with one topic, and what is scraped of it."""

    world: World
    name: str
    kind: str
    addresses: set[str] = field(default_factory=set)
    own_cluster: EmbeddedThread | None = None
    mends: list[Act] = field(default_factory=list)
    """What ends its fault, once everything has fired."""

    @property
    def cluster(self) -> EmbeddedThread:
        """Return its cluster: the shared one, or its own."""
        return self.own_cluster or self.world.cluster

    def take_cluster(self) -> EmbeddedThread:
        """Start a broker for this group alone, with the topic."""
        address = f"127.0.0.1:{self.world.zookeeper_port}/{self.name}"
        self.own_cluster = self.world.stack.enter_context(
            EmbeddedThread(self.world.folder / f"{self.name}-own", address)
        )
        self.own_cluster.create_topic(self.topic)
        return self.own_cluster

    @property
    def topic(self) -> str:
        """Return its topic."""
        return f"{self.name}-topic"

    @property
    def landing(self) -> Path:
        """Return the folder that it lands in."""
        return self.world.folder / self.name

    def member(
        self,
        name: str = "a",
        *,
        scraped: bool = True,
        make: Callable[..., Daemon] = Daemon,
        **sections: Mapping[str, Any],
    ) -> Daemon:
        """Start a member and have it scraped. Sections are merged over settings of a JSON lines sink."""
        settings = settings_for(
            self.cluster.zookeeper,
            self.name,
            topics=(self.topic,),
            sink={"type": "jsonl", "path": str(self.landing), "roll_ms": 300},
            log={"level": "info"},
        )
        for section, values in sections.items():
            settings[section] = {**settings.get(section, {}), **values} if isinstance(values, Mapping) else values
        daemon = self.world.stack.enter_context(
            make(self.world.folder, f"{self.name}-{name}", settings, keep_output=False)
        )
        if scraped:
            self.scrape(daemon)
        return daemon

    def scrape(self, daemon: Daemon) -> None:
        """Have a member scraped."""
        address = daemon.url.removeprefix("http://")
        self.addresses.add(address)
        self.world.monitoring.scrape(Target(address, self.kind, namespace=self.name, name=daemon.name))

    def working(self, name: str = "a", **sections: Mapping[str, Any]) -> Daemon:
        """Start a member that has landed what there is, and only then is scraped."""
        daemon = self.member(name, scraped=False, **sections)
        daemon.wait_ready(60)
        self.scrape(daemon)
        return daemon

    def produce(self, count: int = 20) -> None:
        """Append records to its topic."""
        self.cluster.produce(self.topic, b"k\tv\n" * count)

    def wait_committed(self, position: int) -> None:
        """Wait until its position is in ZooKeeper."""
        offsets = self.world.registry.offsets
        wait_until(lambda: offsets(self.name, self.topic) == {0: position}, f"{self.name}: {position} committed", 60)

    def told(self, notified: list[Notified]) -> list[Notified]:
        """Return what receivers were told of this group."""
        return [
            one
            for one in notified
            if one.labels.get("instance") in self.addresses
            or one.labels.get("group") == self.name
            or one.labels.get("topic", "").startswith(self.topic)
        ]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A fault. ``begin`` sets the group up and returns what makes the fault happen.

    ``page`` and ``tickets`` are the alerts that somebody is told of, and ``muted`` some of those that fire as well.
    ``tickets_first`` may come before the page or, where the fault is mended, after it, or not; one of them that is
    muted, too, must fire, told or not.
    """

    begin: Callable[[Group], Act]
    page: str = ""
    tickets: frozenset[str] = frozenset()
    tickets_first: frozenset[str] = frozenset()
    notes: frozenset[str] = frozenset()
    muted: frozenset[str] = frozenset()
    ends: bool = False
    """Whether its fault is mended in the end: then its alerts must end, too, and nothing may follow."""


def mirror(group: Group) -> Act:
    """A mirror that works; its target is the same cluster, where topics have other names."""
    target = {"type": "kafka", "bootstrap": group.cluster.bootstrap, "topic": "copy.{topic}"}
    group.working(sinks={"out": target})
    return group.produce


def mirror_twice(group: Group) -> Act:
    """Another client with the transactional id of the mirror's partition, as a mirror of the same group would be."""
    target = {"type": "kafka", "bootstrap": group.cluster.bootstrap, "topic": "copy.{topic}", "flush_ms": 50}
    daemon = group.working(fetch={"isolation": "read_committed"}, sinks={"out": target})
    stat = group.world.registry.client.exists("/brokers/topics")
    transactional_id = f"consumerd.{group.name}.{stat.czxid}-{stat.ctime}.{group.topic}.0"

    def mirrored(position: int) -> bool:
        return [one["acknowledged"] for one in daemon.status()["partitions"]] == [position]

    def act() -> None:
        for number in range(2, MOST_BATCHES):
            if "ConsumerdMirrorFenced" in names(group.told(group.world.monitoring.notified), "page"):
                break
            twin = Producer({"bootstrap.servers": group.cluster.bootstrap, "transactional.id": transactional_id})
            twin.init_transactions(30)
            group.produce()
            daemon.wait(lambda number=number: mirrored(20 * number), "each record is mirrored", 60)  # type: ignore[misc]  # bound now

    group.mends.append(lambda: None)
    return act


def lose_the_target(group: Group) -> Act:
    """The cluster that a mirror writes to is gone: the partition says so, as with any other sink."""
    target = group.world.stack.enter_context(EmbeddedThread(group.world.folder / f"{group.name}-target", None))
    sink = {"type": "kafka", "bootstrap": target.bootstrap, "request_timeout_ms": 3000}
    group.working(fetch={"isolation": "read_committed"}, sinks={"out": sink})

    def act() -> None:
        target.do(lambda running: running.stop_broker())
        group.produce()
        group.mends.append(lambda: target.do(lambda running: running.start_broker()))

    return act


def nothing(group: Group) -> Act:
    """Two members that share two topics' partitions, and work."""
    for name in "ab":
        group.working(name)
    return lambda: None


def kill_one_of_two(group: Group) -> Act:
    """The other one takes over."""
    first, _ = group.working("a"), group.working("b")
    return first.kill


def kill_the_only_one(group: Group) -> Act:
    """Nobody is left."""
    return group.working().kill


def cut_zookeeper(group: Group) -> Act:
    """A network that drops all packets to ZooKeeper."""
    proxy = group.world.stack.enter_context(ProxyThread(group.world.zookeeper_port))
    _, _, chroot = group.world.cluster.zookeeper.partition("/")
    group.working(cluster={"zookeeper": f"{proxy.address}/{chroot}"})
    group.mends.append(proxy.heal)
    return proxy.blackhole


def lose_a_session(group: Group) -> Act:
    """The same for longer than a session."""
    proxy = group.world.stack.enter_context(ProxyThread(group.world.zookeeper_port))
    _, _, chroot = group.world.cluster.zookeeper.partition("/")
    daemon = group.working(cluster={"zookeeper": f"{proxy.address}/{chroot}"}, group={"session_timeout_ms": 4000})

    def act() -> None:
        proxy.blackhole()
        daemon.wait(lambda: not group.world.registry.members(group.name), "the session is over")
        proxy.heal()
        daemon.wait_ready()

    return act


def warn_at_the_start(group: Group) -> Act:
    """A budget that is small for its sink is a warning in the log, and nothing else."""

    def act() -> None:
        group.member(
            fetch={"memory_budget_bytes": 48 << 20, "max_message_bytes": 1 << 20, "max_partition_bytes": 1 << 20},
            sinks={"out": {"type": "parquet", "path": str(group.landing), "roll_ms": 300}},
        )

    return act


def hold_an_owner_node(group: Group) -> Act:
    """A node that some tool has left, which goes with no session."""
    client = group.world.registry.client
    path = f"/consumers/{group.name}/owners/{group.topic}/0"
    group.mends.append(lambda: client.delete(path))

    def act() -> None:
        client.create(path, b"nobody-0", makepath=True)
        # all owners are looked at once in twelve of these, which by default is a minute that nothing divides
        group.member(rebalance={"reconcile_ms": 500})

    return act


def make_topics_all_the_time(group: Group) -> Act:
    """A pattern, and topics that match it and are made one after the other, until somebody is told."""
    daemon = group.working(subscriptions=[{"pattern": f"{group.topic}.*", "sink": "out"}], rebalance={"settle_ms": 20})

    def act() -> None:
        for number in range(MOST_TOPICS):
            if group.told(group.world.monitoring.notified):
                break
            group.world.cluster.create_topic(f"{group.topic}-{number}")
            daemon.wait(lambda number=number: len(daemon.events("rebalance_finished")) > number + 1, "a rebalance")  # type: ignore[misc]  # bound now

    return act


def register_nonsense(group: Group) -> Act:
    """A member that nobody can read stops every Java member's rebalance."""
    group.working()
    client = group.world.registry.client
    path = f"/consumers/{group.name}/ids/{group.name}_nonsense-1-abc"
    group.mends.append(lambda: client.delete(path))
    return lambda: client.create(path, b"{", ephemeral=True)


def deny_positions(group: Group) -> Act:
    """Everybody may read the topic's positions, and nobody of us may write them. Another topic is open."""
    client = group.world.registry.client
    other = f"{group.topic}-open"
    group.world.cluster.create_topic(other)

    def act() -> None:
        client.ensure_path(f"/consumers/{group.name}/offsets")
        rights = [make_digest_acl("root", "secret", all=True), make_acl("world", "anyone", read=True)]
        client.create(f"/consumers/{group.name}/offsets/{group.topic}", b"", acl=rights)
        group.mends.append(lambda: client.delete(f"/consumers/{group.name}/offsets/{group.topic}"))
        group.member(subscriptions=[{"topics": [group.topic, other], "sink": "out"}])

    return act


def lose_a_broker_of_0_7(group: Group) -> Act:
    """It takes its partitions with it, and brings them back."""
    folder, address = group.world.folder / f"{group.name}-own", f"127.0.0.1:{group.world.zookeeper_port}/{group.name}"
    brokers = group.world.stack.enter_context(LegacyThread(folder, address))
    for node in range(2):
        brokers.send(group.topic, [b"value"] * 20, node=node)
    daemon = group.working(cluster={"zookeeper": brokers.zookeeper}, offsets={"commit_interval_ms": 200})

    def committed() -> list[bool]:
        return [bool(one["committed"]) for one in daemon.status()["partitions"]]

    daemon.wait(lambda: committed() == [True, True], "positions to come back to")
    group.mends.append(lambda: brokers.start_node(1))
    return lambda: brokers.stop_node(1)


def misspell(group: Group) -> Act:
    """One of two names is not there."""
    other = f"{group.topic}-misspelt"
    group.mends.append(lambda: group.cluster.create_topic(other))
    return lambda: group.member(subscriptions=[{"topics": [group.topic, other], "sink": "out"}]) and None


def have_a_certificate_that_ends(group: Group) -> Act:
    """In an hour. Nothing is delivered besides, since the embedded broker has no listener of TLS."""
    authority = trustme.CA()
    issued = authority.issue_cert("client.example", not_after=datetime.now(UTC) + timedelta(hours=1))
    trusted, identity = group.world.folder / "ca.pem", group.world.folder / "client.pem"
    authority.cert_pem.write_to_path(trusted)
    issued.private_key_and_cert_chain_pem.write_to_path(identity)
    identity.chmod(0o600)
    files = {"ca_file": str(trusted), "certificate_file": str(identity), "key_file": str(identity)}
    return lambda: group.member(cluster={"tls": {"enabled": True, **files}}) and None


def have_a_ticket_that_ends(group: Group) -> Act:
    """Soon, and nobody renews the cache. Nothing is delivered besides, since the embedded broker has no Kerberos."""
    kdc = group.world.stack.enter_context(Kdc())
    make = partial(Daemon, environment=kdc.environment)

    def act() -> None:
        kdc.kinit("alice", "-l", "90s")
        group.member(make=make, cluster={"sasl": {"mechanism": "GSSAPI"}})

    return act


def have_no_position(group: Group) -> Act:
    """The policy says that somebody has to decide."""
    return lambda: group.member(offsets={"on_missing": "stop"}) and None


def lose_the_leader(group: Group) -> Act:
    """A partition without a leader. Records wait behind it."""
    group.working()

    def act() -> None:
        faulty = TopicPartition.modern(group.topic, 0)
        fault = group.cluster.arm(lambda faults: faults.pretend_leader(faulty, BrokerId(-1)))
        group.mends.append(lambda: group.cluster.arm(lambda _: fault.remove()))

    return act


def stop_the_broker(group: Group) -> Act:
    """The only broker is gone."""
    cluster = group.take_cluster()
    group.produce()
    group.working()
    group.mends.append(lambda: cluster.do(lambda running: running.start_broker()))
    return lambda: cluster.do(lambda running: running.stop_broker())


def drop_some_connections(group: Group) -> Act:
    """A network that cuts one answer in three off. Between them the partition goes on, and does not count as failing."""
    cluster = group.take_cluster()
    group.working(fetch={"max_wait_ms": 50})

    def act() -> None:
        while "ConsumerdBrokerFailing" not in names(group.told(group.world.monitoring.notified), "ticket"):
            whole = cluster.arm(lambda faults: faults.delay(ApiKey.FETCH, 0, times=2))
            wait_until(lambda whole=whole: whole.hits == 2, "two fetches are answered", 60)  # type: ignore[misc]  # bound now
            cut = cluster.arm(lambda faults: faults.close_at(ApiKey.FETCH, 10, times=1))
            wait_until(lambda cut=cut: cut.hits == 1, "an answer is cut off", 60)  # type: ignore[misc]  # bound now

    return act


def be_slower_than_the_producer(group: Group) -> Act:
    """A broker that answers late gives less than a producer writes."""
    cluster = group.take_cluster()
    group.working(fetch={"max_partition_bytes": 2000})

    def act() -> None:
        cluster.arm(lambda faults: faults.delay(ApiKey.FETCH, 1.0, times=1_000_000))
        load = SteadyLoad(
            Ledger(cluster.bootstrap), {group.topic: 1}, per_second=40, make_value=lambda number: b"%500d" % number
        )
        group.world.stack.enter_context(load)

    return act


def block_the_sink(group: Group) -> Act:
    """The sink's folder is a file now."""
    group.working()
    moved = group.landing.with_name(f"{group.name}-moved")

    def restore() -> None:
        group.landing.unlink()
        moved.rename(group.landing)

    group.mends.append(restore)

    def act() -> None:
        group.landing.rename(moved)
        group.landing.write_text("")
        group.produce()

    return act


@dataclass
class SlowlyRead(Daemon):
    """A daemon whose stdout is read slowly, until ``hurry`` is set."""

    hurry: threading.Event = field(default_factory=threading.Event)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            while output.read1(READ_AT_ONCE):  # type: ignore[attr-defined]  # a pipe's buffered reader has it
                self.hurry.wait(READ_EVERY_S)


def read_slowly(group: Group) -> Act:
    """A sink that takes less than the brokers have: each partition keeps all that it may, and fetching waits."""
    topic = f"{group.topic}-many"
    group.cluster.create_topic(topic, MANY)
    producer = Producer({"bootstrap.servers": group.cluster.bootstrap, "batch.size": 8000})
    for number in range(MANY * EACH):
        producer.produce(topic, b"%01000d" % number, partition=number % MANY)
    assert producer.flush(60) == 0

    def act() -> None:
        daemon = group.member(
            make=SlowlyRead,
            subscriptions=[{"topics": [topic], "sink": "out"}],
            sinks={"out": {"type": "stdout"}},
            fetch={"memory_budget_bytes": 2 << 20, "max_message_bytes": 1 << 16, "max_partition_bytes": 1 << 16},
        )
        assert isinstance(daemon, SlowlyRead)
        group.mends.append(daemon.hurry.set)

    return act


def keep_files_open(group: Group) -> Act:
    """A file takes records for longer than anybody waits for it."""
    sink = {"type": "jsonl", "path": str(group.landing), "roll_ms": 3_600_000}
    group.working(sinks={"out": sink})
    return group.produce


def produce_late(group: Group) -> Act:
    """A producer that replays old records, and a sink whose files stay open for a while."""
    sink = {"type": "jsonl", "path": str(group.landing), "roll_ms": 30_000}
    group.working(sinks={"out": sink})

    def act() -> None:
        producer = Producer({"bootstrap.servers": group.world.cluster.bootstrap})

        def send_and_look() -> bool:
            producer.produce(group.topic, b"old", timestamp=int((time.time() - 7200) * 1000))
            assert producer.flush(30) == 0
            return bool(group.told(group.world.monitoring.notified))

        wait_until(send_and_look, "somebody is told of old records", LONGEST_S, 2.0)

    return act


def write_a_position(group: Group) -> Act:
    """A tool that writes a position of a partition that is owned."""
    group.working()
    group.produce()
    group.wait_committed(40)
    client = group.world.registry.client

    def act() -> None:
        client.set(f"/consumers/{group.name}/offsets/{group.topic}/0", b"3")
        group.produce()  # the next commit finds it

    return act


def refuse_positions(group: Group) -> Act:
    """ZooKeeper refuses each position, and not for an ACL: a tool's ephemeral node is where their folder was."""
    group.working()
    group.wait_committed(20)
    client = group.world.registry.client
    path = f"/consumers/{group.name}/offsets/{group.topic}"
    group.mends.append(lambda: client.delete(path))

    def act() -> None:
        client.delete(path, recursive=True)
        client.create(path, b"", ephemeral=True)
        group.produce()

    return act


def remove_the_newest_file(group: Group) -> Act:
    """The newest file of the newest chain is deleted, to make room on a full disk, after positions were moved back."""
    first = group.member(scraped=False)
    group.wait_committed(20)
    assert first.terminate() == 0
    subprocess.run(
        [
            *(sys.executable, "-m", "consumerd", "offsets", "reset", "--zookeeper", group.world.cluster.zookeeper),
            *("--group", group.name, group.topic, "--to", "earliest", "--yes"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    second = group.member("b", scraped=False)
    second.wait(lambda: "chain=2" in _landed(group)[-1].parent.name, "landed again in a new chain", 60)
    second.wait(lambda: group.world.registry.offsets(group.name, group.topic) == {0: 20}, "committed", 60)
    assert second.terminate() == 0

    def act() -> None:
        _landed(group)[-1].unlink()
        group.produce()
        group.member("c")

    return act


def _landed(group: Group) -> list[Path]:
    """Return the files of records, oldest chain first."""
    return sorted(path for path in group.landing.glob("topic=*/partition=*/chain=*/[0-9]*") if path.is_file())


def lose_the_log_end(group: Group) -> Act:
    """A position above the log, and a policy that goes back."""
    client = group.world.registry.client

    def act() -> None:
        client.create(f"/consumers/{group.name}/offsets/{group.topic}/0", b"5000", makepath=True)
        group.member(offsets={"on_above": "earliest"}, sinks={"out": {"type": "null"}})

    return act


def skip_what_is_corrupt(group: Group) -> Act:
    """A disk has changed a byte, and the policy is to go on."""
    return _corrupt(group, fetch={"on_corrupt": "skip"})


def quarantine_what_is_corrupt(group: Group) -> Act:
    """The same, and the unit is kept."""
    kept = {"path": str(group.world.folder / f"{group.name}-kept")}
    return _corrupt(group, fetch={"on_corrupt": "quarantine"}, quarantine=kept)


def _corrupt(group: Group, **sections: Mapping[str, Any]) -> Act:
    def act() -> None:
        group.world.cluster.produce(group.topic, b"k\tdamaged-value\n")
        group.produce()
        (segment,) = group.world.cluster.segments(group.topic)
        flip_byte(segment, b"damaged-value")
        group.member(**sections)

    return act


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "working": Scenario(begin=nothing),
    "mirrored": Scenario(begin=mirror),
    "twins": Scenario(begin=mirror_twice, page="ConsumerdMirrorFenced", ends=True),
    "targetless": Scenario(begin=lose_the_target, page="ConsumerdPartitionFailing", ends=True),
    "down": Scenario(begin=kill_one_of_two, tickets=frozenset({"ConsumerdDown"})),
    "absent": Scenario(begin=kill_the_only_one, page="ConsumerdAbsent", muted=frozenset({"ConsumerdDown"})),
    "unready": Scenario(
        begin=cut_zookeeper,
        page="ConsumerdNotReady",
        tickets_first=frozenset({"ConsumerdZooKeeperSilent", "ConsumerdSessionLost"}),
        ends=True,
    ),
    "session": Scenario(
        begin=lose_a_session,
        tickets=frozenset({"ConsumerdSessionLost"}),
        tickets_first=frozenset({"ConsumerdZooKeeperSilent"}),
        muted=frozenset({"ConsumerdZooKeeperSilent"}),
    ),
    "trouble": Scenario(begin=warn_at_the_start, notes=frozenset({"ConsumerdTrouble"})),
    "unowned": Scenario(
        begin=hold_an_owner_node,
        page="ConsumerdPartitionUnowned",
        # until the next look at all owners, which may come after the page has ended
        tickets_first=frozenset({"ConsumerdMembersDisagree"}),
        muted=frozenset({"ConsumerdNotReady"}),
        ends=True,
    ),
    "storm": Scenario(begin=make_topics_all_the_time, tickets=frozenset({"ConsumerdRebalanceStorm"})),
    "nonsense": Scenario(begin=register_nonsense, tickets=frozenset({"ConsumerdMembersDisagree"}), ends=True),
    "denied": Scenario(begin=deny_positions, page="ConsumerdTopicDenied", ends=True),
    "misspelt": Scenario(begin=misspell, tickets=frozenset({"ConsumerdTopicMissing"}), ends=True),
    "away": Scenario(
        begin=lose_a_broker_of_0_7,
        tickets=frozenset({"ConsumerdPartitionsAway"}),
        tickets_first=frozenset({"ConsumerdBrokerFailing"}),
        ends=True,
    ),
    "expiring": Scenario(
        begin=have_a_certificate_that_ends,
        page="ConsumerdPartitionFailing",
        tickets=frozenset({"ConsumerdCertificateExpiring"}),
        tickets_first=frozenset({"ConsumerdLagUnknown"}),
        muted=frozenset({"ConsumerdLagUnknown"}),
    ),
    "ticket": Scenario(
        begin=have_a_ticket_that_ends,
        page="ConsumerdPartitionFailing",
        tickets=frozenset({"ConsumerdTicketExpiring"}),
        tickets_first=frozenset({"ConsumerdLagUnknown"}),
        muted=frozenset({"ConsumerdLagUnknown"}),
    ),
    "stopped": Scenario(
        begin=have_no_position, page="ConsumerdPartitionStopped", muted=frozenset({"ConsumerdLagUnknown"})
    ),
    "leaderless": Scenario(
        begin=lose_the_leader,
        page="ConsumerdPartitionFailing",
        muted=frozenset({"ConsumerdLagUnknown"}),
        ends=True,
    ),
    "brokerless": Scenario(
        begin=stop_the_broker,
        page="ConsumerdPartitionFailing",
        muted=frozenset({"ConsumerdLagUnknown"}),
        ends=True,
    ),
    "slow": Scenario(
        begin=be_slower_than_the_producer,
        tickets=frozenset({"ConsumerdLagGrowing"}),
        tickets_first=frozenset({"ConsumerdRecordsLate"}),
    ),
    "sinkless": Scenario(
        begin=block_the_sink,
        page="ConsumerdPartitionFailing",
        muted=frozenset({"ConsumerdDeliveryStalled", "ConsumerdSinkFailing"}),
        ends=True,
    ),
    "uncommitted": Scenario(
        begin=refuse_positions,
        page="ConsumerdPartitionFailing",
        muted=frozenset({"ConsumerdCommitsFailing", "ConsumerdPositionNotCommitted"}),
        ends=True,
    ),
    "flapping": Scenario(begin=drop_some_connections, tickets=frozenset({"ConsumerdBrokerFailing"}), ends=True),
    "full": Scenario(
        begin=read_slowly,
        notes=frozenset({"ConsumerdMemoryFull"}),
        tickets_first=frozenset({"ConsumerdRecordsLate"}),
        ends=True,
    ),
    "openfile": Scenario(
        begin=keep_files_open, page="ConsumerdNoFile", tickets_first=frozenset({"ConsumerdRecordsLate"})
    ),
    "late": Scenario(begin=produce_late, tickets=frozenset({"ConsumerdRecordsLate"})),
    "foreign": Scenario(begin=write_a_position, tickets=frozenset({"ConsumerdForeignCommit"})),
    "chain": Scenario(begin=remove_the_newest_file, page="ConsumerdLandedFileMissing"),
    "truncated": Scenario(begin=lose_the_log_end, tickets=frozenset({"ConsumerdPositionReset"})),
    "skipped": Scenario(
        begin=skip_what_is_corrupt, page="ConsumerdGapRecorded", muted=frozenset({"ConsumerdUnitSkipped"})
    ),
    "kept": Scenario(
        begin=quarantine_what_is_corrupt,
        page="ConsumerdGapRecorded",
        muted=frozenset({"ConsumerdQuarantineWritten"}),
    ),
}

ENDING: Final = {name for name, scenario in SCENARIOS.items() if scenario.ends}

OF_JOBS: Final = {
    "ConsumerdJobFailing": "failing",
    "ConsumerdJobSilent": "silent",
    "ConsumerdJobFindings": "findings",
    "ConsumerdTableBehind": "rows",
    "ConsumerdBronzeBehind": "files",
}
"""Alerts of the pipeline, and the group whose job has the fault."""


def report(folder: Path, group: str, code: int, summary: Summary | None, ago_s: float = 0.0) -> None:
    """Write the metrics of a bronze job's run, as the job does."""
    settings = JobSettings.model_validate({"group": {"id": group}, "pipeline": {"metrics": {"folder": str(folder)}}})
    end = JobEnd(job=JobName("bronze"), exit_code=code, seconds=1, at_s=time.time() - ago_s, summary=summary)
    report_metrics(settings, end)


def fail_jobs(folder: Path) -> None:
    """Have a job fail, one not run, one find something, and two tables that lack what has come."""
    fine = Summary(numbers={"rows": 7})
    # an hour is over soon here: these have run at a time that is not silence for as long as the test takes
    report(folder, "failing", 0, fine, ago_s=-600)
    report(folder, "failing", 2, None, ago_s=-610)
    report(folder, "silent", 0, fine, ago_s=3600 / SPEED)
    report(folder, "findings", 1, Summary(numbers={"rows": 7}, findings=("a file is damaged",)), ago_s=-600)
    labels = 'job_name="{}",group="{}",table="{}"'
    behind = labels.format("silver", "rows", "silver/orders")
    oldest = labels.format("bronze", "files", "bronze")
    too_old = "consumerd_table_oldest_file_behind_timestamp_seconds"
    lines = [f"{name}{{{behind}}} 7\n" for name in SERIES if name.startswith("consumerd_table_") and name != too_old]
    (folder / "behind.prom").write_text(f"{''.join(lines)}{too_old}{{{oldest}}} {time.time() - 3600 / SPEED}\n")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Run all faults at once, and wait until each alert that must fire has done so, and then for what should not come."""
    folder = tmp_path_factory.mktemp("alerts")
    exporter = require_tool("prometheus-node-exporter", "prometheus-node-exporter")
    require_kerberos()
    with contextlib.ExitStack() as stack:
        monitoring = stack.enter_context(run_monitoring(folder / "monitoring"))
        zookeeper = stack.enter_context(run_server())
        address = f"{zookeeper.connect_string}/alerts"
        cluster = stack.enter_context(EmbeddedThread(folder / "cluster", address))
        registry = stack.enter_context(open_registry(address))
        registry.client.add_auth("digest", "root:secret")
        port = int(zookeeper.connect_string.rpartition(":")[2])
        world = World(folder, cluster, port, registry, monitoring, stack)
        wait_until(lambda: bool(monitoring.notified), "an alert where nothing was ever scraped")
        assert [one.name for one in monitoring.notified] == ["ConsumerdAbsent"]
        monitoring.notified.clear()
        # a table must be behind for an hour, which is the longest of all: it begins before groups are set up
        jobs = folder / "jobs"
        jobs.mkdir()
        fail_jobs(jobs)
        stack.enter_context(_exporting(exporter, jobs, monitoring))
        world.groups |= {name: Group(world, name, KINDS[at % len(KINDS)]) for at, name in enumerate(SCENARIOS)}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            faults = list(pool.map(_begin, world.groups.values()))
        monitoring.wait_passed(300 / SPEED)
        of_groups = [one for one in monitoring.notified if one.labels.get("group") not in OF_JOBS.values()]
        assert of_groups == [], "before anything is wrong"

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda fault: fault(), faults))
        try:
            wait_until(lambda: not _missing(world), "all alerts", LONGEST_S, 0.5)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {_missing(world)}") from None
        world.groups["working"].produce()
        assert {name for name, group in world.groups.items() if group.mends} <= ENDING
        world.empty_panels |= _find_empty_panels(monitoring)
        for group in world.groups.values():
            for mend in group.mends:
                mend()
        monitoring.wait_passed(1200 / SPEED)
        yield world


def _find_empty_panels(monitoring: Monitoring) -> set[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "consumerd.json").read_text())
    panels = [one for row in dashboard["panels"] for one in (row, *row.get("panels", ())) if one["type"] != "row"]
    return {
        panel["title"]
        for panel in panels
        for target in panel["targets"]
        if not monitoring.query(_interpolated(target["expr"]))
    }


def _begin(group: Group) -> Act:
    group.world.cluster.create_topic(group.topic)
    group.produce()
    return SCENARIOS[group.name].begin(group)


@contextlib.contextmanager
def _exporting(program: str, folder: Path, monitoring: Monitoring) -> Iterator[None]:
    port = free_port()
    options = ("--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={folder}")
    process = subprocess.Popen(
        [program, f"--web.listen-address=127.0.0.1:{port}", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    monitoring.scrape(Target(f"127.0.0.1:{port}", "node"))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _missing(world: World) -> dict[str, set[str]]:
    """Return by scenario what has not been told yet, and what has not fired yet though it is muted."""
    notified = list(world.monitoring.notified)
    # by Prometheus's own record: an event's alert lasts seconds here, which Alertmanager may mute between two looks
    fired = world.monitoring.query('max_over_time(ALERTS{alertstate="firing"}[10m])')
    world.fired |= {(one["metric"]["alertname"], _owner(world, one["metric"])) for one in fired}
    missing = {}
    for name, scenario in SCENARIOS.items():
        told = {one.name for one in world.groups[name].told(notified)}
        expected = {scenario.page, *scenario.tickets, *scenario.notes} - {""} - told
        missing[name] = expected | {one for one in scenario.muted if (one, name) not in world.fired}
    told_of_jobs = {(one.name, one.labels.get("group")) for one in notified}
    missing["jobs"] = {alert for alert, group in OF_JOBS.items() if (alert, group) not in told_of_jobs}
    return {name: left for name, left in missing.items() if left}


def _owner(world: World, labels: Mapping[str, str]) -> str:
    return next((name for name, group in world.groups.items() if group.told([Notified("", labels)])), "")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_one_fault_is_one_page_or_one_ticket(world: World, name: str) -> None:
    """Whoever is woken up sees the cause, and nothing that only follows from it."""
    scenario = SCENARIOS[name]
    told = world.groups[name].told(world.monitoring.notified)

    assert names(told, "page") == {scenario.page} - {""}
    tickets = names(told, "ticket")
    assert scenario.tickets <= tickets <= scenario.tickets | scenario.tickets_first
    # a line in the log is noted at once, and its alert, which nobody is told of, is muted later
    noted = frozenset({"ConsumerdTrouble"}) if scenario.page or scenario.tickets else frozenset()
    assert scenario.notes <= names(told, "nobody") <= scenario.notes | noted


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(ENDING))
def test_an_alert_ends_with_its_fault(world: World, name: str) -> None:
    """One that goes on tells of nothing any more, and the next fault is not seen in it."""
    firing = world.monitoring.query('ALERTS{alertstate="firing"}')

    assert [one["metric"]["alertname"] for one in firing if _owner(world, one["metric"]) == name] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("alert", OF_JOBS)
def test_each_fault_of_a_job_is_one_alert(world: World, alert: str) -> None:
    """Through a real node_exporter."""
    told = {one.name for one in world.monitoring.notified if one.labels.get("group") == OF_JOBS[alert]}

    assert told == {alert}


@pytest.mark.timeout(600)
def test_an_alert_has_the_labels_of_its_pod(world: World) -> None:
    """By the shipped relabel rules; the job is the one that a PodMonitor gives."""
    of_pods = [one.labels for one in world.monitoring.notified if one.labels.get("container")]

    assert of_pods
    for labels in of_pods:
        assert labels["job"] == f"{labels['namespace']}/consumerd"
        assert labels["pod"].startswith(f"{labels['namespace']}-")
    assert {kind for kind in KINDS for one in world.groups.values() if one.kind == kind} == set(KINDS)


@pytest.mark.timeout(600)
def test_every_query_of_the_dashboard_is_answered(world: World) -> None:
    """A query that does not parse, or that asks for what there never is, leaves a panel empty."""
    assert world.empty_panels <= MAY_BE_EMPTY


@pytest.mark.timeout(600)
def test_the_panel_of_gaps_shows_the_first_loss(world: World) -> None:
    """`increase` alone does not see a counter that appears with its first event."""
    dashboard = json.loads((DEPLOY / "grafana" / "consumerd.json").read_text())
    (panel,) = [one for one in dashboard["panels"] if one["title"] == "Offsets in gaps"]
    expression = _interpolated(panel["targets"][0]["expr"])
    topic = world.groups["skipped"].topic
    shown = world.monitoring.query(f"max_over_time(({expression})[10m:1s])")
    (most,) = [float(one["value"][1]) for one in shown if one["metric"]["topic"] == topic]

    assert most >= 1


def _interpolated(expression: str) -> str:
    """Put values for Grafana's variables, as it does with everything chosen at the top."""
    for name in ("job", "instance", "group"):
        expression = expression.replace(f'"${name}"', '".*"')
    for name, series in A_SERIES_OF.items():
        expression = expression.replace(f'"${name}"', f'"{series}"')
    return expression.replace("$__rate_interval", "20s")


A_SERIES_OF: Final = {
    "gauge": "consumerd_lag_records",
    "counter": "consumerd_commits_total",
    "job_series": "consumerd_table_rows",
}
"""A value of each variable by which panels are repeated."""
MAY_BE_EMPTY: Final = frozenset(
    {
        "Partition errors of fetches",
        "Time since the last commit, the ten longest with records to commit",
    }
)
"""Panels of counters that no fault here touches, and of what is empty while all that has landed is committed."""
