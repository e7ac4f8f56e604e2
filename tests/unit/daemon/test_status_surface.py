# SPDX-License-Identifier: Apache-2.0
"""What people and probes see: the page, the API, health, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from consumerd.aio.tasks import alongside
from consumerd.aio.timeouts import timeout
from consumerd.daemon.http import ConnectionAges, Document, make_application, make_runner, serve
from consumerd.daemon.page import render_page
from consumerd.daemon.readings import read_gauges
from consumerd.daemon.status import DaemonStatus, Moment, PartitionReport, RecentEvents, RequestStatus
from consumerd.errors import ConfigError
from consumerd.group.transitions import MemberState
from consumerd.model import Gap, GapReason, TopicPartition
from consumerd.telemetry.metrics import MetricsHooks, write_metrics
from consumerd.wire.errorcodes import broker_error
from consumerd.zk.port import LeasePhase
from tests.support import virtual_time
from tests.support.lag_probe import LagProbe

STATUS = DaemonStatus(
    version="0.1.0",
    kernel="native (CRC-32C: table)",
    loop="uvloop 0.21.0",
    uptime_s=75.0,
    ready=True,
    not_ready=(),
    group="lake",
    positions="zookeeper",
    consumer_id="lake_host-1-abc",
    state="owning",
    session_epoch=1,
    session_id="0x1",
    session_phase="fresh",
    members=2,
    desired=1,
    owned=1,
    partitions=(
        PartitionReport(
            topic="orders<script>",
            partition="0",
            sink="out",
            state="running",
            reason=None,
            since=Moment(ago_s=75.0, at="2024-05-01T00:00:00+00:00", timestamp_s=1_714_521_600.0),
            position=1234,
            acknowledged=1200,
            committed=None,
            high_watermark=1300,
            lag=66,
            lag_seconds=12.5,
            records_per_second=10.0,
        ),
    ),
    conflicts={"orders/1": "lake_other-0"},
    disagreements=(),
    missing_topics=(),
    rebalances=(),
    events=(),
    buffered_bytes={"fetched": 1048576, "sinks": 0},
    memory_budget_bytes=268435456,
)


def always(status: DaemonStatus) -> Callable[[], Awaitable[DaemonStatus]]:
    async def read() -> DaemonStatus:
        return status

    return read


@asynccontextmanager
async def served(
    status: DaemonStatus, registry: CollectorRegistry | None = None
) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, str]]]]:
    async with (
        serve(make_application(always(status), registry or CollectorRegistry()), "127.0.0.1", 0) as (host, port),
        aiohttp.ClientSession(f"http://{host}:{port}") as client,
    ):

        async def get(path: str) -> tuple[int, str]:
            async with client.get(path) as answer:
                return answer.status, await answer.text()

        yield get


async def test_readiness_says_why_not() -> None:
    """An orchestrator needs the code, a person the reason."""
    unready = replace(STATUS, ready=False, not_ready=("orders/1 is held by lake_other-0",))
    async with served(unready) as get:
        assert await get("/readyz") == (503, "orders/1 is held by lake_other-0\n")
        assert await get("/livez") == (200, "ok\n")
    async with served(STATUS) as get:
        assert await get("/readyz") == (200, "ok\n")


async def test_the_probe_names_partitions_in_trouble_and_stays_ready() -> None:
    """A roll-out waits for readiness. It must be able to bring what mends the partition."""
    stopped = replace(STATUS, problems=("orders/1 is stopped: the committed offset reads 'three'",))
    async with served(stopped) as get:
        assert await get("/readyz") == (200, "ok\norders/1 is stopped: the committed offset reads 'three'\n")
        assert "orders/1 is stopped: the committed offset reads &#x27;three&#x27;" in (await get("/"))[1]
    async with served(replace(stopped, ready=False, not_ready=("ZooKeeper does not answer",))) as get:
        code, text = await get("/readyz")
        assert (code, text.splitlines()[0]) == (503, "ZooKeeper does not answer")


@pytest.mark.parametrize("phase", LeasePhase)
def test_the_page_says_what_the_phase_of_the_session_means(phase: LeasePhase) -> None:
    """``fresh`` says nothing to whoever has not read the code."""
    page = render_page(replace(STATUS, session_phase=phase.value, members=1))
    assert re.search(rf"session 1 \(0x1\) is {phase.value}</dd><dd class=\"more\">[^<]{{10,}}</dd>", page)
    assert ">1 member<" in page


@pytest.mark.parametrize("state", MemberState)
def test_the_page_says_what_the_member_does(state: MemberState) -> None:
    """Nor does ``following``."""
    assert re.search(rf">{state.value}: [^<]{{6,}}</dd>", render_page(replace(STATUS, state=state.value)))


@pytest.mark.parametrize(("places", "said"), [("kafka", "in Kafka"), ("both", "in ZooKeeper and Kafka")])
def test_the_page_says_that_positions_are_in_kafka(places: str, said: str) -> None:
    """Less is promised there. Of ZooKeeper, the default, nothing is said."""
    assert said in render_page(replace(STATUS, positions=places))
    assert said not in render_page(STATUS)


def test_the_page_says_that_a_rebalance_runs() -> None:
    """Lag and partitions that are missing have a reason then."""
    badge = ">rebalancing<"

    assert badge not in render_page(STATUS)
    assert badge in render_page(replace(STATUS, desired=2))
    assert badge in render_page(replace(STATUS, state=MemberState.SETTLING.value))


def test_the_page_adds_up_what_partitions_tell() -> None:
    """A lag that is not known is not 0."""
    (one,) = STATUS.partitions
    several = (
        one,
        replace(one, partition="1", lag=2_000),
        replace(one, partition="2", lag=None, records_per_second=0.5),
    )
    page = render_page(replace(STATUS, partitions=several))

    assert '<dd class="main">2,066</dd><dd class="more">records, 1 unknown</dd>' in page
    assert "<dt>records/s</dt>" + '<dd class="main">20</dd>' in page
    assert '<dd class="main">1.0 of 256.0 MiB</dd>' in page
    assert "MiB: 1.0 fetched</dd>" in page
    assert "kernel: native (CRC-32C: table) &middot; loop: uvloop 0.21.0</footer>" in page


async def test_the_api_is_the_status() -> None:
    """Programs read what the page shows."""
    async with served(STATUS) as get:
        code, body = await get("/api/v1/status")

    assert code == 200
    assert json.loads(body)["partitions"][0]["lag"] == 66
    assert json.loads(body)["kernel"] == "native (CRC-32C: table)"
    assert json.loads(body)["loop"] == "uvloop 0.21.0"


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/status"])
async def test_thousands_of_partitions_do_not_hold_the_event_loop_up(path: str) -> None:
    """The lease in ZooKeeper depends on its turns. What counts is the processor time that the loop's own thread takes."""
    (one,) = STATUS.partitions
    registry = CollectorRegistry()
    hooks = MetricsHooks(registry)
    partitions = []
    for number in range(10_000):
        partitions.append(replace(one, topic=f"t{number // 100}", partition=str(number % 100)))
        partition = TopicPartition.modern(f"t{number // 100}", number % 100)
        hooks.batch_delivered(partition, records=number, size=1, position=1)
    async with served(replace(STATUS, partitions=tuple(partitions)), registry) as get, asyncio.TaskGroup() as tasks:
        probe = LagProbe()
        probing = tasks.create_task(probe.run())
        began = time.process_time()
        code, text = await get(path)
        spent = time.process_time() - began
        probing.cancel()

    assert code == 200
    assert all(what in text for what in ("t99", "t50"))
    if path == "/metrics":
        assert 'consumerd_lag_records{partition="99",topic="t99"} 66.0\n' in text
        assert 'consumerd_records_delivered_total{partition="99",topic="t99"} 9999.0\n' in text
    # on the loop, all of it would be one turn
    assert probe.longest < 0.7 * spent


