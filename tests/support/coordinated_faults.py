# SPDX-License-Identifier: Apache-2.0
"""Faults of groups that a broker coordinates, each a story that real brokers and the embedded one can be told.

A job has two topics: one that its members print, which nothing fences, and one that they land. The ledger of a producer that
is not ours says what has to be in the files; the coordinator is asked by librdkafka who its members are, and for positions.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition

from consumerd.failpoints import MEMBER_POINTS, MemberPoint
from consumerd.wire.apikeys import ApiKey
from tests.support.daemon import Daemon, settings_for
from tests.support.foreign.librdkafka import Librdkafka
from tests.support.kafka import Sent
from tests.support.landing_check import (
    Place,
    check_landed_with_resent,
    check_landing,
    find_faults,
    log_ends,
    wait_landed,
)
from tests.support.ledger import Ledger
from tests.support.load import SteadyLoad
from tests.support.proxy_thread import ProxyThread
from tests.support.registry import CommitWatch
from tests.support.tcp_proxy import Action, Direction
from tests.support.waiting import wait_until

PARTITIONS: Final = 4
PER_PARTITION: Final = 10
SHORTEST_SESSION_S: Final = 3.0
"""For members whose sessions are to end; brokers have to be told to take it."""
LIMIT_S: Final = 90.0
AWAKE_S: Final = 2.0
FIRST_PUBLICATIONS: Final = 6
"""Files are published all the time: which of the first so many is the last one, is drawn."""

_GROUP_APIS: Final = frozenset(
    (
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.DESCRIBE_GROUPS,
    )
)
_JOINING: Final = ("register", "claim")
"""Ends of the points of JoinGroup and SyncGroup."""
_LEAVING: Final = "release"
"""End of the points of LeaveGroup."""
_HEADER: Final = struct.Struct("!ihhih")

Note = Callable[[str, object], None]
"""Notes something measured."""


class Ground(Protocol):
    """A cluster that coordinates groups: a real one, with ZooKeeper or without, or an embedded one."""

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses."""

    @property
    def cluster_settings(self) -> Mapping[str, Any]:
        """The ``cluster`` section of a daemon's settings."""

    def create_topic(self, topic: str, partitions: int = 1, /) -> None:
        """Create a topic and return when it is served."""


class CutFromCoordinator:
    """Holds back what one client asks of its group's coordinator, and counts it; the proxy's hook.

    What the client fetches from the same broker comes through.
    """

    def __init__(self, client_id: str) -> None:
        self.held = 0
        self._client_id = client_id.encode()

    def __call__(self, direction: Direction, frame: bytes) -> Action:
        if direction is Direction.TO_CLIENT or len(frame) < _HEADER.size:
            return Action.FORWARD
        _, api, _, _, size = _HEADER.unpack_from(frame)
        if api not in _GROUP_APIS or frame[_HEADER.size : _HEADER.size + size] != self._client_id:
            return Action.FORWARD
        self.held += 1
        return Action.HOLD


