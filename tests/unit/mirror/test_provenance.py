# SPDX-License-Identifier: Apache-2.0
"""Origin of mirrored records, in headers and envelopes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError
from consumerd.mirror.provenance import (
    HEADER,
    RecordOrigin,
    decode_origin,
    encode_origin,
    find_origin,
    make_envelope,
    open_envelope,
)
from consumerd.model import Incarnation, TopicPartition

ORIGIN = RecordOrigin("k9V", "orders", "3", "4294967337", 120, 121)

texts = st.text(st.characters(codec="utf-8"), max_size=30)
origins = st.builds(
    lambda *parts: RecordOrigin(*parts[:4], parts[4], parts[4] + parts[5]),
    texts,
    texts,
    texts,
    texts,
    st.integers(0, 2**62),
    st.integers(1, 2**31),
)


@given(origins)
def test_origins_come_back(origin: RecordOrigin) -> None:
    """Names may hold anything that a cluster has stored."""
    assert decode_origin(encode_origin(origin)) == origin


@given(origins, st.binary(max_size=300))
def test_envelopes_come_back(origin: RecordOrigin, value: bytes) -> None:
    """A value may hold line feeds, and look like an envelope itself."""
    envelope = make_envelope(origin, value)
    assert envelope is not None
    assert open_envelope(envelope) == (origin, value)
    again = make_envelope(ORIGIN, envelope)
    assert again is not None
    assert open_envelope(again) == (ORIGIN, envelope)


def test_null_stays_null() -> None:
    """Compaction deletes a key by it."""
    assert make_envelope(ORIGIN, None) is None


def test_form_is_the_documented_one() -> None:
    """Programs of others read it."""
    assert encode_origin(ORIGIN) == b'["k9V","orders","3","4294967337",120,121]'
    assert make_envelope(ORIGIN, b"v\n") == b'consumerd-mirror:["k9V","orders","3","4294967337",120,121]\nv\n'


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"x",
        b"{}",
        b"[]",
        b'["a","b","c","d",1]',
        b'["a","b","c","d",1,2,3]',
        b'["a","b","c","d",1,1]',
        b'["a","b","c","d",-1,2]',
        b'["a","b","c","d",1,true]',
        b'["a","b","c","d","1",2]',
        b"[" * 2000,
        b'["' + b"a" * 3000 + b'","b","c","d",1,2]',
    ],
)
def test_other_bytes_are_refused(data: bytes | None) -> None:
    """Anybody may write such a header."""
    with pytest.raises(CorruptMessageError):
        decode_origin(data)
    assert find_origin([(HEADER, data)]) is None


@given(st.binary(max_size=60))
def test_other_values_are_no_envelopes(data: bytes) -> None:
    with pytest.raises(CorruptMessageError):
        open_envelope(data)


def test_last_header_counts() -> None:
    """A record may have been mirrored from a mirror."""
    later = replace(ORIGIN, cluster="second")
    headers = [("trace", b"1"), (HEADER, encode_origin(ORIGIN)), (HEADER, encode_origin(later)), ("x", None)]
    assert find_origin(headers) == later
    assert find_origin([("trace", b"1")]) is None


def test_records_of_other_logs_are_told_apart() -> None:
    """A topic that was made again begins at 0 again; a truncated one goes on."""
    partition, made = TopicPartition.modern("orders", 3), Incarnation(4294967337)
    assert ORIGIN.is_of("k9V", partition, made)
    assert replace(ORIGIN, incarnation="4294967337.1").is_of("k9V", partition, made)
    assert not ORIGIN.is_of("k9V", partition, Incarnation(4294967338))
    assert not replace(ORIGIN, incarnation="x").is_of("k9V", partition, made)
    assert not ORIGIN.is_of("other", partition, made)
    assert not ORIGIN.is_of("k9V", TopicPartition.modern("orders", 2), made)
