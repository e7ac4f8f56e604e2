# SPDX-License-Identifier: Apache-2.0
"""Delivery's neighbours in memory: claims, logs, feeds, sinks and a store that tests steer and then ask what happened."""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from consumerd.aio.cell import Cell
from consumerd.aio.timeouts import timeout
from consumerd.client.log_range import LogRanges
from consumerd.delivery.deliveries import Deliveries
from consumerd.delivery.policy import UnitPolicy
from consumerd.delivery.ports import DeliveryReports, DeliverySettings, FeedSource, SinkRoute
from consumerd.delivery.status import PartitionStatus
from consumerd.errors import (
    ConsumerdError,
    IncarnationChanged,
    LeasePaused,
    OffsetOutOfRange,
    OwnershipLost,
    PermanentSinkError,
    SinkClosed,
)
from consumerd.model import Claim, Fault, Gap, GapReason, Incarnation, LogRange, SessionEpoch, ThreadId, TopicPartition
from consumerd.offsets.positions import OffsetNodeToken
from consumerd.offsets.store import (
    Commit,
    CommitOutcome,
    KnownTruncations,
    LogTruncation,
    LostEnd,
    OffsetRequest,
    StoredOffset,
)
from consumerd.sinks.base import QuarantinedUnit, Sink, Start
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.wire.records import RecordBatch

TOPIC_CZXID = 100


class FakeClaim:
    """A claim whose lease the test moves: ``fresh``, ``paused``, ``lost`` or ``changed`` (the topic was made again)."""

    def __init__(self, partition: TopicPartition, epoch: int = 1, incarnation: int = TOPIC_CZXID) -> None:
        self._partition = partition
        self._epoch = SessionEpoch(epoch)
        self._incarnation = Incarnation(incarnation)
        self.lease = Cell("fresh")

    @property
    def partition(self) -> TopicPartition:
        return self._partition

    @property
    def thread(self) -> ThreadId:
        return ThreadId("g_test-1-0a1b2c3d-0")

    @property
    def epoch(self) -> SessionEpoch:
        return self._epoch

    @property
    def incarnation(self) -> Incarnation:
        return self._incarnation

    @property
    def usable(self) -> bool:
        return self.lease.value == "fresh"

    def check(self) -> None:
        if self.lease.value == "paused":
            raise LeasePaused("paused")
        if self.lease.value == "lost":
            raise OwnershipLost("lost")

    async def wait_usable(self) -> None:
        await self.lease.wait(lambda lease: lease != "paused")
        self.check()

    async def confirm(self) -> None:
        await asyncio.sleep(0)
        self.check()
        if self.lease.value == "changed":
            raise IncarnationChanged("made again")


def make_batch(
    partition: TopicPartition,
    start: int,
    end: int,
    bad_headers: Collection[int] = (),
    timestamp_ms: Callable[[int], int] = lambda offset: -1,
) -> RecordBatch:
    """Return a batch with a null record at each offset of ``[start, end)``; headers of some cannot be read."""
    count = end - start
    nulls = array("q", [-1]) * count
    bad = [offset in bad_headers for offset in range(start, end)]
    return RecordBatch(
        buffer=b"\x7f" if any(bad) else b"",
        header_starts=array("q", [0 if one else -1 for one in bad]) if any(bad) else array("q"),
        header_ends=array("q", [1 if one else -1 for one in bad]) if any(bad) else array("q"),
        partition=partition,
        start=start,
        next_offset=end,
        offsets=array("q", range(start, end)),
        timestamps=array("q", map(timestamp_ms, range(start, end))),
        key_starts=nulls,
        key_ends=nulls,
        value_starts=nulls,
        value_ends=nulls,
        size_bytes=100 * count,
    )


