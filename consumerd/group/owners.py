"""Owner nodes: ``/consumers/G/owners/T/P``, ephemeral, one owner at a time.

Each is claimed and released on its own: many are written in one transaction, but where that fails, one by one. Whose a node is, is told by its ``ephemeralOwner``: the Java consumer compares the data,
and takes a node of its own past session for its own until it vanishes. An outcome that is unknown is never guessed at:
creating again finds our own node, deleting again finds none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import structlog

from consumerd import failpoints
from consumerd.aio.parallel import map_bounded
from consumerd.errors import CoordinationError, SessionLost
from consumerd.group.events import ClaimOutcome, Created, NotSent, Taken, Unknown
from consumerd.group.plan import Grant, Holder
from consumerd.group.registry import get_session_id
from consumerd.model import PartitionKey, SessionEpoch, ThreadId, TopicPartition
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import owner_path, owners_path
from consumerd.zk.port import (
    BadVersion,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotConnected,
    OutcomeUnknown,
    Stat,
    ZkClient,
)
from consumerd.zk.znodes import encode_owner

T = TypeVar("T")

_ATTEMPTS: Final = 3
_A_CHUNK: Final = 32
"""Nodes written in one transaction: ZooKeeper's limit is bytes, of which this is a few thousand."""
_CHUNKS_AT_ONCE: Final = 4
_READ_AT_ONCE: Final = 100
"""Nodes of one topic that are read again at each change of their parent."""


