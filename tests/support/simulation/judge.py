# SPDX-License-Identifier: Apache-2.0
"""What must be true of the whole group, looked at from outside, at every change of a node and at every file.

The judge knows what no member does: whose session really holds an owner node at this moment, what was produced, what has
landed, what Java-like members have consumed. It holds:

- **one owner**: at most one claim of a partition is usable, and then its session's owner node stands;
- **one deliverer**: what is published or written is published by the owner; a process that was stopped in between may
  complete one call a partition, which files survive by their names;
- **commits**: made by the owner's session; within one making of a topic ours never go back; never beyond what has landed (or
  was consumed by a Java member); but for a position that an operator has asked for;
- **truncated logs**: a position goes back once for each, to where the policy says; no chain holds a record that an election
  took away and one that was written in its place, or later;
- **chains**: each file begins where the one before ended, holds every offset up to its own end or says who had it, and only
  records of its own making of the topic; one making has one chain, and one more for each operator's request that needs it, and for
  each truncation;
- **identities**: topic, incarnation with truncation, partition and offset name one record, in whatever chain and root;
- **what does not move does not stop**: a partition is drained only if the assignor took it away, and lost only by a
  member that something happened to.

A breach ends the simulation at that very moment. ``trace`` is a digest of everything seen, in order.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from consumerd.group.assignors import Strategy
from consumerd.group.identity import consumer_of
from consumerd.group.plan import GroupSnapshot, GroupTopic, MemberView, Stamp, plan_assignment
from consumerd.landing.chain import CHAIN_RECORD, META_FOLDER, ChainRecord, FileMetadata, parse_data_name
from consumerd.model import Claim, ConsumerId, GapReason, Incarnation, PartitionKey, TopicPartition
from consumerd.sinks.files import FileFormat
from consumerd.wire.records import RecordBatch
from consumerd.zk.layout import BROKER_TOPICS, id_path, ids_path, offsets_root, owner_path, owners_root, topic_path
from consumerd.zk.znodes import parse_offset, parse_registration, parse_topic
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.simulation.brokers import Log, parse_mark
from tests.support.simulation.disk import SharedDisk, parse_place
from tests.support.simulation.processes import Process, World

GROUP = "g"

_SETTLING_S = 5.0
"""How old a view may be that a claim was made by."""
_UNDER_WAY_S = 1.0
"""How long a request may travel."""

Making = tuple[TopicPartition, int]
"""A partition of one making of its topic, by the topic's czxid."""


Identity = tuple[TopicPartition, Incarnation, int]
"""A record by partition, incarnation with truncation, and offset."""


@dataclass(slots=True)
class Chain:
    """A chain as far as it was seen."""

    czxid: int
    origin: int
    end: int
    truncation: int = 0
    sealed: bool = False
    last: tuple[int, int] | None = None
    """The last record's offset, and after how many truncations it was written."""


@dataclass(slots=True)
class Suspect:
    """What happened to a process, as far as it excuses anything."""

    disturbed: bool = False
    """Its session may be over, or was."""
    stopped: bool = False
    """It was stopped, so that a call may have been under way for longer than its session lasted."""


