# SPDX-License-Identifier: Apache-2.0
"""Flexible versions: compact types, UUIDs and tagged fields, on hand-made bytes and on recorded frames."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

from consumerd.errors import LocalProtocolError, RemoteProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.declaration import (
    BYTES,
    INT16,
    INT32,
    RECORDS,
    STRING,
    UUID,
    ArrayOf,
    Unwrapped,
    field,
    message,
)
from consumerd.wire.modern.metadata import FIRST_WITH_TOPIC_IDS, MetadataRequest, MetadataResponse
from consumerd.wire.schema import Request, compile_codec, request
from consumerd.wire.server_session import encode_response_pieces, read_request
from consumerd.wire.session import ClientSession, encode_request
from tests.support.frames import load_kraft_documents, load_kraft_frames, split_request

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@message
class Named:
    """An element with a field besides the one that represents it."""

    name: str = field(STRING)
    id: uuid.UUID = field(UUID, "1+", default=uuid.UUID(int=0))


@message
class Inner:
    """An element of an array."""

    number: int = field(INT16)


@message(flexible="1+")
class Sample:
    """Every type that has another form in flexible versions; version 0 is plain."""

    text: str | None = field(STRING, default="", nullable="1+")
    blob: bytes | None = field(BYTES, default=b"", nullable="1+")
    records: memoryview | bytes | None = field(RECORDS, default=b"", nullable="1+")
    id: uuid.UUID = field(UUID, default=ID)
    numbers: tuple[int, ...] = field(ArrayOf(INT32), default=())
    texts: tuple[str, ...] | None = field(ArrayOf(STRING), default=(), nullable="1+")
    inners: tuple[Inner, ...] = field(ArrayOf(Inner), default=())
    named: tuple[str, ...] = field(ArrayOf(Unwrapped(Named, "name")), default=())


EMPTY = bytes.fromhex("010101" + ID.hex + "0101010100")


def encode(version: int, **fields: Any) -> bytes:
    return compile_codec(Sample, version).encode(Sample(**fields))


def decode(data: bytes) -> Sample:
    return compile_codec(Sample, 1).decode(data)


def test_fields_have_their_compact_form() -> None:
    """Checked by hand once: lengths are larger by one, and each message has its own tagged fields."""
    encoded = encode(
        1, text="t", blob=b"bb", records=b"r", numbers=(7,), texts=("",), inners=(Inner(number=9),), named=("n",)
    )

    assert encoded == bytes.fromhex(
        "0274" "036262" "0272" + ID.hex + "0200000007" "0201" "02000900" "02026e" + bytes(16).hex() + "00" "00"
    )  # fmt: skip
    assert encode(1) == EMPTY
    assert compile_codec(Sample, 1).least_bytes == len(EMPTY)


def test_version_before_is_plain() -> None:
    """One declaration serves both forms."""
    assert encode(0, text="t", named=("n",)).startswith(b"\0\x01t\0\0\0\0")
    assert encode(0, named=("n",)).endswith(b"\0\0\0\x01\0\x01n")
    assert not compile_codec(Sample, 0).tagged_header
    assert compile_codec(Sample, 1).tagged_header


def test_values_come_back() -> None:
    """Nulls, empty and long ones: the length takes a second byte from 127 on."""
    for size in (0, 1, 126, 127, 128, 16_382, 16_383, 16_384):
        value = Sample(text="x" * size, blob=b"b" * size, numbers=(1,) * size, texts=("a",) * size)
        codec = compile_codec(Sample, 1)
        assert codec.decode(codec.encode(value)) == value
    nulls = Sample(text=None, blob=None, records=None, texts=None)
    assert nulls == decode(compile_codec(Sample, 1).encode(nulls))


def test_record_set_is_a_view_into_the_frame() -> None:
    """As in the plain form, nothing is copied before it is decoded."""
    frame = encode(1, records=b"abc")
    records = decode(frame).records

    assert isinstance(records, memoryview)
    assert records.obj is frame


def test_unknown_tags_are_skipped() -> None:
    """They are optional by design: a newer broker may send them in any message."""
    tagged = EMPTY[:-1] + bytes.fromhex("020000850103aabbcc")

    assert decode(tagged) == decode(EMPTY)
    assert encode(1) == EMPTY


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": "x" * 32768}, "Sample v1: text: 32768 bytes of text"),
        ({"text": "\ud800"}, "Sample v1: text: cannot be encoded"),
        ({"numbers": (2**31,)}, "Sample v1: numbers: cannot be encoded"),
        ({"id": None}, "Sample v1: id: None"),
        ({"inners": None}, "Sample v1: inners: None"),
    ],
)
def test_what_cannot_be_said_is_our_error(fields: dict[str, Any], message: str) -> None:
    """The limits are those of the plain form."""
    with pytest.raises(LocalProtocolError) as error:
        encode(1, **fields)

    assert message in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Sample v1: text: byte 0 of 0: needs 1 bytes, 0 are left"),
        (b"\x80", "Sample v1: text: byte 1 of 1: needs 1 bytes, 0 are left"),
        (b"\x80" * 5, "Sample v1: text: byte 0 of 5: a number of more than 5 bytes"),
        (b"\xff\xff\xff\xff\x7f", "Sample v1: text: byte 0 of 5: a number of more than 32 bits"),
        (b"\x03a", "Sample v1: text: byte 1 of 2: needs 2 bytes, 1 are left"),
        (b"\x02\xff", "Sample v1: text: byte 1 of 2: not UTF-8"),
        (b"\x81\x80\x02" + bytes(32768), "Sample v1: text: byte 0 of 32771: 32768 bytes of text, at most 32767 are"),
        (EMPTY[:5], "Sample v1: id: byte 3 of 5: needs 16 bytes, 2 are left"),
        (EMPTY[:19] + b"\0", "Sample v1: numbers: byte 19 of 20: length -1, expected 0 or more"),
        (
            EMPTY[:19] + b"\xff\xff\xff\xff\x0f",
            "Sample v1: numbers: byte 24 of 24: needs 17179869176 bytes, 0 are left",
        ),
        (EMPTY[:21] + b"\x02\0\0", "Sample v1: inners: byte 22 of 24: needs 3 bytes, 2 are left"),
        (EMPTY[:22] + b"\x02\x02n" + ID.bytes + b"\0", "Sample v1: named: byte 23 of 42: expected only name to be set"),
        (EMPTY[:-1] + b"\x01", "Sample v1: tagged fields: byte 24 of 24: needs 1 bytes, 0 are left"),
        (EMPTY[:-1] + b"\x01\x00\x02a", "Sample v1: tagged fields: byte 26 of 27: needs 2 bytes, 1 are left"),
        (EMPTY[:-1] + b"\x02\x05\x00\x05\x00", "Sample v1: tagged fields: byte 26 of 28: tag 5 after tag 5"),
        (EMPTY + b"\0", "Sample v1: byte 24 of 25: 1 bytes are left over"),
    ],
)
def test_bad_bytes_are_the_peers_error(data: bytes, message: str) -> None:
    """It is said which field, at which byte of how many; no length costs memory."""
    with pytest.raises(RemoteProtocolError) as error:
        decode(data)

    assert message in str(error.value)


def test_uuid_cannot_be_declared_nullable() -> None:
    """Its 16 bytes have no way to say null."""
    with pytest.raises(TypeError, match="cannot say None"):
        field(UUID, nullable="0+")


def test_request_and_response_agree_on_their_flexible_versions() -> None:
    """One version of both is in the same form."""
    with pytest.raises(TypeError, match="Sample is not flexible in the versions 2"):

        @request(ApiKey.METADATA, versions=range(3), response=Sample, flexible="2+")
        class Disagreeing(Request[Sample]):
            """Never made."""


# -- headers


@message
class ListedVersion:
    """An entry of the response below."""

    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


@message(flexible="3+", tagged_header=False)
class ListedVersions:
    """The response of ApiVersions with its flexible versions, which the package does not send."""

    error_code: int = field(INT16)
    api_versions: tuple[ListedVersion, ...] = field(ArrayOf(ListedVersion))
    throttle_time_ms: int = field(INT32, "1+", default=0)


@request(ApiKey.API_VERSIONS, versions=range(5), response=ListedVersions, flexible="3+")
class ListVersions(Request[ListedVersions]):
    """ApiVersions with its flexible versions."""

    client_software_name: str = field(STRING, "3+", default="")
    client_software_version: str = field(STRING, "3+", default="")


def test_header_of_an_api_versions_response_has_no_tagged_fields() -> None:
    """A client reads it before it knows what the broker speaks. Its tagged features are skipped, to the last byte."""
    frames = [one for one in load_kraft_frames() if one.api is ApiKey.API_VERSIONS and one.version >= 3]
    assert len(frames) == 4
    for frame in frames:
        assert frame.response is not None
        received = read_request(frame.request[4:], {ListVersions: range(5)})
        answer = received.request.decode_response(frame.version, memoryview(frame.response)[8:])

        assert (received.request.client_software_name, answer.error_code) == ("vector", 0)
        assert {one.api_key for one in answer.api_versions} >= {0, 1, 18}


DECLARED = [one for one in load_kraft_frames() if one.version in one.request_class.versions]


@pytest.mark.parametrize("frame", DECLARED, ids=str)
def test_every_declared_version_of_4_x_is_read_and_written_back(frame: Any) -> None:
    """Requests and responses of all APIs, byte for byte."""
    header, body = split_request(frame)
    read = compile_codec(frame.request_class, frame.version).decode(body)
    written = encode_request(read, frame.version, correlation_id=header.correlation_id, client_id=header.client_id)

    assert written == frame.request
    if frame.response is not None:
        codec = compile_codec(frame.request_class.response, frame.response_version)
        assert frame.response_body == codec.encode(codec.decode(frame.response_body))


METADATA = [one for one in load_kraft_frames() if one.api is ApiKey.METADATA and one.version >= 9]


@pytest.mark.parametrize("frame", METADATA, ids=str)
def test_recorded_headers_are_read_and_written_on_both_sides(frame: Any) -> None:
    """Request header 2 and response header 1: a byte of tagged fields each, in the place that brokers expect."""
    header, _ = split_request(frame)
    received = read_request(frame.request[4:], {MetadataRequest: MetadataRequest.versions})
    session = ClientSession(header.client_id)
    session._next_id = header.correlation_id
    _, written = session.send(received.request, frame.version)
    answer = received.request.decode_response(frame.version, session.receive_frame(memoryview(frame.response)[4:]).body)

    assert written == frame.request
    assert b"".join(encode_response_pieces(header.correlation_id, answer, frame.version)) == frame.response


def test_bad_tags_of_a_header_fail_the_request_alone() -> None:
    """The frame itself was matched, so the stream is in step."""
    session = ClientSession("me")
    ask = MetadataRequest(topics=())
    session.send(ask, 9)
    body = session.receive_frame(memoryview(b"\0\0\0\0\x01")).body

    with pytest.raises(RemoteProtocolError, match="header of MetadataResponse v9: byte 1 of 1"):
        ask.decode_response(9, body)
    assert session.fault is None


# -- Metadata


def _snake(name: str) -> str:
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()


NAMES = {"name": "topic", "partition_index": "partition", "leader_id": "leader"}
NODES = {"replica_nodes": "replicas", "isr_nodes": "isr"}


def meaning(document: Any) -> Any:
    """Return what a message means by independent schemas, with this package's names."""
    if isinstance(document, dict):
        named = {_snake(key): meaning(value) for key, value in document.items()}
        return {(NAMES | NODES).get(key, key): value for key, value in named.items()}
    return [meaning(one) for one in document] if isinstance(document, list) else document


