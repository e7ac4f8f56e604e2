# SPDX-License-Identifier: Apache-2.0
"""Decompression: what clients write, what is cut or damaged, and bombs."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import sys
import tracemalloc
import zlib

import lz4.frame
import pytest
import snappy
import zstandard

from consumerd.errors import ConfigError, CorruptMessageError, DecompressedTooLarge, LocalProtocolError
from consumerd.wire import compression, kernel
from consumerd.wire.compression import Codec, decompress, expected_size
from consumerd.wire.compression import compress as pack
from consumerd.wire.kernel import Buffer
from consumerd.wire.varint import encode_varint
from tests.support.record_sets import break_lz4_header, compress, xerial

pytestmark = pytest.mark.usefixtures("each_path")

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LIMIT = 1 << 20
TEXT = b"".join(b"line %d of a text; " % number for number in range(5000))


def read(codec: int, data: bytes | memoryview, *, limit: int = LIMIT, magic: int = 2) -> bytes:
    return decompress(codec, data, limit=limit, magic=magic)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, TEXT * 5], ids=["empty", "one byte", "text", "long"])
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    """The plain case, in the framing of the Java clients."""
    assert data == read(codec, compress(codec, data))


@pytest.mark.parametrize("codec", CODECS)
def test_output_of_exactly_the_limit_passes_and_one_byte_more_does_not(codec: Codec) -> None:
    """The limit is a limit, not an estimate."""
    packed = compress(codec, TEXT)

    assert TEXT == read(codec, packed, limit=len(TEXT))
    with pytest.raises(CorruptMessageError, match="more than"):
        read(codec, packed, limit=len(TEXT) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_stream_is_corrupt(codec: Codec) -> None:
    """A truncated stream must not pass for a shorter one. Only the framing of snappy can end between blocks."""
    packed = compress(codec, TEXT[:5000])

    for cut in range(len(packed)):
        if codec is Codec.SNAPPY and cut == 16:
            continue
        with pytest.raises(CorruptMessageError):
            read(codec, packed[:cut])


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_streams_are_corrupt_or_give_bytes(codec: Codec) -> None:
    """No other exception comes out of a codec's library, wherever the damage is."""
    packed = compress(codec, TEXT[:2000])

    for place in range(len(packed)):
        damaged = bytearray(packed)
        damaged[place] ^= 0x55
        with contextlib.suppress(CorruptMessageError):
            assert isinstance(read(codec, bytes(damaged)), bytes)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 1000, 65536, 65537, 1 << 20])
def test_a_stream_tells_the_most_that_it_gives(codec: Codec, size: int) -> None:
    """Room is reserved by it: it must not be less than what comes, nor much more than the blocks that there are."""
    for data in (bytes(size), zlib.compress(TEXT * 20, 9)[:size].ljust(size, b"x")):
        told = expected_size(codec, memoryview(compress(codec, data)))

        assert size <= told <= 3 * size + (128 << 10)  # zstd splits blocks, which count as whole ones


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_that_is_cut_or_damaged_tells_some_size_at_once(codec: Codec) -> None:
    """It is asked before any checksum of the stream's own was looked at; whatever it says is held against it later."""
    packed = compress(codec, TEXT)
    for at in range(0, len(packed), 7):
        damaged = packed[:at] + bytes((packed[at] ^ 0xFF,)) + packed[at + 1 :]
        assert expected_size(codec, packed[:at]) >= 0
        assert expected_size(codec, memoryview(damaged)) >= 0


def test_a_stream_of_no_codec_tells_nothing() -> None:
    """The decoder refuses it by name."""
    assert expected_size(7, b"anything") == 0


def test_a_raw_snappy_block_is_read_without_framing() -> None:
    """librdkafka and others write raw blocks."""
    assert TEXT == read(Codec.SNAPPY, snappy.compress(TEXT))