class Judge:
    """Watches one simulated group."""

    def __init__(self, world: World, server: FakeZooKeeper, strategy: Strategy) -> None:
        self.world = world
        self.strategy = strategy
        self.story: list[str] = []
        self.tampered: dict[str, str] = {}
        """Owner nodes that were taken away, and the member that does not know it yet."""
        """Owner nodes that were taken away: their owner cannot know before it is told."""
        self.remade: set[str] = set()
        """Topics that were deleted at some time."""
        self.suspects: dict[str, Suspect] = defaultdict(Suspect)
        self.wishes: dict[TopicPartition, set[int]] = defaultdict(set)
        """Positions that operators have asked for."""
        self.logs: dict[Making, Log] = {}
        self.delivered: dict[Making, set[int]] = defaultdict(set)
        self.seen: dict[Making, set[tuple[int, int]]] = defaultdict(set)
        """What was delivered: offsets, and after how many truncations each record was written."""
        self._rewinds: dict[Making, int] = defaultdict(int)
        self._doubts: set[tuple[str, Making]] = set()
        self._taken: dict[tuple[str, TopicPartition], int] = defaultdict(int)
        """How far each process has delivered, of whatever making."""
        self.consumed: dict[Making, set[int]] = defaultdict(set)
        """By Java-like members."""
        self.chains: dict[tuple[str, TopicPartition, int], Chain] = {}
        """By root, partition and number."""
        self.several_roots = False
        self.landed: dict[Path, dict[Identity, int]] = {}
        """The records of each published file, with their marks."""
        self._identities: dict[Identity, int] = {}
        self.disk: SharedDisk
        self.format: FileFormat
        self._server = server
        self._claims: dict[TopicPartition, list[tuple[Process, int, Claim, float]]] = defaultdict(list)
        self._committed: dict[Making, int] = {}
        self._late: set[tuple[str, TopicPartition]] = set()
        self._plans: list[tuple[float, Mapping[TopicPartition, ConsumerId]]] = []
        self._forgiven: dict[str, float] = {}
        self._owners: dict[str, str] = {}
        self._robbed: set[str] = set()
        """Owner nodes of ours that a Java-like member has deleted."""
        self._digest = hashlib.sha256()
        server.on_change = self._look
        server.on_session = self._look_at_sessions

    @property
    def trace(self) -> str:
        """A digest of everything seen so far, in order."""
        return self._digest.hexdigest()[:16]

    def note(self, text: str) -> None:
        """Write down what happens."""
        line = f"{self.world.now:9.4f} {text}"
        self.story.append(line)
        self._digest.update(line.encode())

    def require(self, holds: bool, what: str) -> None:
        """End the simulation unless something holds."""
        if not holds:
            self.note(f"BROKEN: {what}")
            self.world.failures.append(AssertionError(what))

    # -- nodes

    def _look(self, path: str) -> None:
        found = self._server.read(path)
        data = "gone" if found is None else found[0].decode(errors="replace")[:60]
        self.note(f"{path} {data} by {self._server.names_of_sessions.get(self._server.writer, 'nobody')}")
        if path.startswith(owners_root(GROUP) + "/"):
            self._note_owner(path)
            if (partition := _parse_leaf(path, owners_root(GROUP))) is not None:
                self.check_owner(partition)
        elif path.startswith(offsets_root(GROUP) + "/"):
            if found is not None and (partition := _parse_leaf(path, offsets_root(GROUP))) is not None:
                self._check_commit(partition, found[0])
        elif path.startswith((ids_path(GROUP) + "/", BROKER_TOPICS + "/")) and "/partitions" not in path:
            self._plans.append((self.world.now, self._plan()))

    def _note_owner(self, path: str) -> None:
        found = self._server.read(path)
        before = self._owners.pop(path, "")
        by = self._server.names_of_sessions.get(self._server.writer, "")
        if found is not None:
            self._owners[path] = self._server.names_of_sessions.get(found[1].ephemeral_owner, "")
        elif by.startswith("java") and before and not before.startswith("java"):
            self._robbed.add(path)

    def _plan(self) -> Mapping[TopicPartition, ConsumerId]:
        members = []
        for name in self._server.names(ids_path(GROUP)):
            found = self._server.read(id_path(GROUP, ConsumerId(name)))
            assert found is not None
            members.append(
                MemberView(consumer=ConsumerId(name), session_id=0, registration=parse_registration(found[0]))
            )
        topics = {}
        for topic in self._server.names(BROKER_TOPICS):
            node = self._server.read(topic_path(topic))
            assert node is not None
            topics[topic] = GroupTopic(czxid=0, stamp=(0, 0), partitions=tuple(sorted(parse_topic(node[0]))))
        snapshot = GroupSnapshot(stamp=Stamp(ids=(0, 0), names=None, topics={}), members=tuple(members), topics=topics)
        assignment = plan_assignment(snapshot, self.strategy)
        return {partition: consumer_of(thread) for partition, thread in assignment.items()}

    def _look_at_sessions(self) -> None:
        for partition in self._claims:
            self.check_owner(partition)

    def check_owner(self, partition: TopicPartition) -> None:
        """At most one claim is usable, and only by the session whose node it is."""
        path = owner_path(GROUP, partition)
        if path in self.tampered:
            return
        usable = [
            (process.name, session)
            for process, session, claim, _ in self._claims[partition]
            if not process.dead and claim.usable
        ]
        self.require(len(usable) <= 1, f"{partition} is used by {usable}")
        if usable:
            node = self._server.read(path)
            self.require(node is not None, f"{partition} is used by {usable[0]} without an owner node")
            if node is not None:
                self.require(node[1].ephemeral_owner == usable[0][1], f"{partition}: {usable[0]} uses {node[0]!r}'s")

    def _check_commit(self, partition: TopicPartition, data: bytes) -> None:
        name = self._server.names_of_sessions.get(self._server.writer)
        topic = self._server.read(topic_path(partition.topic))
        if name is None or name.startswith("java") or topic is None:
            return
        making, position = (partition, topic[1].czxid), parse_offset(data)
        owner = self._server.read(owner_path(GROUP, partition))
        ours = owner is not None and owner[1].ephemeral_owner == self._server.writer
        self.require(ours or self._is_forgiven(partition), f"{name} commits {partition}, which is not its own")
        before = self._committed.get(making, 0)
        wished = position in self.wishes[partition]
        back = (
            not wished
            and position < before
            and (self._is_rewind(making, position) or self._is_doubt(name, making, position, before))
        )
        self.require(position >= before or wished or back, f"{name} commits {position} of {partition} after {before}")
        # what the rightful owner writes next may be smaller than what a robbed one wrote, unless that was a step back: of
        # the log's, or an operator's
        if ours or back or (wished and position < before):
            self._committed[making] = position
        safe = self._safe_end(making)
        self.require(position <= safe or wished, f"{name} commits {position} of {partition}, of which {safe} is safe")

    def _is_rewind(self, making: Making, position: int) -> bool:
        """Whether a position may go back there, since the log has lost its end once more."""
        log = self.logs[making]
        self._rewinds[making] += 1
        return position in (0, log.end) and self._rewinds[making] <= len(log.cuts)

    def _is_doubt(self, name: str, making: Making, position: int, before: int) -> bool:
        """Whether a process begins anew, once, where it finds a position that it may have sent itself for the topic as it
        was before: only a chain could tell it better (docs/architecture.md, 5, Incarnations).
        """
        partition, _ = making
        has_chain = any((one, chain.czxid) == making for (_, one, _), chain in self.chains.items())
        if position or has_chain or partition.topic not in self.remade or (name, making) in self._doubts:
            return False
        self._doubts.add((name, making))
        return before <= self._taken[name, partition]

    def _safe_end(self, making: Making) -> int:
        ends = [max(self.consumed[making], default=-1) + 1, max(self.delivered[making], default=-1) + 1]
        ends += [chain.end for (_, partition, _), chain in self.chains.items() if (partition, chain.czxid) == making]
        return max(ends)

    # -- members

    def claimed(self, process: Process, session: int, claim: Claim) -> None:
        """A claim was given to whoever delivers."""
        self.note(f"{process.name} begins with {claim.partition}")
        known = self._claims[claim.partition]
        known[:] = [entry for entry in known if not entry[0].dead and entry[2].usable]
        known.append((process, session, claim, self.world.now))
        self.check_owner(claim.partition)

    def drained(self, process: Process, partition: TopicPartition, consumer: ConsumerId | None) -> None:
        """A partition is drained: somebody must have been given it instead, since it was claimed."""
        self.note(f"{process.name} drains {partition}")
        since = max((at for other, _, _, at in self._claims[partition] if other is process), default=0.0) - _SETTLING_S
        plans = [plan for at, plan in self._plans if at >= since]
        plans += [plan for at, plan in self._plans if at < since][-1:]
        self.require(
            consumer is None or any(plan.get(partition) != consumer for plan in plans),
            f"{process.name} stops {partition}, which nobody took away",
        )

    def lost(self, process: Process, partition: TopicPartition, reason: str) -> None:
        """A partition is lost: something must have happened."""
        self.note(f"{process.name} loses {partition}: {reason}")
        self.require(
            self.suspects[process.name].disturbed
            or partition.topic in self.remade
            or owner_path(GROUP, partition) in self.tampered.keys() | self._robbed,
            f"{process.name} loses {partition}, though nothing happened to it: {reason}",
        )

    def dropped(self, process: Process, partition: TopicPartition) -> None:
        """A member has dropped a partition: it knows by now if its owner node was taken away."""
        path = owner_path(GROUP, partition)
        if self.tampered.get(path) == process.name:
            del self.tampered[path]
            self._forgiven[path] = self.world.now

    def _is_forgiven(self, partition: TopicPartition) -> bool:
        """Whether the owner node was taken away, or had been when what is on its way now was sent."""
        path = owner_path(GROUP, partition)
        return path in self.tampered or self.world.now - self._forgiven.get(path, -_UNDER_WAY_S) < _UNDER_WAY_S

    def owns(self, process: Process, partition: TopicPartition) -> bool:
        """Whether the process's session holds the owner node at this moment."""
        node = self._server.read(owner_path(GROUP, partition))
        return node is not None and self._server.names_of_sessions.get(node[1].ephemeral_owner) == process.name

    def _check_deliverer(self, process: Process, partition: TopicPartition, what: str) -> None:
        if self.owns(process, partition) or self._is_forgiven(partition):
            return
        key = (process.name, partition)
        excused = self.suspects[process.name].stopped and key not in self._late
        self.require(excused, f"{process.name} {what} {partition} and does not own it")
        self._late.add(key)

    def stopped(self, process: Process) -> None:
        """A process was stopped, or its session ended without notice: one call a partition may end late."""
        self.suspects[process.name] = Suspect(disturbed=True, stopped=True)
        self._late = {key for key in self._late if key[0] != process.name}

    # -- records

    def wrote(self, process: Process, batch: RecordBatch) -> None:
        """A sink without files took a batch for good."""
        self.note(f"{process.name} delivers {batch.partition} [{batch.start}, {batch.next_offset})")
        self._check_deliverer(process, batch.partition, "delivers")
        self._taken[process.name, batch.partition] = max(self._taken[process.name, batch.partition], batch.next_offset)
        for offset, mark in zip(batch.offsets, batch.timestamps, strict=True):
            czxid, era = parse_mark(mark)
            self.delivered[batch.partition, czxid].add(offset)
            self.seen[batch.partition, czxid].add((offset, era))

    def linked(self, path: Path, process: Process) -> None:
        """A file got its final name."""
        self.note(f"{process.name} publishes {path}")
        try:
            self._judge_link(path, process)
        except Exception as error:  # noqa: BLE001 - not to be taken for a failure of the disk
            self.world.failures.append(error)

    def _judge_link(self, path: Path, process: Process) -> None:
        place = parse_place(path)
        if place is None:
            if path.name == CHAIN_RECORD:
                self._open_chain(path)
            return
        partition = TopicPartition(place[1], PartitionKey.parse(place[2]))
        chain = self.chains[place[0], partition, place[3]]
        self._check_deliverer(process, partition, "publishes")
        position = parse_data_name(path.name, self.format.extension)
        assert position is not None
        metadata = self.format.read_metadata(
            self.disk, path.parent, position, self.disk.names(path.parent / META_FOLDER)
        )
        self.require(not chain.sealed, f"{path} lies behind the end of a chain")
        self.require(position == chain.end, f"{path} begins at {position}, its chain ends at {chain.end}")
        self.require(metadata.incarnation.czxid == chain.czxid, f"{path} is of {metadata.incarnation}")
        self._judge_records(path, partition, chain, metadata)
        chain.sealed = metadata.next_offset == position
        chain.end = metadata.next_offset

    def _judge_records(self, path: Path, partition: TopicPartition, chain: Chain, metadata: FileMetadata) -> None:
        """Check the records of a file, and take them for delivered."""
        records = list(_read_records(self.disk.read(path), self.format.extension))
        marks = [(offset, *parse_mark(mark)) for offset, mark in records]
        self.require(all(czxid == chain.czxid for _, czxid, _ in marks), f"{path} holds records of another making")
        for offset, _, era in marks:
            self._check_history((partition, chain.czxid), chain, (offset, era))
        self._check_cover(path, partition, metadata, [offset for offset, _ in records])
        self._note_identities(path, partition, chain, records)
        self.delivered[partition, chain.czxid].update(offset for offset, _ in records)
        self.seen[partition, chain.czxid].update((offset, era) for offset, _, era in marks)

    def _note_identities(
        self, path: Path, partition: TopicPartition, chain: Chain, records: list[tuple[int, int]]
    ) -> None:
        incarnation = Incarnation(chain.czxid, chain.truncation)
        self.landed[path] = {(partition, incarnation, offset): mark for offset, mark in records}
        for identity, mark in self.landed[path].items():
            known = self._identities.setdefault(identity, mark)
            self.require(known == mark, f"{path}: {identity} is the record of {known}, and that of {mark}")

    def _check_history(self, making: Making, chain: Chain, record: tuple[int, int]) -> None:
        """A record follows the one before it in one history of the log: none of the elections in between took that away."""
        before, chain.last = chain.last, record
        if before is None:
            return
        lost = [cut for cut in self.logs[making].cuts[before[1] : record[1]] if before[0] >= cut]
        self.require(
            before[1] <= record[1] and not lost, f"{making[0]}: {before} was lost, {record} follows it in a chain"
        )

    def _open_chain(self, path: Path) -> None:
        parts = parse_place(path.with_name("0"))
        assert parts is not None
        root, partition = parts[0], TopicPartition(parts[1], PartitionKey.parse(parts[2]))
        record = ChainRecord.parse(self.disk.read(path))
        making = (partition, record.incarnation.czxid)
        before = self.chains.get((root, partition, parts[3] - 1))
        others = [
            chain.truncation
            for (place, other, _), chain in self.chains.items()
            if (place, other, chain.czxid) == (root, *making)
        ]
        truncation = record.incarnation.truncation
        wished = record.origin in self.wishes[partition]
        # whoever cannot tell whether its chain began counts the truncation once more, and nothing has landed in between
        empty = sum(
            chain.sealed and chain.origin == chain.end and chain.czxid == making[1]
            for (_, other, _), chain in self.chains.items()
            if other == partition
        )
        most = len(self.logs[making].cuts) + empty
        cut = max(others, default=-1) < truncation <= most
        # whoever sealed the one before, to begin anew below, came no further: the next one goes on behind the seal at first
        # with several roots also whoever sealed it for a request that another replica has carried out since, in its own root
        sealed_early = bool(self.logs[making].cuts) or self.several_roots
        behind = sealed_early and before is not None and before.sealed and record.origin == before.end
        self.require(
            not others or wished or cut or behind, f"{path}: the topic's making {making[1]} has chain {others} already"
        )
        self.require(truncation <= most, f"{path} is of truncation {truncation}")
        self.require(before is None or before.sealed, f"{path}: the chain before it is not sealed")
        self.chains[root, partition, parts[3]] = Chain(making[1], record.origin, record.origin, truncation)

    def _check_cover(self, path: Path, partition: TopicPartition, metadata: FileMetadata, offsets: list[int]) -> None:
        gaps = {offset for gap in metadata.gaps for offset in range(gap.start, gap.end)}
        whole = list(range(metadata.position, metadata.next_offset))
        self.require(sorted([*offsets, *gaps]) == whole, f"{path} should hold {whole[:1]}..{whole[-1:]} exactly")
        wishes = self.wishes[partition]
        told = all(
            gap.reason is GapReason.CONSUMED_ELSEWHERE or (gap.reason is GapReason.RESET and gap.end in wishes)
            for gap in metadata.gaps
        )
        taken = self.consumed[partition, metadata.incarnation.czxid] | set(range(max(wishes, default=0)))
        if self.several_roots:
            taken |= self.delivered[partition, metadata.incarnation.czxid]
        self.require(told and gaps <= taken, f"{path} leaves out {sorted(gaps - taken)}, which nobody had")

    def newest_end(self, partition: TopicPartition) -> int:
        """Return where the newest chain ends, of all roots' that are of the last incarnation; 0 where there is none."""
        newest: dict[str, tuple[int, Chain]] = {}
        for (root, other, number), chain in self.chains.items():
            if other == partition:
                newest[root] = max(newest.get(root, (0, chain)), (number, chain), key=lambda one: one[0])
        last = max(((chain.czxid, chain.truncation) for _, chain in newest.values()), default=None)
        return max((one.end for _, one in newest.values() if (one.czxid, one.truncation) == last), default=0)

    def is_current(self, making: Making) -> bool:
        """Tell whether the topic there is now is of that making."""
        node = self._server.read(topic_path(making[0].topic))
        return node is not None and node[1].czxid == making[1]

    def find_missing(self) -> dict[str, list[int]]:
        """Return what was produced into the topics there are and was never delivered."""
        missing = {}
        for (partition, czxid), log in self.logs.items():
            if not self.is_current((partition, czxid)):
                continue
            wanted = set(range(max(self.wishes[partition], default=0), log.end))  # what is below may be skipped by wish
            marks = enumerate(log.marks(0, log.end))
            delivered = {at for at, mark in marks if (at, parse_mark(mark)[1]) in self.seen[partition, czxid]}
            rest = wanted - delivered - self.consumed[partition, czxid]
            if rest:
                missing[str(partition)] = sorted(rest)
        return missing


def _parse_leaf(path: str, root: str) -> TopicPartition | None:
    topic, _, key = path.removeprefix(root + "/").partition("/")
    return TopicPartition(topic, PartitionKey.parse(key)) if key else None


def _read_records(data: bytes, extension: str) -> Iterator[tuple[int, int]]:
    if extension == "parquet":
        table = pq.read_table(io.BytesIO(data), columns=["offset", "timestamp"])
        yield from zip(table["offset"].to_pylist(), table["timestamp"].cast(pa.int64()).to_pylist(), strict=True)
        return
    lines = data[: data.rfind(b"\n") + 1].decode().splitlines()
    for line in lines:
        if extension == "jsonl":
            fields = json.loads(line)
            yield fields["offset"], fields["timestamp"]
        else:
            offset, _, czxid = line.partition(" ")
            yield int(offset), int(czxid)
