# SPDX-License-Identifier: Apache-2.0
"""Message sets of Kafka 0.6 and 0.7: byte offsets, compressed messages, damage, and limits."""

from __future__ import annotations

import struct

import pytest

from consumerd.errors import CorruptMessageError, DecompressedTooLarge, LocalProtocolError
from consumerd.model import Gap, GapReason, TimestampType
from consumerd.wire.checksum import crc32
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.message_set import (
    build_message_set,
    check_message_set,
    compress_message_set,
    decode_message_set,
)
from consumerd.wire.legacy.stored_message import encode_message
from consumerd.wire.records import Limits, Record, RecordBatch
from tests.support.legacy_frames import PARTITION, list_rows

pytestmark = pytest.mark.usefixtures("each_path")

START = 1000
PLAIN = build_message_set([b"one"])
OTHER = build_message_set([b"second"])
CODECS = [Codec.GZIP, Codec.SNAPPY]


def decode(data: bytes, **options: object) -> RecordBatch:
    return decode_message_set(data, partition=PARTITION, start=START, **options)  # type: ignore[arg-type]


def fault(data: bytes, **options: object) -> CorruptMessageError:
    with pytest.raises(CorruptMessageError) as caught:
        decode(data, **options)
    assert (PARTITION, START) == (caught.value.partition, caught.value.offset)
    assert "t/0-1: the message set fetched at byte offset 1000: " in str(caught.value)
    return caught.value


def damaged(message: bytes) -> bytes:
    return message[:-1] + bytes((message[-1] ^ 1,))


def test_record_has_its_offset_and_nothing_that_the_format_lacks() -> None:
    """No key, no timestamp, no headers; the end of the message is the next offset."""
    batch = decode(PLAIN)

    assert [Record(offset=START, timestamp=-1, timestamp_type=TimestampType.NONE, key=None, value=b"one")] == list(
        batch.records()
    )
    assert (START, START + len(PLAIN), START + len(PLAIN)) == (batch.start, batch.next_offset, batch.following(0))
    assert (b"", [], ()) == (batch.timestamp_types, list(batch.indexes), batch.gaps)


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_a_compressed_message_share_its_offset(codec: Codec) -> None:
    """The identity of a record is (offset, index); the position advances at the end of the whole."""
    wrapper = build_message_set([b"a", b"", b"c"], codec=codec)
    first, second = START + len(PLAIN), START + len(PLAIN) + len(wrapper)

    batch = decode(PLAIN + wrapper + OTHER)

    assert [
        (START, 0, first, b"one"),
        (first, 0, second, b"a"),
        (first, 1, second, b""),
        (first, 2, second, b"c"),
        (second, 0, second + len(OTHER), b"second"),
    ] == list_rows(batch)
    assert [first, second] == [batch.slice_from(first).start, batch.slice_to(second).next_offset]
    assert 4 == len(batch.slice_to(second))


def test_nested_and_mixed_messages_have_one_index() -> None:
    """A producer that mirrors compressed messages compresses them again, with messages of 0.6 beside them."""
    old = build_message_set([b"old"], magic=0)
    inner = build_message_set([b"a", b"b"], codec=Codec.SNAPPY)
    wrapper = compress_message_set(old + inner + PLAIN, Codec.GZIP)

    assert [(index, value) for _, index, _, value in list_rows(decode(wrapper))] == [
        (0, b"old"),
        (1, b"a"),
        (2, b"b"),
        (3, b"one"),
    ]


def test_compressed_message_without_records_is_a_gap() -> None:
    """Brokers accept one; its bytes are explained, and the position passes over it."""
    empty = compress_message_set(b"", Codec.GZIP)
    end = START + len(empty)

    batch = decode(empty + PLAIN)

    assert (Gap(START, end, GapReason.COMPACTION),) == batch.gaps
    assert [(end, 0, end + len(PLAIN), b"one")] == list_rows(batch)
    assert START + len(empty) == decode(empty).next_offset


