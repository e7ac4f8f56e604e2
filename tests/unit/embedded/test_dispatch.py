# SPDX-License-Identifier: Apache-2.0
"""From frame to frame: what a broker makes of requests that it cannot handle, release by release."""

from __future__ import annotations

import pytest

from consumerd.embedded.dispatch import Dispatcher, SilenceWanted
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.context import ConnectionRefused, Handler, Hangup, RequestContext
from consumerd.embedded.handlers.refusals import REQUESTS, refuse
from consumerd.embedded.releases import IMITATIONS, SERVED, get_imitation
from consumerd.embedded.reply import FileResponse, read_piece
from consumerd.errors import RemoteProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.api_versions import ApiVersionsRequest
from consumerd.wire.modern.groups import HeartbeatRequest
from consumerd.wire.modern.metadata import MetadataRequest, MetadataResponse
from consumerd.wire.modern.offset_fetch import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchTopic
from consumerd.wire.modern.produce import ProducePartition, ProduceRequest, ProduceTopic
from consumerd.wire.schema import Request, compile_codec
from consumerd.wire.session import encode_request
from tests.support.frames import load_frames

METADATA = MetadataRequest(topics=None)


async def _no_topics(_request: MetadataRequest, _context: RequestContext) -> MetadataResponse:
    return MetadataResponse(brokers=(), topics=())


async def _fail(_request: object, _context: RequestContext) -> object:
    raise ZeroDivisionError


async def _answer(frame: bytes, *, release: str = "1.1", handler: Handler = _no_topics) -> bytes | None:
    """Return the whole frame of the answer."""
    handlers = {ApiKey.METADATA: handler, ApiKey.PRODUCE: handler}
    dispatcher = Dispatcher(handlers, get_imitation(release), BrokerFaults())
    reply = await dispatcher.respond(memoryview(frame)[4:], peer_host="h", hangup=Hangup())
    return None if reply is None else b"".join(map(read_piece, reply.pieces))


def _frame(request: Request[object], version: int) -> bytes:
    return encode_request(request, version, correlation_id=77, client_id="x")


async def test_api_versions_lists_what_is_answered_and_nothing_else() -> None:
    """A request that is listed and then not known would cost a client its connection."""
    frame = await _answer(_frame(ApiVersionsRequest(), 0))
    assert frame is not None
    listed = ApiVersionsRequest().decode_response(0, memoryview(frame)[8:]).api_versions
    assert [(0, 0, 3), (3, 0, 5), (18, 0, 0)] == [(one.api_key, one.min_version, one.max_version) for one in listed]


@pytest.mark.parametrize("release", ["0.10", "1.1"])
async def test_newer_api_versions_is_told_so_in_the_oldest_form(release: str) -> None:
    """It is how clients find the version to ask with (KIP-35); recorded of real brokers, byte by byte."""
    recorded = [one for one in load_frames() if one.api is ApiKey.API_VERSIONS and one.response_version != one.version]
    asked = [one for one in recorded if one.response and one.release.startswith(release)]
    assert asked
    for one in asked:
        assert one.response == await _answer(one.request, release=release)


async def test_0_9_wants_silence_where_others_close() -> None:
    """The request is lost there, and the connection with it."""
    with pytest.raises(SilenceWanted):
        await _answer(_frame(ApiVersionsRequest(), 0), release="0.9")
    for release in ("0.8.2", "1.1"):
        with pytest.raises(RemoteProtocolError):
            await _answer(_frame(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 0), release=release)


@pytest.mark.parametrize("release", IMITATIONS)
async def test_version_that_the_release_lacks_closes_the_connection(release: str) -> None:
    """Whatever we could speak: a client must find the release as it was."""
    last = get_imitation(release).ranges[ApiKey.METADATA].last
    assert await _answer(_frame(METADATA, last), release=release) is not None
    with pytest.raises(RemoteProtocolError, match=f"METADATA v{last + 1}"):
        data = bytearray(_frame(METADATA, last))
        data[6:8] = (last + 1).to_bytes(2, "big")
        await _answer(bytes(data), release=release)


