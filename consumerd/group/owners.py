# SPDX-License-Identifier: Apache-2.0
"""Owner nodes: ``/consumers/G/owners/T/P``, ephemeral, one owner at a time.

Each is claimed and released on its own: many are written in one transaction, but where that fails, one by one. Whose a
node is, is told by its ``ephemeralOwner``: the Java consumer compares the data, and takes a node of its own past session
for its own until it vanishes. An outcome that is unknown is never guessed at: creating again finds our own node, deleting
again finds none.

What is read is in proportion to what moves. Which nodes there are is one read a topic. Its child-change counter counts each
creation and each deletion. Where the names that came and went between two listings explain all of them, no node that is
there in both was made again, and what was known of it still holds (nobody sets an owner node but its owner). Where they
do not, some were made again, and each of ours may be among them: those are doubtful, until they are read. In a handover
that is the rule, and reading waits for its end. Who has taken a partition from us behind our back is also noticed by the
next commit, whose condition its own commits have broken.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import structlog

from consumerd import failpoints
from consumerd.aio.parallel import IN_FLIGHT, map_bounded
from consumerd.errors import CoordinationError, SessionLost
from consumerd.group.events import ClaimOutcome, Created, Look, NotSent, Occupied, Taken, Unknown
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
    NotPermitted,
    OutcomeUnknown,
    Right,
    Stat,
    ZkClient,
)
from consumerd.zk.rights import explain_refusal
from consumerd.zk.znodes import encode_owner

T = TypeVar("T")

_ATTEMPTS: Final = 3
_A_CHUNK: Final = 128
"""Nodes written in one transaction: ZooKeeper's limit is bytes, of which this is some ten thousand."""
_CHUNKS_AT_ONCE: Final = 4
_OBSTACLES: Final = 4
"""So many nodes that are in a transaction's way are taken out of it, one after the other, before each is looked at alone."""
_WORTH_LISTING: Final = 3
"""From so many claims in a topic on, it costs less to see first which nodes are there."""
_A_SAMPLE: Final = 16
"""Nodes read again in one look at some of those that may have been replaced."""
_PROOFS_AT_ONCE: Final = 16
"""Doubtful nodes read at the same time: after a handover there are many, and nobody waits for them."""
_ODD_AT_ONCE: Final = 256
"""Nodes read again in one survey since they are not what was expected."""


class _Counter(NamedTuple):
    """When a folder was listed: in which session (servers may be behind one another, but not within one), since when there
    is the folder, and its child-change counter."""

    epoch: SessionEpoch
    czxid: int
    """0 where there is no folder."""
    cversion: int


@dataclass(slots=True)
class _Folder:
    """What is known of a topic's nodes: those that there are, as of ``counter``, and what was read of them, and when."""

    counter: _Counter
    since: _Counter
    """From this listing on, names explain every change: what was read after it still holds."""
    names: frozenset[str] = frozenset()
    there: frozenset[TopicPartition] = frozenset()
    read: dict[TopicPartition, tuple[Holder, _Counter]] = field(default_factory=dict)
    doubtful: set[TopicPartition] = field(default_factory=set)
    """Those that may have been made again since it was last known whose they are."""

    def find(self, partition: TopicPartition) -> Holder | None:
        """Return whose a node is, if nothing can have changed since it was read."""
        known = self.read.get(partition)
        return known[0] if known is not None and known[1] >= self.since else None

    def take(self, topic: str, counter: _Counter, names: frozenset[str]) -> None:
        """Note a listing."""
        before, gone = self.counter, self.names - names
        changes = len(gone) + len(names - self.names)
        if counter[:2] == before[:2] and counter.cversion < before.cversion:
            return  # it was overtaken by a newer one
        self.doubtful |= _partitions(topic, gone)
        self.there = _partitions(topic, names)
        if counter[:2] == before[:2] and counter.cversion - before.cversion == changes:
            for partition in _partitions(topic, gone):
                self.read.pop(partition, None)
        else:
            self.read.clear()
            self.doubtful |= self.there
            self.since = counter
        self.counter, self.names = counter, names


class Inspection(NamedTuple):
    """What a look at owner nodes has shown. What could not be looked at is left out of ``nodes`` and ``there``."""

    nodes: Mapping[TopicPartition, Holder | None]
    """Whose each node is; None: there is none."""
    there: frozenset[TopicPartition]
    """Those of which it is only known that there is one."""
    doubtful: frozenset[TopicPartition] = frozenset()
    """Those that may have been made again since it was last known whose they are."""