@pytest.mark.parametrize("codec", [Codec.NONE, *CODECS])
def test_cut_off_messages_come_with_the_next_fetch(codec: Codec) -> None:
    """Brokers cut anywhere: the records are those of the whole messages, and an error is none of it."""
    first, second = build_message_set([b"x" * 20], codec=codec), build_message_set([b"y" * 20], codec=codec)
    data = first + second

    for cut in range(len(data)):
        batch = decode(data[:cut])
        whole = 0 if cut < len(first) else 1
        assert (whole, START + whole * len(first)) == (len(batch), batch.next_offset)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (damaged(PLAIN), "CRC-32 is 0x[0-9a-f]{8}, the message says 0x[0-9a-f]{8}"),
        (struct.pack(">iBB", 100, 2, 0), "magic 2 is unknown, expected 0 or 1"),
        (struct.pack(">iB", 4, 0), "a message of 4 bytes and magic 0"),
        (struct.pack(">iB", 5, 1), "a message of 5 bytes and magic 1"),
        (struct.pack(">i", -1), "a message of -1 bytes"),
        (struct.pack(">iBBI", 6, 1, 3, 0), "compression codec 3 is unknown, expected 0-2"),
        (encode_message(b"no gzip", codec=1), "gzip: "),
        (encode_message(b"no snappy", codec=2), "snappy: "),
        (encode_message(b"\x82SNAPPY\0", codec=2), "snappy: the header of the framing is cut off"),
        (compress_message_set(PLAIN[:-1], Codec.GZIP), "ends in the middle of a message, at byte 12"),
        (compress_message_set(damaged(PLAIN), Codec.SNAPPY), "CRC-32 is"),
        (compress_message_set(PLAIN + damaged(PLAIN), Codec.GZIP), "CRC-32 is"),
        (compress_message_set(b"\0\0\0\x09\x07" + bytes(8), Codec.SNAPPY), "magic 7 is unknown"),
        (damaged(compress_message_set(PLAIN, Codec.GZIP)), "CRC-32 is"),
    ],
)
def test_unreadable_message_is_named_or_ends_the_batch(data: bytes, cause: str) -> None:
    """The first one is an error with topic, partition and byte offset; records before a later one are delivered."""
    assert fault(data).args[0].startswith("t/0-1")
    with pytest.raises(CorruptMessageError, match=cause):
        decode(data)

    batch = decode(PLAIN + data)

    assert (1, START + len(PLAIN)) == (len(batch), batch.next_offset)
    assert 1 == len(batch.values())


def test_message_behind_a_damaged_one_is_no_proof_of_its_end() -> None:
    """No checksum covers a length: it stays a claim (wire.legacy.boundaries proves it)."""
    bad = damaged(PLAIN)
    error = fault(bad + OTHER)

    assert (None, START + len(bad), bad) == (error.next_offset, error.claimed_end, error.raw)


def test_impossible_header_claims_no_end_beyond_the_bytes() -> None:
    """An operator would be advised to pass over 184 MB because of a random number."""
    error = fault(b"\x0b\x01\0\xd0\xe0" + OTHER)

    assert (None, None) == (error.next_offset, error.claimed_end)
    assert b"\x0b\x01\0\xd0\xe0" + OTHER == error.raw


def test_nesting_is_limited() -> None:
    """Each level may multiply the size."""
    nested = PLAIN
    for _ in range(3):
        nested = compress_message_set(nested, Codec.GZIP)

    assert 1 == len(decode(nested, limits=Limits(nesting=3)))
    with pytest.raises(CorruptMessageError, match="more than 2 deep"):
        decode(nested, limits=Limits(nesting=2))


@pytest.mark.parametrize("codec", CODECS)
def test_decompressed_size_is_limited_for_the_whole_set(codec: Codec) -> None:
    """A small message may expand to gigabytes; its end is known, since its checksum is right."""
    bomb = build_message_set([bytes(100_000)], codec=codec)
    limits = Limits(decompressed_bytes=150_000)

    assert (1, START + len(bomb)) == (len(decode(bomb * 2, limits=limits)), decode(bomb * 2, limits=limits).next_offset)
    error = fault(bomb, limits=Limits(decompressed_bytes=10_000))
    assert isinstance(error, DecompressedTooLarge)
    assert START + len(bomb) == error.next_offset