@dataclass(frozen=True, kw_only=True)
class CoordinatedJob:
    """A group of daemons, the two topics that it reads, and the folder in which one of them lands."""

    cluster: Ground
    group: str
    folder: Path
    sink: str = "jsonl"
    session_s: float = 6.0
    """The shortest that brokers take unless they are told otherwise."""

    @property
    def printed(self) -> str:
        """The topic that members print."""
        return f"{self.group}-printed"

    @property
    def landed(self) -> str:
        """The topic that lands."""
        return f"{self.group}-landed"

    @property
    def landing(self) -> Path:
        """Where it lands."""
        return self.folder / "landing"

    def create_topics(self, *replication: int) -> None:
        """Create both topics; ``replication`` where it is not that of the cluster."""
        for topic in (self.printed, self.landed):
            self.cluster.create_topic(topic, PARTITIONS, *replication)

    def daemon(self, name: str, *, fail_points: str = "") -> Daemon:
        """Start a member, whose client id is its name."""
        settings = settings_for(
            None,
            self.group,
            cluster={**self.cluster.cluster_settings, "client_id": name},
            topics=(self.printed,),
            group={"membership": "kafka", "session_timeout_ms": round(self.session_s * 1000), "assignor": "roundrobin"},
            offsets={"storage": "kafka", "dual_commit": False, "commit_interval_ms": 200},
            log={"level": "info"},
        )
        settings["subscriptions"].append({"topics": [self.landed], "sink": "lake"})
        settings["sinks"]["lake"] = {"type": self.sink, "path": str(self.landing), "roll_ms": 300}
        return Daemon(self.folder, name, settings, fail_points=fail_points)

    def load(self, producer: Ledger) -> SteadyLoad:
        """Return a flow into both topics."""
        return SteadyLoad(producer, dict.fromkeys((self.printed, self.landed), PARTITIONS), per_second=PER_PARTITION)

    def lands(self, ledger: Mapping[Place, Sent]) -> dict[Place, Sent]:
        """Return what of the ledger lands."""
        return {place: sent for place, sent in ledger.items() if place[0] == self.landed}

    def published(self) -> dict[Path, int]:
        """Return the files that are published, with the times of their inodes."""
        return {one: one.stat().st_ctime_ns for one in self.landing.rglob(f"[0-9]*.{self.sink}")}

    @contextmanager
    def coordinator(self) -> Iterator[Coordinator]:
        """Give who is asked about the group."""
        # its admin client does not survive answers that come too late, which the loss of a broker brings about
        reader = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": self.group, "log_level": 0})
        try:
            yield Coordinator(reader, Librdkafka(self.cluster.bootstrap))
        finally:
            reader.close()


@dataclass(frozen=True)
class Coordinator:
    """What the coordinator says, to a client that is not ours."""

    reader: Consumer
    client: Librdkafka

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """See Positions; of the job's own group, and none while there is no coordinator."""
        wanted = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        with contextlib.suppress(KafkaException):
            return {one.partition: one.offset for one in self.reader.committed(wanted, timeout=5) if one.offset >= 0}
        return {}

    def members(self, job: CoordinatedJob) -> set[str]:
        """Return the client ids of the group's members."""
        described: Any = self.client.describe(job.group, job.landed)
        return {name for name, _, _ in described["members"]}

    def wait_committed(self, job: CoordinatedJob, ledger: Collection[Place]) -> None:
        """Wait until the positions are the ends of the logs."""
        ends = log_ends(ledger)

        def committed() -> bool:
            found = {
                (topic, number): at
                for topic in (job.printed, job.landed)
                for number, at in self.offsets(job.group, topic).items()
            }
            return found == ends

        wait_until(committed, "all is committed", LIMIT_S, 0.2)


