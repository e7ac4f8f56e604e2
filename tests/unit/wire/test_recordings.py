# SPDX-License-Identifier: Apache-2.0
"""What brokers said means what is known to have happened; the record sets themselves are tested with their decoder."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.framing import SIZE_BYTES
from consumerd.wire.modern.api_versions import ApiVersionRange
from consumerd.wire.modern.fetch import AbortedTransaction, FetchedPartition
from consumerd.wire.modern.list_offsets import ListedPartition
from consumerd.wire.modern.metadata import MetadataRequest
from consumerd.wire.schema import compile_codec
from consumerd.wire.session import HEADER_CODEC
from tests.support.frames import REQUESTS, RecordedFrame, load_frames, split_request

pytestmark = pytest.mark.usefixtures("each_path")

RECORDED = {(one.release, one.api.name, one.version, one.note): one for one in load_frames() if one.note}


def response_of(frame: RecordedFrame) -> Any:
    return compile_codec(frame.request_class.response, frame.response_version).decode(frame.response_body)


def answer(release: str, api: str, version: int, note: str) -> Any:
    """Return the decoded answer to one recorded question."""
    return response_of(RECORDED[release, api, version, note])


def fetched(release: str, version: int, note: str) -> FetchedPartition:
    """Return the one partition of one recorded fetch."""
    (topic,) = answer(release, "FETCH", version, note).topics
    (partition,) = topic.partitions
    assert isinstance(partition, FetchedPartition)
    return partition


def listed(release: str, version: int, note: str) -> ListedPartition:
    """Return the one partition of one recorded lookup."""
    (topic,) = answer(release, "LIST_OFFSETS", version, note).topics
    (partition,) = topic.partitions
    assert isinstance(partition, ListedPartition)
    return partition


def values_in(partition: FetchedPartition, among: list[str]) -> list[str]:
    """Return which of the values, uncompressed, are to be found in a record set."""
    return [value for value in among if value.encode() in bytes(partition.record_set or b"")]


FOUR_VALUES = [f"value-{number}" for number in range(4)]

# -- ApiVersions


def test_api_versions_are_those_of_the_release() -> None:
    """0.10.2 knows Fetch up to 3 and Metadata up to 2, as its documentation says."""
    response = answer("0.10.2.2", "API_VERSIONS", 0, "what it knows")

    assert response.error_code == ErrorCode.NONE
    assert ApiVersionRange(api_key=1, min_version=0, max_version=3) in response.api_versions
    assert ApiVersionRange(api_key=3, min_version=0, max_version=2) in response.api_versions


@pytest.mark.parametrize(
    ("release", "known"),
    [("0.10.2.2", ()), ("1.1.1", ()), ("2.8.2", (ApiVersionRange(api_key=18, min_version=0, max_version=3),))],
)
def test_unsupported_api_versions_request_is_answered_in_version_0(
    release: str, known: tuple[ApiVersionRange, ...]
) -> None:
    """Error 35 comes in a form that every client can read, with a range only from KIP-511 on."""
    response = answer(release, "API_VERSIONS", 9, "a version that it does not know")

    assert (ErrorCode.UNSUPPORTED_VERSION, known) == (response.error_code, response.api_versions)


# -- Metadata


@pytest.mark.parametrize(("release", "version"), [("0.8.2.2", 0), ("0.10.2.2", 1), ("1.1.1", 3)])
def test_none_asks_for_all_topics_in_every_version(release: str, version: int) -> None:
    """The way to say it differs between version 0 and the others; the meaning must not."""
    response = answer(release, "METADATA", version, "all topics")

    assert "t" in {topic.topic for topic in response.topics}


def test_no_topics_are_not_all_topics() -> None:
    """From version 1 on an empty list asks for the brokers alone."""
    response = answer("0.10.2.2", "METADATA", 1, "no topics")

    assert (len(response.brokers), response.controller_id, response.topics) == (1, 0, ())


@pytest.mark.parametrize(
    ("release", "version", "note"),
    [
        ("0.8.2.2", 0, "unknown topic"),
        ("0.10.2.2", 1, "unknown topic"),
        ("1.1.1", 4, "unknown topic, not to be created"),
    ],
)
def test_unknown_topic_has_error_3(release: str, version: int, note: str) -> None:
    """It is an answer for the topic, not for the request."""
    topic = answer(release, "METADATA", version, note).topics[-1]

    assert (topic.topic, topic.error_code, topic.partitions) == ("absent", 3, ())


def test_metadata_5_tells_offline_replicas_and_racks() -> None:
    """With broker 1 of two stopped, it is a replica of everything and in sync with nothing."""
    before = answer("2.8.2", "METADATA", 5, "racks")
    after = answer("2.8.2", "METADATA", 5, "offline replica")

    assert {broker.node_id: broker.rack for broker in before.brokers} == {0: "rack-0", 1: "rack-1"}
    assert [
        (tuple(sorted(one.replicas)), tuple(sorted(one.isr)), one.offline_replicas)
        for one in before.topics[0].partitions
    ] == [((0, 1), (0, 1), ())] * 2
    assert [(one.leader, one.isr, one.offline_replicas) for one in after.topics[0].partitions] == [(0, (0,), (1,))] * 2


# -- Fetch


@pytest.mark.parametrize(
    ("release", "version", "log_start_offset"),
    [("0.8.2.2", 0, -1), ("0.10.2.2", 2, -1), ("1.1.1", 4, -1), ("1.1.1", 6, 0)],
)
def test_what_was_produced_is_fetched(release: str, version: int, log_start_offset: int) -> None:
    """Each version's record set holds the four values, up to the high watermark."""
    partition = fetched(release, version, "from the start")

    assert (partition.partition, partition.error_code, partition.high_watermark) == (0, 0, 4)
    assert log_start_offset == partition.log_start_offset
    assert values_in(partition, FOUR_VALUES) == FOUR_VALUES