def make_wrapped_batch(partition: TopicPartition, *, plain: int = 1, inner: int = 5) -> RecordBatch:
    """Return a batch of Kafka 0.7: messages of 10 bytes, and a compressed one of 90 bytes with ``inner`` records.

    The batch starts at offset 1000. Values are one byte each, ``a`` for the first record.
    """
    wrapper = 1000 + 10 * plain
    count = plain + inner
    nulls = array("q", [-1]) * count
    return RecordBatch(
        partition=partition,
        start=1000,
        next_offset=wrapper + 90,
        buffer=bytes(range(ord("a"), ord("a") + count)),
        offsets=array("q", [*range(1000, wrapper, 10), *[wrapper] * inner]),
        timestamps=nulls,
        key_starts=nulls,
        key_ends=nulls,
        value_starts=array("q", range(count)),
        value_ends=array("q", range(1, count + 1)),
        indexes=array("q", [*[0] * plain, *range(inner)]),
        next_offsets=array("q", [*range(1010, wrapper + 10, 10), *[wrapper + 90] * inner]),
        size_bytes=100 * count,
    )


class FakeLog:
    """A partition's log on the broker; ``faults`` are raised, once each, where the position is reached."""

    def __init__(self, earliest: int = 0, latest: int = 0) -> None:
        self.earliest = earliest
        self._latest = Cell(latest)
        self.high_watermark: int | None = None
        """Where an open transaction keeps ``latest`` below it."""
        self.faults: dict[int, list[ConsumerdError]] = {}
        self.lasting_faults: dict[int, ConsumerdError] = {}
        self.bad_headers: set[int] = set()
        self.holes: dict[int, int] = {}
        """Where there are no records any more, as compaction leaves it: first offset and end."""
        self.fault: Fault | None = None
        self.timestamp_ms: Callable[[int], int] = lambda offset: -1
        self.silent_from: int | None = None
        """From here on nothing is answered."""
        self.unheard = False
        """Whether no fetch is answered at all."""
        self.reports_end = True
        """False for a log end that no fetch response has, as in Kafka 0.7."""
        self.log_end: int | None = None
        """Log end offset of a leader whose high watermark trails."""

    @property
    def fetchable_end(self) -> int:
        """The last position that a fetch is not refused for."""
        return max(self.latest, self.high_watermark or 0, self.log_end or 0)

    @property
    def latest(self) -> int:
        return self._latest.value

    def append(self, count: int) -> None:
        self._latest.set(self._latest.value + count)

    def truncate(self, latest: int) -> None:
        """Lose the end, and with it every unit that reaches beyond it."""
        self._latest.set(latest)
        for offset, error in list(self.lasting_faults.items()):
            if max(offset + 1, getattr(error, "next_offset", None) or 0) > latest:
                del self.lasting_faults[offset]

    async def wait_beyond(self, position: int) -> None:
        await self._latest.wait(lambda latest: latest > position or position > self.fetchable_end)


