# SPDX-License-Identifier: Apache-2.0
"""When a fetch is answered, and with how much: the broker's side of ``max_wait_ms``, ``min_bytes`` and ``max_bytes``."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from consumerd.embedded.faults import BrokerFaults, FillableFiles
from consumerd.embedded.handlers import fetch
from consumerd.embedded.handlers.context import Hangup, RequestContext
from consumerd.embedded.handlers.fetch import FetchHandler
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.long_polls import LongPolls
from consumerd.embedded.reply import FileResponse
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.modern.conversion import convert_down
from consumerd.wire.modern.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from consumerd.wire.records import NewRecord
from tests.support import virtual_time
from tests.support.broker_script import records
from tests.support.served_logs import FolderTopics

UNIT = records(2)
T0, T1 = (TopicPartition.modern("t", number) for number in range(2))


class BrittleFiles(FillableFiles):
    """Files of which one read fails."""

    def __init__(self) -> None:
        super().__init__()
        self.spare: int | None = None
        self._error: Exception = OSError()

    def fail_after(self, spare: int, error: Exception) -> None:
        """Let the read fail that comes after ``spare`` others; then they are in order again."""
        self.spare, self._error = spare, error

    def read(self, descriptor: int, position: int, size: int) -> bytes:
        """See LogFiles."""
        if self.spare == 0:
            self.spare = None
            raise self._error
        if self.spare is not None:
            self.spare -= 1
        return super().read(descriptor, position, size)


class Bench:
    """A handler over two empty logs; what is appended is told as the broker tells it."""

    def __init__(self, directory: Path, files: FillableFiles | None = None) -> None:
        self.faults = BrokerFaults()
        if files is not None:
            self.faults.files = files
        self.topics = FolderTopics(directory, self.faults, LogSettings())
        self.topics.add("t", 2)
        self.polls = LongPolls()
        self.hangup = Hangup()
        self.handler = FetchHandler(self.topics, self.polls, self.faults)

    def append(self, partition: TopicPartition = T0, record_set: bytes = UNIT) -> None:
        """Append and tell."""
        log = self.topics.find_log(partition)
        assert log is not None
        log.append(record_set)
        self.polls.grown(partition, len(record_set))

    def fetch(
        self, request: FetchRequest, *steps: Callable[[], None], version: int = 5, converts: bool = False
    ) -> tuple[float, list[FetchedPartition]]:
        """Return when it was answered, a step having been taken each second, and what with.

        What ``converts`` does so in a thread, in real time.
        """

        async def main() -> tuple[float, list[FetchedPartition]]:
            loop = asyncio.get_running_loop()
            began = loop.time()
            for number, step in enumerate(steps, 1):
                loop.call_later(number, step)
            context = RequestContext(version=version, client_id=None, peer_host="", hangup=self.hangup)
            answer = await self.handler(request, context)
            assert isinstance(answer, FileResponse)
            response = answer.response
            assert isinstance(response, FetchResponse)
            for owner in answer.owners:
                owner.close()
            return round(loop.time() - began), [one for topic in response.topics for one in topic.partitions]

        return asyncio.run(main()) if converts else virtual_time.run(main())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return one."""
    bench = Bench(tmp_path)
    yield bench
    bench.topics.close()


def ask(
    *offsets: int, wait_s: float = 30, min_bytes: int = 1, max_bytes: int = 1 << 20, limit: int = 1 << 20
) -> FetchRequest:
    """Ask for the first partitions of ``t`` from these offsets on."""
    partitions = tuple(
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=limit)
        for number, offset in enumerate(offsets)
    )
    return FetchRequest(
        max_wait_ms=int(wait_s * 1000),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=(FetchTopic(topic="t", partitions=partitions),),
    )


def sizes(partitions: list[FetchedPartition]) -> list[int]:
    """Return how many bytes each has."""
    return [len(one.record_set or b"") for one in partitions]


def test_answers_when_the_first_records_come(bench: Bench) -> None:
    """And not before: a consumer at the end costs one request for each wait."""
    assert (2, [0, len(UNIT)]) == _when(bench.fetch(ask(0, 0), lambda: None, lambda: bench.append(T1)))


def test_waits_for_as_many_bytes_as_are_asked_for(bench: Bench) -> None:
    """What was there before counts, and what comes to any of the partitions."""
    bench.append(T0)
    steps = [lambda: bench.append(T1), lambda: bench.append(T0)]
    assert (2, [2 * len(UNIT), len(UNIT)]) == _when(bench.fetch(ask(0, 0, min_bytes=3 * len(UNIT)), *steps))