@dataclass(frozen=True, slots=True)
class Death:
    """A point at which a member dies; ``again``: when it comes there for the second time, in a rebalance."""

    point: MemberPoint
    again: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment on the clocks of whoever is asked about it."""

    monotonic: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)

    @property
    def age(self) -> float:
        """Seconds since."""
        return time.monotonic() - self.monotonic


def owned(*members: Daemon) -> list[tuple[str, int]]:
    """Return the partitions that these members own, each as often as it is owned."""
    return [(one["topic"], int(one["partition"])) for member in members for one in member.status()["partitions"]]


def share(*members: Daemon, partitions: int = 2 * PARTITIONS) -> None:
    """Wait until these members own so many partitions, each member some, and no partition twice."""

    def shared() -> bool:
        found = owned(*members)
        each = all(owned(member) for member in members)
        return each and len(found) == len(set(found)) == partitions and all(one.status()["ready"] for one in members)

    members[0].wait(shared, f"{partitions} partitions are shared by {len(members)}", LIMIT_S)


def acknowledged(*members: Daemon) -> int:
    """Return how many records these members have landed or printed of the partitions that they own."""
    return sum(one["acknowledged"] or 0 for member in members for one in member.status()["partitions"])


def wait_flow(*members: Daemon, records: int = 100) -> None:
    """Wait until so many more records have been acknowledged."""
    before = acknowledged(*members)
    members[0].wait(lambda: acknowledged(*members) > before + records, f"{records} records more", LIMIT_S)


def wait_age(moment: Moment, seconds: float) -> None:
    """Let time pass: only a later act would show."""
    wait_until(lambda: moment.age > seconds, f"{seconds} s have passed", seconds + LIMIT_S)


def wait_removed(coordinator: Coordinator, job: CoordinatedJob, member: str) -> Moment:
    """Wait until the coordinator has removed a member; return the last moment when it had not."""
    began = alive = asked = Moment()
    while member in coordinator.members(job):
        assert began.age < LIMIT_S, f"{member} is not removed"
        alive, asked = asked, Moment()
    return alive


# -- stories


def cut_for_a_moment(job: CoordinatedJob, proxy: ProxyThread) -> None:
    """Cut a lone member from its coordinator for 0.7 of a session: it pauses, then goes on in the same generation."""
    producer = Ledger(job.cluster.bootstrap)
    with job.coordinator() as coordinator, job.daemon("member") as member:
        with job.load(producer):
            share(member)
            wait_flow(member)
            before = member.status()["coordination"]
            cut = CutFromCoordinator("member")
            proxy.decide(cut)
            wait_until(lambda: cut.held, "a request is held back", LIMIT_S, 0.01)
            wait_age(Moment(), 0.7 * job.session_s)
            proxy.heal()
            healed = time.monotonic()
            member.wait(lambda: any(one.at > healed + 1 for one in member.deliveries), "records flow again", LIMIT_S)
            after = member.status()["coordination"]
        ledger = producer.finish()
        wait_landed(job.landing, job.lands(ledger), LIMIT_S)
        coordinator.wait_committed(job, ledger)
        assert member.terminate() == 0
    counts = Counter((one.topic, one.partition, one.offset) for one in member.deliveries)
    pauses = [late.at - early.at for early, late in zip(member.deliveries, member.deliveries[1:], strict=False)]

    assert [place for place, count in counts.items() if count > 1] == [], "repeated"
    assert set(counts) == {place for place in ledger if place[0] == job.printed}
    assert (after["member_id"], after["generation"]) == (before["member_id"], before["generation"])
    assert member.events("ownership_lost") == []
    assert max(pauses) > 0.1 * job.session_s, "delivery goes on although another member may soon own the partitions"
    assert find_faults(job.landing, job.lands(ledger)) == []


def cut_past_session(job: CoordinatedJob, proxy: ProxyThread, note: Note) -> None:
    """Cut one of two members from the coordinator, which gives its partitions away: it has stopped before that."""
    job = replace(job, session_s=SHORTEST_SESSION_S)
    producer = Ledger(job.cluster.bootstrap)
    with (
        job.coordinator() as coordinator,
        job.daemon("heir") as heir,
        job.daemon("victim") as victim,
        CommitWatch(coordinator, job.group, job.landed) as commits,
    ):
        with job.load(producer):
            share(heir, victim)
            wait_flow(victim)
            epoch = victim.status()["coordination"]["generation"]
            proxy.decide(CutFromCoordinator("victim"))
            alive = wait_removed(coordinator, job, "victim")
            share(heir)
            wait_flow(heir)
            wait_age(alive, job.session_s / 2)
            last = victim.deliveries[-1].at
            proxy.heal()
            share(heir, victim)
            wait_flow(victim)
        ledger = producer.finish()
        wait_landed(job.landing, job.lands(ledger), LIMIT_S)
        coordinator.wait_committed(job, ledger)
        assert victim.status()["coordination"]["generation"] > epoch
        assert [victim.terminate(), heir.terminate()] == [0, 0]

    note("seconds from the last delivery until another member may have the partitions", alive.monotonic - last)
    assert last < alive.monotonic
    assert commits.regressions == []
    assert find_faults(job.landing, job.lands(ledger)) == []


def stopped_past_session(job: CoordinatedJob, proxy: ProxyThread, note: Note) -> None:
    """Stop one of two past its session; on going on without its coordinator, it writes and commits nothing."""
    job = replace(job, session_s=SHORTEST_SESSION_S)
    producer = Ledger(job.cluster.bootstrap)
    with (
        job.coordinator() as coordinator,
        job.daemon("heir") as heir,
        job.daemon("sleeper") as sleeper,
        CommitWatch(coordinator, job.group, job.landed) as commits,
    ):
        with job.load(producer):
            share(heir, sleeper)
            wait_flow(sleeper)
            sleeper.stop()
            produced = log_ends(producer.acknowledged())
            share(heir)
            wait_flow(heir)
        ledger = producer.finish()
        wait_landed(job.landing, job.lands(ledger), LIMIT_S)
        coordinator.wait_committed(job, ledger)
        before, delivered = job.published(), len(sleeper.deliveries)
        # nobody but its own clock tells it that it has slept
        cut = CutFromCoordinator("sleeper")
        proxy.decide(cut)
        sleeper.resume()
        wait_until(lambda: cut.held, "it asks for its coordinator", LIMIT_S, 0.01)
        wait_age(Moment(), AWAKE_S)
        woken = sleeper.deliveries[delivered:]
        assert job.published() == before, "files were published by who had slept"
        coordinator.wait_committed(job, ledger)
        proxy.heal()
        share(heir, sleeper)
        late = Ledger(job.cluster.bootstrap)
        with job.load(late):
            wait_flow(sleeper)
        whole = {**ledger, **late.finish()}
        wait_landed(job.landing, job.lands(whole), LIMIT_S)
        coordinator.wait_committed(job, whole)
        assert [sleeper.terminate(), heir.terminate()] == [0, 0]

    note("records delivered on waking up", len(woken))
    # what was acknowledged while the process was being stopped may have reached it
    slack = PER_PARTITION // 5
    assert [one for one in woken if one.offset >= produced[one.topic, one.partition] + slack] == []
    assert commits.regressions == []
    assert find_faults(job.landing, job.lands(whole)) == []


def stop_at_points(job: CoordinatedJob, points: Sequence[MemberPoint], note: Note) -> None:
    """Stop a member at each of these points until the coordinator has removed it and another has gone on; resume it.

    It goes on in the belief that nothing has happened.
    """
    job = replace(job, session_s=SHORTEST_SESSION_S)
    producer = Ledger(job.cluster.bootstrap)
    at_work = [one for one in points if not one.endswith(_LEAVING)]
    stops: list[str] = []
    with (
        job.coordinator() as coordinator,
        job.daemon("heir") as heir,
        CommitWatch(coordinator, job.group, job.landed) as commits,
    ):

        def sleep(sleeper: Daemon) -> None:
            stops.append(sleeper.wait_stopped(LIMIT_S))
            wait_removed(coordinator, job, sleeper.name)
            share(heir)
            wait_flow(heir)
            sleeper.resume()

        with job.load(producer):
            share(heir)
            with job.daemon("sleeper", fail_points=",".join(f"{one}=stop" for one in at_work)) as sleeper:
                for _ in at_work:
                    sleep(sleeper)
                share(heir, sleeper)
                wait_flow(sleeper)
                assert sleeper.terminate() == 0, sleeper.log()[-3000:]
            # once removed, it does not come to the end of leaving: each of these points is of a member of its own
            for point in points:
                if point.endswith(_LEAVING):
                    with job.daemon(point, fail_points=f"{point}=stop") as sleeper:
                        share(heir, sleeper)
                        sleeper.process.terminate()
                        sleep(sleeper)
                        assert sleeper.wait_end() == 0, sleeper.log()[-3000:]
        note("stops", len(stops))
        ledger = producer.finish()
        wait_landed(job.landing, job.lands(ledger), LIMIT_S)
        coordinator.wait_committed(job, ledger)
        assert heir.terminate() == 0

    assert sorted(stops) == sorted(points)
    assert commits.regressions == []
    assert find_faults(job.landing, job.lands(ledger)) == []


def coordinator_goes(job: CoordinatedJob, *changes: Callable[[], object]) -> None:
    """Change the brokers, once and again, under two members; each time all partitions flow on."""
    producer = Ledger(job.cluster.bootstrap)
    with (
        job.coordinator() as coordinator,
        job.daemon("one") as one,
        job.daemon("two") as two,
        CommitWatch(coordinator, job.group, job.landed) as commits,
    ):
        with job.load(producer):
            share(one, two)
            wait_flow(one, two)
            for change in changes:
                change()
                share(one, two)
                wait_flow(one, two)
        ledger = producer.finish()
        wait_landed(job.landing, job.lands(ledger), LIMIT_S)
        assert [one.terminate(), two.terminate()] == [0, 0]

    assert commits.regressions == []
    check_landed_with_resent(job.landing, job.lands(ledger))


def coordinator_is_slow(job: CoordinatedJob, proxy: ProxyThread) -> None:
    """Pass each answer of the broker on 300 ms late: leases stay fresh, a member comes and goes."""
    producer = Ledger(job.cluster.bootstrap)
    with job.daemon("steady") as steady:
        with job.load(producer):
            share(steady)
            proxy.delay(0.3)
            with job.daemon("guest") as guest:
                share(steady, guest)
                wait_flow(guest, records=60)
                assert guest.terminate() == 0, guest.log()[-3000:]
            share(steady)
        ledger = producer.finish()
        proxy.delay(0)
        wait_landed(job.landing, job.lands(ledger), LIMIT_S)
        metrics = steady.get("/metrics")[1]
        assert steady.terminate() == 0

    assert 'phase="paused"' not in metrics
    assert 'phase="fresh"' in metrics
    assert steady.events("ownership_lost") == []
    assert find_faults(job.landing, job.lands(ledger)) == []


def topic_grows(job: CoordinatedJob, grow: Callable[[str, int], object]) -> None:
    """Add partitions to the topic that lands: they are shared out, and read from their beginning."""
    producer = Ledger(job.cluster.bootstrap, topic_metadata_refresh_interval_ms="500")
    total = PARTITIONS + 3
    with job.daemon("one") as one, job.daemon("two") as two:
        with job.load(producer):
            share(one, two)
            wait_flow(one, two)
            grow(job.landed, total)
        ledger = dict(producer.finish())
        late = Ledger(job.cluster.bootstrap)
        with SteadyLoad(late, {job.landed: total}, per_second=PER_PARTITION):
            share(one, two, partitions=PARTITIONS + total)
            wait_flow(one, two)
        ledger |= late.finish()
        wait_landed(job.landing, job.lands(ledger), LIMIT_S)
        assert [one.terminate(), two.terminate()] == [0, 0]

    check_landing(job.landing, job.lands(ledger))


def plan_deaths(dice: Random, rounds: int = 1) -> list[Death]:
    """Return each point of a member in a drawn order, ``rounds`` times.

    Those of joining are come to on the first join and again in a rebalance.
    """
    again = [Death(one, again=True) for one in MEMBER_POINTS if one.endswith(_JOINING)]
    each = [*map(Death, MEMBER_POINTS), *again]
    return [death for _ in range(rounds) for death in dice.sample(each, len(each))]


def die_at_points(job: CoordinatedJob, deaths: Collection[Death], dice: Random, note: Note) -> None:
    """Let a steady member go on while victims come and die, each at a point; then judge the files."""
    job = replace(job, session_s=SHORTEST_SESSION_S)
    producer, began = Ledger(job.cluster.bootstrap), time.monotonic()
    with (
        job.coordinator() as coordinator,
        job.daemon("steady") as steady,
        CommitWatch(coordinator, job.group, job.landed) as commits,
    ):
        with job.load(producer):
            share(steady)
            wait_flow(steady)
            for number, death in enumerate(deaths):
                _die(job, death, f"victim-{number}", dice)
                assert steady.process.poll() is None, steady.log()[-3000:]
            share(steady)
        note("deaths", len(deaths))
        note("seconds a death", (time.monotonic() - began) / len(deaths))
        ledger = producer.finish()
        wait_landed(job.landing, job.lands(ledger), LIMIT_S)
        coordinator.wait_committed(job, ledger)
        assert steady.terminate() == 0

    assert commits.regressions == []
    assert find_faults(job.landing, job.lands(ledger)) == []


def _die(job: CoordinatedJob, death: Death, name: str, dice: Random) -> None:
    count = 1 + death.again
    if not death.point.endswith((*_JOINING, _LEAVING)):
        count = dice.randint(1, FIRST_PUBLICATIONS)
    with job.daemon(name, fail_points=f"{death.point}=kill@{count}") as victim:
        if death.again:
            victim.wait(lambda: bool(owned(victim)), "it owns something", LIMIT_S)
            with job.daemon(f"{name}-heir") as heir:
                victim.wait_killed(LIMIT_S)
                assert heir.terminate() == 0, heir.log()[-3000:]
            return
        if death.point.endswith(_LEAVING):
            victim.wait(lambda: bool(owned(victim)), "it owns something", LIMIT_S)
            victim.process.terminate()
        victim.wait_killed(LIMIT_S)