def test_the_page_escapes_what_comes_from_outside() -> None:
    """Topics and members are named by others."""
    page = render_page(STATUS)

    assert "<script>" not in page
    assert "orders&lt;script&gt;" in page
    assert "1,234" in page
    assert "lake_other-0" in page


def test_an_empty_page_renders() -> None:
    """Before anything is owned."""
    page = render_page(replace(STATUS, partitions=(), conflicts={}, ready=False, not_ready=("no session",)))

    assert "not ready" in page
    assert "no session" in page


async def test_a_taken_port_names_the_setting() -> None:
    """The second daemon on a host."""
    async with serve(make_application(always(STATUS), CollectorRegistry()), "127.0.0.1", 0) as (host, port):
        with pytest.raises(ConfigError, match="listen"):
            async with serve(make_application(always(STATUS), CollectorRegistry()), host, port):
                pass


def test_rates_are_of_the_last_seconds() -> None:
    """An average since the start hides a stall."""
    now = [100.0]
    recent = RecentEvents(lambda: now[0])
    partition = TopicPartition.modern("orders", 0)
    for second in range(20):
        now[0] = 100.0 + second
        recent.batch_delivered(partition, records=50 if second >= 10 else 1000, size=1, position=1)
    steady = recent.rate(partition)
    now[0] += 60
    stalled = recent.rate(partition)

    assert 40 < steady < 150
    assert stalled == 0.0


