# SPDX-License-Identifier: Apache-2.0
"""Plans and carries out ``consumerd offsets set | import | reset | shift``.

The owner of a partition decides how its position is changed:

- A consumerd member owns it. The command leaves a request for the member (:mod:`consumerd.offsets.requests`) and waits.
  Only this member knows which records are in flight, and at which offset its files end.
- No member owns it, and consumerd members are alive. The command leaves a request for the member that claims the
  partition next, and waits.
- A Java member owns it, or no member does and only Java members are alive. Java members ignore requests, and overwrite
  a position that is written. The change is refused, except with ``force``: then the request waits for the next
  consumerd member.
- No member is alive. If members of the group keep no files, the command writes the position. If they do, a position
  below the end of these files needs a new sequence of files (a *chain*), which only a member can begin. So the command
  leaves a request for the next start of a member.

A direct write goes to the stores that members read: ZooKeeper, Kafka, or both. Members that read both stores take the
larger position. So where Kafka holds a position of the partition, the command changes this position too, even if
members read ZooKeeper only. An old, larger one would win as soon as members read both stores, and it makes a member
that reads ZooKeeper only refuse to start.

If a direct write to both stores fails after the first of them, the larger position remains where a rewind was asked
for, and the smaller one where records were to be skipped. The order of the writes is that of
:mod:`consumerd.offsets.dual`.

A direct write to ZooKeeper is conditional on the offset node's version. The child version of the znode ``ids``, read
before and after, shows that no member has joined in between: a member reads positions after it has registered.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.client.opening import ClusterAccess
from consumerd.errors import ConfigError, ConnectionLost, ConsumerdError, CoordinationError, OffsetError
from consumerd.group.admission import find_our_sessions
from consumerd.model import Incarnation, LogRange, TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.kafka_writer import KafkaOffsetWriter
from consumerd.offsets.positions import KeptPositions, node_version
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import ZOOKEEPER_ONLY, OffsetRequest, Place, is_larger
from consumerd.zk.layout import (
    ids_path,
    offset_path,
    offsets_path,
    owner_path,
    request_path,
    requests_path,
    roots_root,
)
from consumerd.zk.port import (
    BadVersion,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    Operation,
    OutcomeUnknown,
    SetData,
    WatchKind,
    ZkClient,
    list_names,
)
from consumerd.zk.znodes import encode_offset

_ATTEMPTS: Final = 4
_RETRY_S: Final = 1.0
_SHOWN: Final = 5


_STOP_JAVA: Final = (
    "Java members carry no requests out and would overwrite what is written: stop them first, or give --force to leave "
    "the request for the next consumerd that claims the partition"
)


class Way(enum.Enum):
    """Means of changing a committed position: a direct write, or a request to a member.

    The values appear in the output.
    """

    OWNER = "by its owner"
    MEMBERS = "by the next of ours to claim it"
    LEFT = "at the next start"
    DIRECTLY = "directly"
    REFUSED = "not at all"

    @property
    def asks(self) -> bool:
        """True if the command leaves a request, which a consumerd member carries out."""
        return self in {Way.OWNER, Way.MEMBERS, Way.LEFT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """New committed position of one partition, as an operator has asked for it."""

    partition: TopicPartition
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """Planned change of one partition's committed position.

    A *direct write* changes the committed position itself; otherwise a request to a member is left in ZooKeeper.

    Args:
        position: Committed position that members start from now; None if there is none.
        version: Version of the offset znode that a direct write replaces; None if there is no such node.
        target: Position after the move.
        owner: Thread id in the partition's owner node; None without an owner.
        why: Reason why the move is refused, or with ``--force`` is left for a later claim; else empty.
        earlier: Pending request that this move replaces; None without one.
        places: Stores that a direct write changes: ZooKeeper, Kafka, or both.
        kafka_first: Order of a direct write to both stores. True if the position in Kafka is above the target, or
            could not be read.
        incarnation: Incarnation of the topic; None if the topic does not exist.
        unknown: Reason why the position in Kafka could not be read; empty if it was.
    """

    partition: TopicPartition
    position: int | None
    version: int | None
    target: int
    owner: str | None
    way: Way
    why: str
    earlier: OffsetRequest | None
    places: Collection[Place] = ZOOKEEPER_ONLY
    kafka_first: bool = False
    incarnation: Incarnation | None = None
    unknown: str = ""

    @property
    def outcome(self) -> str:
        """Text that says where a direct write has put the position.

        Example: ``written to ZooKeeper and Kafka``.
        """
        if Place.KAFKA not in self.places:
            return f"written to ZooKeeper; Kafka's is unknown: {self.unknown}" if self.unknown else "written"
        return "written to ZooKeeper and Kafka" if Place.ZOOKEEPER in self.places else "written to Kafka"

    @property
    def effect(self) -> str:
        """Text that says what the new position means, such as ``skips 20``."""
        if self.position is None:
            return "first position"
        if self.target == self.position:
            return "no change"
        distance = abs(self.target - self.position)
        return f"skips {distance}" if self.target > self.position else f"reads {distance} again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Planned position changes of one command, and the group's members at that time.

    Attributes:
        moves: Planned change of each partition.
        ids: Creation zxid and child version of the group's znode ``ids``, to notice members that join; None if there is
            no such node.
        advice: Sentence for the operator if a change is refused.
    """

    moves: Sequence[PlannedMove]
    ids: tuple[int, int] | None
    advice: str = _STOP_JAVA

    def refusal(self) -> str | None:
        """Return the reason why the position changes cannot be carried out; None if they can."""
        refused = [move for move in self.moves if move.way is Way.REFUSED]
        if not refused:
            return None
        shown = "; ".join(f"{move.partition}: {move.why}" for move in refused[:_SHOWN])
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        return f"{shown}{more}. {self.advice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionMoveRow:
    """Change of one partition's committed position, as a command shows it.

    Attributes:
        owner: Thread id of the partition's owner; None without one.
        position: Position before the change; None if there was none.
        target: Position after the change.
        effect: Text such as ``skips 20`` or ``reads 20 again``.
        way: Means of the change, such as ``directly`` or ``by its owner``.
        outcome: Text that says what has happened.
        request: Id of the request that was left for a member; None without one.
    """

    topic: str
    partition: str
    owner: str | None
    position: int | None
    target: int
    effect: str
    way: str
    outcome: str
    request: str | None = None


