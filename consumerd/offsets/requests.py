# SPDX-License-Identifier: Apache-2.0
"""Operators' requests for new positions, kept in ZooKeeper until a member carries them out.

A request is a JSON object at ``/consumers/G/consumerd/requests/T/P``. Two things delete its node, both on the condition
of its version:

- the ``multi`` that commits the request's position (:class:`consumerd.offsets.zookeeper.ZooKeeperOffsetStore`);
- ``consumerd offsets cancel``. A commit that would have carried the request out fails then.

A newer request replaces an older one *in place*. So the node's version grows, and a commit that carries out the older
request fails. A node that was deleted and created anew would begin at version 0 again, and such a commit would delete
the newer request.

Members watch a topic's folder, not each request. Setting a node's data does not fire the folder's watch. So a
replacement also creates and deletes a child of the folder in the same ``multi``: no reader ever sees that child, but
the watch fires.
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from consumerd.aio.parallel import map_bounded
from consumerd.aio.sharing import SharedReads
from consumerd.errors import CoordinationError, OffsetError
from consumerd.model import Incarnation, PartitionKey, TopicPartition
from consumerd.offsets.store import OffsetRequest, RequestSubscription
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import request_path, requests_path, requests_root, topic_path
from consumerd.zk.port import (
    BadVersion,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    OutcomeUnknown,
    SetData,
    Watch,
    WatchKind,
    ZkClient,
    list_names,
)

_FORMAT: Final = 1
_INT64_MAX: Final = 2**63 - 1
_LATEST_MS: Final = 253_402_300_800_000  # the year 10000, which no calendar here can show
_MARK: Final = ".replaced"
_ATTEMPTS: Final = 4
_RETRY_S: Final = 1.0
"""Delay, in seconds, before a failed lookup is repeated. A reconnect causes a lookup of its own."""

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)


def encode_request(request: OffsetRequest) -> bytes:
    """Return a request in the JSON form that its ZooKeeper node holds."""
    payload = {
        "version": _FORMAT,
        "id": request.id,
        "position": request.position,
        "new_chain": request.new_chain,
        "author": request.author,
        "created_ms": request.created_ms,
    }
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def parse_request(data: bytes, *, partition: TopicPartition, version: int) -> OffsetRequest:
    """Return the request that a ZooKeeper node holds. Raises OffsetError that says what was expected.

    Args:
        version: The version of the node.
    """
    try:
        payload: object = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise OffsetError(f"expected a JSON object in UTF-8: {error}") from error
    if not isinstance(payload, dict):
        raise OffsetError(f"expected a JSON object, got {type(payload).__name__}")
    if payload.get("version") != _FORMAT:
        raise OffsetError(
            f"version: expected {_FORMAT}, got {payload.get('version')!r:.40}; written by a newer release?"
        )
    return OffsetRequest(
        id=_get(payload, "id", str, bool, "a text"),
        partition=partition,
        position=_get(payload, "position", int, lambda number: 0 <= number <= _INT64_MAX, "a number from 0 on"),
        new_chain=_get(payload, "new_chain", bool, lambda _: True, "true or false"),
        author=_get(payload, "author", str, lambda _: True, "a text"),
        created_ms=_get(payload, "created_ms", int, lambda number: 0 <= number < _LATEST_MS, "a time in ms"),
        version=version,
    )


def _get(payload: Mapping[str, object], key: str, kind: type[_T], legal: Callable[[_T], bool], expected: str) -> _T:
    value = payload.get(key)
    # bool is a subclass of int, and `true` is no number in JSON
    if type(value) is not kind or not legal(value):
        raise OffsetError(f"{key}: expected {expected}, got {type(value).__name__}")
    return value


class Cancelled(enum.Enum):
    """Result of cancelling an operator's request. Operators see the values."""

    CANCELLED = "cancelled"
    GONE = "carried out or cancelled meanwhile"
    REPLACED = "replaced by a newer one meanwhile"
    ABSENT = "there is no request"


@dataclass(slots=True, eq=False)
class _Watched:
    """A watched topic, its listeners, and its requests as last seen."""

    watch: Watch
    listeners: list[_Listener]
    waiting: tuple[OffsetRequest, ...] = ()


class _Listener:
    """One caller of :meth:`ZooKeeperOffsetRequests.watch`."""

    def __init__(self, changed: Callable[[TopicPartition], None], forget: Callable[[_Listener], None]) -> None:
        self.changed = changed
        self._forget: Callable[[_Listener], None] | None = forget

    @property
    def open(self) -> bool:
        return self._forget is not None

    def close(self) -> None:
        """Stop calling back. Idempotent."""
        forget, self._forget = self._forget, None
        if forget is not None:
            forget(self)