class FakeFeed:
    """Reads a :class:`FakeLog` in batches of at most ``batch`` records, and counts what is given back."""

    def __init__(
        self, partition: TopicPartition, position: int, log: FakeLog, batch: int, *, replicated: bool = True
    ) -> None:
        self.replicated = replicated
        self.partition = partition
        self.position = position
        self.log = log
        self.batch = batch
        self.out: list[RecordBatch] = []
        self.closed = False
        self.asked = 0

    @property
    def high_watermark(self) -> int | None:
        return self.log.latest if self.log.reports_end else None

    @property
    def last_stable_offset(self) -> int | None:
        return None

    @property
    def fault(self) -> Fault | None:
        return self.log.fault

    @property
    def heard_at(self) -> float | None:
        return None if self.log.unheard else asyncio.get_running_loop().time()

    async def next(self) -> RecordBatch:
        assert not self.closed
        assert not self.out, "asked for more while a batch is being written"
        self.asked += 1
        while True:
            await asyncio.sleep(0)
            position, log = self.position, self.log
            if log.silent_from is not None and position >= log.silent_from:
                await asyncio.sleep(1)
                continue
            if faults := log.faults.get(position):
                raise faults.pop(0)
            if position in log.lasting_faults:
                raise log.lasting_faults[position]
            if not log.earliest <= position <= log.fetchable_end:
                raise OffsetOutOfRange(
                    self.partition,
                    position,
                    log.earliest,
                    log.latest,
                    replaced=position > log.latest and not self.replicated,
                )
            if position < log.latest:
                # nothing is awaited between taking a batch and returning it
                batch = self._read(position)
                self.position = batch.next_offset
                self.out.append(batch)
                return batch
            await log.wait_beyond(position)

    def _read(self, position: int) -> RecordBatch:
        behind = self.log.holes.get(position)
        if behind is None:
            return self._make_batch(position)
        batch = self._make_batch(behind)
        return replace(batch, start=position, gaps=(Gap(position, behind, GapReason.COMPACTION),))

    def _make_batch(self, start: int) -> RecordBatch:
        log = self.log
        return make_batch(self.partition, start, self._end_of_batch(start), log.bad_headers, log.timestamp_ms)

    def _end_of_batch(self, position: int) -> int:
        log = self.log
        faulty = [at for at in (*log.faults, *log.lasting_faults, *log.holes) if at > position]
        return min([position + self.batch, self.log.latest, *faulty])

    def done(self, batch: RecordBatch) -> None:
        self.out.remove(batch)

    def seek(self, position: int) -> None:
        assert not self.closed
        self.position = position

    def close(self) -> None:
        self.closed = True


