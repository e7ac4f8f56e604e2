# SPDX-License-Identifier: Apache-2.0
"""Fetching from Kafka 0.7 as the package fetch sees it: requests, answers, record sets."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from consumerd.client.fetch_protocol import FetchRequestSettings, Key, PartitionAnswer
from consumerd.client.legacy_fetch import LegacyExchange, LegacyFetchProtocol, LegacyRecordSet
from consumerd.errors import ConnectionLost, CorruptMessageError, DecompressedTooLarge
from consumerd.wire.legacy.messages import LegacyErrorCode, LegacyMultiFetchRequest
from consumerd.wire.legacy.session import encode_legacy_request
from consumerd.wire.legacy.stored_message import encode_message
from consumerd.wire.pieces import Piece
from consumerd.wire.records import Limits, RecordBatch
from tests.support import virtual_time
from tests.support.cluster import make_broker
from tests.support.legacy_frames import PARTITION, get_exchange, list_rows
from tests.support.legacy_peer import LegacyCluster, LegacyLog, LegacyPeer, encode_messages

MOST_BYTES = 10_000


class Reader(NamedTuple):
    key: Key


@dataclass
class AskOf:
    """An entry of a request."""

    cursor: Reader
    offset: int
    max_bytes: int


def asks_of(*entries: tuple[str, int, int, int]) -> dict[Key, AskOf]:
    return {(topic, number): AskOf(Reader((topic, number)), offset, size) for topic, number, offset, size in entries}


def run(peer: LegacyPeer, scenario: Callable[[LegacyExchange], Awaitable[None]]) -> None:
    async def play() -> None:
        async with LegacyCluster(peer).connect() as pool:
            protocol = LegacyFetchProtocol(pool)
            await scenario(await protocol.open(make_broker(0), FetchRequestSettings()).connect())

    virtual_time.run(play())


async def fetch(exchange: LegacyExchange, asks: dict[Key, AskOf]) -> list[PartitionAnswer]:
    exchange.write(asks, None, max_bytes=1, wait_ms=500)
    answer = await exchange.send(timeout_s=1)
    assert answer.count_lines() == 2 * len(asks)
    return list(answer.partitions())


def fetched(data: bytes, *, start: int = 0, asked: int = 0, most: int = MOST_BYTES) -> LegacyRecordSet:
    """Return a record set; ``asked`` 0: as many bytes were asked for as came."""
    return LegacyRecordSet(data, start=start, asked_bytes=asked or len(data), most_bytes=most)


def whole(records: LegacyRecordSet) -> Piece:
    return Piece(0, len(records.data), 0, compressed=False)


def decode_damaged(records: LegacyRecordSet, start: int = 0) -> CorruptMessageError:
    with pytest.raises(CorruptMessageError) as caught:
        records.decode(whole(records), partition=PARTITION, start=start, limits=Limits())
    return caught.value


# -- requests and answers


def test_point_9_answers_of_a_multifetch_are_in_the_order_of_the_asks() -> None:
    """The recorded request has five parts, four of them without whole messages; codes are those of all generations."""
    peer = LegacyPeer.from_recordings()
    asks = {
        ("vKAFampa", 0): AskOf(Reader(("vKAFampa", 0)), 0, 1000),
        ("vKAFampb", 99): AskOf(Reader(("vKAFampb", 99)), 0, 1000),
        ("vKAFampb", -1): AskOf(Reader(("vKAFampb", 0)), 99999, 1000),
        ("vKAFampb", 0): AskOf(Reader(("vKAFampb", 0)), 0, 15),
        ("vKAFanosuch", 0): AskOf(Reader(("vKAFanosuch", 0)), 0, 1000),
    }

    async def scenario(exchange: LegacyExchange) -> None:
        found = await fetch(exchange, asks)
        assert [one.key for one in found] == [ask.cursor.key for ask in asks.values()]
        assert [one.error_code for one in found] == [0, 3, 1, 0, 0]
        assert [len(one.records.data) if one.records else None for one in found] == [23, None, None, 15, None]
        assert all(one.high_watermark is None and one.last_stable_offset is None for one in found)

    run(peer, scenario)
    (request,) = peer.asked(LegacyMultiFetchRequest)
    assert encode_legacy_request(request) == get_exchange("k072_multifetch_one_error").request


def test_a_broker_neither_waits_nor_limits_the_whole_answer() -> None:
    """The fetcher must pause itself, and must ask for no more than it has memory for."""

    async def scenario(exchange: LegacyExchange) -> None:
        assert not exchange.waits
        assert not exchange.limits_answer
        (one,) = await fetch(exchange, asks_of(("t", 0, 0, 100)))
        assert one == PartitionAnswer(
            key=("t", 0), error_code=0, high_watermark=None, last_stable_offset=None, records=None
        )
        assert asyncio.get_running_loop().time() < 0.1

    run(LegacyPeer(), scenario)


def test_more_partitions_than_a_multifetch_holds_are_asked_for_one_after_another() -> None:
    """Its count has 16 bits."""
    count = 33_000
    peer = LegacyPeer(partitions=count)
    peer.logs["t", count - 1] = LegacyLog(encode_messages([b"last"]))

    async def scenario(exchange: LegacyExchange) -> None:
        found = await fetch(exchange, asks_of(*(("t", number, 0, 100) for number in range(count))))
        assert [one.key for one in found] == [("t", number) for number in range(count)]
        assert [one.key for one in found if one.records] == [("t", count - 1)]

    run(peer, scenario)
    assert [len(one.requests) for one in peer.asked(LegacyMultiFetchRequest)] == [32_767, count - 32_767]


def test_the_document_s_error_4_asks_for_more_bytes() -> None:
    """Kafka 0.7.2 never answers it; of a peer that does, nothing else can be made than a set that does not fit."""
    peer = LegacyPeer()
    peer.codes["t", 0] = LegacyErrorCode.INVALID_FETCH_SIZE

    async def scenario(exchange: LegacyExchange) -> None:
        (one,) = await fetch(exchange, asks_of(("t", 0, 0, 100)))
        assert one.error_code == 0
        assert one.records is not None
        assert one.records.cut(slice_bytes=100, expansion=None) == []
        assert one.records.first_unit_bytes() is None
        assert not one.records.has_head

    run(peer, scenario)


def test_a_connection_that_is_gone_is_connected_again() -> None:
    """The channel keeps nothing of an earlier connection."""

    async def play() -> None:
        cluster = LegacyCluster(LegacyPeer.from_recordings())
        async with cluster.connect() as pool:
            channel = LegacyFetchProtocol(pool).open(make_broker(0), FetchRequestSettings())
            exchange = await channel.connect()
            cluster.network.streams[0].end(ConnectionLost("reset"))
            with pytest.raises(ConnectionLost):
                await fetch(exchange, asks_of(("vKAFaplain", 0, 0, 1000)))
            (one,) = await fetch(await channel.connect(), asks_of(("vKAFaplain", 0, 0, 1000)))
            assert one.records is not None

    virtual_time.run(play())


# -- record sets


def test_recorded_messages_are_cut_and_decoded_by_byte_offsets() -> None:
    """Pieces follow from the offset asked for; a batch says where each record ends."""
    response = get_exchange("k072_fetch_plain").response
    assert response is not None
    records = fetched(response[6:], start=1000, asked=100_000)
    pieces = records.cut(slice_bytes=20, expansion=None)
    assert [(one.begin, one.end, one.next_offset) for one in pieces] == [(0, 29, 1029), (29, 55, 1055)]
    assert records.has_head
    assert records.first_unit_bytes() == 15
    assert records.read_claim(1000) == 1015
    kept = records.with_data(bytes(records.data))
    rows = [
        row
        for piece in pieces
        for row in list_rows(kept.decode(piece, partition=PARTITION, start=1000 + piece.begin, limits=Limits()))
    ]
    assert [(offset, following) for offset, _, following, _ in rows] == [
        (1000, 1015),
        (1015, 1029),
        (1029, 1039),
        (1039, 1055),
    ]
    assert [value for *_, value in rows][:3] == [b"alpha", b"beta", b""]


def test_point_1_a_first_message_that_is_cut_off_tells_its_size() -> None:
    """7 bytes were asked for, and 7 came: the next request asks for 15."""
    response = get_exchange("k072_fetch_max_smaller_than_first").response
    assert response is not None
    records = fetched(response[6:], asked=7)
    assert records.cut(slice_bytes=100, expansion=None) == []
    assert records.first_unit_bytes() == 15
    assert fetched(response[6:9], asked=3).first_unit_bytes() is None


def test_point_2_bytes_from_inside_of_a_message_have_an_impossible_size() -> None:
    """The recorded answer to offset 3 begins with a length of 184 MB and magic 208."""
    response = get_exchange("k072_fetch_mid_message").response
    assert response is not None
    records = fetched(response[6:], start=3, asked=100_000)
    assert records.cut(slice_bytes=100, expansion=None) == []
    assert records.first_unit_bytes() == 0
    error = decode_damaged(records, 3)
    assert (error.offset, error.next_offset) == (3, 3 + len(records.data))  # nothing proves the next whole message
    assert error.raw == response[6:]


@pytest.mark.parametrize("size", [2, 9, 30])
def test_point_2_a_message_longer_than_the_log_is_no_reason_to_ask_for_more(size: int) -> None:
    """Fewer bytes than asked for end with the log, where a message ends, too: this one cannot be."""
    data = encode_message(b"x" * 50)[:size]
    assert fetched(data, asked=1000).first_unit_bytes() == 0
    assert fetched(data, asked=size).first_unit_bytes() == (None if size < 4 else 60)
    error = decode_damaged(fetched(data, start=500, asked=1000), 500)
    assert (error.offset, error.next_offset, error.raw) == (500, 500 + size, data)
    assert "ends before the message does" in str(error)


def test_point_15_the_position_advances_behind_a_whole_compressed_message() -> None:
    """All its records have its offset, so that a restart inside of it reads all of them again."""
    response = get_exchange("k072_fetch_javaproducer_codec1").response
    assert response is not None
    records = fetched(response[6:], start=100, asked=100_000)
    (piece,) = records.cut(slice_bytes=1, expansion=None)
    batch = records.decode(piece, partition=PARTITION, start=100, limits=Limits())
    assert [(offset, index) for offset, index, *_ in list_rows(batch)] == [(100, 0), (100, 1), (100, 2)]
    assert batch.next_offset == 100 + len(records.data) == piece.next_offset


def test_a_claim_below_the_position_is_none() -> None:
    """A length of -1 would lead back."""
    assert fetched(b"\xff\xff\xff\xff" + bytes(10), start=50).read_claim(50) is None
    assert fetched(encode_message(b"abc"), start=50).read_claim(50) == 63


# -- the way out of damaged bytes


def damaged(payload: bytes) -> bytes:
    data = bytearray(encode_message(payload))
    data[-1] ^= 1
    return bytes(data)


def test_damage_ends_at_the_message_that_its_length_leads_to() -> None:
    """One payload is damaged; the next message proves the length."""
    bad, good = damaged(b"bad"), encode_message(b"good")
    error = decode_damaged(fetched(bad + good, start=70, asked=100), 70)
    assert (error.offset, error.next_offset, error.raw) == (70, 70 + len(bad), bad)
    assert str(error).startswith("t/0-1: the message set fetched at byte offset 70: CRC-32")


def test_a_damaged_length_is_passed_by_the_checksum_of_the_payload() -> None:
    """The damaged length leads into the middle of the next message; the payload has its checksum up to that."""
    bad, good = bytearray(encode_message(b"bad" * 10)), encode_message(b"good")
    bad[3] += 7
    error = decode_damaged(fetched(bytes(bad) + good * 3, start=70), 70)
    assert (error.offset, error.next_offset, error.raw) == (70, 70 + len(bad), bytes(bad))


def test_the_end_of_damage_in_later_pieces_is_found_in_what_was_fetched_after_them() -> None:
    """Pieces are cut by lengths, which the search does not believe."""
    bad, good = damaged(b"bad"), encode_message(b"good")
    records = fetched(good + bad + good, start=10, asked=100)
    pieces = records.cut(slice_bytes=1, expansion=None)
    with pytest.raises(CorruptMessageError) as caught:
        records.decode(pieces[1], partition=PARTITION, start=10 + len(good), limits=Limits())
    assert caught.value.offset == 10 + len(good)
    assert caught.value.next_offset == 10 + len(good + bad)


@pytest.mark.parametrize("good", [encode_message(b"good") * 3, encode_message(b"z" * 5000)[:500]])
def test_damage_without_a_proof_of_its_end_has_none(good: bytes) -> None:
    """The second fetch is larger; the messages may lie inside of a damaged one."""
    records = fetched(b"\xee" * 60 + good, start=1000)
    error = decode_damaged(records, 1000)
    assert (error.next_offset, error.raw) == (None, b"\xee" * 60 + good)
    assert records.proof_bytes == MOST_BYTES


def test_damage_ends_at_the_message_that_a_run_of_messages_proves() -> None:
    """No message is larger than the run, so they do not lie inside of one."""
    garbage, good = b"\xee" * 60, encode_message(b"good")
    error = decode_damaged(fetched(garbage + good * 1000, start=1000, most=1000), 1000)
    assert error.next_offset == 1060 + 72 * len(good)


def test_damage_at_the_end_of_the_log_ends_with_it() -> None:
    """No message can be cut off there, so everything up to the end is damage."""
    garbage = b"\xee" * 60 + encode_message(b"z" * 5000)[:500]
    error = decode_damaged(fetched(garbage, start=1000, asked=4096), 1000)
    assert (error.next_offset, error.raw) == (1000 + len(garbage), garbage)


def test_damage_always_ends_behind_its_beginning() -> None:
    """Else a policy that skips it would go round in circles."""
    for size in range(4, 80):
        data = (b"\0\0\0\x09\x01" * 20)[:size]
        error = decode_damaged(fetched(data, start=7, asked=100), 7)
        assert error.next_offset is not None
        assert error.next_offset > 7


def test_a_message_that_decompresses_to_too_much_keeps_its_end() -> None:
    """Its checksum is right: it is no damage."""
    bomb = encode_message(gzip.compress(encode_message(bytes(100_000))), codec=1)
    records = fetched(bomb, start=5)
    with pytest.raises(DecompressedTooLarge) as caught:
        records.decode(whole(records), partition=PARTITION, start=5, limits=Limits(decompressed_bytes=1000))
    assert caught.value.next_offset == 5 + len(bomb)


# -- the first fetch of a reader


def read_from(position: int, log: LegacyLog, **options: int) -> CorruptMessageError | RecordBatch:
    """Return what a new reader of ``t`` 0-0 gets at a position: the first batch, or the error."""
    peer = LegacyPeer()
    peer.logs["t", 0] = log
    found: list[CorruptMessageError | RecordBatch] = []

    async def scenario(exchange: LegacyExchange) -> None:
        (one,) = await fetch(exchange, asks_of(("t", 0, position, options.get("asked", 100_000))))
        records = one.records
        assert records is not None
        pieces = records.cut(slice_bytes=1 << 20, expansion=None)
        assert pieces or records.first_unit_bytes() == 0
        piece = pieces[0] if pieces else Piece(0, len(records.data), position, compressed=False)
        try:
            found.append(records.decode(piece, partition=PARTITION, start=position, limits=Limits()))
        except CorruptMessageError as error:
            found.append(error)

    run(peer, scenario)
    (only,) = found
    return only


def test_position_inside_of_a_compressed_message_is_no_message() -> None:
    """Stored by gzip, the inner messages are valid: they would get offsets of their own."""
    inner = encode_messages([b"a" * 50, b"b" * 50])
    wrapper = encode_message(gzip.compress(inner, compresslevel=0), codec=1)
    log = encode_message(b"first") + wrapper + encode_message(b"last")
    begin = len(encode_message(b"first"))
    for position in range(1, len(log)):
        found = read_from(position, LegacyLog(log))
        if position in {begin, begin + len(wrapper)}:
            assert isinstance(found, RecordBatch)
        else:
            assert isinstance(found, CorruptMessageError)
            ends = [end for end in (begin, begin + len(wrapper), len(log)) if end > position]
            assert found.next_offset == ends[0]
            assert "inside of the message at byte offset" in str(found)


def test_position_that_was_refused_is_refused_again() -> None:
    """A partition that is stopped there asks from time to time; a reader that is elsewhere is checked once."""
    wrapper = encode_message(gzip.compress(encode_messages([b"a" * 50, b"b" * 50]), compresslevel=0), codec=1)
    peer = LegacyPeer()
    peer.logs["t", 0] = LegacyLog(wrapper + encode_message(b"last"))
    reader, inside = Reader(("t", 0)), wrapper.index(encode_message(b"a" * 50))

    async def play() -> list[bool]:
        async with LegacyCluster(peer).connect() as pool:
            channel = LegacyFetchProtocol(pool).open(make_broker(0), FetchRequestSettings())
            found = []
            for position in (inside, inside, len(wrapper)):
                asks: dict[Key, AskOf] = {reader.key: AskOf(reader, position, 1000)}
                (answer,) = await fetch(await channel.connect(), asks)
                assert answer.records is not None
                found.append(answer.records.first_unit_bytes() == 0)
            return found

    assert [True, True, False] == virtual_time.run(play())


def test_message_without_payload_is_none_where_nothing_follows_it() -> None:
    """A payload may hold a length of 5 and zeros; at the start of the log nothing before it tells."""
    zeros = bytes((0, 0, 0, 5, 0, 0, 0, 0, 0))
    assert isinstance(read_from(0, LegacyLog(zeros + b"no message")), CorruptMessageError)
    found = read_from(0, LegacyLog(zeros + encode_message(b"a message")))
    assert isinstance(found, RecordBatch)
    assert len(found) == 2


def make_large(size: int, seed: int = 1) -> bytes:
    """Return a payload in which no message begins."""
    return random.Random(seed).randbytes(size).replace(b"\0", b"a").replace(b"\1", b"a")


def test_position_behind_messages_larger_than_the_first_look_is_a_message() -> None:
    """The bytes that are looked at first begin inside of a message, and what they hold is too short a run to tell."""
    log = encode_messages([make_large(300_000), make_large(100_000, 2)])
    found = read_from(len(log), LegacyLog(log + encode_messages([b"x" * 40] * 5)), asked=100)
    assert isinstance(found, RecordBatch)
    assert (len(log), b"x" * 40) == (found.offsets[0], found.values()[0])


def test_position_inside_of_a_message_larger_than_the_first_look_is_none() -> None:
    """Its beginning is only among the bytes of the second look."""
    inner = encode_message(b"inner")
    log = encode_messages([make_large(300_000) + inner + make_large(100_000, 2), b"next"])
    found = read_from(log.index(inner), LegacyLog(log), asked=1 << 20)
    assert isinstance(found, CorruptMessageError)
    assert "inside of the message at byte offset 0," in str(found)
    assert len(log) - len(encode_message(b"next")) == found.next_offset


def test_a_message_begins_where_a_segment_does() -> None:
    """Else a run of messages would have to prove it, and few are there."""
    inner = encode_message(b"inner")
    log = LegacyLog(encode_message(make_large(300_000)))
    log.roll()
    begin = log.end
    log.append(encode_messages([b"outer" + inner + b"outer", b"next"]))
    found = read_from(log.data.index(inner), log)
    assert isinstance(found, CorruptMessageError)
    assert f"inside of the message at byte offset {begin}," in str(found)
