# SPDX-License-Identifier: Apache-2.0
"""The sink http against a real server: what it sends, and what it does when the server misbehaves."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from consumerd.errors import (
    ConfigError,
    CorruptMessageError,
    LeasePaused,
    OwnershipLost,
    PermanentSinkError,
    RetriableSinkError,
)
from consumerd.model import Gap, GapReason, Incarnation, TopicPartition
from consumerd.sinks.base import Start
from consumerd.sinks.http.writer import HttpWriter
from consumerd.sinks.lines import encode_lines
from consumerd.wire.records import RecordBatch
from tests.support.claims import StubClaim
from tests.support.clocks import LoopClock, ManualClock
from tests.support.delivery import make_batch, make_wrapped_batch
from tests.support.http_receiver import HttpReceiver, Received, Reply
from tests.support.http_sinks import open_rig
from tests.support.record_batches import build_batch, record
from tests.support.sinks import PARTITION, run_of
from tests.support.waiting import until

pytestmark = pytest.mark.records

OTHER = TopicPartition.modern("orders", 4)


@pytest.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    async with HttpReceiver() as server:
        yield server


# -- what is sent


async def test_full_requests_are_sent_at_once_and_the_rest_by_flush(receiver: HttpReceiver) -> None:
    """A position is acknowledged when its request was answered with 2xx, and not before."""
    async with open_rig(receiver, batch_records=4) as rig:
        writer = await rig.writer(100)

        assert await writer.write(run_of(100, 103)) == 100
        assert receiver.received == []
        assert await writer.write(run_of(103, 110)) == 108
        assert writer.deadline() == rig.clock() + 1.0
        assert await writer.flush() == 110
        assert writer.deadline() is None

        assert [one.span for one in receiver.received] == ["100-103", "104-107", "108-109"]
        assert receiver.offsets == list(range(100, 110))
        assert rig.charged == 0
        assert rig.notes.results == [("2xx", False)] * 3
        assert rig.notes.counts == [1, 0] * 3


async def test_request_has_the_records_of_the_sink_stdout(receiver: HttpReceiver) -> None:
    """One shape of records, whichever way they leave."""
    batch = build_batch(
        PARTITION,
        [record(7, "wört\nline".encode(), key=b"\xff", headers=(("h", b"1"),), timestamp=5), record(8, None)],
    )
    async with open_rig(receiver) as rig:
        writer = await rig.writer(7)
        await writer.write(batch)
        await writer.flush()

    (one,) = receiver.received
    assert one.body == b"".join(encode_lines(batch))
    assert (one.method, one.path) == ("POST", "/hooks/PATHSECRET?sig=QUERYSECRET")
    assert one.headers["Content-Type"] == "application/x-ndjson"
    assert one.headers["User-Agent"].startswith("consumerd/")
    assert one.headers["Idempotency-Key"] == '"2-1700000000000/orders/7/3/7-8"'
    assert "Authorization" not in one.headers


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("form", ["lines", "array"])
async def test_formats_and_compressions(receiver: HttpReceiver, form: str, compression: str) -> None:
    """The receiver's own decompressors read them; large bodies are made in a thread."""
    async with open_rig(
        receiver,
        format=form,
        compression=compression,
        batch_records=5000,
        headers={"X-Api": "k", "content-type": "a/b"},
    ) as rig:
        writer = await rig.writer(0)
        assert await writer.write(run_of(0, 5000)) == 5000
        assert rig.charged == 0

    (one,) = receiver.received
    assert (one.headers.get("Content-Encoding") or "none") == compression
    assert (one.headers["X-Api"], one.headers["Content-Type"]) == ("k", "a/b")
    body = gzip.decompress(one.body) if compression == "gzip" else one.body
    records = json.loads(body) if form == "array" else [json.loads(line) for line in body.splitlines()]
    assert [each["offset"] for each in records] == list(range(5000))


