# SPDX-License-Identifier: Apache-2.0
"""A fetcher through any sequence of misfortunes: every record once and in order, and all memory given back."""

import asyncio
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.aio.timeouts import timeout
from consumerd.errors import CorruptMessageError
from consumerd.fetch.buffer import MemoryBudget
from consumerd.fetch.feed import PartitionFeed
from consumerd.fetch.ports import FetchSettings
from consumerd.model import BrokerId, TopicPartition
from tests.support.fake_broker import FakeCluster
from tests.support.fetching_in_memory import fetching_from
from tests.support.virtual_time import run

pytestmark = pytest.mark.records

PARTITIONS = [TopicPartition.modern("t", number) for number in range(3)]
RECORDS = 60
BROKERS = 2


@dataclass(frozen=True)
class Misfortune:
    """What happens after a while, to which partition or broker."""

    after_ms: int
    kind: str
    which: int
    code: int


MISFORTUNES = st.builds(
    Misfortune,
    after_ms=st.integers(0, 800),
    kind=st.sampled_from(["error", "move", "move unseen", "kill", "start", "session", "response error", "corrupt"]),
    which=st.integers(0, 5),
    code=st.sampled_from([-1, 1, 3, 5, 6, 9, 56, 74, 99]),
)


class Ordeal:
    """One run: producers and consumers beside the misfortunes."""

    def __init__(self, *, version: int, budget: int, ask: int, seed: int) -> None:
        self.cluster = FakeCluster(brokers=BROKERS, version=version)
        self.budget = MemoryBudget(budget)
        # slices so large that nothing is decoded in a thread, which would take real time
        self.settings = FetchSettings(
            max_partition_bytes=ask, slice_bytes=1000, native_slice_bytes=1000, max_wait_ms=100, confirm_delay_s=0.2
        )
        self.random = random.Random(seed)
        self.corrupt_next = False
        self.highest = 0
        for number, broker in self.cluster.brokers.items():
            broker.mangle = self._mangle
            assert number == broker.broker.id
        for index, partition in enumerate(PARTITIONS):
            self.cluster.lead(partition, index % BROKERS)

    def _mangle(self, _partition: TopicPartition, data: bytes) -> bytes:
        if not self.corrupt_next:
            return data
        self.corrupt_next = False
        # of the first unit; no checksum covers its offset and its size
        at = self.random.randrange(12, 12 + int.from_bytes(data[8:12])) if len(data) > 12 else 0
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]

    async def run(self, misfortunes: list[Misfortune]) -> dict[TopicPartition, list[int]]:
        """Let everything happen; return the offsets that each partition's consumer saw."""
        running = fetching_from(self.cluster, self.budget, self.settings, random=self.random.random)
        async with timeout(300), running as fetcher, asyncio.TaskGroup() as group:
            feeds = [fetcher.feed(partition, 0) for partition in PARTITIONS]
            group.create_task(self._produce())
            group.create_task(self._suffer(misfortunes))
            readers = [group.create_task(self._consume(feed)) for feed in feeds]
            seen = {feed.partition: await reader for feed, reader in zip(feeds, readers, strict=True)}
            for feed in feeds:
                feed.close()
        return seen

    async def _produce(self) -> None:
        for number in range(RECORDS):
            for partition in PARTITIONS:
                self.cluster.produce(partition, b"x" * self.random.choice([1, 50, 200, 900]))
            if number % 5 == 4:
                await asyncio.sleep(self.random.random() / 10)

    async def _consume(self, feed: PartitionFeed) -> list[int]:
        offsets: list[int] = []
        while len(offsets) < RECORDS:
            try:
                async with timeout(self.random.choice([0, 0.001, 0.1, 5])):
                    batch = await feed.next()
            except TimeoutError:
                await asyncio.sleep(0.01)
                continue
            except CorruptMessageError:
                continue  # twice in a row, on the way; trying again is up to the consumer
            assert batch.start == (offsets[-1] + 1 if offsets else 0)
            offsets += batch.offsets
            await asyncio.sleep(self.random.choice([0, 0, 0, 0, 0, 0.02, 0.02, 1.2]))
            self.highest = max(self.highest, self.budget.held_bytes)
            feed.done(batch)
        return offsets

    async def _suffer(self, misfortunes: list[Misfortune]) -> None:
        for one in misfortunes:
            await asyncio.sleep(one.after_ms / 1000)
            self._happen(one)
        await asyncio.sleep(1)
        for broker in self.cluster.brokers.values():
            broker.start()
            broker.errors.clear()
        self.cluster.announce()

    def _happen(self, one: Misfortune) -> None:
        partition = PARTITIONS[one.which % len(PARTITIONS)]
        broker = self.cluster.brokers[BrokerId(one.which % BROKERS)]
        match one.kind:
            case "error":
                broker.errors[partition].append(one.code)
            case "move" | "move unseen":
                self.cluster.lead(partition, one.which % BROKERS, known=one.kind == "move")
            case "kill":
                broker.kill()
            case "start":
                broker.start()
            case "session":
                broker.drop_sessions()
            case "response error":
                broker.response_errors.append(71 if broker.version >= 7 else 0)
            case "corrupt":
                self.corrupt_next = True


@settings(max_examples=40, deadline=None)
@given(
    misfortunes=st.lists(MISFORTUNES, max_size=12),
    version=st.sampled_from([0, 2, 3, 4, 7, 11]),
    budget=st.sampled_from([2_000, 20_000, 1 << 20]),
    ask=st.sampled_from([300, 2_000, 1 << 20]),
    seed=st.integers(0, 1 << 16),
)
def test_every_record_is_delivered_once_and_in_order(
    misfortunes: list[Misfortune], version: int, budget: int, ask: int, seed: int
) -> None:
    """Moved leaders, dead brokers, any error, lost sessions, corruption on the way, cancelled waits, slow consumers."""
    ordeal = Ordeal(version=version, budget=budget, ask=ask, seed=seed)
    seen = run(ordeal.run(misfortunes))

    assert seen == {partition: list(range(RECORDS)) for partition in PARTITIONS}
    assert ordeal.budget.held_bytes == 0