def describe(move: PlannedMove, outcome: str, request: OffsetRequest | None = None) -> PositionMoveRow:
    """Return the output row of a position change.

    Args:
        outcome: Text that says what has happened.
        request: Request that was left for a member; None for a direct write.
    """
    return PositionMoveRow(
        topic=move.partition.topic,
        partition=str(move.partition.partition),
        owner=move.owner,
        position=move.position,
        target=move.target,
        effect=move.effect,
        way=move.way.value,
        outcome=outcome,
        request=request.id if request is not None else None,
    )


# -- where to


async def resolve_reset(
    access: ClusterAccess, partitions: Collection[TopicPartition], to: str | int
) -> tuple[list[Target], bool]:
    """Return the new position of each partition for ``consumerd offsets reset``.

    The second value is True if positions found by time may be too early, because a broker (before 0.10.1) knows only
    the times of log segments. Raises ConsumerdError.

    Args:
        to: ``earliest``, ``latest``, or a time in ms since the epoch. A time means the offset of the first record with
            that timestamp or a later one; if there is none, the log end offset.
    """
    ranges = await access.ranges.read(partitions)
    if isinstance(to, str):
        found = {one: log.earliest if to == "earliest" else log.latest for one, log in ranges.items()}
        return [Target(partition=one, position=found[one]) for one in sorted(partitions)], False
    by_time = await access.ranges.offset_for_time(partitions, to)
    targets = [
        Target(partition=one, position=ranges[one].latest if (at := by_time.get(one)) is None else at)
        for one in sorted(partitions)
    ]
    return targets, await access.ranges.is_coarse(partitions)