async def test_gaps_move_the_position_without_a_request(receiver: HttpReceiver) -> None:
    """Offsets of markers and compacted records are nothing to send."""
    gap = Gap(0, 5, GapReason.COMPACTION)
    async with open_rig(receiver) as rig:
        writer = await rig.writer(0)

        assert await writer.write(build_batch(PARTITION, [], start=0, next_offset=5, gaps=(gap,))) == 5
        assert await writer.write(build_batch(PARTITION, [record(5)], next_offset=9)) == 5
        assert await writer.write(build_batch(PARTITION, [], start=9, next_offset=12)) == 5
        assert await writer.flush() == 12

    assert [one.span for one in receiver.received] == ["5-5"]


async def test_position_is_never_within_a_compressed_message(receiver: HttpReceiver) -> None:
    """Kafka 0.7: its records share an offset, so a part of them is sent again rather than lost."""
    batch = make_wrapped_batch(PARTITION)  # one message at 1000, one with five records at 1010
    async with open_rig(receiver, batch_records=4) as rig:
        writer = await rig.writer(1000)
        assert await writer.write(batch) == 1010
        assert await writer.flush() == 1100

    assert [one.span for one in receiver.received] == ["1000-1010.2", "1010.3-1010.4"]


async def test_truncation_of_the_log_changes_the_keys(receiver: HttpReceiver) -> None:
    """After an unclean leader election the same offsets hold other records."""
    async with open_rig(receiver) as rig:
        writer = await rig.sink.open(StubClaim(PARTITION, incarnation=Incarnation(7)))
        await writer.start(Start(position=3, reason="committed", truncation=2))
        await writer.write(run_of(3, 4))
        await writer.flush()

    assert [one.key for one in receiver.received] == ["2-1700000000000/orders/7.2/3/3-3"]


async def test_unreadable_headers_refuse_a_batch_whole(receiver: HttpReceiver) -> None:
    """None of its records is sent, so that the policy can be applied to it."""
    async with open_rig(receiver, batch_records=2) as rig:
        writer = await rig.writer(0)
        with pytest.raises(CorruptMessageError):
            await writer.write(make_batch(PARTITION, 0, 10, bad_headers={8}))
        assert await writer.flush() == 0

    assert receiver.received == []


# -- what is sent again


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
async def test_busy_server_gets_the_same_request_again(receiver: HttpReceiver, status: int) -> None:
    """With the same key, so that the server can tell that it has it."""
    receiver.replies.append(Reply(status=status))
    async with open_rig(receiver, batch_records=3) as rig:
        writer = await rig.writer(0)
        batch = run_of(0, 7)

        with pytest.raises(RetriableSinkError, match=rf"answered {status} .*; it is tried again$") as caught:
            await writer.write(batch)
        assert caught.value.resume_position is None
        assert caught.value.retry_after_s == 0
        assert rig.charged > 0
        assert await writer.write(batch) == 6

    first, second, *_ = receiver.received
    assert (first.key, first.body) == (second.key, second.body)
    assert receiver.offsets == list(range(6))
    assert rig.notes.results[:3] == [(f"{status // 100}xx", False), ("2xx", True), ("2xx", False)]


