# SPDX-License-Identifier: Apache-2.0
"""Positions of a group in ZooKeeper, as the Java high-level consumer stores them.

A node ``/consumers/G/offsets/T/P`` holds the next offset as decimal text.

Writes are fenced. A commit is sent in the session that holds the claim or not at all: the epoch is part of the request.
Each write is conditional on the node's version as it is known, and many writes share a ``multi``. If a ``multi`` fails,
the nodes are read, and each node is judged by itself:

- the node is as it was known: nothing of ours took effect, so it is written again;
- the node is one version on and holds a position of ours that was never answered: that write was ours;
- anything else is a foreign write. If the owner node is still our session's, our position overwrites the foreign one,
  and that is counted. If it is not, the commit is dropped.

Before each write the topic's ``czxid`` is read. A position of a topic that was re-created since the claim is dropped.

The verdict needs no order between connections. A request that is still under way in an old connection carries the same
condition, so at most one of the two takes effect, and the other sender reads again.

:meth:`ZooKeeperOffsetStore.load` follows every claim and starts afresh with what it reads. A claim can only succeed
after the owner node of the earlier session is gone, and the server then refuses everything else of that session. So
nothing of an earlier claim can change a node after that read.

A commit that fulfils an operator's request deletes the request's node in the same ``multi``, on the condition of its
version. It always writes the position, so the version of the offset node tells, as for every other write, whether it
took effect. The request is read right before, and again before each new try. It is not carried out if it was replaced,
or if it is gone while the node holds another position. (Requests are read before positions: if a ``multi`` that was
still under way takes effect in between, its position is seen.)

Sources: Kafka's ``ZookeeperConsumerConnector.scala`` (``commitOffsetToZooKeeper``, ``fetchOffsetFromZooKeeper``) and
``ZkUtils.updatePersistentPath``; registries recorded from real clusters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from consumerd import failpoints
from consumerd.aio.parallel import map_bounded
from consumerd.cluster.topics import ZooKeeperTopics
from consumerd.errors import CoordinationError, SessionLost
from consumerd.model import SessionEpoch, TopicPartition
from consumerd.offsets.positions import parse_stored
from consumerd.offsets.remade import find_remade
from consumerd.offsets.requests import ZooKeeperOffsetRequests
from consumerd.offsets.store import Commit, CommitOutcome, OffsetRequest, StoredOffset, find_refusal
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.zk.layout import offset_path, offsets_path, owner_path, request_path
from consumerd.zk.layout_modern import MODERN
from consumerd.zk.port import (
    BadVersion,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotConnected,
    NotPermitted,
    Operation,
    OutcomeUnknown,
    Right,
    SetData,
    Stat,
    ZkClient,
)
from consumerd.zk.rights import explain_refusal
from consumerd.zk.znodes import encode_offset

MULTI_BYTES: Final = 256 * 1024
"""Size limit of a ``multi``, in bytes.

A quarter of what a server accepts by default (``jute.maxbuffer``), so that one commit does not delay others much.
"""

MULTI_WRITES: Final = 500

_OPERATION_BYTES: Final = 96  # operation header, version or ACL, and some room for a chroot
_READS_AT_ONCE: Final = 100
_ROUNDS: Final = 3
"""Number of tries without progress after which a commit gives up.