def test_a_disagreement_is_remembered_after_it_is_over() -> None:
    """It may be gone when somebody looks, and explains what they see."""
    recent = RecentEvents(lambda: 0.0)
    recent.group_disagreed("unowned", "g_b: it has not claimed 2 partitions")

    assert [(one.kind, one.what) for one in recent.events()] == [
        ("members disagree", "unowned: g_b: it has not claimed 2 partitions")
    ]


def test_only_gaps_that_lose_something_are_events() -> None:
    """A compacted topic would drown the rest."""
    recent = RecentEvents(lambda: 0.0)
    partition = TopicPartition.modern("orders", 0)
    recent.gap_recorded(partition, Gap(0, 5, GapReason.COMPACTION), requested=False)
    recent.gap_recorded(partition, Gap(5, 9, GapReason.RETENTION), requested=False)

    assert [event.what for event in recent.events()] == ["orders/0: [5, 9) retention"]


def test_a_gap_that_an_operator_asked_for_is_told_as_such() -> None:
    """A reader of the page need not look for a policy that did it."""
    recent = RecentEvents(lambda: 0.0)
    recent.gap_recorded(TopicPartition.modern("orders", 0), Gap(5, 9, GapReason.RESET), requested=True)

    assert [event.what for event in recent.events()] == ["orders/0: [5, 9) reset, as an operator asked"]


def test_a_sink_that_fails_for_an_hour_is_one_event_until_it_works_again() -> None:
    """Tried again every few seconds, it would push everything else off the page."""
    recent = RecentEvents(lambda: 0.0)
    partition = TopicPartition.modern("orders", 0)
    for _ in range(2):
        for _ in range(500):
            recent.sink_failed(partition, "lake", retriable=True)
        recent.partition_resumed(partition)

    assert [("resumed", 2), ("sink failed", 2)] == [(event.kind, event.count) for event in recent.events()]


def test_a_unit_that_was_passed_over_is_remembered() -> None:
    """Somebody wants to look at it."""
    recent = RecentEvents(lambda: 0.0)
    partition = TopicPartition.modern("orders", 0)
    recent.unit_passed(partition, cause="corrupt", kept=True)
    recent.unit_passed(partition, cause="oversized", kept=False)

    assert [(event.kind, event.what) for event in reversed(recent.events())] == [
        ("unit quarantined", "orders/0: corrupt"),
        ("unit skipped", "orders/0: oversized"),
    ]


def test_a_topic_that_is_not_there_is_named() -> None:
    """A name that is misspelt looks like a topic without records."""
    assert "ordres" in render_page(replace(STATUS, missing_topics=("ordres",)))


def test_positions_that_moved_are_remembered() -> None:
    """Records were passed over or repeated by a policy, or somebody else interferes: a person must be able to see it."""
    recent = RecentEvents(lambda: 0.0)
    partition = TopicPartition.modern("orders", 0)
    recent.position_reset(partition, before=500, after=50, reason="on_above")
    recent.committed_behind(partition, committed=5, landed=50)
    recent.foreign_commit(partition, 60)

    assert [(one.kind, one.what) for one in reversed(recent.events())] == [
        ("position reset", "orders/0: from 500 to 50 (on_above)"),
        ("committed behind", "orders/0: 5 was committed, 50 had landed"),
        ("foreign commit", "orders/0: somebody else wrote its position; 60 was written over it"),
    ]


