# SPDX-License-Identifier: Apache-2.0
"""Points in which a real Kafka 0.7.2 differs from the document, as far as they concern the wire.

The points are those of our measurements. Flushing (11), registries (12), orders of partitions and threads (13) and
watches (14) are not on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from consumerd.errors import CorruptMessageError, RemoteProtocolError
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.extent import first_message_bytes
from consumerd.wire.legacy.message_set import build_message_set, check_message_set, decode_message_set
from consumerd.wire.legacy.messages import (
    RANDOM_PARTITION,
    LegacyErrorCode,
    LegacyFetchRequest,
    LegacyFetchResponse,
    LegacyMultiFetchRequest,
    LegacyOffsetsRequest,
    LegacyProduceRequest,
)
from consumerd.wire.legacy.session import LegacyClientSession, read_legacy_request
from tests.support.legacy_frames import PARTITION, Row, get_exchange, list_rows

CLOSED = "connection closed by broker, no response"


def request_of(name: str) -> Any:
    return read_legacy_request(get_exchange(name).request[4:])


def response_of(name: str) -> Any:
    response = get_exchange(name).response
    assert response is not None
    return request_of(name).decode_response(0, memoryview(response)[4:])


def fetched(name: str) -> tuple[int, bytes]:
    response = response_of(name)
    assert isinstance(response, LegacyFetchResponse)
    return response.error_code, bytes(response.messages)


def rows_of(name: str) -> Sequence[Row]:
    _, messages = fetched(name)
    return list_rows(decode_message_set(messages, partition=PARTITION, start=request_of(name).offset))


def values_of(name: str) -> list[bytes]:
    return [value for *_, value in rows_of(name)]


def test_point_1_a_size_that_is_too_small_gives_error_0_and_a_part_of_the_message() -> None:
    """The client notices that not one whole message fits, and asks for as many bytes as the header says."""
    name = "k072_fetch_max_smaller_than_first"
    code, messages = fetched(name)
    request = request_of(name)

    batch = decode_message_set(messages, partition=PARTITION, start=request.offset)

    assert (LegacyErrorCode.NO_ERROR, request.max_size) == (code, len(messages))
    assert (0, request.offset) == (len(batch), batch.next_offset)
    size = first_message_bytes(messages)
    assert size is not None
    assert size > len(messages)


def test_point_2_an_offset_inside_of_a_message_gives_error_0_and_a_garbage_length() -> None:
    """The length must not be trusted: 184 MB would be fetched for a message that does not exist."""
    code, messages = fetched("k072_fetch_mid_message")

    assert (0, 184615120) == (code, int.from_bytes(messages[:4], "big"))
    assert 0 == first_message_bytes(messages)
    with pytest.raises(CorruptMessageError, match=r"t/0-1: .* byte offset 3: magic 224 is unknown") as caught:
        decode_message_set(messages, partition=PARTITION, start=3)
    assert (PARTITION, 3, None) == (caught.value.partition, caught.value.offset, caught.value.next_offset)


def test_point_3_a_wrong_partition_is_an_error_code_of_fetch_and_multifetch_only() -> None:
    """OFFSETS and PRODUCE to it close the connection."""
    assert (LegacyErrorCode.WRONG_PARTITION, b"") == fetched("k072_fetch_wrong_partition")
    assert (LegacyErrorCode.WRONG_PARTITION, b"") == fetched("k072_fetch_neg_partition")
    entries = response_of("k072_multifetch_one_error").responses
    assert [0, LegacyErrorCode.WRONG_PARTITION, LegacyErrorCode.OFFSET_OUT_OF_RANGE, 0, 0] == [
        one.error_code for one in entries
    ]
    for name in ("k072_offsets_wrong_partition", "k072_produce_part_99"):
        assert CLOSED == get_exchange(name).outcome


def test_point_4_an_unknown_topic_is_empty_at_any_offset() -> None:
    """Neither is an error; only an illegal name is one."""
    for name in ("unknown_topic", "unwritten_partition", "unwritten_partition_off5"):
        assert (LegacyErrorCode.NO_ERROR, b"") == fetched(f"k072_fetch_{name}")
    for name in ("unknown_topic_earliest", "unknown_topic_latest", "unwritten_partition"):
        assert (0,) == response_of(f"k072_offsets_{name}").offsets
    assert (LegacyErrorCode.UNKNOWN, b"") == fetched("k072_fetch_bad_topic")


def test_point_5_offsets_outside_of_the_log_are_error_1() -> None:
    """The log end itself is valid, and empty."""
    assert (LegacyErrorCode.NO_ERROR, b"") == fetched("jafka_fetch_at_end")
    assert (LegacyErrorCode.NO_ERROR, b"") == fetched("k072_fetch_at_end")
    for name in ("k072_fetch_beyond_end", "k072_fetch_negative", "k072ret_fetch_deleted_offset"):
        assert (LegacyErrorCode.OFFSET_OUT_OF_RANGE, b"") == fetched(name)


@pytest.mark.parametrize("name", ["badcrc", "badcrc_inner", "codec3", "magic2"])
def test_point_6_a_bad_produce_closes_the_connection(name: str) -> None:
    """Our check refuses the sets that a real broker refuses."""
    exchange = get_exchange(f"k072_produce_{name}")

    assert CLOSED == exchange.outcome
    with pytest.raises(CorruptMessageError):
        check_message_set(request_of(exchange.name).messages)


def test_point_6_a_bad_produce_stores_nothing_and_a_cut_off_message_does_no_harm() -> None:
    """Sets before the bad one of a MULTIPRODUCE are stored."""
    for name in ("badcrc", "badcrc2", "codec3", "magic2", "empty", "mpd"):
        assert (LegacyErrorCode.NO_ERROR, b"") == fetched(f"k072_fetch_after_{name}")
    assert 1 == len(rows_of("k072_fetch_after_mpc"))
    truncated = request_of("k072_produce_truncated").messages
    assert check_message_set(truncated) < len(truncated)
    assert bytes(truncated[: check_message_set(truncated)]) == fetched("k072_fetch_after_trunc")[1]


def test_point_6_our_check_accepts_the_sets_that_a_real_broker_stored() -> None:
    """A check that is too strict would refuse what Java producers send."""
    stored = ("plain", "magic0", "magic_mixed", "gzip", "gzip_then_plain", "snappy_xerial", "snappy_raw")
    for name in (*stored, "gzip_nested", "gzip_inner_magic0", "attr_high_bits", "empty_set", "utf8_topic"):
        messages = request_of(f"k072_produce_{name}").messages
        assert len(messages) == check_message_set(messages)


def test_point_7_partition_minus_1_means_any() -> None:
    """The message was found in one of the partitions."""
    assert RANDOM_PARTITION == request_of("k072_produce_part_minus1").partition
    assert 1 == sum(len(rows_of(f"k072_fetch_after_rand_p{number}")) for number in range(3))


def test_point_7_magics_are_mixed_in_one_set_and_high_attribute_bits_ignored() -> None:
    """Magic 0 is stored as it was sent; the codec is ``attributes & 3``."""
    assert [b"old one", b"old two", b"new three", b"old four"] == values_of("k072_fetch_magic0")
    assert [b"zzz"] == values_of("k072_fetch_after_attrhi")


def test_point_7_topics_may_be_utf_8() -> None:
    """The document says ASCII."""
    request = request_of("k072_produce_utf8_topic")

    assert isinstance(request, LegacyProduceRequest)
    assert not request.topic.isascii()


@pytest.mark.usefixtures("each_path")
def test_point_8_snappy_is_framed_or_raw_and_sets_may_nest() -> None:
    """The Java producer writes xerial framing, and so do we."""
    expected = [b"in-1", b"in-2", b"in-3"]
    for name in ("snappy_xerial", "snappy_raw", "gzip_nested"):
        assert [(0, 0), (0, 1), (0, 2)] == [row[:2] for row in rows_of(f"k072_fetch_{name}")]
        assert expected == values_of(f"k072_fetch_{name}")
    assert ["m-one", "m-two", "m-thrée"] == [value.decode() for value in values_of("k072_fetch_javaproducer_codec2")]
    assert b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" == build_message_set(expected, codec=Codec.SNAPPY)[10:26]


def test_point_9_a_multifetch_response_has_a_size_and_an_error_code_for_each_request() -> None:
    """The document leaves it out."""
    frame = get_exchange("k072_multifetch_ok").response
    request = request_of("k072_multifetch_ok")
    assert frame is not None
    assert isinstance(request, LegacyMultiFetchRequest)

    first, second = response_of("k072_multifetch_ok").responses

    assert b"\0\0" == frame[4:6]
    assert (len(first.messages) + 2).to_bytes(4, "big") + b"\0\0" + bytes(first.messages) == frame[
        6 : 12 + len(first.messages)
    ]
    assert frame.endswith(second.messages)
    assert () == response_of("k072_multifetch_zero").responses


def test_point_10_offsets_descend_and_none_may_be_asked_for() -> None:
    """The log end is among them only if the time is not before the broker's clock."""
    assert (7200, 4800, 2400, 0) == response_of("k072_offsets_latest_100").offsets
    assert (4800, 2400, 0) == response_of("k072_offsets_time_just_past").offsets
    assert () == response_of("k072_offsets_max_zero").offsets
    request = request_of("k072_offsets_max_negative")
    assert isinstance(request, LegacyOffsetsRequest)
    assert (-1, CLOSED) == (request.max_number, get_exchange("k072_offsets_max_negative").outcome)


