# SPDX-License-Identifier: Apache-2.0
"""Declared messages become codecs that say no to what a version cannot hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire import primitives
from consumerd.wire.declaration import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    ArrayOf,
    Versions,
    field,
    message,
)
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.schema import compile_codec


@message
class Inner:
    """An element of an array, with a version of its own field."""

    number: int = field(INT16)
    late: int = field(INT8, "1+", default=7)


@message
class Sample:
    """Every wire type, and every way that a version can differ."""

    flag: bool = field(BOOLEAN, default=False)
    long: int = field(INT64, default=0)
    text: str | None = field(STRING, default="", nullable="1+")
    names: tuple[str, ...] | None = field(ArrayOf(STRING), default=None, nullable="1+", none_is_empty="0")
    numbers: tuple[int, ...] = field(ArrayOf(INT32), default=())
    inners: tuple[Inner, ...] = field(ArrayOf(Inner), default=())
    blob: memoryview | bytes | None = field(RECORDS, default=b"", nullable="1+")
    early: int = field(INT8, "0", default=1)
    between: str = field(STRING, "1-2", default="d")


# offsets in version 0:           flag  long       text      names     numbers   inners    blob      early
EMPTY_V0 = bytes.fromhex("00" + "00" * 8 + "0000" + "00000000" * 4 + "01")


def decode(version: int, data: bytes) -> Sample:
    return compile_codec(Sample, version).decode(data)


def encode(version: int, **fields: Any) -> bytes:
    return compile_codec(Sample, version).encode(Sample(**fields))


# -- declaration


@pytest.mark.parametrize(
    ("text", "members"), [("0+", range(9)), ("3+", range(3, 9)), ("2-4", range(2, 5)), ("5", [5]), ("none", [])]
)
def test_versions_are_written_as_in_kafkas_definitions(text: str, members: list[int]) -> None:
    """A reader compares them with the guide at a glance."""
    assert list(members) == [version for version in range(9) if version in Versions.parse(text)]


@pytest.mark.parametrize("text", ["", "+", "x", "1-", "-1", "1+2"])
def test_other_versions_are_refused(text: str) -> None:
    """A slip of the pen must not become a range."""
    with pytest.raises(ValueError, match="expected N, N"):
        Versions.parse(text)


def test_field_that_a_version_lacks_needs_a_default() -> None:
    """Else decoding that version could not make the object."""
    with pytest.raises(TypeError, match="needs a default"):
        field(INT8, "1+")


@pytest.mark.parametrize(
    ("wire", "options"),
    [
        (INT8, {"nullable": "1+"}),
        (ArrayOf(INT32), {"nullable": "0+"}),
        (ArrayOf(INT32), {"none_is_empty": "0"}),
        (STRING, {"none_is_empty": "0"}),
    ],
)
def test_type_that_cannot_be_null_is_not_declared_so(wire: Any, options: dict[str, str]) -> None:
    """The declaration would promise what no codec does."""
    with pytest.raises(TypeError, match="cannot say None"):
        field(wire, **options)


def test_field_without_a_wire_type_is_refused() -> None:
    """A plain annotation would silently never be sent."""
    with pytest.raises(TypeError, match=r"Careless\.plain is not declared"):

        @message
        class Careless:
            plain: int


def test_messages_are_values() -> None:
    """Equal by content, hashable, and never changed after the fact."""
    assert Inner(number=1) == Inner(number=1, late=7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Inner(number=1).number = 2  # type: ignore[misc]  # the point of the test


def test_codec_is_compiled_once() -> None:
    """Every request would pay for it otherwise."""
    assert compile_codec(Sample, 1) is compile_codec(Sample, 1)


# -- round trips


def test_all_fields_come_back() -> None:
    """Of each version those that it has, and the defaults of the others."""
    value = Sample(
        flag=True,
        long=-(2**63),
        text="tëxt",
        names=("a", ""),
        numbers=(*range(20), -(2**31)),
        inners=(Inner(number=-1), Inner(number=2)),
        blob=b"xyz",
    )

    for version in range(4):
        codec = compile_codec(Sample, version)
        assert codec.decode(codec.encode(value)) == value


def test_fields_are_where_the_declaration_has_them() -> None:
    """Checked by hand once, so that the other tests do not prove a codec by itself."""
    encoded = encode(
        1,
        flag=True,
        long=2,
        text="t",
        names=("n",),
        numbers=(3,),
        inners=(Inner(number=4, late=5),),
        blob=b"b",
        between="e",
    )

    assert encoded == bytes.fromhex(
        "01" "0000000000000002" "000174" "00000001" "00016e" "00000001" "00000003" "00000001" "0004" "05" "00000001" "62" "000165"
    )  # fmt: skip


def test_any_byte_but_zero_is_true() -> None:
    """As Kafka reads a boolean."""
    assert decode(0, b"\x02" + EMPTY_V0[1:]).flag is True


def test_record_set_is_a_view_into_the_frame() -> None:
    """The hot path copies nothing before the records are decoded."""
    frame = encode(1, blob=b"abc")
    blob = decode(1, frame).blob

    assert isinstance(blob, memoryview)
    assert blob.obj is frame
    assert blob == b"abc"


def test_record_set_may_be_written_from_a_view() -> None:
    """A broker of our own passes on what it has."""
    assert encode(1, blob=memoryview(b"abc")) == encode(1, blob=b"abc")


def test_nulls_come_back() -> None:
    """From the versions on that have them."""
    nulls = Sample(text=None, names=None, blob=None)

    assert nulls == decode(1, encode(1, text=None, names=None, blob=None))


def test_none_is_an_empty_array_where_the_version_says_so() -> None:
    """In version 0 of Metadata an empty list asks for all topics, from 1 on for none."""
    assert decode(0, EMPTY_V0).names is None
    assert encode(0, names=None) == EMPTY_V0
    assert MetadataRequest(topics=None).encode(0) == b"\0\0\0\0"
    with pytest.raises(LocalProtocolError, match="MetadataRequest v0: topics: an empty array"):
        MetadataRequest(topics=()).encode(0)


# -- what cannot be encoded


@pytest.mark.parametrize(
    ("version", "fields", "message"),
    [
        (0, {"between": "x"}, "Sample v0: between: this version has no such field: expected the default 'd', got 'x'"),
        (3, {"between": "x"}, "Sample v3: between: this version has no such field"),
        (1, {"early": 2}, "Sample v1: early: this version has no such field: expected the default 1, got 2"),
        (0, {"inners": (Inner(number=1, late=8),)}, "Inner v0: late: this version has no such field"),
        (0, {"text": None}, "Sample v0: text: None"),
        (0, {"blob": None}, "Sample v0: blob: None"),
        (0, {"names": ("",), "inners": None}, "Sample v0: inners: None"),
        (0, {"long": 2**63}, "Sample v0: flag, long: cannot be encoded"),
        (0, {"long": "1"}, "Sample v0: flag, long: cannot be encoded"),
        (0, {"numbers": (2**31,)}, "Sample v0: numbers: cannot be encoded"),
        (0, {"text": "x" * 32768}, "Sample v0: text: 32768 bytes of text"),
        (0, {"text": "\ud800"}, "Sample v0: text: cannot be encoded"),
    ],
)
def test_what_a_version_cannot_say_is_our_error(version: int, fields: dict[str, Any], message: str) -> None:
    """Nothing that was asked for is left out or cut silently; payloads stay out of messages."""
    with pytest.raises(LocalProtocolError) as error:
        encode(version, **fields)

    assert message in str(error.value)


def test_payload_of_an_absent_field_is_not_shown() -> None:
    """Messages name types where a value may hold the user's bytes."""

    @message
    class Late:
        blob: bytes = field(RECORDS, "1+", default=b"")

    with pytest.raises(LocalProtocolError, match=r"expected the default b'', got bytes$"):
        compile_codec(Late, 0).encode(Late(blob=b"secret"))