def test_requests_that_wait_are_on_the_page_and_in_the_api():
    """Whoever asked, or has the pager now, must see that nobody has done it yet."""
    request = RequestStatus(
        topic="orders",
        partition="3",
        position=4711,
        new_chain=True,
        author="<ops>@desk",
        asked="2024-05-01T00:00:00+00:00",
    )

    page = render_page(replace(STATUS, requests=(request,)))

    assert "requests that wait" in page
    for shown in ("orders/3", "4,711", "in a new chain", "&lt;ops&gt;@desk", "2024-05-01T00:00:00+00:00"):
        assert shown in page
    assert "requests that wait" not in render_page(STATUS)


def test_the_page_says_how_much_of_the_group_is_here() -> None:
    """Two of the group's four partitions look like all of them where only ours are counted."""
    page = render_page(replace(STATUS, desired=2, owned=2, group_partitions=4))

    assert "2 of the group's 4 partitions here" in page


def test_the_page_and_the_series_say_how_long_ago_things_happened() -> None:
    """A position that has not moved for an hour looks like one that has just moved."""
    clock = [1000.0, 1_714_521_600.0]
    recent = RecentEvents(lambda: clock[0], lambda: clock[1])
    partition = TopicPartition.modern("orders", 0)
    recent.batch_delivered(partition, records=5, size=1, position=5)
    clock[0] += 60
    clock[1] -= 3600  # the calendar was set back: ages go by the other clock
    recent.offset_committed(partition, 5)
    recent.file_published("lake", name="topic=orders/x.parquet", records=5, size=1 << 20)
    recent.file_published("lake", name="topic=orders/y<.parquet", records=6, size=1 << 20)
    recent.open_files_changed("lake", 3)
    recent.batches_landed("lake", [1_714_517_000_000, 1_714_517_910_000])
    recent.batches_landed("lake", [])  # of records without timestamps
    clock[0] += 15
    (one,) = STATUS.partitions
    one = replace(one, last_progress=recent.last_progress(partition), last_commit=recent.last_commit(partition))
    lake = recent.describe_sink(
        "lake", partitions=1, unacknowledged=7, buffered_bytes=12 << 20, memory_budget_bytes=64 << 20, held_up=True
    )
    status = replace(STATUS, partitions=(one,), sinks=(lake,))
    page = render_page(status)
    readings = {(reading.gauge.name, *reading.labels): reading.value for reading in read_gauges(status)}
    of_the_partition = ("orders<script>", "0")

    assert all(shown in page for shown in (">75 s ago<", ">15 s ago<", "15 s ago, 2024-04-30T23:00:00+00:00"))
    assert (lake.files, lake.records, lake.bytes, lake.last_name) == (2, 11, 2 << 20, "topic=orders/y<.parquet")
    assert "topic=orders/y&lt;.parquet" in page
    assert lake.open_files == 3
    assert lake.landing_delay_s == 90.0, "of the newest batch"
    assert ">90 s<" in page
    assert readings["consumerd_last_progress_timestamp_seconds", *of_the_partition] == 1_714_521_600.0
    assert readings["consumerd_last_commit_timestamp_seconds", *of_the_partition] == 1_714_518_000.0
    assert readings["consumerd_last_file_timestamp_seconds", "lake"] == 1_714_518_000.0
    assert readings["consumerd_sink_unacknowledged_offsets", "lake"] == 7
    assert readings["consumerd_sink_held_up", "lake"] == 1
    assert "fetching waits" in page
    assert readings["consumerd_lag_seconds", *of_the_partition] == 12.5


@pytest.mark.parametrize(
    ("state", "stopped_s", "failing_s"), [("running", 0, 0), ("stopped", 75, 0), ("failing", 0, 75)]
)
def test_how_long_a_partition_is_stopped_or_fails_is_a_gauge_of_its_own(
    state: str, stopped_s: float, failing_s: float
) -> None:
    """Alerts are about partitions: a number of stopped ones does not say which."""
    (one,) = STATUS.partitions
    status = replace(STATUS, partitions=(replace(one, state=state),))
    readings = {(reading.gauge.name, *reading.labels): reading.value for reading in read_gauges(status)}

    assert readings["consumerd_partition_stopped_seconds", one.topic, one.partition] == stopped_s
    assert readings["consumerd_partition_failing_seconds", one.topic, one.partition] == failing_s
    assert readings["consumerd_info", STATUS.group, STATUS.version] == 1


