# SPDX-License-Identifier: Apache-2.0
"""The life of two brokers: leaders and coordinators move, on real brokers and on the embedded ones; the answers are compared.

A broker is named by its number, and the group's coordinator as such, since each cluster chooses it by its own order. The
answers of real brokers are kept in ``tests/vectors/answers``: ``python -m tests.support.node_script`` writes them anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from consumerd.wire.modern.fetch import FetchPartition, FetchRequest, FetchTopic
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest
from consumerd.wire.modern.groups import (
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberAssignment,
    SyncGroupRequest,
)
from consumerd.wire.modern.list_offsets import LATEST_TIMESTAMP, ListOffsetsRequest, ListPartition, ListTopic
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.modern.offset_commit import CommitPartition, CommitTopic, OffsetCommitRequest
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest, OffsetFetchTopic
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.schema import Request
from tests.support.broker_script import Asker, records
from tests.support.kafka import Cluster
from tests.support.waiting import wait_until

RECORDED: Final = Path(__file__).parent.parent / "vectors" / "answers" / "two-brokers-1.1.1.json"
RELEASE: Final = "1.1.1"
PROPERTIES: Final = {
    "zookeeper.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "2",
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.enable": "true",
    "replica.lag.time.max.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
}
TOPIC: Final = "moved"
GROUP: Final = "followers"
REPLICAS: Final = ((0, 1), (1, 0), (0, 1))
_SESSION_MS: Final = 60_000
_KEEP: Final = b'{"version":1,"config":{"retention.ms":"3153600000000"}}'
"""The records' times are of 2017."""


class Pair(Protocol):
    """Two brokers, 0 and 1, that a test may stop."""

    zookeeper: str
    addresses: list[str]
    """Of broker 0 and 1."""

    def stop(self, number: int) -> None:
        """Stop a broker in order."""

    def kill(self, number: int) -> None:
        """Kill a broker."""

    def start(self, number: int) -> None:
        """Start it again, on its port."""