def test_length_beyond_int32_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried with a smaller limit, to spare the memory."""
    monkeypatch.setattr(primitives, "MAX_INT32", 2)

    with pytest.raises(LocalProtocolError, match="Sample v1: blob: length 3, at most 2"):
        encode(1, blob=b"abc")


# -- what cannot be decoded


@pytest.mark.parametrize(
    ("version", "data", "message"),
    [
        (0, b"", "Sample v0: flag, long: byte 0 of 0: needs 9 bytes, 0 are left"),
        (0, EMPTY_V0[:8], "Sample v0: flag, long: byte 0 of 8: needs 9 bytes, 8 are left"),
        (0, EMPTY_V0[:10], "Sample v0: text: byte 9 of 10: needs 2 bytes, 1 are left"),
        (0, EMPTY_V0[:9] + b"\0\x02a", "Sample v0: text: byte 11 of 12: needs 2 bytes, 1 are left"),
        (0, EMPTY_V0[:9] + b"\xff\xff", "Sample v0: text: byte 9 of 11: length -1, expected 0 or more"),
        (1, EMPTY_V0[:9] + b"\xff\xfe", "Sample v1: text: byte 9 of 11: length -2, expected 0 or more"),
        (0, EMPTY_V0[:9] + b"\0\x02a\xff", "Sample v0: text: byte 12 of 13: not UTF-8"),
        (0, EMPTY_V0[:13], "Sample v0: names: byte 11 of 13: needs 4 bytes, 2 are left"),
        (0, EMPTY_V0[:11] + b"\0\0\0\x02\0\0\0", "Sample v0: names: byte 15 of 18: needs 4 bytes, 3 are left"),
        (0, EMPTY_V0[:11] + b"\xff\xff\xff\xff", "Sample v0: names: byte 11 of 15: length -1, expected 0 or more"),
        (1, EMPTY_V0[:11] + b"\xff\xff\xff\xfe", "Sample v1: names: byte 11 of 15: length -2, expected 0 or more"),
        (
            0,
            EMPTY_V0[:15] + b"\x7f\xff\xff\xff",
            "Sample v0: numbers: byte 19 of 19: needs 8589934588 bytes, 0 are left",
        ),
        (0, EMPTY_V0[:19] + b"\0\0\0\x01\0", "Sample v0: inners: byte 23 of 24: needs 2 bytes, 1 are left"),
        (0, EMPTY_V0[:23] + b"\0\0\0\x01", "Sample v0: blob: byte 27 of 27: needs 1 bytes, 0 are left"),
        (0, EMPTY_V0[:-1], "Sample v0: early: byte 27 of 27: needs 1 bytes, 0 are left"),
        (0, EMPTY_V0 + b"\0\0", "Sample v0: byte 28 of 30: 2 bytes are left over"),
    ],
)
def test_bad_bytes_are_the_peers_error(version: int, data: bytes, message: str) -> None:
    """It is said which field, at which byte of how many, what was needed and what was there."""
    with pytest.raises(RemoteProtocolError) as error:
        decode(version, data)

    assert str(error.value) == message


def test_announced_length_costs_nothing() -> None:
    """Two billion elements are refused by arithmetic, not by memory."""
    codec = compile_codec(Sample, 1)
    for at in (11, 15, 19, 23):
        with pytest.raises(RemoteProtocolError, match="bytes, 0 are left"):
            codec.decode(EMPTY_V0[:at] + b"\x7f\xff\xff\xff")