def test_what_has_not_happened_has_no_time() -> None:
    """1970 would look like a commit that is 50 years old."""
    recent = RecentEvents(lambda: 0.0, lambda: 0.0)
    partition = TopicPartition.modern("orders", 0)
    recent.batch_delivered(partition, records=5, size=1, position=5)
    recent.offset_committed(partition, 5)
    recent.partition_released(partition)
    lake = recent.describe_sink(
        "lake", partitions=0, unacknowledged=0, buffered_bytes=12 << 20, memory_budget_bytes=64 << 20, held_up=True
    )
    names = {reading.gauge.name for reading in read_gauges(replace(STATUS, sinks=(lake,)))}

    assert recent.last_progress(partition) is None
    assert recent.last_commit(partition) is None
    assert not any("timestamp" in name for name in names)


async def test_the_api_tells_times_as_ages_and_as_dates() -> None:
    """Programs compare ages; people read dates."""
    recent = RecentEvents(lambda: 5.0, lambda: 1_714_521_600.0)
    recent.file_published("lake", name="topic=orders/x.parquet", records=5, size=10)
    lake = recent.describe_sink(
        "lake", partitions=1, unacknowledged=0, buffered_bytes=12 << 20, memory_budget_bytes=64 << 20, held_up=True
    )
    async with served(replace(STATUS, sinks=(lake,), group_partitions=4)) as get:
        _, body = await get("/api/v1/status")
    status = json.loads(body)

    assert status["group_partitions"] == 4
    assert status["partitions"][0]["lag_seconds"] == 12.5
    assert status["sinks"][0]["landing_delay_s"] is None
    assert status["sinks"][0]["last_file"] == {
        "ago_s": 0.0,
        "at": "2024-05-01T00:00:00+00:00",
        "timestamp_s": 1_714_521_600.0,
    }


# -- bounds


@asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect, and close at the end."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_clients_that_say_nothing_keep_nobody_out() -> None:
    """They held every descriptor of the process; now the oldest connections make way."""
    closed = 0
    async with (
        serve(make_application(always(STATUS), CollectorRegistry()), "127.0.0.1", 0) as (host, port),
        AsyncExitStack() as stack,
    ):
        silent = [await stack.enter_async_context(connected(host, port)) for _ in range(200)]
        reader, writer = await stack.enter_async_context(connected(host, port))
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in await reader.readline()
        for reader, _ in silent[:100]:
            with contextlib.suppress(ConnectionError):
                assert b"" == await reader.read(1)
            closed += 1
    assert 100 == closed


async def test_headers_that_never_end_are_refused() -> None:
    """Not collected."""
    async with (
        serve(make_application(always(STATUS), CollectorRegistry()), "127.0.0.1", 0) as (host, port),
        connected(host, port) as (reader, writer),
    ):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 5000 + b"\r\n")
        assert b"400 Bad Request" in await reader.readline()


class AgingConnection:
    """A connection whose answer is never taken."""

    def __init__(self) -> None:
        self.transport = self
        self.cut: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def abort(self) -> None:
        """End at once."""
        self.cut.set_result(asyncio.get_running_loop().time())


def test_connections_are_cut_off_by_age_if_their_answer_is_not_taken() -> None:
    """A client that reads nothing holds what it asked for, and a descriptor."""

    async def age() -> float:
        held = AgingConnection()
        server = SimpleNamespace(connections=[held])
        async with alongside(ConnectionAges().cut_older(cast("web.Server", server)), name="sweep"):
            return await held.cut

    assert virtual_time.run(age()) == 75