@pytest.mark.parametrize("room_bytes", [0, 300, 1 << 16])
def test_decompressed_data_goes_to_reserved_memory_that_is_large_enough(room_bytes: int) -> None:
    """Records are the same, whatever memory the caller has."""
    data = PLAIN + b"".join(build_message_set([b"v" * 100, b"w"], codec=codec) for codec in CODECS) + OTHER
    room = memoryview(bytearray(room_bytes))

    assert list_rows(decode(data)) == list_rows(decode(data, make_room=lambda: room))


def test_views_are_decoded_as_bytes_are() -> None:
    """Fetched bytes are views of a frame."""
    data = PLAIN + build_message_set([b"a", b"b"], codec=Codec.GZIP)

    for view in (memoryview(data), memoryview(bytearray(data)), bytearray(data)):
        batch = decode_message_set(view, partition=PARTITION, start=START)
        assert list_rows(decode(data)) == list_rows(batch)


def test_batch_becomes_arrow_columns() -> None:
    """The bronze table and Parquet files are written from them."""
    pytest.importorskip("pyarrow")
    table = decode(PLAIN + build_message_set([b"a", b"b"], codec=Codec.GZIP)).to_arrow()

    table.validate(full=True)
    assert [b"one", b"a", b"b"] == table.column("value").to_pylist()
    assert [None] * 3 == table.column("timestamp").to_pylist() == table.column("key").to_pylist()


# -- building and checking


def test_built_messages_have_the_layout_of_the_document() -> None:
    """Length, magic, attributes in magic 1 only, checksum of the payload."""
    checksum = crc32(b"one")

    assert struct.pack(">iBBI", 9, 1, 0, checksum) + b"one" == build_message_set([b"one"])
    assert struct.pack(">iBI", 8, 0, checksum) + b"one" == build_message_set([b"one"], magic=0)
    assert [b"", b""] == [build_message_set([]), build_message_set([], codec=Codec.GZIP)]


@pytest.mark.parametrize(("magic", "codec"), [(2, 0), (-1, 0), (1, 3), (1, 4), (1, -1)])
def test_unknown_magic_or_codec_cannot_be_built(magic: int, codec: int) -> None:
    """LZ4 came with 0.8.2."""
    with pytest.raises(LocalProtocolError):
        build_message_set([b"one"], magic=magic, codec=codec)


def test_magic_0_has_no_codec() -> None:
    """It has no attributes to say so."""
    with pytest.raises(LocalProtocolError, match="does not exist in magic 0"):
        encode_message(b"", magic=0, codec=1)


class Huge(bytes):
    """Bytes that claim to be 2 GiB."""

    def __len__(self) -> int:
        return 1 << 31


def test_payload_beyond_the_length_field_cannot_be_built() -> None:
    """It would wrap to a negative length."""
    with pytest.raises(LocalProtocolError, match="a message of 2147483654 bytes"):
        encode_message(Huge())


def test_check_returns_the_size_of_whole_messages() -> None:
    """A broker stores a set up to a message that is cut off."""
    whole = PLAIN + build_message_set([b"a"], codec=Codec.GZIP)

    assert [len(whole), len(whole), 0] == [check_message_set(one) for one in (whole, whole + OTHER[:-1], b"")]


@pytest.mark.parametrize("bad", [damaged(OTHER), compress_message_set(damaged(OTHER), Codec.GZIP)])
def test_check_refuses_a_set_with_any_damaged_message(bad: bytes) -> None:
    """A broker stores nothing of such a set."""
    with pytest.raises(CorruptMessageError, match=f"byte {len(PLAIN)}: CRC-32 is"):
        check_message_set(PLAIN + bad + PLAIN)
    with pytest.raises(DecompressedTooLarge):
        check_message_set(compress_message_set(PLAIN, Codec.GZIP), limits=Limits(decompressed_bytes=4))