def check_targets(targets: Iterable[Target], ranges: Mapping[TopicPartition, LogRange]) -> None:
    """Refuse new positions that are outside the partition's log, or cannot be compared with it.

    A position is inside if ``earliest <= position <= latest``.

    Args:
        ranges: Start and end of each partition's log; missing where its leader did not answer.

    Raises ConfigError if a position is outside. Else raises ConnectionLost if the range of a partition is missing. Both
    messages name the partitions with either problem.
    """
    outside, unknown = [], []
    for target in targets:
        log = ranges.get(target.partition)
        if log is None:
            unknown.append(f"{target.partition}: its leader could not be asked for the range of its log")
        elif not log.earliest <= target.position <= log.latest:
            outside.append(f"{target.partition}: {target.position} is outside the log [{log.earliest}, {log.latest}]")
    if wrong := [*outside, *unknown]:
        more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        message = "\n".join([*wrong[:_SHOWN], *more, "give --force to ask for it all the same"])
        raise ConfigError(message) if outside else ConnectionLost(message)


# -- who does it


async def plan_moves(
    zk: ZkClient,
    positions: GroupPositions,
    targets: Sequence[Target],
    places: Collection[Place] = ZOOKEEPER_ONLY,
    *,
    force: bool,
) -> Plan:
    """Read the group from ZooKeeper, and plan how each position is changed.

    A change is a direct write, a request to a consumerd member, or refused. Raises CoordinationError.

    Args:
        targets: New position of each partition.
        places: Stores in which members read committed positions: ZooKeeper, Kafka, or both.
        force: True to leave a request for the next consumerd member where the change is refused otherwise.
    """
    group = positions.group
    try:
        names, stat = await zk.children(ids_path(group))
        ids: tuple[int, int] | None = (stat.czxid, stat.cversion)
    except NoNode:
        names, ids = [], None
    ours = await find_our_sessions(zk, group)
    landed = bool(await list_names(zk, roots_root(group)))
    requests = ZooKeeperOffsetRequests(zk, group)

    kept = await positions.find_kept([target.partition for target in targets])

    async def plan(partition: TopicPartition) -> Callable[[int], PlannedMove]:
        owner = await zk.find(owner_path(group, partition))
        earlier = await requests.find(partition)
        holder = owner[0].decode(errors="replace") if owner is not None else None
        session = owner[1].ephemeral_owner if owner is not None else None
        way, why = choose_way(holder, session, ours, alive=bool(names), landed=landed, force=force)
        return lambda target: PlannedMove(
            partition=partition,
            position=kept.find_counting(partition, places).believed,
            version=node_version(kept.zookeeper[partition]),
            target=target,
            owner=holder,
            way=way,
            why=why,
            earlier=earlier,
            places={*places, Place.KAFKA} if partition in kept.kafka else places,
            kafka_first=not kept.is_told(partition) or is_larger(_find_in_kafka(kept, partition), target),
            incarnation=kept.zookeeper[partition].incarnation,
            unknown="" if kept.is_told(partition) else kept.unknown,
        )

    made = await map_bounded([target.partition for target in targets], plan)
    return Plan(moves=[made[target.partition](target.position) for target in targets], ids=ids)


def _find_in_kafka(kept: KeptPositions, partition: TopicPartition) -> int | None:
    return kept.kafka[partition].value if partition in kept.kafka else None


def choose_way(
    holder: str | None, session: int | None, ours: Collection[int], *, alive: bool, landed: bool, force: bool
) -> tuple[Way, str]:
    """Choose how one partition's position is changed, and give the reason of a refusal.

    The reason is empty unless the change is refused. A consumerd owner, or the next consumerd member, gets a request.
    If only Java members are alive, the change is refused; with ``force`` a request is left. Without live members the
    position is written directly, unless the group has landed files: then a request is left.

    Args:
        holder: Thread id in the owner node; None without one.
        session: ZooKeeper session id of the owner; None without an owner.
        ours: ZooKeeper session ids of consumerd members.
        alive: True if the group has live members.
        landed: True if members of the group keep landed files.
        force: True to leave a request where the change is refused otherwise.
    """
    if session is not None:
        if session in ours:
            return Way.OWNER, ""
        return (Way.LEFT if force else Way.REFUSED), f"it is held by {holder}, which is no member of ours"
    if ours:
        return Way.MEMBERS, ""
    if alive:
        return (Way.LEFT if force else Way.REFUSED), "it has no owner now, and the group's members are none of ours"
    return (Way.LEFT if landed else Way.DIRECTLY), ""