class ScraperConnection(asyncio.Transport):
    """A connection that a scraper keeps: what the server writes, and whether it has closed it."""

    def __init__(self, server: web.Server) -> None:
        super().__init__()
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended = False
        self._protocol = server()
        self._protocol.connection_made(self)

    async def scrape(self) -> bytes:
        """Ask, and return what comes, or raise TimeoutError as a scraper does after 10 s."""
        self._protocol.data_received(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        async with timeout(10):
            answer = await self.answers.get()
            while not answer.endswith(b"ok\n"):
                answer += await self.answers.get()
        return answer

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep what is sent."""
        self.answers.put_nowait(bytes(data))

    def is_closing(self) -> bool:
        """Say whether the server has closed it."""
        return self.ended

    def close(self) -> None:
        """End it, as the server says."""
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close


@pytest.mark.parametrize("interval_s", [5, 10, 15, 20, 25, 29])
def test_a_scraper_that_keeps_its_connection_is_always_answered(interval_s: int) -> None:
    """Each fifth scrape of every 15 s came on a connection that was closed by age, and was left unanswered."""

    async def scrape_for_ten_minutes() -> int:
        ages = ConnectionAges()
        runner = make_runner(make_application(always(STATUS), CollectorRegistry()), ages)
        await runner.setup()
        assert runner.server is not None
        connections = [ScraperConnection(runner.server)]
        async with alongside(ages.cut_older(runner.server), name="sweep"):
            for _ in range(600 // interval_s):
                announced = b"Connection: close" in await connections[-1].scrape()
                await asyncio.sleep(interval_s)
                assert announced == connections[-1].ended, "a scraper is told before its connection ends"
                if announced:
                    connections.append(ScraperConnection(runner.server))
        await runner.cleanup()
        return len(connections)

    assert 5 <= virtual_time.run(scrape_for_ten_minutes()) <= 20, "each lasts a minute or so"


async def test_scrapers_that_wait_at_the_same_time_share_a_document() -> None:
    """Twenty eager ones had twenty threads write the same, and made the loop late."""
    begun: list[DaemonStatus] = []
    release = asyncio.Event()

    async def status() -> DaemonStatus:
        begun.append(STATUS)
        await release.wait()
        return STATUS

    document = Document(status, lambda _: b"%d" % len(begun))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(document.make())
        await asyncio.sleep(0)
        others = [group.create_task(document.make()) for _ in range(20)]
        await asyncio.sleep(0)
        release.set()
    assert b"1" == first.result()
    assert {b"2"} == {one.result() for one in others}, "one more, which began after they came"
    assert b"3" == await document.make()


async def test_a_document_that_failed_is_not_shared() -> None:
    """Who waited makes it again."""
    outcomes: list[DaemonStatus | ConfigError] = [ConfigError("once"), STATUS]

    async def status() -> DaemonStatus:
        await asyncio.sleep(0)
        outcome = outcomes.pop(0)
        if isinstance(outcome, ConfigError):
            raise outcome
        return outcome

    document = Document(status, lambda _: b"fine")
    failed, fine = await asyncio.gather(document.make(), document.make(), return_exceptions=True)
    assert isinstance(failed, ConfigError)
    assert b"fine" == fine


@pytest.mark.parametrize("path", ["/", "/api/v1/status", "/readyz", "/metrics"])
async def test_text_that_cannot_be_encoded_takes_no_document_away(path: str) -> None:
    """A broker registered under half a character made the page answer 500."""
    recent = RecentEvents(lambda: 0.0, lambda: 0.0)
    recent.commit_failed(TopicPartition.modern("orders", 0), "broker 0 at \ud800:9092 \x1b[2J " + "x" * 100_000)
    status = replace(
        STATUS,
        ready=False,
        not_ready=("waits for \ud800",),
        problems=("orders/0 is stopped: \ud800",),
        events=recent.events(),
        conflicts={"orders/1": "\ud800"},
        group="\udfff",
    )
    async with served(status) as get:
        code, text = await get(path)
    assert (503 if path == "/readyz" else 200) == code
    assert len(text) < 50_000


def test_codes_without_a_name_share_a_series() -> None:
    """A broker may answer with any of 65,536; a scrape must not grow by each."""
    registry = CollectorRegistry()
    hooks = MetricsHooks(registry)
    partition = TopicPartition.modern("t", 0)
    for code in range(200, 1200):
        hooks.fetch_error(partition, broker_error(code, "x").name)
    hooks.fetch_error(partition, broker_error(6, "x").name)
    scrape = write_metrics(registry, ()).decode()
    assert 'error="UNKNOWN",partition="0",topic="t"} 1000.0' in scrape
    assert 2 == scrape.count("consumerd_fetch_errors_total{")