def test_limit_for_the_whole_response_still_gives_one_message() -> None:
    """From version 3 on the first message comes whole even when it is larger than all limits (KIP-74)."""
    partition = fetched("0.10.2.2", 3, "limited as a whole")

    assert values_in(partition, FOUR_VALUES) == ["value-2"]


@pytest.mark.parametrize(
    ("release", "version", "note", "error"),
    [
        ("0.8.2.2", 0, "beyond the end", ErrorCode.OFFSET_OUT_OF_RANGE),
        ("0.8.2.2", 0, "unknown partition", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("1.1.1", 6, "beyond the end", ErrorCode.OFFSET_OUT_OF_RANGE),
        ("2.8.2", 9, "unknown leader epoch", ErrorCode.UNKNOWN_LEADER_EPOCH),
        ("2.8.2", 9, "fenced leader epoch", ErrorCode.FENCED_LEADER_EPOCH),
        ("2.8.2", 9, "topic's zstd before its version", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_failed_fetch_has_an_error_and_no_bytes(release: str, version: int, note: str, error: ErrorCode) -> None:
    """Nothing of a failed partition but its error may be used."""
    partition = fetched(release, version, note)

    assert (error, -1, b"") == (partition.error_code, partition.high_watermark, bytes(partition.record_set or b""))


@pytest.mark.parametrize(("version", "note"), [(9, "producer's zstd before its version"), (10, "zstd")])
def test_zstd_comes_in_its_version_and_where_a_producer_chose_it(version: int, note: str) -> None:
    """A reader must expect zstd (codec 4 in the batch's attributes) from any version with record batches."""
    record_set = fetched("2.8.2", version, note).record_set

    assert record_set is not None
    assert record_set[22] & 7 == 4


def test_aborted_transactions_are_named_to_who_reads_committed() -> None:
    """The aborted transaction began at offset 3, and the open one holds the last stable offset at 6."""
    committed = fetched("1.1.1", 4, "read committed")
    uncommitted = fetched("1.1.1", 5, "read uncommitted")
    values = ["committed-0", "committed-1", "aborted-0", "aborted-1", "open-0"]

    assert (committed.high_watermark, committed.last_stable_offset) == (7, 6)
    assert (AbortedTransaction(producer_id=0, first_offset=3),) == committed.aborted_transactions
    assert values[:-1] == values_in(committed, values)
    assert (uncommitted.high_watermark, uncommitted.aborted_transactions) == (7, None)
    assert values == values_in(uncommitted, values)


def test_fetch_session_answers_only_with_news() -> None:
    """The first answer has everything, later ones what changed, and forgotten partitions are gone."""
    notes = ["new session", "session goes on", "session without news", "session forgets"]
    answers = [answer("1.1.1", "FETCH", 7, note) for note in notes]

    assert [[topic.topic for topic in one.topics] for one in answers] == [["t"], [], [], ["tx"]]
    assert len({one.session_id for one in answers}) == 1
    assert answers[0].session_id != 0


@pytest.mark.parametrize(
    ("note", "error"),
    [
        ("wrong session epoch", ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ("unknown session", ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ("session ends", ErrorCode.NONE),
    ],
)
def test_session_that_is_not_gone_on_with_has_id_0(note: str, error: ErrorCode) -> None:
    """Whoever gets id 0 must begin anew, whether it came with an error or was asked for."""
    response = answer("1.1.1", "FETCH", 7, note)

    assert (error, 0) == (response.error_code, response.session_id)


def test_leader_names_the_replica_in_the_consumers_rack() -> None:
    """It then gives no records itself; the follower does."""
    near = fetched("2.8.2", 11, "in the leader's rack")
    far = fetched("2.8.2", 11, "in the follower's rack")
    follower = fetched("2.8.2", 11, "from the follower")

    assert [one.preferred_read_replica for one in (near, far, follower)] == [-1, 1, -1]
    assert bytes(far.record_set or b"") == b""
    assert bytes(near.record_set or b"") == bytes(follower.record_set or b"") != b""


# -- ListOffsets


def test_version_0_lists_segments_newest_first() -> None:
    """The latest offset comes before the start of the only segment."""
    assert listed("0.8.2.2", 0, "latest").offsets == (4, 0)
    assert listed("0.8.2.2", 0, "earliest").offsets == (0,)
    assert (
        listed("0.8.2.2", 0, "unknown partition").error_code,
        listed("0.8.2.2", 0, "unknown partition").offsets,
    ) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ())


@pytest.mark.parametrize(
    ("release", "version", "note", "offset"),
    [
        ("0.10.2.2", 1, "earliest", 0),
        ("0.10.2.2", 1, "latest", 4),
        ("0.10.2.2", 1, "by time", 0),
        ("0.10.2.2", 1, "beyond the last time", -1),
        ("1.1.1", 2, "latest, read uncommitted", 7),
        ("1.1.1", 2, "latest, read committed", 6),
    ],
)
def test_later_versions_give_one_offset(release: str, version: int, note: str, offset: int) -> None:
    """Under read_committed the latest offset is the last stable one; where there is none it is -1."""
    partition = listed(release, version, note)

    assert (0, offset) == (partition.error_code, partition.offset)
    assert (note == "by time") == (partition.timestamp != -1)


# -- Java's own requests


def test_java_clients_say_who_they_are() -> None:
    """The header's fields stand where we read them. The high-level consumer looks for its coordinator without a name."""
    for frame in load_frames():
        data = memoryview(frame.request)[SIZE_BYTES:]
        header, _ = HEADER_CODEC.read(data, 0, len(data))

        assert (frame.api, frame.version) == (header.api_key, header.api_version)
        assert header.client_id or (frame.api, frame.version) == (ApiKey.FIND_COORDINATOR, 0)
        assert frame.response is None or frame.response[4:8] == header.correlation_id.to_bytes(4, "big", signed=True)


def test_java_fetches_and_metadata_requests_name_topic_t() -> None:
    """All of them were about one topic, or about all."""
    for frame in load_frames():
        if frame.asked_by == "consumerd" or frame.version not in REQUESTS[frame.api].versions:
            continue
        _, body = split_request(frame)
        request = compile_codec(frame.request_class, frame.version).decode(body)
        if isinstance(request, MetadataRequest):
            assert set(request.topics or ()) <= {"t"}, str(frame)
        elif hasattr(request, "topics"):
            assert {one.topic for one in request.topics or ()} <= {"t", "__consumer_offsets"}, str(frame)