def shown(value: Any, known: Any) -> Any:
    """Return the fields of a decoded message that ``known`` names."""
    if isinstance(known, dict):
        return {key: shown(getattr(value, key), known[key]) for key in known}
    if isinstance(known, list):
        return [shown(one, item) for one, item in zip(value, known, strict=True)]
    return str(value) if isinstance(value, uuid.UUID) else value


DOCUMENTS = [one for one in load_kraft_documents() if one["api_key"] == ApiKey.METADATA and one["api_version"] > 5]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: f"{one['release']}-v{one['api_version']}-{one['note']}")
def test_metadata_means_what_other_schemas_read(document: dict[str, Any]) -> None:
    """Field by field, for every version from 6 on."""
    version = document["api_version"]
    body = bytes.fromhex(document["response_hex"])[8:]
    response = MetadataRequest(topics=None).decode_response(version, memoryview(body))
    known = meaning(document["response"]["body"])

    assert known == shown(response, known)


def test_topic_has_one_id_in_every_version_that_has_ids() -> None:
    """It is the identity of the topic, whichever version asked for it."""
    ids = set()
    for frame in METADATA:
        if frame.release == "4.3.1" and frame.version >= FIRST_WITH_TOPIC_IDS:
            (topic,) = compile_codec(MetadataResponse, frame.version).decode(frame.response_body).topics
            ids.add(topic.topic_id)

    assert len(ids) == 1
    assert uuid.UUID(int=0) not in ids