class FakeBrokers:
    """Logs by partition; a feed source, log ranges and a partition history in one."""

    def __init__(self, batch: int = 10) -> None:
        self.logs: dict[TopicPartition, FakeLog] = defaultdict(FakeLog)
        self.feeds: list[FakeFeed] = []
        self.newborn: set[TopicPartition] = set()
        self.unreachable: ConsumerdError | None = None
        self.hang = False
        """Whether no question about a log is answered."""
        self.logs_are_replicated = True
        """False for logs of which an end below a position is final, as in Kafka 0.7."""
        self._batch = batch

    def feed(self, partition: TopicPartition, offset: int) -> FakeFeed:
        feed = FakeFeed(partition, offset, self.logs[partition], self._batch, replicated=self.logs_are_replicated)
        self.feeds.append(feed)
        return feed

    async def read(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
        return {one: LogRange(log.earliest, log.latest) for one, log in (await self._ask(partitions)).items()}

    async def high_watermarks(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        logs = await self._ask(partitions)
        return {one: log.latest if log.high_watermark is None else log.high_watermark for one, log in logs.items()}

    async def _ask(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, FakeLog]:
        await asyncio.sleep(0)
        if self.hang:
            await asyncio.Event().wait()
        if self.unreachable is not None:
            raise self.unreachable
        return {partition: self.logs[partition] for partition in partitions if partition in self.logs}

    async def made_after_group(self, partition: TopicPartition) -> bool:
        await asyncio.sleep(0)
        return partition in self.newborn


def _make_stored(position: int, mzxid: int, malformed: str | None = None) -> StoredOffset:
    return StoredOffset(position=position, token=OffsetNodeToken(mzxid=mzxid, version=mzxid), malformed=malformed)


class FakeStore:
    """An offset store in memory that fences by the claim alone; ``before_commit`` and ``after_commit`` may wait or raise."""

    rewrite_s: float | None = None

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, StoredOffset] = {}
        self.commits: list[tuple[TopicPartition, SessionEpoch, int]] = []
        self.calls = 0
        self.before_commit: Callable[[Sequence[Commit]], Awaitable[None]] | None = None
        self.after_commit: Callable[[Sequence[Commit]], Awaitable[None]] | None = None
        self.outcomes: dict[TopicPartition, list[CommitOutcome]] = {}
        self.refusals: dict[TopicPartition, str] = {}
        self.load_faults: list[ConsumerdError] = []
        self.requests: dict[TopicPartition, OffsetRequest] = {}
        self._zxid = 1000
        self._busy = False

    def put(self, partition: TopicPartition, position: int, *, mzxid: int | None = None) -> None:
        """Store a position as somebody else would; ``mzxid`` below the topic's makes it one of an older topic."""
        self._zxid += 1
        self.stored[partition] = _make_stored(position, mzxid or self._zxid)

    def put_malformed(self, partition: TopicPartition, text: str) -> None:
        """Store what is no number."""
        self._zxid += 1
        self.stored[partition] = _make_stored(-1, self._zxid, malformed=text)

    def next_zxid(self) -> int:
        """Take a transaction's number, for something that is made now."""
        self._zxid += 1
        return self._zxid

    def position(self, partition: TopicPartition) -> int | None:
        """Return the stored position."""
        stored = self.stored.get(partition)
        return None if stored is None else stored.position

    async def load(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, StoredOffset | None]:
        await asyncio.sleep(0)
        if self.load_faults:
            raise self.load_faults.pop(0)
        return {partition: self.stored.get(partition) for partition in partitions}

    async def commit(self, commits: Sequence[Commit]) -> Mapping[TopicPartition, CommitOutcome]:
        assert not self._busy, "calls of commit overlap"
        self._busy = True
        try:
            self.calls += 1
            if self.before_commit is not None:
                await self.before_commit(commits)
            await asyncio.sleep(0)
            outcomes = {commit.claim.partition: self._commit_one(commit) for commit in commits}
            if self.after_commit is not None:
                await self.after_commit(commits)
            return outcomes
        finally:
            self._busy = False

    def explain_refusal(self, partition: TopicPartition) -> str | None:
        return self.refusals.get(partition)

    def _commit_one(self, commit: Commit) -> CommitOutcome:
        partition = commit.claim.partition
        if scripted := self.outcomes.get(partition):
            outcome = scripted.pop(0)
            if outcome in (CommitOutcome.NOT_OWNER, CommitOutcome.FAILED):
                return outcome
        else:
            outcome = CommitOutcome.WRITTEN
        try:
            commit.claim.check()
        except LeasePaused:
            return CommitOutcome.FAILED
        except OwnershipLost:
            return CommitOutcome.NOT_OWNER
        if commit.fulfils is not None:
            if self.requests.get(partition) != commit.fulfils:
                return CommitOutcome.REQUEST_CHANGED
            del self.requests[partition]
        self.put(partition, commit.position)
        self.commits.append((partition, commit.claim.epoch, commit.position))
        return outcome


class FakeTruncations:
    """What the group knows of logs that have lost their ends; ``faults`` fail notes."""

    def __init__(self) -> None:
        self.noted: dict[tuple[TopicPartition, int], LogTruncation] = {}
        self.lost: dict[tuple[TopicPartition, int], LostEnd] = {}
        self.faults: list[ConsumerdError] = []

    async def find(self, claim: Claim) -> KnownTruncations:
        await asyncio.sleep(0)
        key = claim.partition, claim.incarnation.czxid
        return KnownTruncations(last=self.noted.get(key), lost_end=self.lost.get(key))

    async def note_lost_end(self, claim: Claim, lost: LostEnd) -> None:
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        claim.check()
        self.lost[claim.partition, claim.incarnation.czxid] = lost

    async def note(self, claim: Claim, truncation: LogTruncation) -> None:
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        claim.check()
        self.noted[claim.partition, claim.incarnation.czxid] = truncation


class FakeWatch:
    """A watch on a topic's requests."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def close(self) -> None:
        self._close()


class FakeRequests:
    """The operators' requests, kept where the store finds them."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self._numbers = 0
        self.watchers: dict[str, list[Callable[[TopicPartition], None]]] = defaultdict(list)
        self.find_faults: list[ConsumerdError] = []

    def put(
        self,
        partition: TopicPartition,
        position: int,
        *,
        new_chain: bool = False,
        topic: Incarnation | None = None,
    ) -> OffsetRequest:
        """Leave a request, as ``consumerd offsets set`` does."""
        self._numbers += 1
        request = OffsetRequest(
            id=f"request-{self._numbers}",
            partition=partition,
            position=position,
            new_chain=new_chain,
            author="ops@host",
            created_ms=0,
            version=self._numbers,
            topic=topic,
        )
        self._store.requests[partition] = request
        for changed in self.watchers[partition.topic]:
            changed(partition)
        return request

    async def find(self, partition: TopicPartition) -> OffsetRequest | None:
        await asyncio.sleep(0)
        if self.find_faults:
            raise self.find_faults.pop(0)
        return self._store.requests.get(partition)

    def watch(self, topic: str, changed: Callable[[TopicPartition], None]) -> FakeWatch:
        self.watchers[topic].append(changed)
        return FakeWatch(lambda: self.watchers[topic].remove(changed))


class FakeQuarantine:
    """A quarantine; ``faults`` are raised first, ``before`` may look around."""

    def __init__(self) -> None:
        self.units: list[QuarantinedUnit] = []
        self.faults: list[ConsumerdError] = []
        self.before: Callable[[QuarantinedUnit], None] | None = None

    async def put(self, unit: QuarantinedUnit, claim: Claim) -> None:
        await asyncio.sleep(0)
        claim.check()
        if self.faults:
            raise self.faults.pop(0)
        if self.before is not None:
            self.before(unit)
        if unit not in self.units:
            self.units.append(unit)


@dataclass
class Landed:
    """What a sink holds of a partition for good: record offsets in the order they became safe, and gaps.

    Of a sink with chains these are the newest chain's, and ``chains`` are those before.
    """

    offsets: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    end: int | None = None
    started: Start | None = None
    incarnation: Incarnation | None = None
    chains: list[Landed] = field(default_factory=list)

    def begin(self, start: Start, incarnation: Incarnation) -> None:
        """Begin a chain."""
        if self.started is not None:
            self.chains.append(replace(self, chains=[]))
        self.offsets, self.gaps = [], []
        self.end, self.started = start.position, start
        self.incarnation = Incarnation(incarnation.czxid, start.truncation)


class FakeWriter:
    """A writer that buffers (``sink.buffered``) or is safe at once."""

    def __init__(self, sink: FakeSink, claim: Claim) -> None:
        self.sink = sink
        self.claim = claim
        self.partition = claim.partition
        self.position: int | None = None
        self.safe: int | None = None
        self.reason: str | None = None
        self.pending: list[RecordBatch] = []
        self.first_written_at: float | None = None
        self.abandoned = False
        self.already_landed: int | None = None
        """Where an earlier writer had got, if that turns out at the next flush or write."""

    @property
    def resume_position(self) -> int | None:
        return self._chain.end if self._chain is not None else None

    @property
    def request_id(self) -> str | None:
        return self._chain.started.request_id if self._chain is not None and self._chain.started is not None else None

    @property
    def _chain(self) -> Landed | None:
        """The newest chain, if it is of the topic as it is now."""
        landed = self.sink.landed[self.partition]
        if not self.sink.keeps_chains:
            return None
        if landed.incarnation is not None and landed.incarnation.czxid != self.claim.incarnation.czxid:
            return None
        return landed

    @property
    def truncation(self) -> int:
        chain = self._chain
        return 0 if chain is None or chain.incarnation is None else chain.incarnation.truncation

    async def find_missing(self, position: int) -> Gap | None:
        await asyncio.sleep(0)
        return None

    async def start(self, start: Start) -> None:
        await self.sink.before("start", self, None)
        self.claim.check()
        chain, position = self._chain, start.position
        if self.sink.keeps_chains:
            begun = start.request_id is not None and start.request_id == self.request_id
            self.sink.require(start.truncation >= self.truncation, f"a start of truncation {start.truncation}")
            later = start.truncation > self.truncation
            if chain is None or chain.end is None or later or (start.new_chain and not begun):
                self.sink.landed[self.partition].begin(start, self.claim.incarnation)
            else:
                self.sink.require(position >= chain.end, f"a start at {position}, below {chain.end}")
                if position > chain.end:
                    chain.gaps.append(Gap(chain.end, position, GapReason.CONSUMED_ELSEWHERE))
                chain.end = position
        self.position = self.safe = position
        self.reason = start.reason
        await self.sink.done("start", self)

    async def write(self, batch: RecordBatch) -> int:
        self.sink.require(not self.abandoned, "a write after abandon")
        self.sink.require(batch.start == self.position, f"a batch from {batch.start}, expected {self.position}")
        await self.sink.before("write", self, batch)
        self.claim.check()
        self.sink.refuse(batch)
        if self.first_written_at is None:
            self.first_written_at = asyncio.get_running_loop().time()
        self.pending.append(batch)
        self.position = batch.next_offset
        if not self.sink.buffered:
            self._land()
        assert self.safe is not None
        return self.safe

    async def flush(self) -> int:
        self.sink.require(not self.abandoned, "a flush after abandon")
        await self.sink.before("flush", self, None)
        self.claim.check()
        self._land()
        await self.sink.done("flush", self)
        assert self.safe is not None
        return self.safe

    def deadline(self) -> float | None:
        if self.first_written_at is None or not self.sink.buffered:
            return None
        return self.first_written_at + self.sink.roll_s

    def drop(self) -> None:
        """Forget what is not safe, as after a file that failed in the middle."""
        self.pending.clear()
        self.position = self.safe
        self.first_written_at = None

    async def abandon(self) -> None:
        await self.sink.before("abandon", self, None)
        self.abandoned = True
        self.pending.clear()
        self.sink.open_writers[self.partition] -= 1

    def _land(self) -> None:
        landed = self.sink.landed[self.partition]
        for batch in self.pending:
            landed.offsets.extend(batch.offsets)
            landed.gaps.extend(batch.gaps)
        self.pending.clear()
        self.first_written_at = None
        if self.already_landed is not None:
            self.position, self.already_landed = self.already_landed, None
        self.safe = self.position
        if self.sink.keeps_chains:
            landed.end = self.position


Trap = Callable[[str, FakeWriter, RecordBatch | None], Awaitable[None]]


class FakeSink:
    """A sink; ``trap`` is awaited before each step of a writer and may wait or raise, ``after`` after start and flush."""

    def __init__(self, *, buffered: bool = False, keeps_chains: bool = False, roll_s: float = 60.0) -> None:
        self.buffered = buffered
        self.keeps_chains = keeps_chains
        self.roll_s = roll_s
        self.landed: dict[TopicPartition, Landed] = defaultdict(Landed)
        self.writers: list[FakeWriter] = []
        self.open_writers: dict[TopicPartition, int] = defaultdict(int)
        self.trap: Trap | None = None
        self.after: Callable[[str, FakeWriter], Awaitable[None]] | None = None
        self.open_faults: list[Exception] = []
        self.violations: list[str] = []
        self.poison: set[int] = set()
        """Offsets of records that are never taken."""

    def refuse(self, batch: RecordBatch) -> None:
        """Raise for the first record that is poison, or for one whose headers cannot be read."""
        for row, offset in enumerate(batch.offsets):
            if offset in self.poison:
                raise PermanentSinkError("no such schema", refused=row)
        list(batch.records())

    def require(self, holds: bool, what: str) -> None:
        """Note a breach of the contract of sinks; the rig reports it at the end, whatever the pipeline made of it."""
        if not holds:
            self.violations.append(what)

    async def open(self, claim: Claim) -> FakeWriter:
        await asyncio.sleep(0)
        if self.open_faults:
            raise self.open_faults.pop(0)
        self.require(self.open_writers[claim.partition] == 0, "two writers of one partition are open at a time")
        self.open_writers[claim.partition] += 1
        writer = FakeWriter(self, claim)
        self.writers.append(writer)
        return writer

    async def before(self, step: str, writer: FakeWriter, batch: RecordBatch | None) -> None:
        await asyncio.sleep(0)
        if self.trap is not None:
            await self.trap(step, writer, batch)

    async def done(self, step: str, writer: FakeWriter) -> None:
        if self.after is not None:
            await self.after(step, writer)

    async def close(self) -> None:
        pass


def make_deliveries(
    *,
    route: Callable[[TopicPartition], SinkRoute],
    feeds: FeedSource,
    store: FakeStore,
    ranges: LogRanges,
    hooks: Hooks | None = None,
) -> Deliveries:
    """Return deliveries with default settings among fakes, without a quarantine.

    Time is the running loop's. A claim that is given up and a sink that closes raise AssertionError.
    """
    return Deliveries(
        route=route,
        feeds=feeds,
        store=store,
        ranges=ranges,
        history=FakeBrokers(),
        requests=FakeRequests(store),
        truncations=FakeTruncations(),
        quarantine=None,
        settings=DeliverySettings(),
        reports=DeliveryReports(lost=_refuse_report, sink_closed=_refuse_report),
        hooks=hooks or Hooks(),
        now=asyncio.get_running_loop().time,
        random=lambda: 0.5,
    )


def _refuse_report(*report: object) -> None:
    raise AssertionError(f"delivery gave up: {report}")


class RecordingHooks(Hooks):
    """Remembers what delivery told, as (event, arguments)."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def named(self, name: str) -> list[tuple[object, ...]]:
        """Return the arguments of each event of that name."""
        return [event[1:] for event in self.events if event[0] == name]

    def trouble(self, kind: Trouble, detail: str, partition: TopicPartition | None = None) -> None:
        self.events.append(("trouble", kind, partition))

    def batches_landed(self, sink: str, timestamps_ms: Sequence[int]) -> None:
        self.events.append(("batches_landed", sink, *timestamps_ms))

    def gap_recorded(self, partition: TopicPartition, gap: Gap, *, requested: bool) -> None:
        self.events.append(("gap_recorded", partition, gap))
        if requested:
            self.events.append(("gap_requested", partition, gap))

    def committed_behind(self, partition: TopicPartition, *, committed: int, landed: int) -> None:
        self.events.append(("committed_behind", partition, committed, landed))

    def unit_passed(self, partition: TopicPartition, *, cause: str, kept: bool) -> None:
        self.events.append(("unit_passed", partition, cause, kept))

    def position_reset(self, partition: TopicPartition, *, before: int, after: int, reason: str) -> None:
        self.events.append(("position_reset", partition, before, after, reason))

    def sink_failed(self, partition: TopicPartition, sink: str, *, retriable: bool) -> None:
        self.events.append(("sink_failed", partition, retriable))

    def partition_stopped(self, partition: TopicPartition, reason: str) -> None:
        self.events.append(("partition_stopped", partition, reason))

    def partition_resumed(self, partition: TopicPartition) -> None:
        self.events.append(("partition_resumed", partition))

    def partition_released(self, partition: TopicPartition) -> None:
        self.events.append(("partition_released", partition))

    def offset_committed(self, partition: TopicPartition, position: int) -> None:
        self.events.append(("offset_committed", partition, position))

    def commit_failed(self, partition: TopicPartition, error: str) -> None:
        self.events.append(("commit_failed", partition, error))

    def foreign_commit(self, partition: TopicPartition, position: int) -> None:
        self.events.append(("foreign_commit", partition, position))


class DeliveryRig:
    """Deliveries among fakes. ``async with`` runs them; leaving cancels them and checks that nothing is left behind.

    ``destination`` takes the place of the fake sink, ``feeds`` and ``ranges`` those of the fake brokers. ``beside`` is
    another member of the same group.
    """

    def __init__(
        self,
        *,
        sink: FakeSink | None = None,
        settings: DeliverySettings | None = None,
        batch: int = 10,
        on_rejected: UnitPolicy = "stop",
        quarantine: bool = True,
        destination: Sink | None = None,
        beside: DeliveryRig | None = None,
        feeds: FeedSource | None = None,
        ranges: LogRanges | None = None,
    ) -> None:
        self.sink = sink or FakeSink()
        self.on_rejected = on_rejected
        self._destination = destination or self.sink
        self.brokers: FakeBrokers = FakeBrokers(batch) if beside is None else beside.brokers
        self.store: FakeStore = FakeStore() if beside is None else beside.store
        self.requests: FakeRequests = FakeRequests(self.store) if beside is None else beside.requests
        self.truncations: FakeTruncations = FakeTruncations() if beside is None else beside.truncations
        self.quarantine = FakeQuarantine()
        self._feeds = feeds or self.brokers
        self._ranges = ranges or self.brokers
        self._with_quarantine = quarantine
        self.hooks = RecordingHooks()
        self.claims: dict[TopicPartition, FakeClaim] = {}
        self.charged = 0
        self.losses: list[tuple[Claim, ConsumerdError]] = []
        self.closings: list[SinkClosed] = []
        self.settings = settings or DeliverySettings(commit_interval_ms=1000)
        self.deliveries = self._make()
        self._task: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()

    def _make(self) -> Deliveries:
        return Deliveries(
            route=lambda _: SinkRoute(
                name="fake", sink=self._destination, on_rejected=self.on_rejected, charge=self._charge
            ),
            feeds=self._feeds,
            store=self.store,
            ranges=self._ranges,
            history=self.brokers,
            requests=self.requests,
            truncations=self.truncations,
            quarantine=self.quarantine if self._with_quarantine else None,
            settings=self.settings,
            reports=DeliveryReports(
                lost=lambda claim, error: self.losses.append((claim, error)),
                sink_closed=self.closings.append,
            ),
            hooks=self.hooks,
            now=lambda: asyncio.get_running_loop().time(),
            random=lambda: 0.0,
        )

    def _charge(self, size: int) -> None:
        self.charged += size

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._task = self._group.create_task(self.deliveries.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._group.__aexit__(None, None, None)
        self.assert_clean()

    def assert_clean(self) -> None:
        """Check that every writer was abandoned, every feed closed and every batch given back."""
        assert not self.sink.violations
        assert not any(self.sink.open_writers.values())
        if not self.deliveries.statuses:
            assert not any(self.requests.watchers.values())
        assert all(feed.closed and not feed.out for feed in self.brokers.feeds)

    async def claim(self, partition: TopicPartition, epoch: int = 1, incarnation: int = TOPIC_CZXID) -> FakeClaim:
        """Claim a partition."""
        claim = self.claims[partition] = FakeClaim(partition, epoch, incarnation)
        await self.deliveries.claimed([claim])
        return claim

    def log(self, partition: TopicPartition, earliest: int = 0, latest: int = 0) -> FakeLog:
        """Give a partition its log."""
        self.brokers.logs[partition] = FakeLog(earliest, latest)
        return self.brokers.logs[partition]

    def status(self, partition: TopicPartition) -> PartitionStatus:
        """Return a partition's status."""
        return next(status for status in self.deliveries.statuses if status.partition == partition)

    def landed(self, partition: TopicPartition) -> list[int]:
        """Return the offsets that are safe at the sink, in order."""
        return self.sink.landed[partition].offsets


async def until(condition: Callable[[], object], *, within_s: float = 600.0) -> None:
    """Wait, on virtual time, until a condition holds."""
    async with timeout(within_s):
        while not condition():  # noqa: ASYNC110 - virtual time: polling costs nothing and disturbs nothing
            await asyncio.sleep(0.01)