class ZooKeeperOffsetRequests:
    """Operators' requests for new positions of one group, kept in ZooKeeper.

    The functions given to :meth:`watch` are called only while :meth:`run` runs.
    """

    def __init__(self, zk: ZkClient, group: str, *, hooks: Hooks | None = None) -> None:
        self._zk = zk
        self._group = group
        self._hooks = hooks if hooks is not None else Hooks()
        self._topics: dict[str, _Watched] = {}
        self._dirty: set[str] = set()
        self._woken = asyncio.Event()
        self._list_names = SharedReads[str, Sequence[str]](lambda topic: list_names(zk, requests_path(group, topic)))
        self._told: dict[str, int] = {}
        """Transaction of each unusable request that was logged, by path."""

    # -- for members, which carry them out

    async def find(self, partition: TopicPartition) -> OffsetRequest | None:
        """Return the operator's request for a partition; None without a usable one.

        A request that cannot be used is logged once. It is malformed, or it was written before the topic was deleted
        and created again, so its position is about other records. Raises CoordinationError.
        """
        # requests are rare: partitions that look at the same time share one read of their topic's folder
        if str(partition.partition) not in await self._list_names(partition.topic):
            return None
        path = request_path(self._group, partition)
        found = await self._zk.find(path)
        if found is None:
            return None
        data, stat = found
        try:
            request = parse_request(data, partition=partition, version=stat.version)
        except OffsetError as error:
            self._tell_useless(Trouble.REQUEST_MALFORMED, path, stat.mzxid, str(error))
            return None
        topic = await self._zk.exists(topic_path(partition.topic))
        if topic is not None and not Incarnation(topic.czxid).precedes(stat.mzxid):
            reason = "the topic was re-created after the request"
            self._tell_useless(Trouble.REQUEST_OUTDATED, path, stat.mzxid, reason)
            return None
        return request

    def watch(self, topic: str, changed: Callable[[TopicPartition], None]) -> RequestSubscription:
        """Call ``changed`` for each partition of the topic that may have a new operator's request.

        The first calls come soon, for the requests that exist. Further calls follow each change of a request and each
        new connection to ZooKeeper, until the subscription is closed.
        """
        listener = _Listener(changed, lambda gone: self._forget(topic, gone))
        watched = self._topics.get(topic)
        if watched is None:
            watch = self._zk.watch(
                requests_path(self._group, topic), WatchKind.CHILDREN, lambda: self._note_change(topic)
            )
            watched = self._topics[topic] = _Watched(watch=watch, listeners=[])
        watched.listeners.append(listener)
        self._note_change(topic)
        return listener

    async def run(self) -> None:
        """Call the functions given to :meth:`watch` whenever requests may have changed, until cancelled.

        Requests are read after each ZooKeeper watch event. There is no timeout.
        """
        failing = False
        while True:
            await self._woken.wait()
            self._woken.clear()
            # taken out before the lookup, so that a change during it causes another one
            looking, self._dirty = self._dirty, set()
            try:
                while looking:
                    topic = min(looking)
                    await self._look(topic)
                    looking.discard(topic)
            except CoordinationError as error:
                if not failing:
                    failing = True
                    _log.warning("requests_lookup_failed", group=self._group, error=str(error))
                    self._hooks.trouble(Trouble.REQUESTS_LOOKUP_FAILED, str(error))
                self._dirty |= looking
                await asyncio.sleep(_RETRY_S)
                self._woken.set()
            else:
                failing = False

    @property
    def waiting(self) -> Sequence[OffsetRequest]:
        """Operators' requests for watched topics, as last read, in order of partitions."""
        found = [request for watched in self._topics.values() for request in watched.waiting]
        return sorted(found, key=lambda request: request.partition)

    # -- for operators

    async def put(self, request: OffsetRequest) -> OffsetRequest:
        """Write an operator's request; it replaces an earlier request for the partition.

        Returns the request with the version of its node; the ``version`` in the argument is ignored. Raises
        CoordinationError. If the connection was lost, the request may have been written and carried out already. Do not
        write it again without looking: the partition could be moved twice.
        """
        path = request_path(self._group, request.partition)
        data = encode_request(request)
        seen: int | None = None
        unheard = False
        for _ in range(_ATTEMPTS):
            changes = await self._count_changes(request.partition.topic)
            found = await self._zk.find(path)
            if found is not None and found[0] == data:
                return parse_request(data, partition=request.partition, version=found[1].version)
            if unheard and found is None and changes != seen:
                raise CoordinationError(
                    f"{path}: the connection was lost while the request was written, and it may have been carried out "
                    "by now: look where the partition stands, and ask again if need be"
                )
            seen, unheard = changes, False
            try:
                if found is None:
                    version = 0
                    await self._zk.create(path, data)
                else:
                    version = found[1].version + 1
                    await self._replace(path, data, found[1].version)
            except NoNode:
                await self._zk.ensure_path(requests_path(self._group, request.partition.topic))
            except MultiFailed as error:
                if not isinstance(error.cause, BadVersion | NoNode | NodeExists):
                    raise
            except NodeExists:
                continue  # read it again: it may be ours
            except OutcomeUnknown:
                unheard = True
            else:
                # do not read it back: a member may have carried it out already, and would do it twice
                return parse_request(data, partition=request.partition, version=version)
        raise CoordinationError(f"{path}: the request could not be written in {_ATTEMPTS} tries; try again")

    async def cancel(self, partition: TopicPartition) -> Cancelled:
        """Delete a partition's request, whether it can be parsed or not.

        Only the request that is there at the time of the call is deleted, not one written later. Raises
        CoordinationError.
        """
        path = request_path(self._group, partition)
        found = await self._zk.find(path)
        if found is None:
            return Cancelled.ABSENT
        for _ in range(_ATTEMPTS):
            try:
                await self._zk.delete(path, version=found[1].version)
            except NoNode:
                return Cancelled.GONE
            except BadVersion:
                return Cancelled.REPLACED
            except OutcomeUnknown:
                # if the deletion took effect, this node is gone; a newer one may have the same version
                left = await self._zk.find(path)
                if left is None or left[1].czxid != found[1].czxid:
                    return Cancelled.GONE
                continue
            return Cancelled.CANCELLED
        raise CoordinationError(f"{path}: the request could not be taken away in {_ATTEMPTS} tries; try again")

    async def remove(self, request: OffsetRequest) -> None:
        """Delete a request that was carried out. A newer request of the partition stays.

        Raises CoordinationError.
        """
        path = request_path(self._group, request.partition)
        for _ in range(_ATTEMPTS):
            try:
                await self._zk.delete(path, version=request.version)
            except (NoNode, BadVersion):
                return
            except OutcomeUnknown:
                left = await self.find(request.partition)
                if left is None or left.id != request.id:
                    return
            else:
                return
        raise CoordinationError(f"{path}: the request could not be taken away in {_ATTEMPTS} tries")

    async def list_partitions(self) -> Sequence[TopicPartition]:
        """Return the partitions that have an operator's request, in order.

        Requests that cannot be parsed are included. Raises CoordinationError.
        """
        root = requests_root(self._group)
        paths = {topic: await list_names(self._zk, f"{root}/{topic}") for topic in await list_names(self._zk, root)}
        names = ((topic, name) for topic, names in paths.items() for name in names)
        return sorted(partition for topic, name in names if (partition := self._read_name(topic, name)) is not None)

    async def list_requests(self) -> Sequence[OffsetRequest]:
        """Return every request of the group, in order of partitions.

        Malformed requests are logged and left out. Raises CoordinationError.
        """
        found = await map_bounded(await self.list_partitions(), self.find)
        return [request for request in found.values() if request is not None]

    # -- internals

    async def _count_changes(self, topic: str) -> int | None:
        """Return the child version of the topic's folder; None if there is no folder.

        It grows with each request that is created or deleted.
        """
        stat = await self._zk.exists(requests_path(self._group, topic))
        return None if stat is None else stat.cversion

    async def _replace(self, path: str, data: bytes, version: int) -> None:
        mark = f"{path.rpartition('/')[0]}/{_MARK}"
        await self._zk.multi([SetData(path, data, version), Create(mark, b""), Delete(mark)])

    def _note_change(self, topic: str) -> None:
        self._dirty.add(topic)
        self._woken.set()

    def _forget(self, topic: str, listener: _Listener) -> None:
        watched = self._topics[topic]
        watched.listeners.remove(listener)
        if not watched.listeners:
            watched.watch.close()
            del self._topics[topic]

    async def _look(self, topic: str) -> None:
        names = await list_names(self._zk, requests_path(self._group, topic))
        partitions = [partition for name in names if (partition := self._read_name(topic, name)) is not None]
        self._tell(topic, partitions)
        found = await map_bounded(partitions, self.find)
        if (watched := self._topics.get(topic)) is not None:
            watched.waiting = tuple(request for request in found.values() if request is not None)

    def _tell(self, topic: str, partitions: Sequence[TopicPartition]) -> None:
        watched = self._topics.get(topic)
        if watched is None:
            return
        for listener in list(watched.listeners):
            for partition in partitions:
                if listener.open:
                    listener.changed(partition)

    def _read_name(self, topic: str, name: str) -> TopicPartition | None:
        try:
            return TopicPartition(topic, PartitionKey.parse(name))
        except ValueError as error:
            path = f"{requests_path(self._group, topic)}/{name}"
            self._tell_useless(Trouble.REQUEST_MALFORMED, path, 0, str(error))
            return None

    def _tell_useless(self, event: Trouble, path: str, mzxid: int, reason: str) -> None:
        if self._told.get(path) != mzxid:
            self._told[path] = mzxid
            self._hooks.trouble(event, f"{path}: {reason}")
            _log.error(
                event.value,
                path=path,
                reason=reason,
                advice="no member carries it out; delete the node, and ask again with: consumerd offsets set",
            )
