# SPDX-License-Identifier: Apache-2.0
"""The kernel and the pure Python readers give the same for compressed wrappers of magic 0 and 1, valid or not."""

from __future__ import annotations

import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.wire import kernel
from consumerd.wire.compression import Codec
from tests.property.test_kernel_records import LOG_APPEND_TIME, PLACES, check, damage
from tests.property.test_records_decoding import MAYBE
from tests.support.record_sets import RecordSpec, batch, break_lz4_header, compress, message, wrapper

pytestmark = [
    pytest.mark.skipif(kernel.records is None or kernel.messages is None, reason="there is no kernel"),
    pytest.mark.records,
]

ODD = (
    *(
        "hole before",
        "goes back",
        "again",
        "hole inside",
        "ends later",
        "ends earlier",
        "base",
        "kinds",
        "damaged inside",
    ),
    *("other bytes inside", "nested", "checksum", "cut off", "gzip", "plain", "batch", "nothing", "header"),
)
"""What a unit has that plain wrappers have not."""


@st.composite
def messages(draw: st.DrawFn, first: int, magic: int, odd: str) -> tuple[bytes, int]:
    """Return a set of messages, and how far its last is from its first."""
    step = 2 if odd == "hole inside" else 1
    values = draw(st.lists(st.tuples(MAYBE, MAYBE), min_size=1, max_size=9)) * draw(st.sampled_from([1, 1, 5]))
    strange = draw(st.integers(0, len(values))) if odd == "kinds" else len(values)
    inner = b"".join(
        message(
            first + step * row,
            value,
            key=key,
            magic=magic if row < strange else draw(st.integers(0, 1)),
            timestamp=draw(st.sampled_from([0, 1_700_000_000_000 + row, -1])),
            attributes=0 if row < strange else draw(st.sampled_from([0, LOG_APPEND_TIME])),
        )
        for row, (key, value) in enumerate(values)
    )
    if odd.endswith("inside") and odd != "hole inside":
        inner = damage(inner, draw(PLACES), mended=odd.startswith("other"))
    return inner, step * (len(values) - 1)


def pack(codec: int, data: bytes, *, magic: int, raw: bool, broken: bool) -> bytes:
    """Compress as clients do: snappy without its framing, too; LZ4 of magic 0 with the wrong header."""
    if codec == Codec.SNAPPY and raw:
        return bytes(snappy.compress(data))
    compressed = compress(codec, data)
    return break_lz4_header(compressed) if codec == Codec.LZ4 and (magic == 0) != broken else compressed


@st.composite
def unit(draw: st.DrawFn, offset: int, odd: str) -> tuple[bytes, int]:
    """Return a wrapper, or what stands in its place, and the offset behind it."""
    magic, codec = draw(st.integers(0, 1)), draw(st.sampled_from([2, 3]))
    codec = Codec.GZIP if odd == "gzip" else codec
    if odd == "batch":
        specs = [RecordSpec(delta=row, value=draw(MAYBE)) for row in range(3)]
        return batch(offset, specs, codec=draw(st.sampled_from([0, codec]))), offset + 3
    first = offset if magic == 0 else draw(st.sampled_from([7, -2, offset])) if odd == "base" else 0
    inner, reach = draw(messages(offset if odd == "plain" else first, magic, odd))
    if odd == "plain":
        return inner, offset + reach + 1
    if odd == "nested":
        inner = wrapper(first + reach, inner, codec, magic=magic)
    last = offset + reach + {"ends later": 2, "ends earlier": -1}.get(odd, 0)
    made = wrapper(
        last,
        b"",
        codec,
        key=draw(MAYBE),
        magic=magic,
        timestamp=draw(st.sampled_from([-1, 1_600_000_000_000])),
        attributes=draw(st.sampled_from([0, 0, LOG_APPEND_TIME, 0x40])),
        compressed=pack(
            codec,
            b"" if odd == "nothing" else inner,
            magic=magic,
            raw=draw(st.booleans()),
            broken=odd == "header",
        ),
    )
    if odd == "checksum":
        made = made[:-1] + bytes((made[-1] ^ 1,))
    return made[: len(made) - draw(st.integers(1, 40)) if odd == "cut off" else None], last + 1


@st.composite
def wrappers(draw: st.DrawFn) -> bytes:
    """Return a run of wrappers, most of them plain."""
    data, offset = b"", draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 5))):
        odd = draw(st.just("") | st.sampled_from(ODD))
        begin = max(0, offset + {"hole before": 3, "goes back": -2, "again": -40}.get(odd, 0))
        made, offset = draw(unit(begin, odd))
        data += made
    return data


@settings(max_examples=300, deadline=None)
@given(data=wrappers(), start=st.integers(0, 60), following=st.integers(0, 300))
def test_they_agree_on_wrappers_of_every_shape(data: bytes, start: int, following: int) -> None:
    """From the first, from within and behind; whole, cut off, and in pieces."""
    cut = max(0, len(data) - following)

    check(data, 0)
    check(data, start)
    check(data[:cut], start)
    check(data[:cut], start, following=data[cut:])


@settings(max_examples=200, deadline=None)
@given(data=wrappers(), start=st.integers(0, 40), places=PLACES, mended=st.booleans())
def test_they_agree_on_wrappers_that_are_damaged(
    data: bytes, start: int, places: list[tuple[int, int]], mended: bool
) -> None:
    """With right checksums, too: what a broken producer wrote is read by both or by neither."""
    check(damage(data, places, mended=mended), start)