def test_answers_with_what_there_is_when_the_time_is_over(bench: Bench) -> None:
    """A client that wants much does not wait for ever."""
    answer = bench.fetch(ask(0, min_bytes=1 << 19), bench.append)
    assert (30, [len(UNIT)]) == _when(answer)


@pytest.mark.parametrize(
    "request_", [ask(0, wait_s=0), ask(0, min_bytes=0), FetchRequest(max_wait_ms=9000, min_bytes=1, topics=())]
)
def test_answers_at_once_who_does_not_want_to_wait(request_: FetchRequest, bench: Bench) -> None:
    """No time, no bytes, or nothing that could come."""
    assert 0 == bench.fetch(request_)[0]


def test_answers_at_once_where_any_partition_fails(bench: Bench) -> None:
    """The client has to do something about it; the others' records come along."""
    bench.append(T1)
    when, (beyond, good) = bench.fetch(ask(7, 0, min_bytes=1 << 19))
    assert (0, ErrorCode.OFFSET_OUT_OF_RANGE, -1, b"") == (
        when,
        beyond.error_code,
        beyond.high_watermark,
        beyond.record_set,
    )
    assert (0, 3, len(UNIT)) == (good.error_code, good.high_watermark, len(good.record_set or b""))


def test_answers_when_its_peer_goes_or_the_leader_changes(bench: Bench) -> None:
    """Neither of the two will be served by waiting on."""
    when, (moved,) = bench.fetch(ask(0), lambda: None, lambda: _move(bench))
    assert (2, ErrorCode.NOT_LEADER_OR_FOLLOWER) == (when, moved.error_code)
    bench.faults.clear()
    assert 1 == bench.fetch(ask(0), bench.hangup.happen)[0]


def test_whole_answer_is_bounded_in_the_order_asked_for(bench: Bench) -> None:
    """The first unit comes whole whatever the bound; what does not fit behind it is left to the next request."""
    for partition in (T0, T0, T1):
        bench.append(partition)
    one = len(UNIT)
    assert [one, 0] == sizes(bench.fetch(ask(0, 0, max_bytes=10))[1])
    assert [one + 10, 0] == sizes(bench.fetch(ask(0, 0, max_bytes=one + 10))[1])
    assert [2 * one, 0] == sizes(bench.fetch(ask(0, 0, max_bytes=2 * one + 10))[1])
    assert [2 * one, one] == sizes(bench.fetch(ask(0, 0, max_bytes=3 * one))[1])
    assert [0, one] == sizes(bench.fetch(ask(6, 0, max_bytes=10))[1])


