# SPDX-License-Identifier: Apache-2.0
"""Moving a group's positions on purpose: what ``consumerd offsets set | reset`` plan and carry out.

Who moves a partition depends on who has it:

- a member of ours: it is asked (:mod:`consumerd.offsets.requests`) and waited for. It alone knows what is in flight, and
  how far its files reach;
- nobody, while members of ours are alive: whoever of them claims it next is asked;
- a Java member, or nobody while only Java members are alive: nothing can be asked of those, and they overwrite what is
  written. Refused, unless the request is to be left for the next member of ours (``force``);
- nobody, and no member is alive: the position is written, if members of the group keep no files. Where they do, a position
  below the end of what has landed needs a new chain, which only a member can begin: the request is left for the next start.

A direct write is conditional on the offset node's version. That no member has come in between is seen by the child version
of ``ids``, before and after: a member reads positions after it has registered.
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
from consumerd.errors import ConfigError, ConsumerdError, CoordinationError, OffsetError
from consumerd.group.admission import find_our_sessions
from consumerd.model import LogRange, TopicPartition
from consumerd.net.pool import Purpose
from consumerd.offsets.positions import GroupPositions
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import OffsetRequest
from consumerd.wire.modern.list_offsets import ListOffsetsRequest
from consumerd.zk.layout import (
    ids_path,
    offset_path,
    offsets_path,
    owner_path,
    request_path,
    requests_path,
    roots_root,
)
from consumerd.zk.listing import list_names
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
)
from consumerd.zk.znodes import encode_offset

_ATTEMPTS: Final = 4
_RETRY_S: Final = 1.0
_SHOWN: Final = 5


class Way(enum.Enum):
    """How a partition is moved; the values are shown."""

    OWNER = "by its owner"
    MEMBERS = "by the next of ours to claim it"
    LEFT = "at the next start"
    DIRECTLY = "directly"
    REFUSED = "not at all"

    @property
    def asks(self) -> bool:
        """Whether a request is left for a member."""
        return self in {Way.OWNER, Way.MEMBERS, Way.LEFT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one partition is to go on."""

    partition: TopicPartition
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """A target, the present position, and how it is moved.

    ``position`` is None where there is no valid one, ``version`` where there is no offset node.
    """

    partition: TopicPartition
    position: int | None
    version: int | None
    target: int
    owner: str | None
    way: Way
    why: str
    earlier: OffsetRequest | None

    @property
    def effect(self) -> str:
        """What it does, in words."""
        if self.position is None:
            return "first position"
        if self.target == self.position:
            return "no change"
        distance = abs(self.target - self.position)
        return f"skips {distance}" if self.target > self.position else f"reads {distance} again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All moves of one command, and the state of ``ids`` that they rest on."""

    moves: Sequence[PlannedMove]
    ids: tuple[int, int] | None

    def refusal(self) -> str | None:
        """Say why the plan cannot be carried out, None where it can."""
        refused = [move for move in self.moves if move.way is Way.REFUSED]
        if not refused:
            return None
        shown = "; ".join(f"{move.partition}: {move.why}" for move in refused[:_SHOWN])
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        return (
            f"{shown}{more}. Java members carry no requests out and would overwrite what is written: stop them first, or "
            "give --force to leave the request for the next consumerd that claims the partition"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionMoveRow:
    """One partition's move as it is shown; ``position`` is where it stands before, ``outcome`` what became of it."""

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
    """Return a move's row."""
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
    """Ask the brokers where ``to`` is: ``earliest``, ``latest``, or a time in ms (the first record from then on, and the
    end where none is that new).

    Returns the targets, and whether a broker knows times only as exactly as its log segments. Raises ConsumerdError.
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
    return targets, await _is_coarse(access, partitions)


async def _is_coarse(access: ClusterAccess, partitions: Iterable[TopicPartition]) -> bool:
    leaders = {leader for one in partitions if (leader := access.directory.find_leader(one)) is not None}
    for leader in leaders:
        connection = await access.pool.get(leader, Purpose.CONTROL)
        if connection.version_of(ListOffsetsRequest) == 0:
            return True
    return False


def check_targets(targets: Iterable[Target], ranges: Mapping[TopicPartition, LogRange]) -> None:
    """Refuse positions that the brokers do not hold. Raises ConfigError that names them."""
    wrong = []
    for target in targets:
        log = ranges.get(target.partition)
        if log is None:
            wrong.append(f"{target.partition}: its leader could not be asked for the range of its log")
        elif not log.earliest <= target.position <= log.latest:
            wrong.append(f"{target.partition}: {target.position} is outside the log [{log.earliest}, {log.latest}]")
    if wrong:
        more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        raise ConfigError("\n".join([*wrong[:_SHOWN], *more, "give --force to ask for it all the same"]))


# -- who does it


async def plan_moves(zk: ZkClient, group: str, targets: Sequence[Target], *, force: bool) -> Plan:
    """Look at the group and decide how each partition is moved. Raises CoordinationError."""
    try:
        names, stat = await zk.children(ids_path(group))
        ids: tuple[int, int] | None = (stat.czxid, stat.cversion)
    except NoNode:
        names, ids = [], None
    ours = await find_our_sessions(zk, group)
    landed = bool(await list_names(zk, roots_root(group)))
    requests = ZooKeeperOffsetRequests(zk, group)

    stored = await GroupPositions(zk, group).find([target.partition for target in targets])

    async def plan(partition: TopicPartition) -> Callable[[int], PlannedMove]:
        owner = await zk.find(owner_path(group, partition))
        earlier = await requests.find(partition)
        holder = owner[0].decode(errors="replace") if owner is not None else None
        session = owner[1].ephemeral_owner if owner is not None else None
        way, why = choose_way(holder, session, ours, alive=bool(names), landed=landed, force=force)
        return lambda target: PlannedMove(
            partition=partition,
            position=stored[partition].valid,
            version=stored[partition].version,
            target=target,
            owner=holder,
            way=way,
            why=why,
            earlier=earlier,
        )

    made = await map_bounded([target.partition for target in targets], plan)
    return Plan(moves=[made[target.partition](target.position) for target in targets], ids=ids)


def choose_way(
    holder: str | None, session: int | None, ours: Collection[int], *, alive: bool, landed: bool, force: bool
) -> tuple[Way, str]:
    """Decide how one partition is moved, and say why where it is not; see the module's text."""
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
    """Carries a plan out. ``new_id`` makes ids of requests, ``wall_ms`` is the calendar's clock."""

    def __init__(
        self, zk: ZkClient, group: str, *, author: str, new_id: Callable[[], str], wall_ms: Callable[[], int]
    ) -> None:
        self._zk = zk
        self._group = group
        self._author = author
        self._new_id = new_id
        self._wall_ms = wall_ms
        self._requests = ZooKeeperOffsetRequests(zk, group)

    async def carry_out(
        self, plan: Plan, *, new_chain: bool, wait_s: float, show: Callable[[PositionMoveRow], None]
    ) -> Sequence[PlannedMove]:
        """Write or ask, wait up to ``wait_s`` for members, and show each move as it is settled; what the plan refuses is
        left out.

        Returns the moves that are not carried out. Raises OffsetError where somebody interfered with a direct write,
        CoordinationError.
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
                show(describe(move, "written"))
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
        """Write a position where nobody else does, and take away what was asked for before."""
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
                    return  # by the try that was never answered
                raise OffsetError(
                    f"{move.partition}: somebody else has written its position or a request meanwhile; look again with: "
                    "consumerd offsets show"
                ) from error
            else:
                return
        raise CoordinationError(f"{path}: not written in {_ATTEMPTS} tries; look again with: consumerd offsets show")

    async def _holds(self, move: PlannedMove) -> bool:
        found = (await GroupPositions(self._zk, self._group).find([move.partition]))[move.partition]
        version = 0 if move.version is None else move.version + 1
        return found.version == version and found.value == move.target

    async def _check_alone(self, before: tuple[int, int] | None) -> None:
        stat = await self._zk.exists(ids_path(self._group))
        if (None if stat is None else (stat.czxid, stat.cversion)) != before:
            raise OffsetError(
                "a member joined the group while positions were written: it may have read the old ones, and commit over "
                "the new ones. Look again with: consumerd offsets show"
            )

    async def _wait(
        self,
        asked: dict[TopicPartition, tuple[PlannedMove, OffsetRequest]],
        wait_s: float,
        show: Callable[[PositionMoveRow], None],
    ) -> Sequence[PlannedMove]:
        """Wait until the requests have gone. A request goes with the commit that carries it out, and by nothing else."""
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
                        await asyncio.sleep(_RETRY_S)  # what was asked stands, whether we see it or not
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
    """Say what has not been carried out, and what to look at."""
    shown = ", ".join(str(move.partition) for move in moves[:_SHOWN])
    more = f" and {len(moves) - _SHOWN} more" if len(moves) > _SHOWN else ""
    return OffsetError(
        f"{shown}{more}: not carried out within {wait_s:g} s. Requests that stand are carried out when a consumerd holds the "
        "partitions and can: see its log and status page. To take one back, ask for where the partition is to stand"
    )
