# SPDX-License-Identifier: Apache-2.0
"""Turns request frames into response frames: decoding, handlers, faults, encoding.

Knows no socket. For each imitated release (``releases``) it decides how to react to requests that cannot be handled;
most end the connection, which is expressed by raising.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.api_versions import ApiVersionsHandler
from consumerd.embedded.handlers.context import ConnectionRefused, Handler, Hangup, RequestContext
from consumerd.embedded.handlers.refusals import REQUESTS, refuse
from consumerd.embedded.releases import Imitation, OnUnknownRequest
from consumerd.embedded.reply import FileResponse, FramedReply
from consumerd.errors import ConsumerdError, LocalProtocolError, RemoteProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.api_versions import ApiVersionsRequest, ApiVersionsResponse
from consumerd.wire.modern.produce import count_parts
from consumerd.wire.schema import Request
from consumerd.wire.server_session import (
    ReceivedRequest,
    UnknownRequest,
    VersionNotSpoken,
    encode_response_pieces,
    name_request,
    read_request,
)
from consumerd.wire.session import HEADER_CODEC

_LARGE_BYTES: Final = 1 << 19
"""Size limit of requests without records. Larger ones may have at most ``_MOST_PARTS`` topics and partitions.

Kafka only limits the bytes of all requests. Here the content is decoded and answered on the event loop, element by
element: a list of that size takes a second, in which no other client is served.
"""
_MOST_PARTS: Final = 50_000

_log = structlog.get_logger(__name__)


class SilenceWanted(ConsumerdError):
    """This connection gets no more responses, and stays open."""


class Dispatcher:
    """Dispatches requests to ``handlers``, in the versions of the imitated release.

    It also answers ApiVersions.
    """

    def __init__(self, handlers: Mapping[ApiKey, Handler], imitation: Imitation, faults: BrokerFaults) -> None:
        spoken = {
            api: versions for api, versions in imitation.ranges.items() if api in handlers or api is ApiKey.API_VERSIONS
        }
        self._handlers: Final[Mapping[ApiKey, Handler]] = {
            **handlers,
            ApiKey.API_VERSIONS: ApiVersionsHandler(spoken),
        }
        self._imitation = imitation
        self._faults = faults
        self._accepted: Final[Mapping[type[Request[Any]], range]] = {
            REQUESTS[api]: range(versions.first, versions.last + 1) for api, versions in spoken.items()
        }

    async def answer(
        self, frame: memoryview, *, peer_host: str, connection_id: str, hangup: Hangup
    ) -> FramedReply | None:
        """Return the response to a frame, or None if it gets none.

        The caller closes it.

        Bounded as the handler is, and by injected delays. Raises ConnectionRefused and RemoteProtocolError if the
        connection is to be closed, and SilenceWanted.
        """
        _check_size(frame)
        try:
            received = read_request(frame, self._accepted)
        except UnknownRequest as error:
            if self._imitation.on_unknown_request is OnUnknownRequest.FALL_SILENT:
                raise SilenceWanted(str(error)) from error
            raise
        except VersionNotSpoken as error:
            if error.request_class is not ApiVersionsRequest:
                raise
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_versions=())
            return await self._reply(ApiKey.API_VERSIONS, error.header.correlation_id, refusal, 0)
        context = RequestContext(
            version=received.version,
            client_id=received.header.client_id,
            peer_host=peer_host,
            connection_id=connection_id,
            hangup=hangup,
        )
        request = received.request
        response = await self._handle(received, context)
        if not request.expects_response:
            return None
        return await self._reply(request.api, received.header.correlation_id, response, received.version)

    async def _handle(self, received: ReceivedRequest, context: RequestContext) -> object:
        request = received.request
        code = self._faults.take_error(request.api)
        if code is None:
            try:
                return await self._handlers[request.api](request, context)
            except (ConnectionRefused, RemoteProtocolError):
                raise
            except Exception as error:  # noqa: BLE001 - a request must not end the broker, as in KafkaApis.handleError
                _log.exception("request_failed", request=request.api.name, version=context.version, error=str(error))
                code = ErrorCode.UNKNOWN_SERVER_ERROR
        if not request.expects_response:
            raise ConnectionRefused(f"{request.api.name}: {code.name}, which cannot be answered")
        return refuse(request, code, context.version)

    async def _reply(self, api: ApiKey, correlation_id: int, response: object, version: int) -> FramedReply:
        owners = response.owners if isinstance(response, FileResponse) else ()
        value = response.response if isinstance(response, FileResponse) else response
        reply = FramedReply(pieces=[], owners=owners)
        try:
            try:
                reply.pieces = encode_response_pieces(correlation_id, value, version)
            except LocalProtocolError as error:
                _log.exception("answer_unwritable", request=api.name, version=version, error=str(error))
                raise ConnectionRefused(f"{api.name} v{version}: the answer cannot be written: {error}") from error
            return await self._faults.act(api, reply)
        except BaseException:
            reply.close()
            raise


def _check_size(frame: memoryview) -> None:
    if len(frame) <= _LARGE_BYTES:
        return
    header, body_at = HEADER_CODEC.read(frame, 0, len(frame))
    what = "more than it may have without records"
    if header.api_key == ApiKey.PRODUCE:
        if count_parts(frame[body_at:], header.api_version, most=_MOST_PARTS) <= _MOST_PARTS:
            return
        what = f"more than {_MOST_PARTS} topics and partitions"
    raise RemoteProtocolError(f"request {name_request(header.api_key)} of {len(frame)} bytes: {what}")