def test_unit_above_the_limit_never_comes_whole_in_old_versions(bench: Bench) -> None:
    """Their clients see by the size how much more to ask for; version 3 brought the whole unit."""
    # stored as it is: magic 0 is what version 0 reads
    bench.topics.add("old", 1, LogSettings(message_format=0))
    log = bench.topics.find_log(TopicPartition.modern("old", 0))
    assert log is not None
    log.append(records(0))
    one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=(FetchTopic(topic="old", partitions=(one,)),))
    assert [10] == sizes(bench.fetch(request, version=2)[1])
    assert [log.size_bytes // 3] == sizes(bench.fetch(request, version=3)[1])


def test_does_not_wait_at_the_end_of_an_older_segment(bench: Bench) -> None:
    """An answer ends with its segment; what would make up ``min_bytes`` is in the next one already, and grows no more."""
    bench.topics.add("rolled", 1, LogSettings(segment_bytes=len(UNIT)))
    log = bench.topics.find_log(TopicPartition.modern("rolled", 0))
    assert log is not None
    for _ in range(3):
        log.append(UNIT)
    one = FetchPartition(partition=0, fetch_offset=3, partition_max_bytes=1 << 20)
    older = FetchRequest(
        max_wait_ms=30_000, min_bytes=2 * len(UNIT), topics=(FetchTopic(topic="rolled", partitions=(one,)),)
    )
    newest = replace(older, topics=(FetchTopic(topic="rolled", partitions=(replace(one, fetch_offset=6),)),))
    assert (0, [len(UNIT)]) == _when(bench.fetch(older))
    assert (30, [len(UNIT)]) == _when(bench.fetch(newest))


def test_unit_that_does_not_fit_counts_among_the_bytes_that_are_there(bench: Bench) -> None:
    """Waiting would not make it any smaller; it comes whole once its partition is the first that has something."""
    bench.append(T0)
    bench.append(T1, records(2, size=1000))
    assert (0, [len(UNIT), 0]) == _when(bench.fetch(ask(0, 0, min_bytes=len(UNIT) + 100, limit=len(UNIT) + 50)))


def test_what_may_have_to_be_converted_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes memory, whatever the client has asked for; the rest is there for the next request."""
    three = len(convert_down(UNIT, magic=1, start=0)) * 3
    monkeypatch.setattr(fetch, "_MAX_CONVERTED_BYTES", three)
    for _ in range(9):
        bench.append(T0)
        bench.append(T1)
    assert [three, 0] == sizes(bench.fetch(ask(0, 0), version=2, converts=True)[1])
    assert [9 * len(UNIT), 9 * len(UNIT)] == sizes(bench.fetch(ask(0, 0), version=4)[1])


def test_what_was_converted_is_bounded_though_it_has_grown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a few bytes take several times as many in the older formats."""
    unit = build_record_set([NewRecord(value=None, timestamp=0) for _ in range(50)], magic=2)
    grown = len(convert_down(unit, magic=0, start=0))
    assert grown > 2.5 * len(unit)
    for _ in range(9):
        bench.append(T0, unit)
        bench.append(T1, unit)
    monkeypatch.setattr(fetch, "_MAX_CONVERTED_BYTES", 4 * grown + 10)
    assert [4 * grown, 0] == sizes(bench.fetch(ask(0, 0), version=0, converts=True)[1])
    monkeypatch.setattr(fetch, "_MAX_CONVERTED_BYTES", len(unit))
    assert [grown, 0] == sizes(bench.fetch(ask(0, 0), version=0, converts=True)[1]), "one unit, or it would never come"


@pytest.mark.parametrize("version", [0, 3, 5])
def test_disk_that_fails_at_any_read_fails_that_partition_alone(version: int, tmp_path: Path) -> None:
    """Old clients take it for a leader that has moved (KIP-112); what the other partition has comes along."""
    files = BrittleFiles()
    bench = Bench(tmp_path, files)
    bench.append(T0)
    bench.append(T1)
    # above its limit, so that it is looked at whether the unit of the second one is whole
    request = ask(0, 0, wait_s=0, limit=len(UNIT) - 1)
    answers = []
    for spare in range(20):
        files.fail_after(spare, OSError(errno.EIO, os.strerror(errno.EIO)))
        answers.append([one.error_code for one in bench.fetch(request, version=version, converts=True)[1]])
        if files.spare is not None:
            break
    moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [moved, 0] == answers[0]
    assert [0, 0] == answers[-1]
    assert [0, moved] in answers
    assert all(answer.count(moved) == 1 for answer in answers[:-1])
    bench.topics.close()
    assert 0 == _open_below(tmp_path)


def test_nothing_stays_open_behind_a_fault_of_our_own(tmp_path: Path) -> None:
    """The partitions in front of it have been read by then."""
    files = BrittleFiles()
    bench = Bench(tmp_path, files)
    bench.append(T0)
    bench.append(T1)
    request = ask(0, 0, wait_s=0, limit=len(UNIT) - 1)
    failures = 0
    for spare in range(20):
        files.fail_after(spare, ZeroDivisionError())
        try:
            bench.fetch(request, version=2, converts=True)
        except ZeroDivisionError:
            failures += 1
        else:
            break
    bench.topics.close()
    assert failures > 2
    assert 0 == _open_below(tmp_path)


def test_nothing_stays_open_when_all_is_answered(bench: Bench, tmp_path: Path) -> None:
    """Slices hold files open, whatever became of the request."""
    bench.append()
    before = _open_below(tmp_path)
    for request in (ask(0), ask(0, 9), ask(0, min_bytes=1 << 19, wait_s=1), ask(0, 0, max_bytes=1)):
        bench.fetch(request)
    # a slice that somebody holds keeps its file open beyond the log's end
    bench.topics.close()
    assert (2, 0, 0) == (before, _open_below(tmp_path), bench.polls.waiting)


def _open_below(folder: Path) -> int:
    links = [_target(one) for one in Path("/proc/self/fd").iterdir()]
    return sum(link is not None and link.startswith(f"{folder}/") and link.endswith(".log") for link in links)


def _target(link: Path) -> str | None:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # the descriptor of this very listing
        return None


def _move(bench: Bench) -> None:
    bench.faults.subscribe(bench.polls.disturb)
    bench.faults.pretend_leader(T0, BrokerId(5))


def _when(answer: tuple[float, list[FetchedPartition]]) -> tuple[float, list[int]]:
    return answer[0], sizes(answer[1])
