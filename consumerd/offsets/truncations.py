# SPDX-License-Identifier: Apache-2.0
"""How often a partition's log has lost its end, in state that all members of the group share.

After an unclean leader election the same offsets are other records, so that what is landed from there on is of the
incarnation's next truncation (``model.Incarnation``). The number stands in a JSON object at
``/consumers/G/consumerd/truncations/T/P``::

    {"format": 1, "incarnation": "7", "truncation": 1, "position": 30, "voids": 4242}

``incarnation`` is the topic's ``czxid``: a note about a deleted topic of the same name says nothing. ``position`` is where
delivery goes on, ``voids`` the ZooKeeper transaction (``mzxid``) that wrote the committed position which the truncation made
void, 0 where there was none.

It is written before anything is done about the truncation (a chain begun, a position committed), in the claim's session or
not at all. So whoever finds the partition next, after a crash at any point and with whatever folder of its own, knows
that an older chain's end counts no more; and while the offset node is still the one that is void, where to go on.

Where ``offsets.on_above`` is ``stop`` nothing is decided yet. Then ``/consumers/G/consumerd/truncations/T/P.lost``
keeps the evidence, which is gone from the log as soon as that has grown beyond the position again::

    {"format": 1, "incarnation": "7", "truncation": 1, "position": 80, "earliest": 0, "latest": 60, "voids": 4242}

It counts until a truncation of its number, or a higher one, is noted or landed, and needs no removal. It is a node of
its own, since older releases read ``T/P`` and would go on at its position under every policy.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from consumerd.aio.parallel import map_bounded
from consumerd.aio.sharing import SharedReads
from consumerd.errors import CoordinationError
from consumerd.model import Claim, Incarnation, PartitionKey, TopicPartition
from consumerd.offsets.positions import parse_stored
from consumerd.offsets.store import KnownTruncations, LogTruncation, LostEnd
from consumerd.zk.layout import (
    LOST_END_SUFFIX,
    lost_end_path,
    offset_path,
    topic_path,
    truncation_path,
    truncations_path,
    truncations_root,
)
from consumerd.zk.listing import list_names
from consumerd.zk.port import ZkClient

N = TypeVar("N")

_FORMAT: Final = 1


class ZooKeeperLogTruncations:
    """The truncations that members of one group have met."""

    def __init__(self, zk: ZkClient, group: str) -> None:
        self._zk = zk
        self._group = group
        self._list_names = SharedReads[str, Sequence[str]](lambda topic: list_names(zk, truncations_path(group, topic)))

    async def find(self, claim: Claim) -> KnownTruncations:
        """Return the notes about the claimed topic's partition.

        Raises CoordinationError, also for a node that cannot be read: to take it for none would give records that differ
        the same identity.
        """
        # hardly ever is there one: partitions that look at the same time share a read of their topic's folder
        names = frozenset(await self._list_names(claim.partition.topic))
        last = await self._read(self._path(claim.partition), names)
        lost = await self._read(self._lost_path(claim.partition), names)
        return KnownTruncations(
            last=None if last is None else self._parse(claim, last),
            lost_end=None if lost is None else self._parse_lost(claim, lost),
        )

    async def note(self, claim: Claim, truncation: LogTruncation) -> None:
        """Note a truncation, in the session of the claim.

        Raises CoordinationError: what is there is higher, or nobody can tell whether it was written. Then look again: what
        was noted is found.
        """
        path = self._path(claim.partition)
        found = await self._zk.find(path)
        known = None if found is None else self._parse(claim, found[0])
        if known is not None and known.number > truncation.number:
            raise CoordinationError(f"{path}: truncation {known.number} was noted meanwhile; looking again")
        await self._write(claim, path, _encode(claim, truncation), None if found is None else found[1].version)

    async def note_lost_end(self, claim: Claim, lost: LostEnd) -> None:
        """Note a truncation that stops the partition. Idempotent. Raises CoordinationError."""
        path = self._lost_path(claim.partition)
        found = await self._zk.find(path)
        data = _encode_lost(claim, lost)
        if found is None or found[0] != data:
            await self._write(claim, path, data, None if found is None else found[1].version)

    async def _read(self, path: str, names: Collection[str]) -> bytes | None:
        if path.rpartition("/")[2] not in names:
            return None
        found = await self._zk.find(path)
        return None if found is None else found[0]

    async def _write(self, claim: Claim, path: str, data: bytes, version: int | None) -> None:
        if version is None:
            await self._zk.ensure_path(truncations_path(self._group, claim.partition.topic))
            await self._zk.create(path, data, epoch=claim.epoch)
        else:
            await self._zk.set(path, data, version=version, epoch=claim.epoch)

    def _path(self, partition: TopicPartition) -> str:
        return truncation_path(self._group, partition)

    def _lost_path(self, partition: TopicPartition) -> str:
        return lost_end_path(self._group, partition)

    def _parse(self, claim: Claim, data: bytes) -> LogTruncation | None:
        incarnation, truncation = _parse_truncation(self._path(claim.partition), data, claim.incarnation)
        return truncation if incarnation == str(claim.incarnation.czxid) else None

    def _parse_lost(self, claim: Claim, data: bytes) -> LostEnd | None:
        incarnation, lost = _parse_lost_end(self._lost_path(claim.partition), data)
        return lost if incarnation == str(claim.incarnation.czxid) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedStop:
    """A partition that is stopped above its log's end, whoever claims it, until somebody says where to go on.

    Args:
        path: The node that says so.
        since_ms: When it was written, in ms since 1970.
        lost: What the log was like then. None for a node that cannot be read, which stops the partition, too.
        problem: Why a node cannot be read, and what to do; empty where it can.
    """

    path: str
    since_ms: int
    lost: LostEnd | None = None
    problem: str = ""

    def describe(self) -> str:
        """Return what has happened, in one sentence."""
        if self.lost is None:
            return self.problem
        return (
            f"stopped: the log ended below the position. It was [{self.lost.earliest}, {self.lost.latest}) and the position "
            f"{self.lost.position}; records that the log has got there since are others"
        )


async def list_noted_stops(
    zk: ZkClient, group: str, topics: Collection[str] | None = None
) -> dict[TopicPartition, NotedStop]:
    """Return the stops of a group that still count, of ``topics`` or of all. Raises CoordinationError.

    A stop counts for the topic as it is now, until a truncation of its number is noted, and as long as the position that
    it was about is the committed one.
    """
    named = await list_names(zk, truncations_root(group)) if topics is None else sorted(topics)
    partitions: set[TopicPartition] = set()
    for topic, names in (
        await map_bounded(named, lambda topic: list_names(zk, truncations_path(group, topic)))
    ).items():
        for name in names:
            with contextlib.suppress(ValueError):  # the name is no partition's
                partitions.add(TopicPartition(topic, PartitionKey.parse(name.removesuffix(LOST_END_SUFFIX))))
    found = await map_bounded(sorted(partitions), lambda partition: _find_stop(zk, group, partition))
    return {partition: stop for partition, stop in found.items() if stop is not None}


async def _find_stop(zk: ZkClient, group: str, partition: TopicPartition) -> NotedStop | None:
    last_path, lost_path = truncation_path(group, partition), lost_end_path(group, partition)
    topic, stored = await zk.exists(topic_path(partition.topic)), await zk.find(offset_path(group, partition))
    if topic is None:
        return None
    incarnation = Incarnation(topic.czxid)
    last, lost = await zk.find(last_path), await zk.find(lost_path)
    try:
        of, truncation = ("", None) if last is None else _parse_truncation(last_path, last[0], incarnation)
    except CoordinationError as error:
        assert last is not None
        return NotedStop(path=last_path, since_ms=last[1].mtime_ms, problem=str(error))
    if lost is None:
        return None
    stop = NotedStop(path=lost_path, since_ms=lost[1].mtime_ms)
    try:
        lost_of, end = _parse_lost_end(lost_path, lost[0])
    except CoordinationError as error:
        return replace(stop, problem=str(error))
    decided = truncation is not None and of == lost_of and truncation.number >= end.number
    counts = lost_of == str(incarnation.czxid) and not decided
    return (
        replace(stop, lost=end)
        if counts and end.makes_void(None if stored is None else parse_stored(*stored))
        else None
    )


def _parse_truncation(path: str, data: bytes, incarnation: Incarnation) -> tuple[str, LogTruncation]:
    """Return the incarnation that a note is about, and the note. Raises CoordinationError."""
    return _parse_note(
        path,
        data,
        lambda payload: LogTruncation(
            number=_count(payload, "truncation"),
            position=_count(payload, "position"),
            voids=_count(payload, "voids"),
        ),
        "how often the log has lost its end",
        'restore it, or put there {"format": 1, "incarnation": "'
        f'{incarnation.czxid}", "truncation": N, "position": 0, "voids": 0}} with N higher than that of any chain landed of '
        "the partition",
    )


def _parse_lost_end(path: str, data: bytes) -> tuple[str, LostEnd]:
    """Return the incarnation that a note is about, and the note. Raises CoordinationError."""
    return _parse_note(
        path,
        data,
        lambda payload: LostEnd(
            number=_count(payload, "truncation"),
            position=_count(payload, "position"),
            earliest=_count(payload, "earliest"),
            latest=_count(payload, "latest"),
            voids=_count(payload, "voids"),
        ),
        "that the log has lost its end",
        "restore it, or say where to go on with `consumerd offsets set` and remove it then",
    )


def _parse_note(
    path: str, data: bytes, make: Callable[[Mapping[str, object]], N], says: str, advice: str
) -> tuple[str, N]:
    try:
        incarnation, payload = _read_payload(data)
        return incarnation, make(payload)
    except (ValueError, RecursionError) as error:
        raise CoordinationError(f"{path} says {says}, and cannot be read ({error}); {advice}") from error


def _read_payload(data: bytes) -> tuple[str, Mapping[str, object]]:
    """Return the incarnation and all fields. Raises ValueError, RecursionError."""
    payload: object = json.loads(data.decode())
    if not isinstance(payload, dict) or payload.get("format") != _FORMAT:
        raise ValueError(f"no object of format {_FORMAT}")
    incarnation = payload.get("incarnation")
    if not isinstance(incarnation, str):
        raise ValueError(f"incarnation {incarnation!r}")  # noqa: TRY004 - one type for all that is wrong
    return incarnation, payload


def _encode(claim: Claim, truncation: LogTruncation) -> bytes:
    fields = {
        "format": _FORMAT,
        "incarnation": str(claim.incarnation.czxid),
        "truncation": truncation.number,
        "position": truncation.position,
        "voids": truncation.voids,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _encode_lost(claim: Claim, lost: LostEnd) -> bytes:
    fields = {
        "format": _FORMAT,
        "incarnation": str(claim.incarnation.czxid),
        "truncation": lost.number,
        "position": lost.position,
        "earliest": lost.earliest,
        "latest": lost.latest,
        "voids": lost.voids,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _count(payload: Mapping[str, object], key: str) -> int:
    value = payload.get(key)
    # a bool is an int to Python, not to whoever reads the node
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} {value!r}, expected a number from 0 on")
    return value