@dataclass(frozen=True, slots=True)
class OwnersSeen:
    """Owner nodes as they were at one moment: those that were there, and whose they are, as far as that was read."""

    there: frozenset[TopicPartition]
    holders: Mapping[TopicPartition, Holder]


class PartitionOwners:
    """Claims, releases and reads owner nodes; every call is bounded by the ZooKeeper client's own deadlines.

    ``denied`` is called with each topic of which a claim was refused for an ACL.
    """

    def __init__(
        self,
        zk: ZkClient,
        group: str,
        *,
        hooks: Hooks | None = None,
        denied: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        self._zk = zk
        self._denied = denied
        self._hooks = hooks if hooks is not None else Hooks()
        self._group = group
        self._log = structlog.get_logger(__name__).bind(group=group)
        self._folders: dict[str, _Folder] = {}
        self._last_sampled: TopicPartition | None = None
        self._doubtful: set[TopicPartition] = set()
        """Claims of which it was never known whether they took effect."""

    async def claim(
        self,
        grants: Mapping[TopicPartition, Grant],
        epoch: SessionEpoch,
        *,
        first: Collection[TopicPartition] = frozenset(),
    ) -> Mapping[TopicPartition, ClaimOutcome]:
        """Create the owner nodes in ``epoch``; each is claimed or not on its own. Raises nothing that ZooKeeper answers.

        Of those in ``first``, nodes that are there may be left alone: in a handover they go by themselves.
        """

        async def claim_chunk(chunk: Sequence[TopicPartition]) -> Mapping[TopicPartition, ClaimOutcome]:
            threads = {partition: grants[partition].thread for partition in chunk}
            left = chunk if len(chunk) == 1 else await self._create_all(threads, epoch)
            alone = await map_bounded(
                left, lambda partition: self._claim(partition, threads[partition], epoch), in_flight=_A_CHUNK
            )
            return {partition: alone.get(partition, Created()) for partition in chunk}

        occupied = await self._find_occupied(first)
        claimed = await _in_chunks([partition for partition in grants if partition not in occupied], claim_chunk)
        self._doubtful.update(partition for partition, outcome in claimed.items() if isinstance(outcome, Unknown))
        return {partition: claimed.get(partition, Occupied()) for partition in grants}

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

    async def inspect(self, partitions: Collection[TopicPartition], look: Look) -> Inspection:
        """Look who holds each partition, as closely as ``look`` says. Raises nothing that ZooKeeper answers."""
        folders = await self._try_list_all(partition.topic for partition in partitions)
        wanted = [partition for partition in sorted(partitions) if partition.topic in folders]
        nodes: dict[TopicPartition, Holder | None] = {}
        chosen: list[TopicPartition] = []
        for partition in wanted:
            folder = folders[partition.topic]
            if partition not in folder.there:
                nodes[partition] = None
                folder.doubtful.discard(partition)
            elif (holder := folder.find(partition)) is not None:
                nodes[partition] = holder
            elif look is Look.PROOF or (look is Look.REMADE and partition in folder.doubtful):
                chosen.append(partition)
        unread: set[TopicPartition] = set()

        async def read(partition: TopicPartition) -> None:
            try:
                nodes[partition] = await self._read_holder(folders[partition.topic], partition)
            except CoordinationError as error:
                self._tell(Trouble.OWNERS_UNREAD, error, partition.topic, partition)
                unread.add(partition)

        await map_bounded(chosen, read, in_flight=_PROOFS_AT_ONCE if look is Look.REMADE else IN_FLIGHT)
        return Inspection(
            nodes,
            there=frozenset(one for one in wanted if one not in nodes and one not in unread),
            doubtful=frozenset(one for one in wanted if one in folders[one.topic].doubtful),
        )

    async def survey(
        self,
        topics: Collection[str],
        expected: Mapping[TopicPartition, ThreadId],
        ours: Collection[TopicPartition] = frozenset(),
    ) -> OwnersSeen:
        """Look at everybody's nodes of these topics: all that there are, and whose some of them are; each survey knows of
        more, until something changes. Those of ``ours``, which :meth:`inspect` looks at, are not read. Raises
        CoordinationError.

        One that is not as ``expected`` is read again in any case: which of an owner's threads it holds may change while the
        counter of its parent stands still.
        """
        self._folders = {topic: folder for topic, folder in self._folders.items() if topic in topics}
        folders = await map_bounded(sorted(topics), self._list)
        there = frozenset(partition for folder in folders.values() for partition in folder.there)

        async def read(partition: TopicPartition) -> None:
            await self._read_holder(folders[partition.topic], partition)

        def find(partition: TopicPartition) -> Holder | None:
            return folders[partition.topic].find(partition)

        known = {partition: holder for partition in sorted(there) if (holder := find(partition)) is not None}
        odd = [partition for partition, holder in known.items() if holder.thread != expected.get(partition)]
        doubtful, self._doubtful = self._doubtful & there, set()
        await map_bounded([*sorted(doubtful), *odd[:_ODD_AT_ONCE]], read)
        await map_bounded(self._choose_sample(sorted(there.difference(ours)), folders), read)
        certain = there.difference(odd[_ODD_AT_ONCE:])
        return OwnersSeen(there, {one: holder for one in sorted(certain) if (holder := find(one)) is not None})

    async def read_all(self, topics: Collection[str]) -> Mapping[TopicPartition, Holder]:
        """Read every owner node of these topics. Raises CoordinationError."""
        folders = await map_bounded(sorted(topics), self._list)
        every = [partition for folder in folders.values() for partition in sorted(folder.there)]
        holders = await map_bounded(every, lambda one: self._read_holder(folders[one.topic], one))
        return {partition: holder for partition, holder in holders.items() if holder is not None}

    async def _find_occupied(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those that have a node, as far as it is worth to look; make the folders that a group has not had before."""
        counts = Counter(partition.topic for partition in partitions)
        folders = await self._try_list_all(topic for topic, count in counts.items() if count >= _WORTH_LISTING)
        new = [topic for topic, folder in folders.items() if not folder.counter.czxid]
        await map_bounded(new, self._make_parent)
        await self._try_list_all(new)  # what is made in it from now on is explained
        there = frozenset(partition for folder in folders.values() for partition in folder.there)
        return there.intersection(partitions)

    async def _create_all(
        self, threads: Mapping[TopicPartition, ThreadId], epoch: SessionEpoch
    ) -> Sequence[TopicPartition]:
        """Create nodes in one transaction, which is one write to disk; return those that have to be looked at one by one."""
        left = list(threads)
        obstacles: list[TopicPartition] = []
        has_parents = False
        while left:
            operations = [
                Create(owner_path(self._group, partition), encode_owner(threads[partition]), ephemeral=True)
                for partition in left
            ]
            try:
                if failpoints.ENABLED:
                    failpoints.reach("before_claim")
                await self._zk.multi(operations, epoch=epoch)
                self._note_created(left)
                if failpoints.ENABLED:
                    failpoints.reach("after_claim")
            except MultiFailed as error:
                if isinstance(error.cause, NodeExists) and len(obstacles) < _OBSTACLES:
                    obstacles.append(left.pop(error.index))
                elif isinstance(error.cause, NoNode) and not has_parents and await self._make_parents(threads):
                    has_parents = True
                else:
                    break  # one by one says why
            except CoordinationError:
                break  # one by one recognises what was created after all
            else:
                return obstacles
        return [*obstacles, *left]

    def _note_created(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these are ours, whatever was there before."""
        for partition in partitions:
            if (folder := self._folders.get(partition.topic)) is not None:
                folder.doubtful.discard(partition)

    async def _make_parents(self, partitions: Iterable[TopicPartition]) -> bool:
        """Make the folders of their topics, which a group has not had before."""
        return all(
            (await map_bounded(sorted({partition.topic for partition in partitions}), self._make_parent)).values()
        )

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
                    self._note_created([partition])
                    if failpoints.ENABLED:
                        failpoints.reach("after_claim")
                except NodeExists:
                    outcome = await self._look_at(path, thread, epoch)
                    if outcome is None:
                        continue  # it went meanwhile
                    return outcome
            except NoNode:
                if not await self._make_parent(partition.topic):
                    break
            except (OutcomeUnknown, BadVersion):
                in_doubt = True  # create it again: if it is there, it will be found to be ours
            except (NotConnected, SessionLost):
                break
            except NotPermitted as error:
                reason = await explain_refusal(self._zk, owners_path(self._group, partition.topic), Right.CREATE)
                self._tell_failed(partition, error, reason)
                self._denied(partition.topic)
                break
            except CoordinationError as error:
                self._tell_failed(partition, error, str(error))
                break
            else:
                return Created()
        return Unknown() if in_doubt else NotSent()

    def _tell_failed(self, partition: TopicPartition, error: CoordinationError, reason: str) -> None:
        self._log.warning("claim_failed", partition=str(partition), error=reason, kind=type(error).__name__)
        self._hooks.trouble(Trouble.CLAIM_FAILED, reason, partition)

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

    async def _make_parent(self, topic: str) -> bool:
        try:
            await self._zk.ensure_path(owners_path(self._group, topic))
        except CoordinationError as error:
            self._tell(Trouble.OWNERS_PARENT_MISSING, error, topic)
            if isinstance(error, NotPermitted):
                self._denied(topic)
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
                self._tell(Trouble.RELEASE_FAILED, error, partition.topic, partition)
                return False
            else:
                return True
        return False

    async def _rethread(self, partition: TopicPartition, thread: ThreadId, epoch: SessionEpoch) -> bool:
        path = owner_path(self._group, partition)
        try:
            return isinstance(await self._look_at(path, thread, epoch), Created)
        except CoordinationError as error:
            self._tell(Trouble.RETHREAD_FAILED, error, partition.topic, partition)
            return False

    def _tell(
        self, event: Trouble, error: CoordinationError, topic: str, partition: TopicPartition | None = None
    ) -> None:
        """Tell of what ZooKeeper refused. That it is away, or the session over, is told of the session, once for all."""
        if not isinstance(error, (NotConnected, SessionLost)):
            self._log.warning(event.value, topic=topic, partition=str(partition), error=str(error))
            self._hooks.trouble(event, f"{topic}: {error}", partition)

    async def _try_list_all(self, topics: Iterable[str]) -> dict[str, _Folder]:
        """List these topics, as far as that can be."""

        async def try_list(topic: str) -> _Folder | None:
            try:
                return await self._list(topic)
            except CoordinationError as error:
                self._tell(Trouble.OWNERS_UNREAD, error, topic)
                return None

        listed = await map_bounded(sorted(set(topics)), try_list)
        return {topic: folder for topic, folder in listed.items() if folder is not None}

    async def _list(self, topic: str) -> _Folder:
        """Read which nodes there are; what was read of those stays as it was read."""
        counter, names = _Counter(self._zk.state.epoch, 0, 0), list[str]()
        with contextlib.suppress(NoNode):
            names, stat = await self._zk.children(owners_path(self._group, topic))
            counter = counter._replace(czxid=stat.czxid, cversion=stat.cversion)
        folder = self._folders.get(topic)
        if folder is None:
            never = counter._replace(czxid=0, cversion=0)
            folder = self._folders[topic] = _Folder(counter=never, since=never)
        if folder.counter != counter:
            folder.take(topic, counter, frozenset(names))
        return folder

    def _choose_sample(
        self, partitions: Sequence[TopicPartition], folders: Mapping[str, _Folder]
    ) -> Sequence[TopicPartition]:
        """Choose what to read again, of ordered partitions; those that are left take their turns."""
        stale = [p for p in partitions if p in folders[p.topic].there and folders[p.topic].find(p) is None]
        if len(stale) > _A_SAMPLE:
            start = 0 if self._last_sampled is None else bisect_right(stale, self._last_sampled)
            stale = [*stale[start:], *stale[:start]][:_A_SAMPLE]
            self._last_sampled = stale[-1]
        return stale

    async def _read_holder(self, folder: _Folder, partition: TopicPartition) -> Holder | None:
        """Read a node of a folder that was listed before, and remember it unless the folder was listed anew meanwhile."""
        counter = folder.counter
        found = await self._zk.find(owner_path(self._group, partition))
        holder = None if found is None else _holder(*found)
        if folder.counter == counter:
            folder.doubtful.discard(partition)
            if holder is None:
                folder.there -= {
                    partition
                }  # should it come again, the counter has moved on, and the next listing has it
            else:
                folder.read[partition] = (holder, counter)
        return holder


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


def _partitions(topic: str, names: Iterable[str]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, key) for name in names if (key := _find_key(name)) is not None)


def _find_key(name: str) -> PartitionKey | None:
    try:
        return PartitionKey.parse(name)
    except ValueError:
        return None
