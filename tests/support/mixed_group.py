# SPDX-License-Identifier: Apache-2.0
"""A group with members of both kinds, ours and the Java high-level consumer, on real brokers, and what came out of it."""

from __future__ import annotations

import base64
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import Cluster, JavaConsumer, LedgerProducer, Sent
from tests.support.registry import Registry, consumer_of, open_registry
from tests.support.waiting import wait_until

Place = tuple[str, int, int]
"""Topic, partition, offset."""

GIVEN_UP: Final = re.compile(r"ConsumerRebalanceFailedException|can't rebalance after")
"""What a Java member logs when its tries are used up; it owns nothing then, until the group changes again."""
_REGISTERED: Final = re.compile(r"end registering consumer (\S+) in ZK")
_SELECTED: Final = re.compile(r"selected partitions : (.*)")
_FETCHED: Final = re.compile(r"([^:,]+):(\d+): fetched offset = (-?\d+)")


@dataclass
class MixedGroup:
    """Members of one group, started and ended by a test; those that are left are killed at the end. A context manager."""

    cluster: Cluster
    directory: Path
    group: str
    topics: Mapping[str, int]
    """Topic to its number of partitions."""
    section: Mapping[str, Any] | None = None
    """The section ``cluster`` of our members' settings; None for the cluster's own."""
    environment: Mapping[str, str] | None = None
    """Added to the environment of our members."""
    daemons: list[Daemon] = field(default_factory=list)
    """Every one of ours that was ever started."""
    java: list[JavaConsumer] = field(default_factory=list)
    """Every Java member that was ever started."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self.registry: Registry = self._stack.enter_context(open_registry(self.cluster.zookeeper))
        return self

    def __exit__(self, *exc: object) -> None:
        with self._stack:
            for member in self.java:
                self.cluster.stop(member.name)

    # -- members

    def start(
        self,
        *,
        streams: int = 1,
        assignor: str = "range",
        pattern: str | None = None,
        exclude: str | None = None,
        niceness: int = 0,
        sink: Mapping[str, Any] | None = None,
        offsets: Mapping[str, Any] | None = None,
        **rebalance: int,
    ) -> Daemon:
        """Start one of ours, by a pattern or else by the topics' names; ``rebalance`` are settings of that section."""
        settings = settings_for(
            self.cluster.zookeeper,
            self.group,
            topics=() if pattern else tuple(self.topics),
            pattern=pattern,
            group={"streams": streams, "assignor": assignor},
            sink=sink,
            offsets=offsets or {},
            rebalance=rebalance,
            **({} if self.section is None else {"cluster": self.section}),
        )
        if exclude is not None:
            settings["subscriptions"][0]["exclude"] = exclude
        name = f"daemon-{len(self.daemons)}"
        daemon = Daemon(self.directory, name, settings, niceness=niceness, environment=self.environment or {})
        self.daemons.append(self._stack.enter_context(daemon))
        return daemon

    def start_java(
        self, *, streams: int = 1, niceness: int = 0, whitelist: str | None = None, **properties: str
    ) -> JavaConsumer:
        """Start a Java member, by a white list or else by the topics' names; ``properties`` with ``_`` for ``.``."""
        topic = ",".join(self.topics) if whitelist is None else None
        member = self.cluster.java_consumer(
            self.group, topic, whitelist=whitelist, streams=streams, niceness=niceness, **properties
        )
        self.java.append(member)
        return member

    def settle(self, members: int, timeout_s: float = 60.0) -> float:
        """Wait until so many members own by the range rule, each in its own session; return how many seconds it took."""
        return self.settle_as(
            members,
            lambda: {
                topic: self.registry.expected_range(self.group, topic, count) for topic, count in self.topics.items()
            },
            timeout_s,
        )

    def settle_as(
        self, members: int, plan: Callable[[], Mapping[str, Mapping[int, str]]], timeout_s: float = 60.0
    ) -> float:
        """Wait until so many members own by a plan of threads, computed anew from the registry at each look."""
        began = time.monotonic()

        def settled() -> bool:
            return len(self.registry.members(self.group)) == members and all(
                self.registry.owns(self.group, topic, threads) for topic, threads in plan().items()
            )

        try:
            wait_until(settled, f"{members} members that own by the plan", timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe()}") from None
        return time.monotonic() - began

    def end_cleanly(self, end: Callable[[], int | None], members: int) -> float:
        """End a member cleanly, wait until the others have settled, and return how many seconds both took."""
        began = time.monotonic()
        code = end()
        if code:
            raise RuntimeError(f"a member ended with {code}")
        self.settle(members)
        return time.monotonic() - began

    def describe(self) -> str:
        """Return who owns what, and the ends of the Java members' logs: for messages."""
        owners = {topic: self.registry.owners(self.group, topic) for topic in self.topics}
        logs = "\n".join(f"--- {member.name}\n{member.log()[-3000:]}" for member in self.java)
        return f"members: {self.registry.members(self.group)}\nowners: {owners}\n{logs}"

    def given_up(self) -> list[str]:
        """Return the lines in which a Java member says that it has used up its tries."""
        return [line for member in self.java for line in member.log().splitlines() if GIVEN_UP.search(line)]

    def owners(self) -> dict[tuple[str, int], str]:
        """Return the member that owns each partition."""
        return {
            (topic, partition): consumer_of(owner.thread)
            for topic in self.topics
            for partition, owner in self.registry.owners(self.group, topic).items()
        }

    def names(self) -> dict[str, str]:
        """Return the name of each running member, ours and Java's, by the id that it has in the group."""
        names = {
            str(daemon.status()["consumer_id"]): daemon.name for daemon in self.daemons if daemon.process.poll() is None
        }
        for member in self.java:
            if member.process.poll() is None:
                names |= dict.fromkeys(_REGISTERED.findall(member.log()), member.name)
        return names

    # -- what came out

    def deliveries(self) -> Iterator[tuple[str, Place]]:
        """Yield member and place of everything that was delivered so far, each member's own in order."""
        for daemon in self.daemons:
            for one in list(daemon.deliveries):
                yield daemon.name, (one.topic, one.partition, one.offset)
        for member in self.java:
            for topic, partition, offset, _ in member.records():
                yield member.name, (topic, partition, offset)

    def wait_delivered(self, places: Iterable[Place], timeout_s: float = 60.0) -> None:
        """Wait until somebody has delivered each of these."""
        wanted = frozenset(places)

        def missing() -> frozenset[Place]:
            return wanted - {place for _, place in self.deliveries()}

        try:
            wait_until(lambda: not missing(), f"{len(wanted)} records delivered", timeout_s, interval_s=0.25)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; missing {sorted(missing())[:20]}\n{self.describe()}") from None

    def wait_flowing(self, timeout_s: float = 60.0) -> None:
        """Wait until each partition's owner has delivered something of it that it had not delivered before."""
        names = self.names()
        owners = {partition: names[owner] for partition, owner in self.owners().items()}
        before = self._count_by_member()

        def flowing() -> bool:
            now = self._count_by_member()
            return all(now[name, partition] > before[name, partition] for partition, name in owners.items())

        wait_until(flowing, "records of every partition", timeout_s, interval_s=0.1)

    def _count_by_member(self) -> Counter[tuple[str, tuple[str, int]]]:
        return Counter((member, place[:2]) for member, place in self.deliveries())

    def contents(self) -> Iterator[tuple[str, Place, Sent, bool]]:
        """Yield member, place and content of everything delivered, and whether headers are in it (not from Java)."""
        for daemon in self.daemons:
            for one in daemon.deliveries:
                yield daemon.name, (one.topic, one.partition, one.offset), parse_json_line(one.line), True
        for member in self.java:
            for topic, partition, offset, text in member.records():
                yield member.name, (topic, partition, offset), _parse_java(topic, partition, text), False

    def find_corrupted(self, ledger: Mapping[Place, Sent]) -> list[str]:
        """Return a description of each delivery that is not, byte for byte, what the ledger has at its place."""
        wrong = []
        for member, place, content, with_headers in self.contents():
            expected = ledger.get(place)
            if expected is not None and not with_headers:
                expected = replace(expected, headers=())
            if content != expected:
                wrong.append(f"{member} at {place}: {_shorten(content)}, expected {_shorten(expected)}")
        return wrong

    def count_deliveries(self) -> Counter[Place]:
        """Return how often each place was delivered."""
        return Counter(place for _, place in self.deliveries())

    def find_repeats(self) -> dict[Place, list[str]]:
        """Return who delivered what was delivered more than once."""
        by_place: dict[Place, list[str]] = defaultdict(list)
        for member, place in self.deliveries():
            by_place[place].append(member)
        return {place: members for place, members in sorted(by_place.items()) if len(members) > 1}