def test_several_gzip_members_are_one_stream_and_trailing_bytes_are_ignored() -> None:
    """As GZIPInputStream does, so that the same records come out as in a Java consumer."""
    assert b"onetwo" == read(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two"))
    assert b"one" == read(Codec.GZIP, gzip.compress(b"one") + b"garbage")
    with pytest.raises(CorruptMessageError, match="gzip"):
        read(Codec.GZIP, gzip.compress(b"one") + b"\x1f\x8bgarbage")


@pytest.fixture(params=["isal", "zlib"])
def inflate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read gzip with the fast library and without."""
    if request.param == "zlib":
        monkeypatch.setattr(compression, "_isal", None)
    else:
        pytest.importorskip("isal")


@pytest.mark.usefixtures("inflate")
@pytest.mark.parametrize("flags", range(256))
def test_gzip_headers_of_all_flags_are_read_alike(flags: int) -> None:
    """Name, comment, extra bytes and the header's checksum go by; bits that nobody has given a meaning do not."""
    body = zlib.compress(TEXT, wbits=-15)
    head = b"\x1f\x8b\x08" + bytes((flags,)) + bytes(4) + b"\x00\xff"
    head += (
        (b"\x02\x00xy" if flags & 4 else b"") + (b"name\0" if flags & 8 else b"") + (b"text\0" if flags & 16 else b"")
    )
    head += struct.pack("<H", zlib.crc32(head) & 0xFFFF) if flags & 2 else b""
    packed = head + body + struct.pack("<II", zlib.crc32(TEXT), len(TEXT))

    if flags & 0xE0:
        with pytest.raises(CorruptMessageError):
            read(Codec.GZIP, packed)
    else:
        assert TEXT == read(Codec.GZIP, packed)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_gzip_is_the_same_to_both_libraries(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an extra is installed must not decide what a topic holds."""
    pytest.importorskip("isal")
    generator = random.Random(seed)
    whole = gzip.compress(TEXT[:3000]) + gzip.compress(b"another member")
    for _ in range(60):
        packed = bytearray(whole)
        for _ in range(generator.randrange(3)):
            packed[generator.randrange(generator.choice([12, len(packed)]))] = generator.randrange(256)
        data = bytes(packed[: generator.choice([len(packed), generator.randrange(len(packed))])])
        limit = generator.choice([100, 3000, 3013, 3014, LIMIT])
        with monkeypatch.context() as patch:
            fast = outcome(data, limit)
            patch.setattr(compression, "_isal", None)
            assert outcome(data, limit) == fast


def outcome(data: bytes, limit: int) -> bytes | str:
    try:
        return read(Codec.GZIP, data, limit=limit)
    except CorruptMessageError as error:
        return str(error)


def test_many_small_gzip_members_are_not_copied_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a member is copied by the library: a megabyte of empty ones would be copied fifty thousand times."""
    packed = gzip.compress(b"") * 5000 + gzip.compress(b"end")
    given = 0
    inflate = compression._inflate

    def count(data: Buffer, left: int, before: int) -> tuple[bytes, bytes]:
        nonlocal given
        given += len(data)
        return inflate(data, left, before)

    monkeypatch.setattr(compression, "_isal", None)
    monkeypatch.setattr(compression, "_inflate", count)

    assert b"end" == read(Codec.GZIP, packed)
    assert given < 300 * len(packed)


@pytest.mark.usefixtures("inflate")
@pytest.mark.parametrize("size", [0, 3000, 4096, 5000, 40_000, 300_000])
def test_a_gzip_member_behind_another_has_any_size(size: int) -> None:
    """It is given part of what follows at first."""
    text = random.Random(size).randbytes(size)
    packed = gzip.compress(b"one") + gzip.compress(text) + gzip.compress(b"three")

    assert b"one" + text + b"three" == read(Codec.GZIP, packed + b"behind it")
    with pytest.raises(CorruptMessageError, match=f"ends early, after {3 + size} bytes"):
        read(Codec.GZIP, packed[: -len(gzip.compress(b"three")) - 1])


@pytest.mark.usefixtures("inflate")
def test_several_gzip_members_share_the_limit() -> None:
    """Or a thousand members of the limit each would pass."""
    with pytest.raises(CorruptMessageError, match="more than 5 bytes"):
        read(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two"), limit=5)


def test_trailing_bytes_after_an_lz4_frame_are_ignored() -> None:
    """As KafkaLZ4BlockInputStream does."""
    assert b"text" == read(Codec.LZ4, compress(Codec.LZ4, b"text") + b"garbage")


def test_zstd_frames_are_joined_and_skippable_ones_skipped() -> None:
    """As ZstdInputStream does; anything else behind a frame is an error there too."""
    frame = compress(Codec.ZSTD, b"text")
    skippable = b"\x5a\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"

    assert b"texttext" == read(Codec.ZSTD, frame + skippable + frame)
    assert b"" == read(Codec.ZSTD, skippable)
    for garbage in (b"garbage", b"\0", skippable[:-1], frame[:5]):
        with pytest.raises(CorruptMessageError, match="zstd"):
            read(Codec.ZSTD, frame + garbage)


@pytest.mark.parametrize("options", [{}, {"write_checksum": True}, {"write_content_size": False}])
@pytest.mark.parametrize("data", [b"", b"x", b"ab" * 1000, TEXT * 3])
def test_all_shapes_of_zstd_headers_are_walked(data: bytes, options: dict[str, bool]) -> None:
    """Content size of each width, checksum or not, repeated bytes as one block."""
    assert data == read(Codec.ZSTD, zstandard.ZstdCompressor(**options).compress(data))


def test_zstd_with_a_dictionary_id_needs_the_dictionary() -> None:
    """Nothing that Kafka's clients write; it must still be an error of the unit alone."""
    dictionary = zstandard.ZstdCompressionDict(TEXT[:5000])
    frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT[:100])

    with pytest.raises(CorruptMessageError, match="zstd"):
        read(Codec.ZSTD, frame + b"x")


def test_the_wrong_header_checksum_of_magic_0_is_accepted_there_alone() -> None:
    """KAFKA-3160: magic 0 producers hash four bytes too many; from magic 1 on the checksum is right and checked."""
    wrong = break_lz4_header(compress(Codec.LZ4, TEXT))
    assert wrong != compress(Codec.LZ4, TEXT)

    assert TEXT == read(Codec.LZ4, wrong, magic=0)
    for magic in (1, 2):
        with pytest.raises(CorruptMessageError, match="lz4"):
            read(Codec.LZ4, wrong, magic=magic)


def test_a_right_header_checksum_is_accepted_in_magic_0_too() -> None:
    """Clients other than Java's wrote right ones; a frame may carry its content's size."""
    assert TEXT == read(Codec.LZ4, compress(Codec.LZ4, TEXT), magic=0)
    assert TEXT == read(Codec.LZ4, bytes(lz4.frame.compress(TEXT, store_size=True)), magic=0)
    for short in (b"", b"\x04\x22\x4d\x18", b"garbage and more"):
        with pytest.raises(CorruptMessageError):
            read(Codec.LZ4, short, magic=0)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (xerial([b"x"])[:12], "header"),
        (xerial([b"x"]) + b"\0\0", "length of a block is cut off"),
        (xerial([]) + struct.pack(">i", -1), "-1 bytes"),
        (xerial([]) + struct.pack(">i", 100) + b"x", "100 bytes"),
        (xerial([]) + struct.pack(">i", 0), "cut off"),
        (b"\xff\xff\xff\xff\xff\x01", "cut off"),
        (encode_varint(LIMIT // 2 - 1) + b"abc", "declared"),
        (b"\x05\x00", "snappy"),
    ],
)
def test_broken_snappy_is_corrupt(packed: bytes, message: str) -> None:
    """Framing and blocks are checked before the library sees them."""
    with pytest.raises(CorruptMessageError, match=message):
        read(Codec.SNAPPY, packed)


def test_snappy_framing_without_blocks_is_empty() -> None:
    """snappy-java writes the header first."""
    assert b"" == read(Codec.SNAPPY, xerial([]))


def test_snappy_blocks_share_the_limit() -> None:
    """Each block alone would pass."""
    with pytest.raises(CorruptMessageError, match="more than 150 bytes"):
        read(Codec.SNAPPY, xerial([bytes(100), bytes(100)]), limit=150)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_no_more_memory_than_the_limit_allows(codec: Codec) -> None:
    """64 MiB of zeros in a few KiB (snappy: 3 MiB), with a limit of 1 MiB."""
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessageError, match="more than"):
            read(codec, bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 * LIMIT + len(bomb)


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_of_many_pieces_is_joined(codec: Codec) -> None:
    """Output beyond one step of a bounded decompressor."""
    data = zlib.compress(TEXT) * 500

    assert data == read(codec, compress(codec, data), limit=1 << 27)


@pytest.mark.parametrize(
    ("codec", "magic"), [(5, 2), (6, 1), (7, 0), (Codec.ZSTD, 0), (Codec.ZSTD, 1), (Codec.NONE, 2)]
)
def test_a_codec_that_does_not_exist_in_the_magic_is_named(codec: int, magic: int) -> None:
    """The operator must see that this is a format we do not know, not damage."""
    with pytest.raises(CorruptMessageError, match=f"codec {codec}.*magic {magic}"):
        read(codec, b"", magic=magic)


@pytest.mark.parametrize(
    ("codec", "module", "package"),
    [
        (Codec.SNAPPY, "snappy", "python-snappy"),
        (Codec.LZ4, "lz4.frame", "lz4"),
        (Codec.ZSTD, "zstandard", "zstandard"),
    ],
)
def test_a_missing_library_is_named(codec: Codec, module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no fault of the data, which a policy might pass over; other codecs go on working without it."""
    packed = compress(codec, b"text")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(kernel, "snappy", None)
    monkeypatch.setattr(kernel, "lz4", None)

    with pytest.raises(ConfigError, match=f"cannot be read, the package {package} is not usable"):
        read(codec, packed)


# -- room for what comes out


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, TEXT * 5], ids=["empty", "one byte", "text", "long"])
@pytest.mark.parametrize("spare", [-1, 0, 1, 15, 100, 1 << 18])
def test_what_comes_out_is_the_same_with_room_for_it_or_without(codec: Codec, data: bytes, spare: int) -> None:
    """Room that is too small, or just enough, must neither cut nor be written past."""
    size = max(len(data) + spare, 0)
    memory = bytearray(size + 64)

    whole = decompress(codec, compress(codec, data), limit=LIMIT, magic=2, room=memoryview(memory)[:size])

    assert data == whole
    assert bytes(64) == memory[size:]


@pytest.mark.parametrize("codec", CODECS)
def test_room_beyond_the_limit_is_not_for_more_than_the_limit(codec: Codec) -> None:
    """The limit is a promise, the room a guess."""
    room = memoryview(bytearray(1 << 20))

    assert TEXT == decompress(codec, compress(codec, TEXT), limit=len(TEXT), magic=2, room=room)
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, compress(codec, TEXT), limit=len(TEXT) - 1, magic=2, room=room)


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_stream_is_corrupt_with_room_for_it_too(codec: Codec) -> None:
    """Where the room ends says nothing of where the stream does."""
    packed = compress(codec, TEXT[:2000])

    for cut in range(len(packed)):
        if codec is Codec.SNAPPY and cut == 16:
            continue
        with pytest.raises(CorruptMessageError):
            decompress(codec, packed[:cut], limit=LIMIT, magic=2, room=memoryview(bytearray(4000)))


def test_a_zstd_frame_that_fills_its_room_is_held_against_its_checksum() -> None:
    """It stands behind the last byte that comes out."""
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(TEXT))
    packed[-1] ^= 1

    for spare in (0, 1, 1 << 18):
        with pytest.raises(CorruptMessageError):
            decompress(Codec.ZSTD, packed, limit=LIMIT, magic=2, room=memoryview(bytearray(len(TEXT) + spare)))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_views_are_read_like_bytes(codec: Codec, magic: int) -> None:
    """What stands in a frame is decompressed from where it is."""
    if codec is Codec.ZSTD and magic < 2:
        return
    packed = pack(codec, TEXT, magic=magic)
    frame = memoryview(b"before" + packed + b"behind")[6:-6]

    assert TEXT == read(codec, frame, magic=magic)
    assert expected_size(codec, packed) == expected_size(codec, frame)


# -- what is written


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("data", [b"", b"x", TEXT, TEXT * 5], ids=["empty", "one byte", "text", "long"])
def test_what_is_packed_is_read_with_its_quirks(codec: Codec, magic: int, data: bytes) -> None:
    """Whether Java reads it, too, is an interop test."""
    if codec is Codec.ZSTD and magic < 2:
        return
    assert data == read(codec, pack(codec, data, magic=magic), magic=magic)


def test_lz4_frames_are_what_the_first_java_reader_knows() -> None:
    """KafkaLZ4BlockInputStream refuses blocks that depend on each other, and reads nothing beside the blocks."""
    frame = pack(Codec.LZ4, TEXT * 5, magic=1)

    version_and_flags, blocks = frame[4], frame[5]
    assert (0b01_1_0_0_0_0_0, 4 << 4) == (version_and_flags, blocks)
    assert break_lz4_header(frame) == pack(Codec.LZ4, TEXT * 5, magic=0) != frame


def test_snappy_blocks_are_those_of_snappy_java() -> None:
    """32 KiB each, behind its head of two versions."""
    data = TEXT * 5

    packed = pack(Codec.SNAPPY, data, magic=1)

    assert xerial(data[at : at + (32 << 10)] for at in range(0, len(data), 32 << 10)) == packed


@pytest.mark.parametrize(("codec", "magic"), [(Codec.ZSTD, 1), (0, 2), (5, 2), (7, 0), (-1, 1)])
def test_codecs_that_do_not_exist_are_our_own_mistake(codec: int, magic: int) -> None:
    """Nothing is sent that no client could read."""
    with pytest.raises(LocalProtocolError, match=f"codec {int(codec)}"):
        pack(codec, b"data", magic=magic)


@pytest.mark.parametrize(
    ("codec", "module"), [(Codec.SNAPPY, "snappy"), (Codec.LZ4, "lz4.frame"), (Codec.ZSTD, "zstandard")]
)
def test_a_library_that_is_not_usable_is_named(codec: Codec, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers cannot do without it; the message says what to install."""
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigError, match=f"{codec.name.lower()}: cannot be written, the package"):
        pack(codec, b"data", magic=2)
