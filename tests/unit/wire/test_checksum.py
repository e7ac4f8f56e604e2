# SPDX-License-Identifier: Apache-2.0
"""Checksums against published values and against each other."""

from __future__ import annotations

import sys
import types
import zlib

import lz4.frame
import pytest

from consumerd.wire import checksum

pytestmark = pytest.mark.usefixtures("each_path")


def test_crc32c_has_the_published_check_value() -> None:
    """The value for ``123456789`` that every catalogue of CRCs gives, and RFC 3720's 32 zero bytes."""
    assert checksum.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32c_reference(b"123456789") == 0xE3069283
    assert checksum.crc32c_reference(bytes(32)) == 0x8A9136AA


def test_crc32_is_the_ieee_one() -> None:
    """Magic 0 and 1 use the CRC of zlib."""
    assert checksum.crc32(b"123456789") == 0xCBF43926 == zlib.crc32(b"123456789")


def test_without_google_crc32c_the_reference_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform without a wheel still reads record batches."""
    monkeypatch.setitem(sys.modules, "google_crc32c", None)

    assert checksum._choose_crc32c() is checksum.crc32c_reference


def test_google_crc32c_without_its_compiled_part_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own pure Python is slower than our table."""
    module = types.ModuleType("google_crc32c")
    module.value = len  # type: ignore[attr-defined]  # a stand-in module
    module.implementation = "python"  # type: ignore[attr-defined]  # a stand-in module
    monkeypatch.setitem(sys.modules, "google_crc32c", module)

    assert checksum._choose_crc32c() is checksum.crc32c_reference


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 10, 12, 15])
def test_short_xxh32_is_stable_over_all_lengths(size: int) -> None:
    """Published values of xxHash-32 with seed 0."""
    published = {0: 0x02CC5D05, 1: 0x550D7456, 3: 0x32D153FF}
    if size in published:
        assert checksum.xxh32_short(b"abc"[:size]) == published[size]
    assert 0 <= checksum.xxh32_short(bytes(range(size))) < 1 << 32


@pytest.mark.parametrize("sized", [True, False])
def test_short_xxh32_is_what_an_lz4_header_carries(*, sized: bool) -> None:
    """The second byte of the hash of the descriptor is the header checksum."""
    frame = lz4.frame.compress(b"x" * 1000, store_size=sized)
    end = 14 if sized else 6

    assert frame[end] == checksum.xxh32_short(frame[4:end]) >> 8 & 0xFF