@pytest.mark.parametrize(
    ("header", "asked_s"), [("30", 30.0), ("Sun, 06 Nov 1994 08:50:07 GMT", 30.0), ("86400", 300.0), ("later", 0.0)]
)
async def test_retry_after_keeps_every_partition_waiting(receiver: HttpReceiver, header: str, asked_s: float) -> None:
    """A server that asks for a pause means all requests; none is sent before the time is over."""
    receiver.replies.append(Reply(status=429, headers={"Retry-After": header, "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}))
    async with open_rig(receiver, batch_records=3) as rig:
        writer, other = await rig.writer(0), await rig.writer(0, partition=OTHER)
        with pytest.raises(RetriableSinkError) as caught:
            await writer.write(run_of(0, 3))
        assert caught.value.retry_after_s == asked_s

        if asked_s:
            rig.clock.seconds += asked_s - 10
            batch = build_batch(OTHER, [record(offset) for offset in range(3)])
            for one, again in ((other, batch), (writer, run_of(0, 3))):
                with pytest.raises(RetriableSinkError, match=r"asks for a pause until 1994-11-06T08:") as waiting:
                    await one.write(again)
                assert waiting.value.retry_after_s == 10.0
            assert len(receiver.received) == 1
            rig.clock.seconds += 10
        assert await writer.flush() == 3
        assert await other.flush() == (3 if asked_s else 0)


async def test_response_that_is_cut_is_no_acknowledgement(receiver: HttpReceiver) -> None:
    """The status alone may come from a server that dies while it answers."""
    receiver.replies.append(Reply(cut=True))
    async with open_rig(receiver, batch_records=3) as rig:
        writer = await rig.writer(0)
        with pytest.raises(RetriableSinkError, match=r"the connection ended before a complete answer"):
            await writer.write(run_of(0, 3))
        assert await writer.flush() == 3

    assert [one.span for one in receiver.received] == ["0-2", "0-2"]
    assert rig.notes.results == [("none", False), ("2xx", True)]


async def test_server_that_does_not_answer_is_given_up(receiver: HttpReceiver) -> None:
    """Within timeout_ms; the request may have arrived all the same, and has the same key again."""
    never = asyncio.Event()
    receiver.replies.append(Reply(until=never))
    async with open_rig(receiver, batch_records=3, timeout_ms=100) as rig:
        writer = await rig.writer(0)
        with pytest.raises(RetriableSinkError, match=r"no complete answer within 100 ms \(timeout_ms\)"):
            await writer.write(run_of(0, 3))
        assert await writer.flush() == 3
    never.set()


async def test_server_that_is_away_is_waited_for(receiver: HttpReceiver) -> None:
    """No message tells path or query of the URL."""
    await receiver.stop()
    async with open_rig(receiver, batch_records=3) as rig:
        writer = await rig.writer(0)
        with pytest.raises(RetriableSinkError, match=r"sink api: http://127.0.0.1:[0-9]+: no connection: ") as caught:
            await writer.write(run_of(0, 3))
        assert "SECRET" not in str(caught.value) + repr(rig.sink) + repr(caught.value.__cause__)
        await receiver.start(receiver.port)
        assert await writer.flush() == 3


async def test_large_and_endless_responses_are_not_read(receiver: HttpReceiver) -> None:
    """Nobody needs their content, and they must not take memory."""
    receiver.replies.append(Reply(body=bytes(1 << 20)))
    async with open_rig(receiver, batch_records=3) as rig:
        writer = await rig.writer(0)
        assert await writer.write(run_of(0, 6)) == 6


# -- what is refused


async def test_request_that_is_too_large_is_halved(receiver: HttpReceiver) -> None:
    """In order, until the server takes it."""
    receiver.rule = lambda one: Reply(status=413 if len(one.records) > 3 else 200)
    async with open_rig(receiver, batch_records=10) as rig:
        writer = await rig.writer(0)
        assert await writer.write(run_of(0, 10)) == 10

    assert receiver.offsets == list(range(10))
    assert [one.span for one in receiver.received] == ["0-9", "0-4", "0-1", "2-4", "5-9", "5-6", "7-9"]


async def test_server_that_refuses_a_large_body_before_it_has_read_it(receiver: HttpReceiver) -> None:
    """Its answer counts, although the rest of the body could not be sent."""
    receiver.replies.append(Reply(status=413, unread=True))
    async with open_rig(receiver, batch_records=2, batch_bytes="64MiB") as rig:
        writer = await rig.writer(0)
        assert await writer.write(run_of(0, 2, size=4 << 20)) == 2

    assert [one.span for one in receiver.received] == ["0-0", "1-1"]


async def test_refused_record_is_found(receiver: HttpReceiver) -> None:
    """All records before it are safe; of those behind it none counts, since they are written again without it."""
    receiver.rule = lambda one: Reply(status=422 if 6 in one.offsets else 200)
    async with open_rig(receiver, batch_records=10) as rig:
        writer = await rig.writer(0)
        with pytest.raises(RetriableSinkError, match=r"answered 422 .* to orders/3 6-6$") as caught:
            await writer.write(run_of(0, 10))
        assert caught.value.resume_position == 6
        assert await writer.flush() == 6
        seen = len(receiver.received)

        with pytest.raises(PermanentSinkError, match=r"answered 422 .* to orders/3 6-6$") as refused:
            await writer.write(run_of(6, 10))
        assert refused.value.refused == 0
        assert len(receiver.received) == seen
        assert rig.charged == 0
        assert await writer.write(run_of(6, 10).without(0, GapReason.SKIPPED)) == 6
        assert await writer.flush() == 10

    assert receiver.offsets == [0, 1, 2, 3, 4, 5, 7, 8, 9]


async def test_first_record_of_a_batch_is_refused_at_once(receiver: HttpReceiver) -> None:
    """Nothing before it waits to be acknowledged, so nothing is fetched again."""
    receiver.rule = lambda one: Reply(status=400 if 0 in one.offsets else 200)
    async with open_rig(receiver, batch_records=4) as rig:
        writer = await rig.writer(0)
        with pytest.raises(PermanentSinkError) as refused:
            await writer.write(run_of(0, 4))
        assert refused.value.refused == 0


async def test_refused_record_within_a_compressed_message_is_found(receiver: HttpReceiver) -> None:
    """By its number among those with its offset."""
    batch = make_wrapped_batch(PARTITION, plain=0)  # five records at 1000, with the values a to e
    receiver.rule = lambda one: Reply(status=400 if "c" in [each["value"] for each in one.records] else 200)
    async with open_rig(receiver) as rig:
        writer = await rig.writer(1000)
        await writer.write(batch)
        with pytest.raises(RetriableSinkError) as caught:
            await writer.flush()
        assert caught.value.resume_position == 1000
        with pytest.raises(PermanentSinkError) as refused:
            await writer.write(batch)
        assert refused.value.refused == 2


@pytest.mark.parametrize("status", [401, 403, 404, 405, 410, 415])
async def test_wrong_address_is_no_fault_of_a_record(receiver: HttpReceiver, status: int) -> None:
    """No policy may pass over records because a URL was misspelt: no record is named."""
    receiver.rule = lambda _: Reply(status=status)
    async with open_rig(receiver, batch_records=4) as rig:
        writer = await rig.writer(0)
        with pytest.raises(PermanentSinkError, match=f"answered {status} .*: check ") as refused:
            await writer.write(run_of(0, 4))
        assert refused.value.refused is None
    assert len(receiver.received) == 1


async def test_redirects_are_not_followed(receiver: HttpReceiver) -> None:
    """A record would go where nobody has looked; the message says where to, without path and query."""
    async with HttpReceiver() as other:
        receiver.rule = lambda _: Reply(status=307, headers={"Location": other.url.replace("//", "//u:PASSSECRET@")})
        async with open_rig(receiver, batch_records=4) as rig:
            writer = await rig.writer(0)
            with pytest.raises(PermanentSinkError, match=r"redirects are not followed") as refused:
                await writer.write(run_of(0, 4))
        assert f"http://127.0.0.1:{other.port}" in str(refused.value)
        assert "SECRET" not in str(refused.value)
        assert refused.value.refused is None
        assert other.received == []


# -- claims


async def test_nothing_is_sent_without_the_claim(receiver: HttpReceiver) -> None:
    """The next owner sends these records."""
    claim = StubClaim(PARTITION)
    async with open_rig(receiver, batch_records=4) as rig:
        writer = await rig.writer(0, claim=claim)
        await writer.write(run_of(0, 3))
        claim.failure = OwnershipLost("gone")
        with pytest.raises(OwnershipLost):
            await writer.flush()
        await writer.abandon()
        assert rig.charged == 0

    assert receiver.received == []


async def test_paused_claim_is_waited_for(receiver: HttpReceiver) -> None:
    """Records that are ready survive a pause of ZooKeeper."""
    claim = StubClaim(PARTITION)
    async with open_rig(receiver, batch_records=4) as rig, asyncio.TaskGroup() as group:
        writer = await rig.writer(0, claim=claim)
        claim.failure = LeasePaused("no answer")
        task = group.create_task(writer.write(run_of(0, 4)))
        await claim.paused.wait()
        assert receiver.received == []
        claim.resume()
        assert await task == 4


# -- limits


async def test_one_request_of_a_partition_at_a_time_and_a_limit_for_all(receiver: HttpReceiver) -> None:
    """Order within a partition; and no more connections than the server is to bear."""
    go = asyncio.Event()
    receiver.rule = lambda _: Reply(until=go)
    async with open_rig(receiver, batch_records=1, max_in_flight=3) as rig, asyncio.TaskGroup() as group:
        for number in range(5):
            partition = TopicPartition.modern("orders", number)
            writer = await rig.writer(0, partition=partition)
            group.create_task(writer.write(build_batch(partition, [record(offset) for offset in range(4)])))
        await until(lambda: receiver.in_flight == 3)
        partitions = [one.records[0]["partition"] for one in receiver.received]
        assert len(set(partitions)) == 3
        go.set()

    assert receiver.most_in_flight == 3
    for number in range(5):
        found = [one.offsets for one in receiver.accepted if one.records[0]["partition"] == number]
        assert found == [[0], [1], [2], [3]]


async def test_several_requests_of_a_partition_if_that_is_allowed(receiver: HttpReceiver) -> None:
    """The position waits for the first of them."""
    go = asyncio.Event()

    def answer(one: Received) -> Reply:
        return Reply(until=go, status=503) if one.offsets == [0] else Reply()

    receiver.rule = answer
    async with open_rig(receiver, batch_records=1, max_in_flight_per_partition=3) as rig, asyncio.TaskGroup() as group:
        writer = await rig.writer(0)
        task = group.create_task(expect_retry(writer, run_of(0, 3)))
        await until(lambda: len(receiver.received) == 3)
        go.set()
        assert await task is None  # no position is reported by it
        receiver.rule = lambda _: Reply()
        assert await writer.flush() == 3

    assert sorted(receiver.offsets) == [0, 1, 2]


async def expect_retry(writer: HttpWriter, batch: RecordBatch) -> int | None:
    with pytest.raises(RetriableSinkError) as caught:
        await writer.write(batch)
    return caught.value.resume_position


async def test_memory_of_all_writers_is_bounded(receiver: HttpReceiver) -> None:
    """Above the sink's part of the memory, records are sent in requests that are not full."""
    async with open_rig(receiver, buffer_bytes=4000) as rig:
        writers = [await rig.writer(0, partition=TopicPartition.modern("orders", number)) for number in range(5)]
        for number, writer in enumerate(writers):
            partition = TopicPartition.modern("orders", number)
            await writer.write(build_batch(partition, [record(offset, b"x" * 100) for offset in range(5)]))
            assert rig.charged <= 4000
        assert receiver.received != []
        assert rig.notes.relieved == len(receiver.received)
        for writer in writers:
            assert await writer.flush() == 5
        assert rig.charged == 0


async def test_memory_is_bounded_while_the_server_is_away(receiver: HttpReceiver) -> None:
    """Partitions that find no room take nothing, and say so; when the server is back, all go on."""
    receiver.rule = lambda _: Reply(status=503)
    partitions = [TopicPartition.modern("orders", number) for number in range(20)]
    batches = [build_batch(one, [record(offset, b"x" * 1000) for offset in range(30)]) for one in partitions]
    limit, piece = 150_000, 40_000
    async with open_rig(receiver, buffer_bytes=limit, batch_records=100, max_in_flight=1, timeout_ms=1000) as rig:
        writers = [await rig.writer(0, partition=one) for one in partitions]
        reasons = []
        for writer, batch in zip(writers, batches, strict=True):
            try:
                await writer.write(batch)
            except RetriableSinkError as error:
                reasons.append(str(error))
            assert rig.charged <= limit + piece
            if len(reasons) == 8:
                break
        assert "answered 503" in reasons[0]
        assert "fill the sink's part of the memory (150000 bytes)" in reasons[-1]
        receiver.rule = lambda _: Reply()
        async with asyncio.TaskGroup() as group:
            for writer, batch in zip(writers, batches, strict=True):
                group.create_task(writer.write(batch))
        for writer in writers:
            assert await writer.flush() == 30
        assert rig.charged == 0

    for partition in partitions:
        found = [
            offset
            for one in receiver.accepted
            if one.records[0]["partition"] == partition.partition.number
            for offset in one.offsets
        ]
        assert found == list(range(30))


async def test_large_batches_are_encoded_piece_by_piece(receiver: HttpReceiver) -> None:
    """A batch of 16 MiB is never held as lines as a whole."""
    most = 0

    def note(_: Received) -> Reply:
        nonlocal most
        most = max(most, rig.charged)
        return Reply()

    receiver.rule = note
    async with open_rig(receiver, batch_bytes="256KiB", batch_records=10_000) as rig:
        writer = await rig.writer(0)
        assert await writer.write(run_of(0, 160, size=100_000)) >= 158
        assert await writer.flush() == 160
        assert rig.charged == 0
    assert receiver.offsets == list(range(160))
    assert most < 5 << 20


async def test_abandoned_request_is_cancelled(receiver: HttpReceiver) -> None:
    """A release that is over takes its request along, and the memory."""
    receiver.rule = lambda _: Reply(until=asyncio.Event())
    async with open_rig(receiver, batch_records=3) as rig:
        writer = await rig.writer(0)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(writer.write(run_of(0, 3)))
            await until(lambda: receiver.in_flight == 1)
            task.cancel()
        await writer.abandon()
        assert rig.charged == 0
        assert rig.notes.results == [("abandoned", False)]
        assert rig.notes.counts[-1] == 0
        await until(lambda: receiver.in_flight == 0)


# -- TLS, credentials, proxies


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, *, client: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if client is not None:
        client.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_tls_with_an_authority_of_ones_own(authority: trustme.CA, tmp_path: Path) -> None:
    """As in cluster.tls; an unknown authority is refused."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with HttpReceiver(tls=server_context(authority)) as receiver:
        async with open_rig(receiver, batch_records=3) as rig:
            writer = await rig.writer(0)
            with pytest.raises(RetriableSinkError, match=r"its certificate is refused: .*: check tls"):
                await writer.write(run_of(0, 3))
        async with open_rig(receiver, batch_records=3, tls={"ca_file": str(tmp_path / "ca.pem")}) as rig:
            writer = await rig.writer(0)
            assert await writer.write(run_of(0, 3)) == 3
    assert receiver.offsets == [0, 1, 2]


async def test_client_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    """For servers that want one."""
    own = authority.issue_cert("client.example")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    (tmp_path / "key.pem").chmod(0o600)
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    tls = {name: str(tmp_path / f"{file}.pem") for name, file in (("ca_file", "ca"), ("key_file", "key"))}
    tls["certificate_file"] = str(tmp_path / "cert.pem")
    async with (
        HttpReceiver(tls=server_context(authority, client=authority)) as receiver,
        open_rig(receiver, batch_records=3, tls=tls) as rig,
    ):
        writer = await rig.writer(0)
        assert await writer.write(run_of(0, 3)) == 3


async def test_unusable_files_end_the_process_at_the_start(receiver: HttpReceiver, tmp_path: Path) -> None:
    """Each is named with its setting."""
    token = tmp_path / "token"
    token.write_text("t")
    token.chmod(0o644)
    async with open_rig(receiver, auth={"scheme": "bearer", "credential_file": str(token)}) as rig:
        with pytest.raises(ConfigError, match=r"^sinks\.api\.auth\.credential_file: .*token may be read by everybody"):
            await rig.sink.check()
    async with (
        HttpReceiver(tls=server_context(trustme.CA())) as other,
        open_rig(other, tls={"ca_file": str(tmp_path / "ca.pem")}) as rig,
    ):
        with pytest.raises(ConfigError, match=r"^sinks\.api\.tls: .*ca.pem cannot be used"):
            await rig.sink.check()
    assert receiver.received == []


async def test_token_is_rotated_without_a_restart(receiver: HttpReceiver, tmp_path: Path) -> None:
    """Whichever of the two, server or file, has the new one first."""
    token = tmp_path / "token"
    token.write_text("one")
    token.chmod(0o600)
    valid = "one"
    receiver.rule = lambda one: Reply(status=200 if one.headers["Authorization"] == f"Bearer {valid}" else 401)
    async with open_rig(receiver, batch_records=1, auth={"scheme": "bearer", "credential_file": str(token)}) as rig:
        await rig.sink.check()
        writer = await rig.writer(0)
        assert await writer.write(run_of(0, 1)) == 1
        valid = "two"
        with pytest.raises(RetriableSinkError, match=f"answered 401 .*: put a valid credential into {token}"):
            await writer.write(run_of(1, 2))
        token.write_text("two")
        assert await writer.flush() == 2
        token.chmod(0o644)
        with pytest.raises(RetriableSinkError, match=r"may be read by everybody"):
            await writer.write(run_of(2, 3))
        token.chmod(0o600)
        assert await writer.flush() == 3
    assert receiver.offsets == [0, 1, 2]


async def test_proxy_is_used_only_if_it_is_allowed(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a shell must not redirect a daemon's records unasked."""
    async with HttpReceiver() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://ann:secret@127.0.0.1:{proxy.port}")
        monkeypatch.delenv("http_proxy", raising=False)
        for name in ("NO_PROXY", "no_proxy", "REQUEST_METHOD"):
            monkeypatch.delenv(name, raising=False)
        for allowed in (False, True):
            async with open_rig(receiver, batch_records=1, proxy_from_environment=allowed) as rig:
                writer = await rig.writer(0)
                assert await writer.write(run_of(0, 1)) == 1
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        async with open_rig(receiver, batch_records=1, proxy_from_environment=True) as rig:
            writer = await rig.writer(0)
            assert await writer.write(run_of(0, 1)) == 1

    assert (len(receiver.received), len(proxy.received)) == (2, 1)
    assert proxy.received[0].path.startswith("/hooks") or "127.0.0.1" in proxy.received[0].path
    assert proxy.received[0].headers["Proxy-Authorization"].startswith("Basic ")


async def test_deadline_is_that_of_the_oldest_record(receiver: HttpReceiver) -> None:
    """So a record waits no longer than batch_ms."""
    clock = ManualClock()
    async with open_rig(receiver, clock=clock, batch_ms="5s", batch_records=10) as rig:
        writer = await rig.writer(0)
        assert writer.deadline() is None
        await writer.write(run_of(0, 2))
        clock.seconds += 3
        await writer.write(run_of(2, 4))
        assert writer.deadline() == clock.seconds + 2


async def test_batch_is_not_taken_twice(receiver: HttpReceiver) -> None:
    """The pipeline may make a call again that has failed, or give records that the writer has."""
    async with open_rig(receiver, batch_records=4, clock=LoopClock()) as rig:
        writer = await rig.writer(0)
        await writer.write(run_of(0, 3))
        await writer.write(run_of(0, 3))
        await writer.write(run_of(1, 5))
        assert await writer.flush() == 5

    assert receiver.offsets == [0, 1, 2, 3, 4]
    assert [json.loads(line)["offset"] for one in receiver.received for line in one.body.splitlines()] == [
        0,
        1,
        2,
        3,
        4,
    ]
