# SPDX-License-Identifier: Apache-2.0
"""Brokers that coordinate a group, on virtual time: the embedded broker's coordinator, its log, and the network.

The log of groups and positions has one partition and two replicas. The node that leads it coordinates the group; when
the leadership moves, the other node reads the log and goes on, as in Kafka. Each member reaches the nodes by a network
of its own, which can be cut. What a member's request does at the coordinator happens while the member is stopped, too.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from consumerd.aio.timeouts import timeout
from consumerd.cluster.view import Broker
from consumerd.embedded.coordinator.coordinator import GroupCoordinator
from consumerd.embedded.coordinator.exchange import GroupDescription
from consumerd.embedded.coordinator.group_log import OffsetsTopic
from consumerd.embedded.coordinator.handlers import GroupRequests, PositionRequests
from consumerd.embedded.coordinator.journal import JournalReplay
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.state_topic import NoLog
from consumerd.embedded.handlers.context import Handler, Hangup, RequestContext
from consumerd.embedded.topics import OFFSETS_TOPIC, Topics
from consumerd.embedded.znodes import BrokerAddress
from consumerd.errors import ConnectionLost, RequestTimedOut
from consumerd.model import BrokerId, TimestampType, TopicPartition
from consumerd.net.address import Address
from consumerd.net.connection import BrokerConnection
from consumerd.net.pool import PooledBroker, Purpose
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from consumerd.wire.modern.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from consumerd.wire.records import NewRecord, Record
from consumerd.wire.schema import Request
from tests.support.simulation.judge import GROUP
from tests.support.simulation.processes import Process, World

R = TypeVar("R")

SETTINGS: Final = CoordinatorSettings(offsets_topic_partitions=1)
_NODES: Final = (1, 2)
_HANGUP_S: Final = 0.1
"""How long it takes until a broker notices that a client's process has died."""


class _Replica(OffsetsTopic):
    """See OffsetsTopic: one node's replica; only the leader's is open."""

    def __init__(self, shared: Coordinators, node: int) -> None:
        self._shared = shared
        self._node = node
        self.changed: Callable[[frozenset[str]], None] = lambda _: None

    @property
    def partitions(self) -> int | None:
        return 1

    def is_open(self, partition: int) -> bool:
        return self._shared.leader == self._node

    def leader(self, partition: int) -> BrokerId | None:
        return None if self._shared.leader is None else BrokerId(self._shared.leader)

    def leader_epoch(self, partition: int) -> int | None:
        return self._shared.leader_epoch if self.is_open(partition) else None

    def knows(self, topic: str) -> bool:
        return self._shared.knows(topic)

    async def make(self) -> None:
        pass

    async def append(self, partition: int, records: Sequence[NewRecord]) -> int:
        await self._shared.write()
        if not self.is_open(partition):
            raise NoLog("another node leads")
        base = len(self._shared.log)
        self._shared.log += records
        return base

    async def replay(self, partition: int) -> JournalReplay:
        await asyncio.sleep(self._shared.loading_s)
        if not self.is_open(partition):
            raise NoLog("another node leads")
        replay = JournalReplay(SETTINGS.offsets_retention_ms)
        replay.read(_as_records(self._shared.log))
        return replay

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        self.changed = changed
        return lambda: None

    def subscribe_markers(self, ended: object) -> Callable[[], None]:
        assert callable(ended), "no producer has an id in these stories"
        return lambda: None


class _KnownTopics:
    """As much of Topics as commits need."""

    def __init__(self, knows: Callable[[str], bool]) -> None:
        self._knows = knows

    def find(self, topic: str) -> str | None:
        return topic if self._knows(topic) else None