class PartitionOwners:
    """Claims, releases and reads owner nodes; every call is bounded by the ZooKeeper client's own deadlines."""

    def __init__(self, zk: ZkClient, group: str, *, hooks: Hooks | None = None) -> None:
        self._zk = zk
        self._hooks = hooks if hooks is not None else Hooks()
        self._group = group
        self._log = structlog.get_logger(__name__).bind(group=group)
        self._read: dict[str, tuple[tuple[int, int], dict[TopicPartition, Holder]]] = {}
        """Nodes read before, by topic, as of the parent's creation and child-change counter."""

    async def claim(
        self, grants: Mapping[TopicPartition, Grant], epoch: SessionEpoch
    ) -> Mapping[TopicPartition, ClaimOutcome]:
        """Create the owner nodes in ``epoch``; each is claimed or not on its own. Raises nothing that ZooKeeper answers."""

        async def claim_chunk(chunk: Sequence[TopicPartition]) -> Mapping[TopicPartition, ClaimOutcome]:
            threads = {partition: grants[partition].thread for partition in chunk}
            if len(chunk) > 1 and await self._create_all(threads, epoch):
                return dict.fromkeys(chunk, Created())
            return await map_bounded(
                chunk, lambda partition: self._claim(partition, threads[partition], epoch), in_flight=_A_CHUNK
            )

        return await _in_chunks(list(grants), claim_chunk)

    async def release(self, partitions: Collection[TopicPartition], epoch: SessionEpoch) -> frozenset[TopicPartition]:
        """Delete those owner nodes that are ours, and return the partitions of which we certainly own none."""

        async def release_chunk(chunk: Sequence[TopicPartition]) -> Mapping[TopicPartition, bool]:
            if len(chunk) > 1 and await self._delete_all(chunk, epoch):
                return dict.fromkeys(chunk, True)
            return await map_bounded(chunk, lambda partition: self._release(partition, epoch), in_flight=_A_CHUNK)

        released = await _in_chunks(sorted(partitions), release_chunk)
        return frozenset(partition for partition, done in released.items() if done)

    async def rethread(
        self, threads: Mapping[TopicPartition, ThreadId], epoch: SessionEpoch
    ) -> Mapping[TopicPartition, ThreadId]:
        """Write other threads into owner nodes of ours, and return those written."""
        written = await map_bounded(threads, lambda partition: self._rethread(partition, threads[partition], epoch))
        return {partition: threads[partition] for partition, done in written.items() if done}

    async def inspect(
        self, partitions: Collection[TopicPartition], *, thorough: bool
    ) -> Mapping[TopicPartition, Holder | None]:
        """Read who holds each partition; what could not be read is left out.

        A node whose parent saw no child come or go since it was last read is not read again. In a large topic, where a
        handover changes the parent for seconds, nodes that are still there are not either, unless ``thorough``: one that
        was deleted and made again between two looks is noticed by the next thorough one.
        """
        by_topic: dict[str, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            by_topic.setdefault(partition.topic, []).append(partition)
        self._read = {topic: known for topic, known in self._read.items() if topic in by_topic}
        found: dict[TopicPartition, Holder | None] = {}
        for topic, wanted in by_topic.items():
            try:
                found.update(await self._inspect_topic(topic, wanted, thorough=thorough))
            except CoordinationError as error:
                self._log.info("owners_unread", topic=topic, error=str(error))
        return found

    async def read_all(self, topics: Collection[str]) -> Mapping[TopicPartition, Holder]:
        """Read every owner node of these topics. Raises CoordinationError."""
        found: dict[TopicPartition, Holder] = {}
        for topic, names in (await map_bounded(sorted(topics), self._list_owners)).items():
            nodes = await map_bounded(names, self._read_holder)
            found.update({partition: holder for partition, holder in nodes.items() if holder is not None})
            self._log.debug("owners_read", topic=topic, owners=len(nodes))
        return found

    async def _create_all(self, threads: Mapping[TopicPartition, ThreadId], epoch: SessionEpoch) -> bool:
        """Create nodes in one transaction, which is one write to disk; False where each has to be looked at."""
        operations = [
            Create(owner_path(self._group, partition), encode_owner(thread), ephemeral=True)
            for partition, thread in threads.items()
        ]
        for has_parents in (False, True):
            try:
                if failpoints.ENABLED:
                    failpoints.reach("before_claim")
                await self._zk.multi(operations, epoch=epoch)
                if failpoints.ENABLED:
                    failpoints.reach("after_claim")
            except MultiFailed as error:
                if has_parents or not isinstance(error.cause, NoNode) or not await self._make_parents(threads):
                    return False  # one by one says why
            except CoordinationError:
                return False  # one by one recognises what was created after all
            else:
                break
        return True

    async def _make_parents(self, partitions: Iterable[TopicPartition]) -> bool:
        """Make the folders of their topics, which a group has not had before."""
        first = {partition.topic: partition for partition in partitions}
        return all((await map_bounded(first.values(), self._make_parent)).values())

    async def _delete_all(self, partitions: Collection[TopicPartition], epoch: SessionEpoch) -> bool:
        """Delete those nodes that are ours in one transaction; False where each has to be looked at."""
        try:
            session_id = get_session_id(self._zk, epoch)
            paths = [owner_path(self._group, partition) for partition in partitions]
            stats = await map_bounded(paths, self._zk.exists, in_flight=_A_CHUNK)
            operations = [
                Delete(path, stat.version)
                for path, stat in stats.items()
                if stat is not None and stat.ephemeral_owner == session_id
            ]
            if operations:
                if failpoints.ENABLED:
                    failpoints.reach("before_release")
                await self._zk.multi(operations, epoch=epoch)
                if failpoints.ENABLED:
                    failpoints.reach("after_release")
        except CoordinationError:
            return False  # one by one says why, and finds what was deleted after all
        return True

    async def _claim(self, partition: TopicPartition, thread: ThreadId, epoch: SessionEpoch) -> ClaimOutcome:
        path = owner_path(self._group, partition)
        in_doubt = False
        for _ in range(_ATTEMPTS):
            try:
                try:
                    if failpoints.ENABLED:
                        failpoints.reach("before_claim")
                    await self._zk.create(path, encode_owner(thread), ephemeral=True, epoch=epoch)
                    if failpoints.ENABLED:
                        failpoints.reach("after_claim")
                except NodeExists:
                    outcome = await self._look_at(path, thread, epoch)
                    if outcome is None:
                        continue  # it went meanwhile
                    return outcome
            except NoNode:
                if not await self._make_parent(partition):
                    break
            except (OutcomeUnknown, BadVersion):
                in_doubt = True  # create it again: if it is there, it will be found to be ours
            except (NotConnected, SessionLost):
                break
            except CoordinationError as error:
                self._log.warning("claim_failed", partition=str(partition), error=str(error))
                self._hooks.trouble(Trouble.CLAIM_FAILED, str(error), partition)
                break
            else:
                return Created()
        return Unknown() if in_doubt else NotSent()

    async def _look_at(self, path: str, thread: ThreadId, epoch: SessionEpoch) -> ClaimOutcome | None:
        """Return whose node is in the way; None when there is none any more."""
        found = await self._zk.find(path)
        if found is None:
            return None
        data, stat = found
        if stat.ephemeral_owner != get_session_id(self._zk, epoch):
            return Taken(_holder(data, stat))
        if data != encode_owner(thread):
            await self._zk.set(path, encode_owner(thread), version=stat.version, epoch=epoch)
        return Created()

    async def _make_parent(self, partition: TopicPartition) -> bool:
        try:
            await self._zk.ensure_path(owners_path(self._group, partition.topic))
        except CoordinationError as error:
            self._log.info("owners_parent_missing", topic=partition.topic, error=str(error))
            return False
        return True

    async def _release(self, partition: TopicPartition, epoch: SessionEpoch) -> bool:
        path = owner_path(self._group, partition)
        for _ in range(_ATTEMPTS):
            try:
                stat = await self._zk.exists(path)
                if stat is None or stat.ephemeral_owner != get_session_id(self._zk, epoch):
                    return True
                if failpoints.ENABLED:
                    failpoints.reach("before_release")
                await self._zk.delete(path, version=stat.version, epoch=epoch)
                if failpoints.ENABLED:
                    failpoints.reach("after_release")
            except NoNode:
                return True
            except (OutcomeUnknown, BadVersion):
                continue  # look again
            except CoordinationError as error:
                self._log.info("release_failed", partition=str(partition), error=str(error))
                return False
            else:
                return True
        return False

    async def _rethread(self, partition: TopicPartition, thread: ThreadId, epoch: SessionEpoch) -> bool:
        path = owner_path(self._group, partition)
        try:
            return isinstance(await self._look_at(path, thread, epoch), Created)
        except CoordinationError as error:
            self._log.info("rethread_failed", partition=str(partition), error=str(error))
            return False

    async def _inspect_topic(
        self, topic: str, wanted: Collection[TopicPartition], *, thorough: bool
    ) -> Mapping[TopicPartition, Holder | None]:
        try:
            names, stat = await self._zk.children(owners_path(self._group, topic))
        except NoNode:
            return dict.fromkeys(wanted)
        counter = (stat.czxid, stat.cversion)
        there = frozenset(names)
        seen, known = self._read.get(topic, (counter, {}))
        if seen != counter:
            if thorough or len(wanted) <= _READ_AT_ONCE:
                seen, known = counter, {}
            else:  # what is not there now is forgotten; what is will be read again by a thorough look
                known = {partition: holder for partition, holder in known.items() if str(partition.partition) in there}
        unread = [p for p in wanted if str(p.partition) in there and p not in known]
        nodes = await map_bounded(unread, self._read_holder)
        known = known | {partition: holder for partition, holder in nodes.items() if holder is not None}
        self._read[topic] = (seen, known)
        return {partition: known.get(partition) if str(partition.partition) in there else None for partition in wanted}

    async def _list_owners(self, topic: str) -> list[TopicPartition]:
        try:
            names, _ = await self._zk.children(owners_path(self._group, topic))
        except NoNode:
            return []
        return [TopicPartition(topic, key) for name in names if (key := _find_key(name)) is not None]

    async def _read_holder(self, partition: TopicPartition) -> Holder | None:
        found = await self._zk.find(owner_path(self._group, partition))
        return None if found is None else _holder(*found)


async def _in_chunks(
    partitions: Sequence[TopicPartition],
    work: Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, T]]],
) -> Mapping[TopicPartition, T]:
    """Do some at a time and put the results together."""
    chunks = [partitions[at : at + _A_CHUNK] for at in range(0, len(partitions), _A_CHUNK)]
    done = await map_bounded(range(len(chunks)), lambda number: work(chunks[number]), in_flight=_CHUNKS_AT_ONCE)
    return {partition: result for results in done.values() for partition, result in results.items()}


def _holder(data: bytes, stat: Stat) -> Holder:
    # shown to people and compared with threads: what is no text must not fail the reading of the others
    return Holder(data.decode(errors="replace"), stat.ephemeral_owner)


def _find_key(name: str) -> PartitionKey | None:
    try:
        return PartitionKey.parse(name)
    except ValueError:
        return None
