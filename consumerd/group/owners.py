# SPDX-License-Identifier: Apache-2.0
"""Owner nodes: ``/consumers/G/owners/T/P``, ephemeral, one owner at a time.

Writing
    Partitions are claimed and released independently. Up to 128 nodes are written in one transaction; if it fails, each
    node is written alone. A node belongs to the session in its ``ephemeralOwner``. (The Java consumer compares the data
    instead, and so mistakes a node of its previous session for its current one.) A lost reply is never interpreted:
    creating again finds our own node, deleting again finds none.

Reading
    Listing a topic's owner folder is one read, and its child-change counter (``cversion``) counts each creation and
    deletion. If the names that appeared and disappeared between two listings account for the counter's growth, no node
    in both listings was re-created, and what was read of it is still valid: only its owner sets an owner node.
    Otherwise some node was deleted and re-created in between. Each node then is *doubtful* until it is read again.

    Example: the folder lists 0, 1, 2 with cversion 10. The next listing has 0, 1, 3 with cversion 12: one name went,
    one came, 2 changes. So 0 and 1 are unchanged. With cversion 14 there were two changes more than the names tell: one
    of the nodes was deleted and re-created, so all three are doubtful.

    In a handover doubtful nodes are normal, and reading them waits until it is over. If another member took a partition
    without our noticing, our next commit fails once that member has committed: ours depends on the node's version.
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
_NODES_PER_TRANSACTION: Final = 128
"""Owner nodes per transaction, about 10 KB. ZooKeeper limits the bytes of a request, not its operations."""
_TRANSACTIONS_AT_ONCE: Final = 4
_MAX_CONFLICTS: Final = 4
"""Conflicting nodes left out of a transaction, one more per try, before each node is written alone."""
_MIN_CLAIMS_TO_LIST: Final = 3
"""Claims in a topic from which one listing costs less than failed claims."""
_SAMPLE_SIZE: Final = 16
"""Nodes re-read in one survey, of those whose owner is not certain any more."""
_DOUBTFUL_READS_AT_ONCE: Final = 16
"""Parallel reads of doubtful nodes. After a handover there are many, and nothing waits for them."""
_MAX_UNEXPECTED_READS: Final = 256
"""Nodes re-read in one survey because they do not hold the expected thread."""


class _Counter(NamedTuple):
    """The version of a folder's listing.

    The session epoch orders listings of different sessions. Within one session no server returns an older state than
    the session has read before.
    """

    epoch: SessionEpoch
    czxid: int
    """The transaction that created the folder; 0 if there is no folder."""
    cversion: int


@dataclass(slots=True)
class _Folder:
    """The owner folder of a topic as last listed, with the holders read."""

    counter: _Counter
    since: _Counter
    """Reads made at or after this listing are still valid: no node was re-created unnoticed since then."""
    names: frozenset[str] = frozenset()
    there: frozenset[TopicPartition] = frozenset()
    read: dict[TopicPartition, tuple[Holder, _Counter]] = field(default_factory=dict)
    doubtful: set[TopicPartition] = field(default_factory=set)
    """Partitions whose node may have been re-created since it was last read."""

    def find(self, partition: TopicPartition) -> Holder | None:
        """Return the holder of a node, or None if unknown or outdated."""
        known = self.read.get(partition)
        return known[0] if known is not None and known[1] >= self.since else None

    def take(self, topic: str, counter: _Counter, names: frozenset[str]) -> None:
        """Replace the listing by a newer one, and mark possibly changed holders as doubtful."""
        before, gone = self.counter, self.names - names
        changes = len(gone) + len(names - self.names)
        if counter[:2] == before[:2] and counter.cversion < before.cversion:
            return  # a newer listing was taken already
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
    """The result of an inspection of owner nodes.

    A partition whose node could not be read is in neither ``nodes`` nor ``there``.
    """

    nodes: Mapping[TopicPartition, Holder | None]
    """The holder of each node that was read; None if there is no node."""
    there: frozenset[TopicPartition]
    """Partitions that have an owner node whose content was not read."""
    doubtful: frozenset[TopicPartition] = frozenset()
    """Partitions whose node may have been re-created since it was last read."""


@dataclass(frozen=True, slots=True)
class OwnersSeen:
    """Owner nodes of some topics at one moment.

    Attributes:
        there: all partitions that have an owner node.
        holders: the content of those nodes that were read, now or earlier, and have not changed since.
    """

    there: frozenset[TopicPartition]
    holders: Mapping[TopicPartition, Holder]


class PartitionOwners:
    """Creates, deletes and reads owner nodes: ``/consumers/G/owners/T/P`` in ZooKeeper.

    Every call is bounded by the ZooKeeper client's own deadlines.

    Args:
        denied: Called with the topic when an ACL refuses the creation of an owner node.
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
        """Claims whose outcome is unknown."""

    async def claim(
        self,
        grants: Mapping[TopicPartition, Grant],
        epoch: SessionEpoch,
        *,
        first: Collection[TopicPartition] = frozenset(),
    ) -> Mapping[TopicPartition, ClaimOutcome]:
        """Create the owner nodes of these partitions in the session of ``epoch``; return each outcome.

        The claim of one partition succeeds or fails without effect on the others. Errors of ZooKeeper become outcomes;
        none is raised.

        Args:
            grants: The partitions, each with the thread that its node is to name.
            first: Partitions claimed for the first time. If such a partition has a node, its holder is not read: in a
                handover the previous owner deletes the node soon.
        """

        async def claim_chunk(chunk: Sequence[TopicPartition]) -> Mapping[TopicPartition, ClaimOutcome]:
            threads = {partition: grants[partition].thread for partition in chunk}
            left = chunk if len(chunk) == 1 else await self._create_all(threads, epoch)
            alone = await map_bounded(
                left,
                lambda partition: self._claim(partition, threads[partition], epoch),
                in_flight=_NODES_PER_TRANSACTION,
            )
            return {partition: alone.get(partition, Created()) for partition in chunk}

        occupied = await self._find_occupied(first)
        claimed = await _in_chunks([partition for partition in grants if partition not in occupied], claim_chunk)
        self._doubtful.update(partition for partition, outcome in claimed.items() if isinstance(outcome, Unknown))
        return {partition: claimed.get(partition, Occupied()) for partition in grants}

    async def release(self, partitions: Collection[TopicPartition], epoch: SessionEpoch) -> frozenset[TopicPartition]:
        """Delete this member's owner nodes of these partitions, in the session of ``epoch``.

        Returns the partitions whose nodes are certainly deleted. Nothing is raised: the caller tries the others again.
        """

        async def release_chunk(chunk: Sequence[TopicPartition]) -> Mapping[TopicPartition, bool]:
            if len(chunk) > 1 and await self._delete_all(chunk, epoch):
                return dict.fromkeys(chunk, True)
            return await map_bounded(
                chunk, lambda partition: self._release(partition, epoch), in_flight=_NODES_PER_TRANSACTION
            )

        released = await _in_chunks(sorted(partitions), release_chunk)
        return frozenset(partition for partition, done in released.items() if done)

    async def rethread(
        self, threads: Mapping[TopicPartition, ThreadId], epoch: SessionEpoch
    ) -> Mapping[TopicPartition, ThreadId]:
        """Write other threads into this member's owner nodes, in the session of ``epoch``.

        Returns the thread of each node that was certainly written. Nothing is raised: the caller tries the others
        again.
        """
        written = await map_bounded(threads, lambda partition: self._rethread(partition, threads[partition], epoch))
        return {partition: threads[partition] for partition, done in written.items() if done}

    async def inspect(self, partitions: Collection[TopicPartition], look: Look) -> Inspection:
        """Read the owner nodes of these partitions, as thoroughly as ``look`` asks for.

        Partitions whose node cannot be read are reported and left out of the result; nothing is raised.
        """
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

        await map_bounded(chosen, read, in_flight=_DOUBTFUL_READS_AT_ONCE if look is Look.REMADE else IN_FLIGHT)
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
        """List the owner nodes of these topics, and read some of their holders.

        Each call reads up to 16 holders that are not known yet, so repeated calls learn all holders of an unchanged
        group. Raises CoordinationError.

        Args:
            expected: The threads that should hold the partitions. A node with another thread is read again by each
                call, because its owner can set another thread without a change of the folder's child counter.
            ours: Partitions that :meth:`inspect` covers; their nodes are not read here.
        """
        self._folders = {topic: folder for topic, folder in self._folders.items() if topic in topics}
        folders = await map_bounded(sorted(topics), self._list)
        there = frozenset(partition for folder in folders.values() for partition in folder.there)

        async def read(partition: TopicPartition) -> None:
            await self._read_holder(folders[partition.topic], partition)

        def find(partition: TopicPartition) -> Holder | None:
            return folders[partition.topic].find(partition)

        known = {partition: holder for partition in sorted(there) if (holder := find(partition)) is not None}
        unexpected = [partition for partition, holder in known.items() if holder.thread != expected.get(partition)]
        doubtful, self._doubtful = self._doubtful & there, set()
        await map_bounded([*sorted(doubtful), *unexpected[:_MAX_UNEXPECTED_READS]], read)
        await map_bounded(self._choose_sample(sorted(there.difference(ours)), folders), read)
        certain = there.difference(unexpected[_MAX_UNEXPECTED_READS:])
        return OwnersSeen(there, {one: holder for one in sorted(certain) if (holder := find(one)) is not None})

    async def _find_occupied(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions known to have a node; list only folders where that saves requests.

        Also creates missing owner folders, so that later listings can detect every change in them.
        """
        counts = Counter(partition.topic for partition in partitions)
        folders = await self._try_list_all(topic for topic, count in counts.items() if count >= _MIN_CLAIMS_TO_LIST)
        new = [topic for topic, folder in folders.items() if not folder.counter.czxid]
        await map_bounded(new, self._make_parent)
        await self._try_list_all(new)  # later listings account for everything made from here on
        there = frozenset(partition for folder in folders.values() for partition in folder.there)
        return there.intersection(partitions)

    async def _create_all(
        self, threads: Mapping[TopicPartition, ThreadId], epoch: SessionEpoch
    ) -> Sequence[TopicPartition]:
        """Create nodes in one transaction, which is one disk write; return those not created."""
        left = list(threads)
        conflicts: list[TopicPartition] = []
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
                if isinstance(error.cause, NodeExists) and len(conflicts) < _MAX_CONFLICTS:
                    conflicts.append(left.pop(error.index))
                elif isinstance(error.cause, NoNode) and not has_parents and await self._make_parents(threads):
                    has_parents = True
                else:
                    break  # the single writes will tell why
            except CoordinationError:
                break  # the single writes recognise nodes that were created nevertheless
            else:
                return conflicts
        return [*conflicts, *left]

    def _note_created(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these nodes are ours."""
        for partition in partitions:
            if (folder := self._folders.get(partition.topic)) is not None:
                folder.doubtful.discard(partition)

    async def _make_parents(self, partitions: Iterable[TopicPartition]) -> bool:
        """Create the owner folders of these topics; False if one could not be created."""
        return all(
            (await map_bounded(sorted({partition.topic for partition in partitions}), self._make_parent)).values()
        )

    async def _delete_all(self, partitions: Collection[TopicPartition], epoch: SessionEpoch) -> bool:
        """Delete our nodes in one transaction; False if each has to be deleted alone."""
        try:
            session_id = get_session_id(self._zk, epoch)
            paths = [owner_path(self._group, partition) for partition in partitions]
            stats = await map_bounded(paths, self._zk.exists, in_flight=_NODES_PER_TRANSACTION)
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
            return False  # the single deletes tell why, and recognise nodes that were deleted nevertheless
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
                    outcome = await self._resolve_existing(path, thread, epoch)
                    if outcome is None:
                        continue  # it was deleted meanwhile
                    return outcome
            except NoNode:
                if not await self._make_parent(partition.topic):
                    break
            except (OutcomeUnknown, BadVersion):
                in_doubt = True  # create again: a node that was created is then recognised as ours
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

    async def _resolve_existing(self, path: str, thread: ThreadId, epoch: SessionEpoch) -> ClaimOutcome | None:
        """Resolve a claim whose node exists; return None if the node is gone.

        A node of our own session gets the thread, and counts as created.
        """
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
                continue  # read the node again
            except CoordinationError as error:
                self._tell(Trouble.RELEASE_FAILED, error, partition.topic, partition)
                return False
            else:
                return True
        return False

    async def _rethread(self, partition: TopicPartition, thread: ThreadId, epoch: SessionEpoch) -> bool:
        path = owner_path(self._group, partition)
        try:
            return isinstance(await self._resolve_existing(path, thread, epoch), Created)
        except CoordinationError as error:
            self._tell(Trouble.RETHREAD_FAILED, error, partition.topic, partition)
            return False

    def _tell(
        self, event: Trouble, error: CoordinationError, topic: str, partition: TopicPartition | None = None
    ) -> None:
        """Report a request that ZooKeeper refused.

        A lost connection or session is reported once, for the session, and not here.
        """
        if not isinstance(error, (NotConnected, SessionLost)):
            self._log.warning(event.value, topic=topic, partition=str(partition), error=str(error))
            self._hooks.trouble(event, f"{topic}: {error}", partition)

    async def _try_list_all(self, topics: Iterable[str]) -> dict[str, _Folder]:
        """List these topics' owner folders, and leave out those that cannot be read."""

        async def try_list(topic: str) -> _Folder | None:
            try:
                return await self._list(topic)
            except CoordinationError as error:
                self._tell(Trouble.OWNERS_UNREAD, error, topic)
                return None

        listed = await map_bounded(sorted(set(topics)), try_list)
        return {topic: folder for topic, folder in listed.items() if folder is not None}

    async def _list(self, topic: str) -> _Folder:
        """List a topic's owner folder, keeping the holders that are still valid."""
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
        """Choose the holders to read, in turn over repeated calls."""
        stale = [p for p in partitions if p in folders[p.topic].there and folders[p.topic].find(p) is None]
        if len(stale) > _SAMPLE_SIZE:
            start = 0 if self._last_sampled is None else bisect_right(stale, self._last_sampled)
            stale = [*stale[start:], *stale[:start]][:_SAMPLE_SIZE]
            self._last_sampled = stale[-1]
        return stale

    async def _read_holder(self, folder: _Folder, partition: TopicPartition) -> Holder | None:
        """Read a node, and remember its holder unless the folder was listed again meanwhile."""
        counter = folder.counter
        found = await self._zk.find(owner_path(self._group, partition))
        holder = None if found is None else _holder(*found)
        if folder.counter == counter:
            folder.doubtful.discard(partition)
            if holder is None:
                folder.there -= {partition}  # a re-created node changes the counter, so the next listing brings it back
            else:
                folder.read[partition] = (holder, counter)
        return holder


async def _in_chunks(
    partitions: Sequence[TopicPartition],
    work: Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, T]]],
) -> Mapping[TopicPartition, T]:
    """Run ``work`` on chunks of partitions, a few at a time, and merge the results."""
    chunks = [partitions[at : at + _NODES_PER_TRANSACTION] for at in range(0, len(partitions), _NODES_PER_TRANSACTION)]
    done = await map_bounded(range(len(chunks)), lambda number: work(chunks[number]), in_flight=_TRANSACTIONS_AT_ONCE)
    return {partition: result for results in done.values() for partition, result in results.items()}


def _holder(data: bytes, stat: Stat) -> Holder:
    # shown and compared with thread ids: bytes that are not text must not fail the reads of other nodes
    return Holder(data.decode(errors="replace"), stat.ephemeral_owner)


def _partitions(topic: str, names: Iterable[str]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, key) for name in names if (key := _find_key(name)) is not None)


def _find_key(name: str) -> PartitionKey | None:
    try:
        return PartitionKey.parse(name)
    except ValueError:
        return None
