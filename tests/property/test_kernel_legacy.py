# SPDX-License-Identifier: Apache-2.0
"""The kernel and pure Python give the same for any message set of Kafka 0.6 and 0.7, down to the words of an error."""

from __future__ import annotations

import functools

import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.errors import RemoteProtocolError
from consumerd.wire import kernel
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.message_set import build_message_set, compress_message_set
from consumerd.wire.legacy.messages import LegacyFetchResponse, LegacyMultiFetchResponse
from consumerd.wire.legacy.session import read_legacy_request
from consumerd.wire.legacy.stored_message import encode_message
from tests.support.legacy_frames import MALFORMED, load_exchanges
from tests.support.legacy_outcomes import compare_paths, mend_messages

pytestmark = [pytest.mark.skipif(kernel.legacy is None, reason="there is no kernel"), pytest.mark.records]

INTERESTING = (0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
PLACES = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.sampled_from(INTERESTING) | st.integers(0, 255)), min_size=1, max_size=3
)
STARTS = st.sampled_from([0, 1000, (1 << 62) + 7])
PAYLOADS = st.binary(max_size=60) | st.sampled_from([b"", b"x" * 100, b"ab" * 300])

ODD = ("nothing inside", "cut off inside", "damaged inside", "mended inside", "nested", "checksum", "codec", "too deep")
"""Differences of a compressed message from one that the kernel reads."""


def damage(data: bytes, places: list[tuple[int, int]], *, mended: bool) -> bytes:
    damaged = bytearray(data)
    for place, byte in places:
        if damaged:
            damaged[place % len(damaged)] = byte
    if mended:
        mend_messages(damaged)
    return bytes(damaged)


@st.composite
def plain(draw: st.DrawFn) -> bytes:
    """Draw a run of uncompressed messages, mostly of one magic."""
    magic = draw(st.sampled_from([0, 1, 1, 1]))
    payloads = draw(st.lists(PAYLOADS, min_size=1, max_size=8)) * draw(st.sampled_from([1, 1, 9]))
    other = draw(st.sampled_from([1 - magic, magic, magic]))
    return build_message_set(payloads, magic=magic) + build_message_set(payloads[:1], magic=other)


def compress_raw(messages: bytes) -> bytes:
    """Return a message compressed with snappy, without the framing of the Java producer."""
    return encode_message(bytes(snappy.compress(messages)), codec=Codec.SNAPPY)


@st.composite
def packed(draw: st.DrawFn) -> bytes:
    """Draw a compressed message; one of five is other than the kernel reads at once."""
    inner, odd = draw(plain()), draw(st.just("") | st.just("") | st.sampled_from(ODD))
    codec = draw(st.sampled_from([Codec.SNAPPY, Codec.SNAPPY, Codec.GZIP]))
    match odd:
        case "nothing inside":
            inner = b""
        case "cut off inside":
            inner = inner[: -draw(st.integers(1, min(30, len(inner))))]
        case "damaged inside" | "mended inside":
            inner = damage(inner, draw(PLACES), mended=odd.startswith("mended"))
        case "nested" | "too deep":
            for _ in range(1 if odd == "nested" else 3):
                inner = draw(st.sampled_from([b"", inner])) + compress_message_set(inner, codec)
    raw = codec == Codec.SNAPPY and draw(st.booleans())
    made = bytearray(compress_raw(inner) if raw else compress_message_set(inner, codec))
    if odd == "checksum":
        made[-1] ^= 1
    elif odd == "codec":
        made[5] = draw(st.integers(0, 255))
    return bytes(made)


SETS = st.lists(packed() | packed() | plain(), min_size=1, max_size=6).map(b"".join)


@functools.cache
def recorded_sets() -> list[bytes]:
    """Return the message sets that real brokers of Kafka 0.7.2 and Jafka returned."""
    found = []
    for one in load_exchanges():
        if one.response is None or one.short_name in MALFORMED:
            continue
        try:
            answer = read_legacy_request(memoryview(one.request)[4:]).decode_response(0, memoryview(one.response)[4:])
        except RemoteProtocolError:
            continue  # a malformed response, which other tests name
        if isinstance(answer, LegacyFetchResponse):
            found.append(bytes(answer.messages))
        elif isinstance(answer, LegacyMultiFetchResponse):
            found += [bytes(each.messages) for each in answer.responses]
    return sorted({each for each in found if each}, key=len)


def test_real_brokers_sent_sets_of_all_kinds() -> None:
    """Otherwise the next test would compare less than it says."""
    sets = recorded_sets()

    assert len(sets) >= 10
    assert {0, 1} <= {data[4] for data in sets}
    assert {0, 1, 2} <= {data[5] & 3 for data in sets if data[4] == 1}


@settings(max_examples=150, deadline=None)
@given(
    one=st.integers(0),
    other=st.integers(0),
    start=STARTS,
    places=PLACES,
    mended=st.booleans(),
    cut=st.integers(0, 300),
)
def test_they_agree_on_what_real_brokers_sent(
    one: int, other: int, start: int, places: list[tuple[int, int]], mended: bool, cut: int
) -> None:
    """Whole, cut off, with bytes changed, and with another set after it."""
    sets = recorded_sets()
    data, behind = sets[one % len(sets)], sets[other % len(sets)]
    damaged = damage(data, places, mended=mended)

    compare_paths(data[: max(0, len(data) - cut)], start)
    compare_paths(damaged, start)
    compare_paths(damaged + behind, start)


@settings(max_examples=300, deadline=None)
@given(data=SETS, start=STARTS, cut=st.integers(0, 300))
def test_they_agree_on_sets_of_every_shape(data: bytes, start: int, cut: int) -> None:
    """Runs of plain and of compressed messages; whole, and cut off."""
    left = max(0, len(data) - cut)

    compare_paths(data, start)
    compare_paths(data[:left], start)


@settings(max_examples=200, deadline=None)
@given(data=SETS, start=STARTS, places=PLACES, mended=st.booleans())
def test_they_agree_on_damaged_sets(data: bytes, start: int, places: list[tuple[int, int]], mended: bool) -> None:
    """With right checksums, too: only the decompressed bytes tell what is wrong then."""
    compare_paths(damage(data, places, mended=mended), start)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), start=STARTS)
def test_they_agree_on_any_bytes(data: bytes, start: int) -> None:
    """A fetch from inside of a message returns such."""
    compare_paths(data, start)