# -- doing it


class OffsetMover:
    """Carries out planned changes of committed positions.

    Args:
        author: Name that requests to members carry.
        new_id: Makes ids of requests.
        wall_ms: Present time, in ms since the epoch.
        kafka: Writes positions to Kafka; None if no change needs it.
    """

    def __init__(
        self,
        zk: ZkClient,
        positions: GroupPositions,
        *,
        author: str,
        new_id: Callable[[], str],
        wall_ms: Callable[[], int],
        kafka: KafkaOffsetWriter | None = None,
    ) -> None:
        self._zk = zk
        self._kafka = kafka
        self._positions = positions
        self._group = positions.group
        self._author = author
        self._new_id = new_id
        self._wall_ms = wall_ms
        self._requests = ZooKeeperOffsetRequests(zk, positions.group)

    async def carry_out(
        self, plan: Plan, *, new_chain: bool, wait_s: float, show: Callable[[PositionMoveRow], None]
    ) -> Sequence[PlannedMove]:
        """Write positions or requests, wait for members, and show the outcome of each change.

        Changes that the plan refuses are left out. Returns the changes that members have not carried out within
        ``wait_s`` seconds. Raises OffsetError if another client changed a position that was written directly, or a
        member joined meanwhile; CoordinationError.

        Args:
            new_chain: True to ask members to begin a new sequence of landed files, instead of continuing the present
                one.
            wait_s: Time limit, in seconds, for members to carry out requests.
            show: Called with the row of each change.
        """
        asked: dict[TopicPartition, tuple[PlannedMove, OffsetRequest]] = {}
        for move in plan.moves:
            if move.way.asks:
                request = await self._requests.put(self._make_request(move, new_chain=new_chain))
                if move.way is Way.LEFT:
                    show(describe(move, "left for the next of ours that claims it", request))
                else:
                    asked[move.partition] = (move, request)
            elif move.way is Way.DIRECTLY:
                await self._write(move)
                show(describe(move, move.outcome))
        if any(move.way is Way.DIRECTLY for move in plan.moves):
            await self._check_alone(plan.ids)
        return await self._wait(asked, wait_s, show) if asked else ()

    def _make_request(self, move: PlannedMove, *, new_chain: bool) -> OffsetRequest:
        return OffsetRequest(
            id=self._new_id(),
            partition=move.partition,
            position=move.target,
            new_chain=new_chain,
            author=self._author,
            created_ms=self._wall_ms(),
            version=0,
        )

    async def _write(self, move: PlannedMove) -> None:
        """Write the position of an unowned partition, and delete an earlier request.

        Raises OffsetError, CoordinationError. The text says which of two places has the position then.
        """
        if Place.KAFKA not in move.places:
            await self._write_to_zookeeper(move)
        elif Place.ZOOKEEPER not in move.places:
            await self._write_to_kafka(move, "nothing else was written")
            if move.earlier is not None:
                await self._requests.remove(move.earlier)
        elif move.kafka_first:
            await self._write_to_kafka(move, "ZooKeeper's is as it was")
            try:
                await self._write_to_zookeeper(move)
            except (OffsetError, CoordinationError) as error:
                raise OffsetError(f"{error}. Kafka has position {move.target} of {move.partition} already") from error
        else:
            await self._write_to_zookeeper(move)
            await self._write_to_kafka(move, "ZooKeeper has it already; give the command again to write both")

    async def _write_to_kafka(self, move: PlannedMove, other: str) -> None:
        """Write a position to Kafka. Raises OffsetError, CoordinationError, which say ``other`` of the other place."""
        if self._kafka is None:
            raise CoordinationError(f"{move.partition}: brokers are not known, so Kafka's position cannot be written")
        try:
            await self._kafka.write(move.partition, move.target, move.incarnation)
        except (OffsetError, CoordinationError) as error:
            text = f"{move.partition}: Kafka has not confirmed position {move.target}, {other}: {error}"
            raise (OffsetError if isinstance(error, OffsetError) else CoordinationError)(text) from error

    async def _write_to_zookeeper(self, move: PlannedMove) -> None:
        """Write the offset node, and delete an earlier request, in one transaction."""
        path, data = offset_path(self._group, move.partition), encode_offset(move.target)
        operations: list[Operation] = [
            Create(path, data) if move.version is None else SetData(path, data, move.version)
        ]
        if move.earlier is not None:
            operations.append(Delete(request_path(self._group, move.partition), move.earlier.version))
        if move.version is None:
            await self._zk.ensure_path(offsets_path(self._group, move.partition.topic))
        unanswered = False
        for _ in range(_ATTEMPTS):
            try:
                await self._zk.multi(operations)
            except OutcomeUnknown:
                unanswered = True
            except MultiFailed as error:
                if not isinstance(error.cause, BadVersion | NodeExists | NoNode):
                    raise
                if unanswered and await self._holds(move):
                    return  # the unanswered try has written it
                raise OffsetError(
                    f"{move.partition}: another client has written its position or a request meanwhile; look again "
                    "with: consumerd offsets show"
                ) from error
            else:
                return
        raise CoordinationError(f"{path}: not written in {_ATTEMPTS} tries; look again with: consumerd offsets show")

    async def _holds(self, move: PlannedMove) -> bool:
        found = (await self._positions.find([move.partition]))[move.partition]
        version = 0 if move.version is None else move.version + 1
        return node_version(found) == version and found.value == move.target

    async def _check_alone(self, before: tuple[int, int] | None) -> None:
        stat = await self._zk.exists(ids_path(self._group))
        if (None if stat is None else (stat.czxid, stat.cversion)) != before:
            raise OffsetError(
                "a member joined the group while positions were written: it may have read the old ones, and commit "
                "over "
                "the new ones. Look again with: consumerd offsets show"
            )

    async def _wait(
        self,
        asked: dict[TopicPartition, tuple[PlannedMove, OffsetRequest]],
        wait_s: float,
        show: Callable[[PositionMoveRow], None],
    ) -> Sequence[PlannedMove]:
        """Wait until the requests are gone.

        Only the commit that carries a request out deletes it.
        """
        changed = asyncio.Event()
        replaced: list[PlannedMove] = []
        topics = sorted({partition.topic for partition in asked})
        watches = [
            self._zk.watch(requests_path(self._group, topic), WatchKind.CHILDREN, changed.set) for topic in topics
        ]
        try:
            async with timeout(wait_s):
                while True:
                    changed.clear()
                    try:
                        found = await map_bounded(sorted(asked), self._requests.find)
                    except CoordinationError:
                        await asyncio.sleep(_RETRY_S)  # the requests stand, though they cannot be read now
                        continue
                    for partition, standing in found.items():
                        move, request = asked[partition]
                        if standing is None:
                            show(describe(move, "carried out", request))
                        elif standing.id != request.id:
                            replaced.append(move)
                            show(describe(move, f"replaced by a request of {standing.author}", request))
                        else:
                            continue
                        del asked[partition]
                    if not asked:
                        return replaced
                    await changed.wait()
        except TimeoutError:
            for move, request in asked.values():
                show(describe(move, "not yet: the request stays", request))
            return [*replaced, *(move for move, _ in asked.values())]
        finally:
            for watch in watches:
                watch.close()


def explain_undone(moves: Sequence[PlannedMove], wait_s: float) -> ConsumerdError:
    """Return the error, with advice, for position changes that members have not carried out.

    Args:
        wait_s: Time that the command has waited, in seconds.
    """
    shown = ", ".join(str(move.partition) for move in moves[:_SHOWN])
    more = f" and {len(moves) - _SHOWN} more" if len(moves) > _SHOWN else ""
    return OffsetError(
        f"{shown}{more}: not carried out within {wait_s:g} s. Requests that stand are carried out when a consumerd "
        f"holds the "
        "partitions and can: see its log and status page. To take one back, ask for where the partition is to stand"
    )