class Coordinators:
    """Two nodes, of which at most one coordinates the group.

    Args:
        latency_s: Shortest and longest time that a message travels.
        knows: Tells if a topic exists.
        committed: Called with the name of a process and what was committed for it.
        changed: Called after each request and each move.
    """

    def __init__(
        self,
        world: World,
        chance: random.Random,
        *,
        latency_s: tuple[float, float],
        knows: Callable[[str], bool],
        committed: Callable[[str, TopicPartition, int], None],
        changed: Callable[[], None],
    ) -> None:
        self.world = world
        self.chance = chance
        self.leader: int | None = _NODES[0]
        self.leader_epoch = 0
        """The node that leads the log; None while there is none."""
        self.loading_s = 0.05
        self.log: list[NewRecord] = []
        self.knows = knows
        self.latency_s = latency_s
        self.brokers = {node: Broker(id=BrokerId(node), host=f"node{node}", port=9092) for node in _NODES}
        self._committed = committed
        self._changed = changed
        self._replicas = {node: _Replica(self, node) for node in _NODES}
        self._nodes = {
            node: GroupCoordinator(
                replica, settings=SETTINGS, now=world.main.time, now_ms=self._now_ms, new_id=self._make_id
            )
            for node, replica in self._replicas.items()
        }
        self._handlers = {node: self._make_handlers(node) for node in _NODES}
        self._ids = 0

    def _now_ms(self) -> int:
        return int(self.world.now * 1000)

    def _make_id(self) -> str:
        self._ids += 1
        return f"{self.chance.randrange(16**4):04x}-{self._ids}"

    def _make_handlers(self, node: int) -> Mapping[ApiKey, Handler]:
        coordinator, broker = self._nodes[node], self.brokers[node]
        address = BrokerAddress(broker_id=broker.id, host=broker.host, port=broker.port)
        of_groups = GroupRequests(coordinator, lambda _: address, {})
        topics = cast("Topics", _KnownTopics(self.knows))
        of_positions = PositionRequests(coordinator, cast("Any", None), topics, self._now_ms)
        return {
            ApiKey.JOIN_GROUP: of_groups.join,
            ApiKey.SYNC_GROUP: of_groups.sync,
            ApiKey.HEARTBEAT: of_groups.heartbeat,
            ApiKey.LEAVE_GROUP: of_groups.leave,
            ApiKey.DESCRIBE_GROUPS: of_groups.describe,
            ApiKey.OFFSET_COMMIT: of_positions.commit,
            ApiKey.OFFSET_FETCH: of_positions.fetch,
        }

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with self._nodes[_NODES[0]], self._nodes[_NODES[1]]:
            await asyncio.get_running_loop().create_future()

    async def write(self) -> None:
        """Let an append take its time."""
        await asyncio.sleep(self.chance.uniform(0.0, 0.01))

    # -- what happens to them

    def move(self, *, away_s: float, loading_s: float) -> None:
        """Move the leadership to the other node, after a time without a leader."""
        if self.leader is None:
            return
        other = next(node for node in _NODES if node != self.leader)
        self.leader, self.loading_s = None, loading_s
        self._tell()

        def lead() -> None:
            self.leader = other
            self.leader_epoch += 1
            self._tell()

        self.world.main.call_later(away_s, lead)

    def _tell(self) -> None:
        for replica in self._replicas.values():
            replica.changed(frozenset({OFFSETS_TOPIC}))
        self._changed()

    # -- what is true of the group

    def describe(self) -> GroupDescription | None:
        """Return the group as its coordinator knows it; None while there is none that has read the log."""
        if self.leader is None:
            return None
        error, group = self._nodes[self.leader].describe(GROUP)
        return group if error is ErrorCode.NONE else None

    def counts(self, member_id: str, generation: int) -> bool:
        """Return True if a member belongs to the newest generation, and this is it."""
        newest, members = self._find_newest()
        return generation == newest and member_id in members

    @property
    def generation(self) -> int:
        """The newest generation."""
        return self._find_newest()[0]

    def _find_newest(self) -> tuple[int, frozenset[str]]:
        if (group := self.describe()) is not None and self.leader is not None:
            entry = self._nodes[self.leader]._entries.get(GROUP)
            generation = 0 if entry is None else entry.group.generation
            return generation, frozenset(one.member_id for one in group.members)
        # as the next coordinator will read it
        replay = JournalReplay(SETTINGS.offsets_retention_ms)
        replay.read(_as_records(self.log))
        stored = replay.groups.get(GROUP)
        if stored is None:
            return 0, frozenset()
        return stored.generation, frozenset(one.member_id for one in stored.members)

    def find_position(self, partition: TopicPartition) -> int:
        """Return the committed position, 0 without one."""
        replay = JournalReplay(SETTINGS.offsets_retention_ms)
        replay.read(_as_records(self.log))
        positions = replay.positions.get(GROUP)
        found = None if positions is None else positions.all.get(partition)
        return 0 if found is None else found.offset

    # -- requests

    async def handle(self, node: int, request: Request[Any], context: RequestContext, client: str) -> object:
        """Answer a request as a node does."""
        if isinstance(request, FindCoordinatorRequest):
            return self._name_leader()
        response = await self._handlers[node][request.api](request, context)
        if isinstance(request, OffsetCommitRequest):
            self._note_commits(client, request, cast("OffsetCommitResponse", response))
        self._changed()
        return response

    def _name_leader(self) -> FindCoordinatorResponse:
        if self.leader is None:
            return FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, node_id=-1, host="", port=-1)
        broker = self.brokers[self.leader]
        return FindCoordinatorResponse(node_id=broker.id, host=broker.host, port=broker.port)

    def _note_commits(self, client: str, request: OffsetCommitRequest, response: OffsetCommitResponse) -> None:
        codes = {
            TopicPartition.modern(topic.topic, one.partition): one.error_code
            for topic in response.topics
            for one in topic.partitions
        }
        for topic in request.topics:
            for one in topic.partitions:
                partition = TopicPartition.modern(topic.topic, one.partition)
                if codes[partition] == ErrorCode.NONE:
                    self._committed(client, partition, one.offset)


def _as_records(log: Sequence[NewRecord]) -> list[Record]:
    return [
        Record(
            offset=offset,
            timestamp=record.timestamp,
            timestamp_type=TimestampType.CREATE_TIME,
            key=record.key,
            value=record.value,
        )
        for offset, record in enumerate(log)
    ]