class RealPair:
    """Two real brokers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.zookeeper = cluster.zookeeper
        self.addresses = [f"127.0.0.1:{port}" for port in cluster.ports]

    def stop(self, number: int) -> None:
        """See Pair."""
        self._cluster.stop(f"broker-{number}", timeout_s=60)

    def kill(self, number: int) -> None:
        """See Pair."""
        self._cluster.kill_broker(number)

    def start(self, number: int) -> None:
        """See Pair."""
        self._cluster.restart_broker(number)


def run(pair: Pair) -> list[tuple[str, Any]]:
    """Play the whole of it; return what was asked, and what came of it."""
    script = _Script(pair)
    try:
        script.play()
    finally:
        script.close()
    return script.said


def recorded() -> list[tuple[str, Any]]:
    """Return what real brokers have answered."""
    return [(what, answer) for what, answer in json.loads(RECORDED.read_text())]


class _Script:
    def __init__(self, pair: Pair) -> None:
        self.said: list[tuple[str, Any]] = []
        self._pair = pair
        self._askers: dict[int, Asker] = {}
        self._zookeeper = KazooClient(pair.zookeeper)
        self._member = ""
        self._first_epoch = 0

    def close(self) -> None:
        for asker in self._askers.values():
            asker.close()
        self._zookeeper.stop()
        self._zookeeper.close()

    def play(self) -> None:
        self._zookeeper.start()
        self._make_controller(0)
        self._make_topic()
        self._say_state("made")
        self._ask_both("at first")
        self._form_group()
        coordinator = self._find_coordinator()
        self._ask_groups("at first", coordinator)

        self._pair.stop(0)
        self._wait_leaders({0: 1, 1: 1, 2: 1})
        self._wait_isr(1)
        self._say_state("broker 0 is stopped")
        self._say_metadata("broker 0 is stopped", 1)
        self._say("records are there", self._ask(1, self._fetch(0), 5))
        self._say("one replica is enough", self._code(self._ask(1, self._produce(0), 3)))
        self._move_group("broker 0 is stopped", 1)

        self._pair.start(0)
        self._wait_isr(2)
        self._say_state("broker 0 is back")
        self._ask_both("broker 0 is back")
        self._elect_preferred()
        self._wait_leaders({0: 0, 1: 1, 2: 0})
        self._say_state("preferred leaders")
        self._ask_both("preferred leaders")
        self._move_group("preferred leaders", self._find_coordinator())

        self._pair.kill(1)
        self._wait_leaders({0: 0, 1: 0, 2: 0})
        self._wait_isr(1)
        self._say_state("broker 1 is killed")
        self._say_metadata("broker 1 is killed", 0)
        self._move_group("broker 1 is killed", 0)
        self._pair.start(1)
        self._wait_isr(2)
        self._say_state("broker 1 is back")

        self._leave_group(self._find_coordinator())

    # -- topics

    def _make_controller(self, broker: int) -> None:
        """Have elections until this broker is the controller: state nodes differ by who it is when a broker dies."""

        def is_it() -> bool:
            try:
                chosen = json.loads(self._zookeeper.get("/controller")[0])["brokerid"]
                if chosen != broker:
                    self._zookeeper.delete("/controller")
            except NoNodeError:
                return False
            return bool(chosen == broker)

        wait_until(is_it, f"broker {broker} is the controller", 60)
        self._first_epoch = int(self._zookeeper.get("/controller_epoch")[0])

    def _make_topic(self) -> None:
        partitions = {str(number): list(replicas) for number, replicas in enumerate(REPLICAS)}
        self._zookeeper.ensure_path(f"/config/topics/{TOPIC}")
        self._zookeeper.set(f"/config/topics/{TOPIC}", _KEEP)
        node = json.dumps({"version": 1, "partitions": partitions}).encode()
        self._zookeeper.create(f"/brokers/topics/{TOPIC}", node, makepath=True)
        self._wait_leaders({0: 0, 1: 1, 2: 0})
        self._wait_isr(2)
        for number in (0, 1):  # a leader learns of it a moment later than ZooKeeper
            wait_until(lambda number=number: self._serves(number), f"broker {number} serves {TOPIC}")  # type: ignore[misc]

    def _serves(self, broker: int) -> bool:
        partition = broker
        known = self._ask(broker, MetadataRequest(topics=(TOPIC,)), 1)["topics"][0]["partitions"]
        led = all(one["leader"] >= 0 for one in known) and len(known) == len(REPLICAS)
        return led and self._code(self._ask(broker, self._latest(partition), 1)) == 0

    def _ask_both(self, when: str) -> None:
        """Ask both for each partition: one of them leads it."""
        for number in (0, 1):
            self._say_metadata(when, number)
            for partition in (0, 1):
                where = f"{when}: broker {number}, partition {partition}"
                self._say(f"{where}: produce", self._code(self._ask(number, self._produce(partition), 3)))
                self._say(f"{where}: fetch", self._code(self._ask(number, self._fetch(partition), 5)))
                self._say(f"{where}: list offsets", self._ask(number, self._latest(partition), 1))
                self._say(f"{where}: list offsets v0", self._code(self._ask(number, self._latest(partition), 0)))
            self._say(f"{when}: broker {number}, no such partition", self._code(self._ask(number, self._fetch(9), 5)))

    def _say_metadata(self, when: str, broker: int) -> None:
        for version in (0, 1, 5):
            # brokers hear of others' deaths a little later than ZooKeeper
            answer = self._settled(broker, version)
            self._say(f"{when}: broker {broker}, metadata v{version}", answer)

    def _settled(self, broker: int, version: int) -> Any:
        answers: list[Any] = []

        def as_in_zookeeper() -> bool:
            answers.append(self._describe(self._ask(broker, MetadataRequest(topics=(TOPIC,)), version)))
            live = sorted(int(name) for name in self._zookeeper.get_children("/brokers/ids"))
            led = {int(one): state["leader"] for one, state in self._states().items()}
            isr = {int(one): sorted(state["isr"]) for one, state in self._states().items()}
            said = answers[-1]
            return bool(
                said["brokers"] == live
                and led == {one["partition"]: one["leader"] for one in said["partitions"]}
                and isr == {one["partition"]: sorted(one["isr"]) for one in said["partitions"]}
            )

        wait_until(as_in_zookeeper, f"broker {broker} knows the newest leaders")
        return answers[-1]

    def _describe(self, answer: Any) -> Any:
        (topic,) = answer["topics"]
        return {
            "brokers": sorted(one["node_id"] for one in answer["brokers"]),
            "error_code": topic["error_code"],
            "partitions": sorted(
                ({**one, "isr": sorted(one["isr"])} for one in topic["partitions"]),
                key=lambda one: int(one["partition"]),
            ),
        }

    def _states(self) -> dict[str, Any]:
        found = {}
        for number in range(len(REPLICAS)):
            try:
                data, _ = self._zookeeper.get(f"/brokers/topics/{TOPIC}/partitions/{number}/state")
            except NoNodeError:
                continue
            state = json.loads(data)
            found[str(number)] = {**state, "controller_epoch": state["controller_epoch"] - self._first_epoch}
        return found

    def _say_state(self, when: str) -> None:
        self._say(f"{when}: state nodes", self._states())

    def _wait_leaders(self, leaders: dict[int, int]) -> None:
        def are() -> bool:
            return leaders == {int(one): state["leader"] for one, state in self._states().items()}

        wait_until(are, f"leaders are {leaders}", 40)

    def _wait_isr(self, count: int) -> None:
        def are() -> bool:
            states = self._states().values()
            return len(states) == len(REPLICAS) and all(len(state["isr"]) == count for state in states)

        wait_until(are, f"{count} replicas are in sync", 40)

    def _elect_preferred(self) -> None:
        named = [{"topic": TOPIC, "partition": number} for number in range(len(REPLICAS))]
        path = "/admin/preferred_replica_election"
        self._zookeeper.create(path, json.dumps({"version": 1, "partitions": named}).encode(), makepath=True)
        wait_until(lambda: self._zookeeper.exists(path) is None, "the election is over")

    # -- groups

    def _form_group(self) -> None:
        coordinator = self._find_coordinator()
        joined = self._ask(coordinator, self._join(""), 1)
        self._member = joined["member_id"]
        self._say("joined", (joined["error_code"], joined["generation_id"]))
        self._say("synced", self._ask(coordinator, self._sync(), 1))
        self._say("committed", self._ask(coordinator, self._commit(100), 3))

    def _find_coordinator(self) -> int:
        found: list[int] = []

        def known() -> bool:
            found.clear()
            answers = [self._ask(number, FindCoordinatorRequest(key=GROUP), 1) for number in self._running()]
            found.extend(one["node_id"] for one in answers if not one["error_code"])
            same = len(found) == len(answers) and len(set(found)) == 1
            return same and not self._ask(found[0], self._positions(), 2)["error_code"]

        wait_until(known, "all brokers know the coordinator, and it has loaded the group", 40)
        return found[0]

    def _running(self) -> list[int]:
        return sorted(int(name) for name in self._zookeeper.get_children("/brokers/ids"))

    def _ask_groups(self, when: str, coordinator: int) -> None:
        """Ask the coordinator and, if it runs, the other broker."""
        for number in self._running():
            who = f"{when}: {'the coordinator' if number == coordinator else 'the other'}"
            self._say(f"{who}: heartbeat", self._ask(number, self._heartbeat(), 1))
            self._say(f"{who}: positions", self._ask(number, self._positions(), 2))
            self._say(f"{who}: positions v1", self._ask(number, self._positions(), 1))
            self._say(f"{who}: commit", self._ask(number, self._commit(100), 3))
            described = self._ask(number, DescribeGroupsRequest(groups=(GROUP,)), 1)["groups"][0]
            self._say(f"{who}: describe", (described["error_code"], described["state"], len(described["members"])))
            listed = self._ask(number, ListGroupsRequest(), 1)
            self._say(f"{who}: list", (listed["error_code"], [one["group_id"] for one in listed["groups"]]))
            if number != coordinator:
                self._say(f"{who}: join", self._ask(number, self._join(self._member), 1)["error_code"])
                self._say(f"{who}: sync", self._ask(number, self._sync(), 1))
                leave = LeaveGroupRequest(group_id=GROUP, member_id=self._member)
                self._say(f"{who}: leave", self._ask(number, leave, 1))

    def _move_group(self, when: str, expected: int) -> None:
        coordinator = self._find_coordinator()
        self._say(f"{when}: the coordinator is as expected", coordinator == expected)
        self._ask_groups(when, coordinator)

    def _leave_group(self, coordinator: int) -> None:
        self._say("left", self._ask(coordinator, LeaveGroupRequest(group_id=GROUP, member_id=self._member), 1))

    # -- requests

    def _ask(self, broker: int, request: Request[Any], version: int) -> Any:
        if broker not in self._askers:
            self._askers[broker] = Asker(self._pair.addresses[broker])
        asker = self._askers[broker]
        try:
            answer = asker.ask(request, version)
            if answer == "closed":  # the connection is of an earlier life of the broker
                answer = asker.ask(request, version)
        except OSError:
            asker.close()
            raise
        return json.loads(json.dumps(answer, default=str))

    def _say(self, what: str, answer: Any) -> None:
        self.said.append((what, json.loads(json.dumps(answer))))

    @staticmethod
    def _code(answer: Any) -> int:
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    @staticmethod
    def _produce(partition: int) -> ProduceRequest:
        one = ProducePartition(partition=partition, record_set=records(2))
        return ProduceRequest(acks=-1, timeout_ms=5000, topics=(ProduceTopic(topic=TOPIC, partitions=(one,)),))

    @staticmethod
    def _fetch(partition: int) -> FetchRequest:
        one = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=10_000)
        return FetchRequest(max_wait_ms=0, min_bytes=1, topics=(FetchTopic(topic=TOPIC, partitions=(one,)),))

    @staticmethod
    def _latest(partition: int) -> ListOffsetsRequest:
        one = ListPartition(partition=partition, timestamp=LATEST_TIMESTAMP)
        return ListOffsetsRequest(topics=(ListTopic(topic=TOPIC, partitions=(one,)),))

    @staticmethod
    def _join(member: str) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_SESSION_MS,
            member_id=member,
            protocol_type="consumer",
            protocols=(GroupProtocol(name="range", metadata=b"sub"),),
        )

    def _sync(self) -> SyncGroupRequest:
        part = MemberAssignment(member_id=self._member, assignment=b"all")
        return SyncGroupRequest(group_id=GROUP, generation_id=1, member_id=self._member, assignments=(part,))

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=self._member)

    def _commit(self, offset: int) -> OffsetCommitRequest:
        one = CommitPartition(partition=0, offset=offset, metadata="here")
        topics = (CommitTopic(topic=TOPIC, partitions=(one,)),)
        return OffsetCommitRequest(group_id=GROUP, generation_id=1, member_id=self._member, topics=topics)

    @staticmethod
    def _positions() -> OffsetFetchRequest:
        return OffsetFetchRequest(group_id=GROUP, topics=(OffsetFetchTopic(topic=TOPIC, partitions=(0,)),))


@contextmanager
def real_pair() -> Iterator[RealPair]:
    """Start two real brokers."""
    with Cluster(RELEASE, 2, properties=PROPERTIES) as cluster:
        yield RealPair(cluster)


def main(write: Callable[[str], object] = RECORDED.write_text) -> None:
    """Record what real brokers answer."""
    with real_pair() as pair:
        lines = [json.dumps(one, ensure_ascii=False) for one in run(pair)]
    write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