def parse_json_line(line: bytes) -> Sent:
    """Read a record of the stdout sink back."""
    record = json.loads(line)
    return Sent(
        record["topic"],
        int(record["partition"]),
        _text(record, "key"),
        _text(record, "value"),
        tuple((header["key"], _text(header, "value")) for header in record["headers"]),
    )


def _text(fields: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        return base64.b64decode(fields[f"{name}_base64"], validate=True)
    text = fields[name]
    return None if text is None else str(text).encode()


def _parse_java(topic: str, partition: int, text: bytes) -> Sent:
    key, value = (None if field == b"-" else base64.b64decode(field) for field in text.split(b"\t"))
    return Sent(topic, partition, key, value)


def _shorten(sent: Sent | None) -> str:
    return repr(sent) if sent is None or len(sent.value or b"") < 100 else f"{len(sent.value or b'')} bytes"


def takeovers_of_java(member: JavaConsumer) -> dict[tuple[str, int], set[int]]:
    """Return the committed offsets that a Java member started from, by partition, over all its rebalances."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for line in _SELECTED.findall(member.log()):
        for topic, partition, offset in _FETCHED.findall(line):
            found[topic, int(partition)].add(int(offset))
    return found


def takeovers_of_ours(daemon: Daemon) -> dict[tuple[str, int], set[int]]:
    """Return the committed offsets that one of ours started from, by partition; -1 where there was none."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for event in daemon.events("delivery_started"):
        committed = event["committed"]
        found[event["topic"], int(event["partition"])].add(-1 if committed is None else committed)
    return found


def wait_acknowledged(producers: Iterable[LedgerProducer], timeout_s: float = 60.0) -> dict[Place, Sent]:
    """Wait until everything that was handed to these producers is acknowledged, and return their ledgers as one."""
    producers = list(producers)
    ledger: dict[Place, Sent] = {}

    def acknowledged() -> bool:
        for producer in producers:
            ledger.update(producer.acknowledged())
        return len(ledger) == sum(len(producer.sent) for producer in producers)

    wait_until(acknowledged, "everything acknowledged", timeout_s, interval_s=0.1)
    return ledger