async def test_failing_handler_is_an_error_of_the_server() -> None:
    """The client learns that it was not its own fault, and the next request is served."""
    frame = await _answer(_frame(MetadataRequest(topics=("t",)), 1), handler=_fail)
    assert frame is not None
    (topic,) = METADATA.decode_response(1, memoryview(frame)[8:]).topics
    assert ErrorCode.UNKNOWN_SERVER_ERROR == topic.error_code


async def test_failure_that_nobody_waits_for_closes_the_connection() -> None:
    """As any error of a Produce request with acks 0."""
    with pytest.raises(ConnectionRefused):
        await _answer(_frame(ProduceRequest(acks=0, timeout_ms=0, topics=()), 3), handler=_fail)


async def test_answer_that_cannot_be_written_closes_its_connection_and_its_files() -> None:
    """A fault of ours; what it held open must not stay so."""
    closed: list[str] = []

    class Owner:
        def close(self) -> None:
            closed.append("closed")

    async def wrong(_request: object, _context: RequestContext) -> object:
        response = MetadataResponse(brokers=(), topics=(), controller_id=7)
        return FileResponse(response=response, owners=(Owner(),))

    with pytest.raises(ConnectionRefused, match="controller_id"):
        await _answer(_frame(METADATA, 0), handler=wrong)
    assert ["closed"] == closed


@pytest.mark.parametrize("api", SERVED)
def test_every_request_can_be_refused_in_every_version(api: ApiKey) -> None:
    """A fault on purpose, or one of ours, must find words in whatever the client speaks."""
    request_class = REQUESTS[api]
    known = [one for one in load_frames() if one.api is api and one.version in range(SERVED[api].last + 1)]
    assert known
    for one in known:
        header_and_body = memoryview(one.request)[4:]
        name_bytes = int.from_bytes(header_and_body[8:10], "big", signed=True)
        body = header_and_body[10 + max(name_bytes, 0) :]
        codec = compile_codec(request_class, one.version)
        request = codec.decode(codec.skip_header_tags(body))
        refused = refuse(request, ErrorCode.NOT_LEADER_OR_FOLLOWER, one.version)
        compile_codec(type(refused), one.version).encode(refused)


@pytest.mark.parametrize(("version", "expected"), [(1, (0, [6])), (2, (6, []))])
def test_refused_positions_say_so_where_their_version_has_a_place(version: int, expected: object) -> None:
    """Once for all of them from version 2 on, as brokers do (OffsetFetchRequest.getErrorResponse)."""
    request = OffsetFetchRequest(group_id="g", topics=(OffsetFetchTopic(topic="t", partitions=(0,)),))
    refused = refuse(request, ErrorCode.NOT_LEADER_OR_FOLLOWER, version)
    assert isinstance(refused, OffsetFetchResponse)
    codes = [one.error_code for topic in refused.topics for one in topic.partitions]
    assert expected == (refused.error_code, codes)


async def test_large_requests_bring_records_or_cost_the_connection() -> None:
    """A list of a million names is read, looked up and answered on the loop, at a thousand times its bytes' own cost."""
    large = _frame(MetadataRequest(topics=("t" * 200,) * 6000), 0)
    with pytest.raises(RemoteProtocolError, match="METADATA of 12"):
        await _answer(large)
    assert await _answer(_frame(MetadataRequest(topics=("t" * 200,) * 2500), 0)) is not None

    async def take(request: object, _context: RequestContext) -> object:
        assert isinstance(request, ProduceRequest)
        return refuse(request, ErrorCode.NONE, 0)

    def writing(version: int, *record_sets: bytes | None) -> bytes:
        partitions = tuple(ProducePartition(partition=0, record_set=one) for one in record_sets)
        return _frame(
            ProduceRequest(acks=1, timeout_ms=1000, topics=(ProduceTopic(topic="t", partitions=partitions),)), version
        )

    for version in (0, 3):
        assert await _answer(writing(version, bytes(1 << 20), bytes(1 << 20), None), handler=take) is not None
        with pytest.raises(RemoteProtocolError, match="PRODUCE of 14"):
            await _answer(writing(version, bytes(1 << 20), *[None] * 50_000), handler=take)
