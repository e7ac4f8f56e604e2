# SPDX-License-Identifier: Apache-2.0
"""Dispatcher of requests: decodes them, calls their handlers, injects faults, and encodes the responses.

It does not use sockets. For each imitated release (``releases``) it decides how to react to requests that cannot be
handled; most end the connection, which is expressed by raising.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import structlog

from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.context import ANONYMOUS, ConnectionRefused, Handler, Hangup, RequestContext
from consumerd.embedded.handlers.refusals import REQUESTS, refuse
from consumerd.embedded.releases import Imitation
from consumerd.embedded.reply import FileResponse, FramedReply
from consumerd.errors import ConsumerdError, LocalProtocolError, RemoteProtocolError
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.api_versions import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
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
"""Size limit, in bytes, of requests without records. Produce requests may be larger.

Kafka limits only the bytes of all requests together. Here the lists in a request are decoded on the event loop, element
by element. Decoding a list of this size takes a second, in which no other client is served.
"""
_MOST_PARTS: Final = 50_000
"""Largest number of topics and partitions in a Produce request above that size."""

_FIRST_TO_LIST_ITS_OWN: Final = (2, 4)
"""Release from which an unsupported version of ApiVersions is answered with the broker's range (KIP-511)."""

_log = structlog.get_logger(__name__)


class SilenceWanted(ConsumerdError):
    """The broker leaves a connection open, but sends no more responses on it.

    Kafka 0.9 does so after a request that it does not know.
    """


class Dispatcher:
    """Passes requests to their handlers, and handles ApiVersions itself.

    Args:
        handlers: The handlers by API; each request is decoded in the versions of the imitated release.
    """

    def __init__(self, handlers: Mapping[ApiKey, Handler], imitation: Imitation, faults: BrokerFaults) -> None:
        spoken = {
            api: versions for api, versions in imitation.ranges.items() if api in handlers or api is ApiKey.API_VERSIONS
        }
        self._handlers: Final[Mapping[ApiKey, Handler]] = {
            **handlers,
            ApiKey.API_VERSIONS: self._list_versions,
        }
        self._versions: Final = ApiVersionsResponse(
            api_versions=tuple(
                ApiVersionRange(
                    api_key=api,
                    min_version=imitation.listed_from.get(api, versions.first),
                    max_version=versions.last,
                )
                for api, versions in sorted(spoken.items())
            )
        )
        self._imitation = imitation
        self._faults = faults
        self._accepted: Final[Mapping[type[Request[Any]], range]] = {
            REQUESTS[api]: range(versions.first, versions.last + 1) for api, versions in spoken.items()
        }

    def connect(self) -> Self:
        """Return what handles the requests of a new connection: the same for all."""
        return self

    def accepts(self, api: ApiKey) -> range:
        """Return the versions of a request that the imitated release takes; empty for none."""
        return self._accepted.get(REQUESTS[api], range(0))

    async def respond(
        self, frame: memoryview, *, peer_host: str, hangup: Hangup, principal: str = ANONYMOUS
    ) -> FramedReply | None:
        """Return the response to a request; None if it has none (Produce with ``acks`` 0).

        The caller sends the response and closes it. Raises ConnectionRefused or RemoteProtocolError if the connection
        must be closed, and SilenceWanted if it must be left open without further responses.

        Args:
            frame: The bytes of the request, without their size.
            peer_host: The client's address.
            hangup: Tells if the client disconnects meanwhile.
            principal: The client's identity, as ACLs name it.
        """
        _check_size(frame)
        try:
            received = read_request(frame, self._accepted)
        except UnknownRequest as error:
            if self._imitation.falls_silent:
                raise SilenceWanted(str(error)) from error
            raise
        except VersionNotSpoken as error:
            if error.request_class is not ApiVersionsRequest:
                raise
            own = [one for one in self._versions.api_versions if one.api_key == ApiKey.API_VERSIONS]
            listed = tuple(own) if self._imitation.release >= _FIRST_TO_LIST_ITS_OWN else ()
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_versions=listed)
            return await self._reply(ApiKey.API_VERSIONS, error.header.correlation_id, refusal, 0)
        context = RequestContext(
            version=received.header.api_version,
            client_id=received.header.client_id,
            peer_host=peer_host,
            principal=principal,
            hangup=hangup,
        )
        request = received.request
        response = await self._handle(received, context)
        if not request.expects_response:
            return None
        return await self._reply(request.api, received.header.correlation_id, response, received.header.api_version)

    async def _list_versions(self, _request: ApiVersionsRequest, _context: RequestContext) -> ApiVersionsResponse:
        return self._versions

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