Another client then writes as often as we do, and the next commit tries again.
"""


_K = TypeVar("_K", str, TopicPartition)
_T = TypeVar("_T")
_FoundNode = tuple[bytes, Stat]

_log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class _Node:
    """An offset node as it is known.

    Args:
        version: Its version; None if there is no node.
        position: Its position; None if it holds no number.
        unanswered: Positions that were sent since, with an unknown result.
    """

    version: int | None
    position: int | None
    unanswered: set[int] = field(default_factory=set)

    def is_as(self, known: _Node) -> bool:
        """Return True if a node as read is the known one.

        The versions of a re-created node begin at 0 again, so the position is compared too.
        """
        return (self.version, self.position) == (known.version, known.position)


@dataclass(slots=True, kw_only=True)
class _Write:
    """A commit on its way, and the node as it is known."""

    commit: Commit
    node: _Node
    path: str
    request: OffsetRequest | None
    request_path: str
    foreign: bool = False

    @property
    def partition(self) -> TopicPartition:
        return self.commit.claim.partition

    @property
    def needed(self) -> bool:
        return self.node.position != self.commit.position or bool(self.node.unanswered) or self.request is not None

    @property
    def done(self) -> CommitOutcome:
        return CommitOutcome.FOREIGN_OVERWRITTEN if self.foreign else CommitOutcome.WRITTEN

    @property
    def size(self) -> int:
        """Approximate size in a request, in bytes; 20 digits hold any offset."""
        size = _OPERATION_BYTES + len(self.path.encode()) + 20
        return size if self.request is None else size + _OPERATION_BYTES + len(self.request_path.encode())

    def operations(self) -> list[Operation]:
        """Return the operations to send, the position first."""
        data = encode_offset(self.commit.position)
        version = self.node.version
        operations: list[Operation] = [
            Create(self.path, data) if version is None else SetData(self.path, data, version)
        ]
        if self.request is not None:
            operations.append(Delete(self.request_path, self.request.version))
        return operations


_Outcomes = dict[TopicPartition, CommitOutcome]


class ZooKeeperOffsetStore:
    """Store of one group's positions in ZooKeeper. Calls of :meth:`commit` must not overlap.

    Args:
        denied: Called with each topic for which an ACL refuses to write a position.
    """

    rewrite_s: float | None = None

    def __init__(
        self,
        zk: ZkClient,
        group: str,
        *,
        hooks: Hooks | None = None,
        denied: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        self._zk = zk
        self._topics = ZooKeeperTopics(zk, MODERN)  # any layout: only incarnations are read
        self._group = group
        self._hooks = hooks if hooks is not None else Hooks()
        self._nodes: dict[TopicPartition, _Node] = {}
        self._folders: set[str] = set()
        """Topics whose folders exist."""
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        self._failing = False
        self._denied = denied
        self._refusals: dict[TopicPartition, str] = {}
        """Reasons for which ACLs refuse commits, until one is written."""
        self._requests = ZooKeeperOffsetRequests(zk, group, hooks=self._hooks)

    async def load(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, StoredOffset | None]:
        """Read the positions of these partitions; None for one without a node.

        If a node holds no number, the result has its text in ``malformed``. Raises CoordinationError.
        """
        found = await self._read_nodes(partitions)
        offsets = {partition: None if node is None else parse_stored(*node) for partition, node in found.items()}
        for partition, stored in offsets.items():
            node = _make_node(found[partition])
            known = self._nodes.get(partition)
            if known is None or not node.is_as(known):
                # an unchanged node keeps its unanswered positions
                self._nodes[partition] = node
            if stored is not None and stored.malformed is not None:
                path = offset_path(self._group, partition)
                _log.warning(
                    "offset_malformed",
                    topic=partition.topic,
                    partition=str(partition.partition),
                    path=path,
                    text=stored.malformed,
                )
                self._hooks.trouble(Trouble.OFFSET_MALFORMED, f"{path} holds no number", partition)
        return offsets

    async def commit(self, commits: Sequence[Commit]) -> Mapping[TopicPartition, CommitOutcome]:
        """Write positions, each in the session of its claim. Raises nothing.

        Returns the outcome of every given position. If the call is cancelled, the next call finds out which positions
        were written.
        """
        outcomes: _Outcomes = {}
        by_epoch: dict[SessionEpoch, list[Commit]] = {}
        for commit in commits:
            by_epoch.setdefault(commit.claim.epoch, []).append(commit)
        for epoch, together in by_epoch.items():
            try:
                await self._commit_in(epoch, together, outcomes)
            except CoordinationError as error:
                self._settle_rest(together, error, outcomes)
        self._note_health(outcomes)
        for partition, outcome in outcomes.items():
            if outcome is not CommitOutcome.FAILED:
                self._refusals.pop(partition, None)
        return outcomes

    def explain_refusal(self, partition: TopicPartition) -> str | None:
        """Return why an ACL refuses this partition's commits; None if no ACL does.

        The text names the node, its ACL and the member's identity.
        """
        return self._refusals.get(partition)

    async def _commit_in(self, epoch: SessionEpoch, commits: Sequence[Commit], outcomes: _Outcomes) -> None:
        writes = await self._prepare(commits)
        for write in writes:
            if not write.needed:
                outcomes[write.partition] = CommitOutcome.UNCHANGED
        if fulfilling := [write for write in writes if write.request is not None]:
            # the request was read some time ago, and an unanswered earlier commit may have carried it out
            await self._judge(epoch, fulfilling, outcomes)
        writes = [write for write in writes if write.partition not in outcomes]
        rounds = _ROUNDS
        while writes and rounds:
            writes = await self._make_parents(writes, outcomes)
            again: list[_Write] = []
            for chunk in _split(sorted(writes, key=_topic)):
                again += await self._write(epoch, await self._drop_remade(chunk, outcomes), outcomes)
            if len(again) == len(writes):
                rounds -= 1  # one that settles something counts for nothing: each node that is refused costs one
            writes = again
        for write in writes:
            outcomes[write.partition] = CommitOutcome.FAILED

    async def _prepare(self, commits: Sequence[Commit]) -> list[_Write]:
        unknown = [commit.claim.partition for commit in commits if commit.claim.partition not in self._nodes]
        if unknown:
            await self.load(unknown)
        return [
            _Write(
                commit=commit,
                node=self._nodes[commit.claim.partition],
                path=offset_path(self._group, commit.claim.partition),
                request=commit.fulfils,
                request_path=request_path(self._group, commit.claim.partition),
            )
            for commit in commits
        ]

    async def _drop_remade(self, writes: Sequence[_Write], outcomes: _Outcomes) -> list[_Write]:
        """Leave out positions of topics that were deleted or re-created since the claim. Raises NotConnected.

        Two round trips remain between the check and the write. A write that had to wait for a connection is not sent,
        because its check would be out of date.
        """
        connections = self._zk.state.connections
        remade = (await find_remade(self._topics, [write.commit.claim for write in writes])).remade
        self._require_connection(connections)
        outcomes.update(dict.fromkeys(remade, CommitOutcome.NOT_OWNER))
        return [write for write in writes if write.partition not in remade]

    async def _make_parents(self, writes: Sequence[_Write], outcomes: _Outcomes) -> list[_Write]:
        """Create the topics' folders for new nodes: persistent and empty, as Java's.

        Leaves out nodes below a folder that may not be created, so that other topics are not held up.
        """
        refused: set[str] = set()
        needed = {write.partition.topic for write in writes if write.node.version is None}
        for topic in sorted(needed - self._folders):
            try:
                await self._zk.ensure_path(offsets_path(self._group, topic))
                self._folders.add(topic)
            except (NotConnected, SessionLost, OutcomeUnknown):
                raise
            except NotPermitted as error:
                refused.add(topic)
                unwritten = [
                    one.partition for one in writes if one.partition.topic == topic and one.node.version is None
                ]
                await self._note_refusal(unwritten, error, Right.CREATE)
            except CoordinationError as error:
                refused.add(topic)
                self._note_failure(error)
        kept = []
        for write in writes:
            if write.node.version is None and write.partition.topic in refused:
                outcomes[write.partition] = CommitOutcome.FAILED
            else:
                kept.append(write)
        return kept

    async def _write(self, epoch: SessionEpoch, chunk: Sequence[_Write], outcomes: _Outcomes) -> list[_Write]:
        """Send one ``multi`` and settle its writes; return those to be tried again."""
        ready = []
        # nothing is awaited from here to the multi, so every claim that passes the check still holds when it is sent
        for write in chunk:
            if (refusal := find_refusal(write.commit.claim)) is None:
                ready.append(write)
            else:
                outcomes[write.partition] = refusal
        if not ready:
            return []
        self._require_connection(self._zk.state.connections)
        operations = [(write, operation) for write in ready for operation in write.operations()]
        fresh = [write for write in ready if write.commit.position not in write.node.unanswered]
        for write in ready:
            write.node.unanswered.add(write.commit.position)
        try:
            if failpoints.ENABLED:
                failpoints.reach("before_commit")
            stats = await self._zk.multi([operation for _, operation in operations], epoch=epoch)
            if failpoints.ENABLED:
                failpoints.reach("after_commit")
        except OutcomeUnknown:
            return await self._judge(epoch, ready, outcomes)
        except MultiFailed as error:
            self._forget(fresh)
            return await self._judge_failure(epoch, ready, error, operations[error.index][0], outcomes)
        except CoordinationError:
            self._forget(fresh)
            raise
        for (write, operation), stat in zip(operations, stats, strict=True):
            if isinstance(operation, Delete):
                continue
            write.node.version = 0 if stat is None else stat.version
            write.node.position = write.commit.position
            write.node.unanswered.clear()
            outcomes[write.partition] = write.done
        return []

    def _require_connection(self, connections: int) -> None:
        """Raise NotConnected if a write has waited for a connection, or would.

        By the time it went out, the check of its topic would be out of date.
        """
        state = self._zk.state
        if not state.connected or state.connections != connections:
            raise NotConnected("the connection was lost before the positions went out")

    @staticmethod
    def _forget(writes: Iterable[_Write]) -> None:
        for write in writes:
            write.node.unanswered.discard(write.commit.position)

    async def _judge_failure(
        self,
        epoch: SessionEpoch,
        writes: Sequence[_Write],
        error: MultiFailed,
        refused: _Write,
        outcomes: _Outcomes,
    ) -> list[_Write]:
        if isinstance(error.cause, NoNode):
            self._folders.clear()  # one that was there is not any more
        if isinstance(error.cause, BadVersion | NodeExists | NoNode):
            return await self._judge(epoch, writes, outcomes)
        # this write alone was refused (no permission): it must not hold up the others
        outcomes[refused.partition] = CommitOutcome.FAILED
        if isinstance(error.cause, NotPermitted):
            right = Right.CREATE if refused.node.version is None else Right.WRITE
            await self._note_refusal([refused.partition], error.cause, right)
        else:
            self._note_failure(error)
        return [write for write in writes if write is not refused]

    async def _note_refusal(self, partitions: Sequence[TopicPartition], error: NotPermitted, right: Right) -> None:
        """Keep the reason for each partition, and have the member check its rights."""
        reason = await explain_refusal(self._zk, error.path if right is Right.WRITE else _parent(error.path), right)
        for partition in partitions:
            self._refusals[partition] = reason
        self._note_failure(NotPermitted(reason, error.path))
        for topic in {partition.topic for partition in partitions}:
            self._denied(topic)

    async def _judge(self, epoch: SessionEpoch, writes: Sequence[_Write], outcomes: _Outcomes) -> list[_Write]:
        """Read the nodes of a ``multi`` that may have failed; return the writes left."""
        requests = await self._read_requests(writes)
        found = await self._read_nodes([write.partition for write in writes])
        changed = [write for write in writes if not self._recognise(write, found[write.partition])]
        owned = await self._find_owned(epoch, [write.partition for write in changed])
        for write in changed:
            if write.partition not in owned:
                outcomes[write.partition] = CommitOutcome.NOT_OWNER
                continue
            self._take_over(write, found[write.partition])
        again = []
        for write in writes:
            if write.partition in outcomes:
                continue
            if write.request is not None and not self._renew_request(write, requests[write.partition]):
                outcomes[write.partition] = CommitOutcome.REQUEST_CHANGED
            elif write.needed:
                again.append(write)
            else:
                outcomes[write.partition] = write.done
        return again

    @staticmethod
    def _recognise(write: _Write, found: _FoundNode | None) -> bool:
        """Update the known node; return False if another client has written it."""
        node = write.node
        now = _make_node(found)
        if now.is_as(node):
            return True
        ours = 0 if node.version is None else node.version + 1
        if now.version != ours or now.position not in node.unanswered:
            return False
        node.version, node.position = now.version, now.position
        node.unanswered.clear()
        return True

    async def _find_owned(self, epoch: SessionEpoch, partitions: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions whose owner node was created by our session.

        The node's data could be from an earlier session of ours.
        """
        stats = await self._read_all(partitions, lambda partition: self._zk.exists(owner_path(self._group, partition)))
        state = self._zk.state
        if state.epoch != epoch:
            return frozenset()
        return frozenset(
            partition
            for partition, stat in stats.items()
            if stat is not None and stat.ephemeral_owner == state.session_id
        )

    def _take_over(self, write: _Write, found: _FoundNode | None) -> None:
        """Accept a foreign write, to overwrite it."""
        now = _make_node(found)
        write.node.version, write.node.position = now.version, now.position
        write.node.unanswered.clear()
        write.foreign = True
        _log.warning(
            "foreign_commit_found",
            topic=write.partition.topic,
            partition=str(write.partition.partition),
            theirs=now.position,
            ours=write.commit.position,
        )

    @staticmethod
    def _renew_request(write: _Write, found: OffsetRequest | None) -> bool:
        """Update the request; return False if this commit must not carry it out."""
        if found is not None and write.request is not None and found.id == write.request.id:
            write.request = found
            return True
        # if the node holds the requested position, the request was carried out: both are in one multi
        write.request = None
        return write.node.position == write.commit.position

    def _settle_rest(self, commits: Sequence[Commit], error: CoordinationError, outcomes: _Outcomes) -> None:
        """Give an outcome to commits that could not be tried.

        A session that is over holds no claims any more.
        """
        rest = CommitOutcome.NOT_OWNER if isinstance(error, SessionLost) else CommitOutcome.FAILED
        for commit in commits:
            outcomes.setdefault(commit.claim.partition, rest)
        self._note_failure(error)

    def _note_failure(self, error: CoordinationError) -> None:
        if not self._failing:
            self._failing = True
            _log.warning("offsets_commit_failed", group=self._group, error=str(error))

    def _note_health(self, outcomes: _Outcomes) -> None:
        if self._failing and outcomes and CommitOutcome.FAILED not in outcomes.values():
            self._failing = False
            _log.info("offsets_commit_recovered", group=self._group)

    async def _read_requests(self, writes: Sequence[_Write]) -> dict[TopicPartition, OffsetRequest | None]:
        fulfilling = [write.partition for write in writes if write.request is not None]
        return await self._read_all(fulfilling, self._requests.find)

    async def _read_nodes(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, _FoundNode | None]:
        return await self._read_all(partitions, lambda partition: self._zk.find(offset_path(self._group, partition)))

    async def _read_all(self, keys: Sequence[_K], read: Callable[[_K], Awaitable[_T]]) -> dict[_K, _T]:
        """Call ``read`` for each partition or topic, with bounded concurrency.

        Raises the first failure.
        """

        async def read_one(key: _K) -> _T:
            async with self._reads:
                return await read(key)

        return await map_bounded(keys, read_one, in_flight=_READS_AT_ONCE)


def _make_node(found: _FoundNode | None) -> _Node:
    if found is None:
        return _Node(version=None, position=None)
    data, stat = found
    stored = parse_stored(data, stat)
    return _Node(version=stat.version, position=None if stored.malformed is not None else stored.position)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _topic(write: _Write) -> str:
    return write.partition.topic


def _split(writes: Sequence[_Write]) -> Iterator[Sequence[_Write]]:
    """Cut writes into chunks within the limits of a ``multi``."""
    begin = size = 0
    for index, write in enumerate(writes):
        if index > begin and (size + write.size > MULTI_BYTES or index - begin == MULTI_WRITES):
            yield writes[begin:index]
            begin, size = index, 0
        size += write.size
    if begin < len(writes):
        yield writes[begin:]