@pytest.mark.parametrize("system", ["k072", "jafka"])
def test_point_10_fetch_of_a_negative_size_gives_a_malformed_response(system: str) -> None:
    """One byte where an error code takes two: the stream is out of step, and the session ends."""
    exchange = get_exchange(f"{system}_fetch_max_negative")
    session = LegacyClientSession()
    session.send(LegacyFetchRequest(topic="t", partition=0, offset=0, max_size=-1))

    assert bytes.fromhex("0000000100") == exchange.response
    with pytest.raises(RemoteProtocolError, match="response frame of 1 bytes"):
        session.receive_frame(memoryview(exchange.response)[4:])
    assert session.fault is not None


def test_point_15_the_offset_advances_after_the_last_message_of_a_compressed_set() -> None:
    """A consumer that stops inside of it must begin again with its first message."""
    rows = rows_of("k072_fetch_gzip")

    assert [(0, 0, 63), (0, 1, 63), (0, 2, 63), (63, 0, 126), (63, 1, 126), (63, 2, 126), (126, 0, 141)] == [
        row[:3] for row in rows
    ]
    _, messages = fetched("k072_fetch_gzip")
    again = decode_message_set(messages[63:], partition=PARTITION, start=63)
    assert list(rows[3:]) == list_rows(again)


def test_point_16_jafka_refuses_magic_0_and_snappy_and_knows_no_unknown_topic() -> None:
    """The codec reads both systems alike: what differs is which requests they accept."""
    for name in ("magic0", "snappy_xerial", "snappy_raw"):
        assert CLOSED == get_exchange(f"jafka_produce_{name}").outcome
        assert (0, b"") == fetched(f"jafka_fetch_{name}")
    assert () == response_of("jafka_offsets_unknown_topic_latest").offsets
    assert () == response_of("jafka_offsets_time_mid").offsets
    assert (0,) == response_of("k072_offsets_time_mid").offsets