class Network:
    """One process's connections to the nodes. See Connections."""

    def __init__(self, coordinators: Coordinators, process: Process) -> None:
        self.coordinators = coordinators
        self.process = process
        self.connected = True
        self.beaten: Callable[[], None] | None = None
        """Called once, after a heartbeat has left."""
        self._links: dict[tuple[int, Purpose], _Link] = {}
        self._left: list[_Link] = []
        """Closed by us while the network was cut: their nodes do not know it yet."""

    async def list_brokers(self) -> Sequence[Broker]:
        """Return the nodes' addresses."""
        return list(self.coordinators.brokers.values())

    async def get(self, broker: PooledBroker, purpose: Purpose) -> BrokerConnection:
        """See Connections."""
        key = (int(broker.id), purpose)
        link = self._links.get(key)
        if link is None or link.closed:
            await asyncio.sleep(self.draw_latency())
            if not self.connected:
                await asyncio.sleep(0.5)
                raise ConnectionLost(f"{broker}: unreachable")
            link = self._links[key] = _Link(self, int(broker.id))
        return cast("BrokerConnection", link)  # as much of it as is used

    def note_sent(self, request: Request[Any]) -> None:
        """Tell that a request has left."""
        if request.api is ApiKey.HEARTBEAT and self.beaten is not None:
            beaten, self.beaten = self.beaten, None
            beaten()

    def draw_latency(self) -> float:
        """Return how long a message travels."""
        return self.coordinators.chance.uniform(*self.coordinators.latency_s)

    def cut(self) -> None:
        """Let nothing through, either way; neither side notices."""
        self.connected = False

    def heal(self) -> None:
        """Let new connections through; the old ones are found broken."""
        if not self.connected:
            self.connected = True
            for link in (*self._links.values(), *self._left):
                link.break_off()
            self._left.clear()

    def crash(self) -> None:
        """End with the process: the nodes notice it soon."""
        self.coordinators.world.main.call_later(_HANGUP_S, self._break)

    def leave(self, link: _Link) -> None:
        """Remember a link that was closed while the network was cut."""
        self._left.append(link)

    def _break(self) -> None:
        for link in self._links.values():
            link.break_off()


class _Link:
    """As much of BrokerConnection as members use; a node answers its requests one after the other."""

    def __init__(self, network: Network, node: int) -> None:
        self.address = Address(host=f"node{node}", port=9092, tls=False)
        self.closed = False
        self._network = network
        self._node = node
        self._hangup = Hangup()
        self._backlog: deque[tuple[Request[Any], int, asyncio.Future[object]]] = deque()
        self._serving = False
        self._outbound_at = 0.0
        self._waiting: dict[asyncio.Future[object], None] = {}

    def version_of(self, request: type[Request[Any]]) -> int:
        return request.versions[-1]

    async def request(self, request: Request[R], *, timeout_s: float, version: int | None = None) -> R:
        if self.closed:
            raise ConnectionLost(f"{self.address}: closed")
        version = self.version_of(type(request)) if version is None else version
        waiter: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        self._later(self._arrive, request, version, waiter)
        self._network.note_sent(request)
        try:
            async with timeout(timeout_s):
                answer = await waiter
        except TimeoutError as error:
            self.break_off()
            raise RequestTimedOut(f"{self.address}: no answer to {request.api.name} within {timeout_s:g} s") from error
        finally:
            self._waiting.pop(waiter, None)
        if answer is None:
            raise ConnectionLost(f"{self.address}: broken")
        return cast("R", answer)

    def break_off(self) -> None:
        """Close it; the node hears of it once it can be reached."""
        self.closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        if self._network.connected:
            self._later(self._hangup.happen)
        else:
            self._network.leave(self)

    def _later(self, act: Callable[..., object], *args: object) -> None:
        """Let something travel to the node, behind all that is on its way."""
        main = self._network.coordinators.world.main
        self._outbound_at = max(self._outbound_at, main.time() + self._network.draw_latency())
        main.call_at(self._outbound_at, act, *args)

    def _arrive(self, request: Request[Any], version: int, waiter: asyncio.Future[object]) -> None:
        if not self._network.connected or self._hangup.happened:
            return
        self._backlog.append((request, version, waiter))
        if not self._serving:
            self._serving = True
            self._network.coordinators.world.main.create_task(self._serve())

    async def _serve(self) -> None:
        name = self._network.process.name
        while self._backlog and not self._hangup.happened:
            request, version, waiter = self._backlog.popleft()
            context = RequestContext(version=version, client_id=name, peer_host="127.0.0.1", hangup=self._hangup)
            answer = await self._network.coordinators.handle(self._node, request, context, name)
            main = self._network.coordinators.world.main
            main.call_later(self._network.draw_latency(), self._answer, waiter, answer)
        self._serving = False

    def _answer(self, waiter: asyncio.Future[object], answer: object) -> None:
        if self._network.connected and not waiter.done():
            waiter.set_result(answer)
