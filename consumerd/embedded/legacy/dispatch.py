# SPDX-License-Identifier: Apache-2.0
"""Dispatcher of the requests of Kafka 0.6 and 0.7: decodes them, and injects faults.

A fault is armed for an API of later releases, which stands for these requests:

======================  ================================
API                     requests
======================  ================================
``ApiKey.PRODUCE``      PRODUCE, MULTIPRODUCE
``ApiKey.FETCH``        FETCH, MULTIFETCH
``ApiKey.LIST_OFFSETS`` OFFSETS
======================  ================================

An error code is that of the whole response, and of each part of a MULTIFETCH. PRODUCE and MULTIPRODUCE have no
response: an error closes the connection, and faults of responses do not affect them.
"""

from __future__ import annotations

from typing import Any, Self

from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.context import ConnectionRefused, Hangup
from consumerd.embedded.legacy.requests import LegacyHandlers
from consumerd.embedded.reply import FramedReply
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.legacy.messages import (
    LegacyErrorCode,
    LegacyFetchRequest,
    LegacyFetchResponse,
    LegacyMultiFetchRequest,
    LegacyMultiFetchResponse,
    LegacyOffsetsResponse,
    LegacyRequest,
)
from consumerd.wire.legacy.session import encode_legacy_response, read_legacy_request


class LegacyDispatcher:
    """Passes requests to ``handlers``, and applies ``faults``."""

    def __init__(self, handlers: LegacyHandlers, faults: BrokerFaults) -> None:
        self._handlers = handlers
        self._faults = faults

    def connect(self) -> Self:
        """Return what handles the requests of a new connection: the same for all."""
        return self

    async def respond(
        self,
        frame: memoryview,
        *,
        peer_host: str,  # noqa: ARG002 - the interface of the server
        hangup: Hangup,  # noqa: ARG002 - no request waits for anything
    ) -> FramedReply | None:
        """Return the response to a request; None if it has none.

        The caller sends the response and closes it. Raises ConnectionRefused or RemoteProtocolError if the connection
        must be closed.

        Args:
            frame: The bytes of the request, without their size.
            peer_host: The client's address; not used.
            hangup: Not used.
        """
        request = read_legacy_request(frame)
        code = self._faults.take_error(request.api)
        reply = await self._handlers.respond(request) if code is None else refuse_legacy(request, code)
        if reply is None:
            return None
        try:
            return await self._faults.act(request.api, reply)
        except BaseException:
            reply.close()
            raise


def refuse_legacy(request: LegacyRequest[Any], code: ErrorCode) -> FramedReply:
    """Return the response that has an error code and nothing else.

    Raises ConnectionRefused if the request has no response.
    """
    response: object
    match request:
        case LegacyFetchRequest():
            response = LegacyFetchResponse(error_code=code)
        case LegacyMultiFetchRequest():
            parts = tuple(LegacyFetchResponse(error_code=code) for _ in request.requests)
            response = LegacyMultiFetchResponse(error_code=LegacyErrorCode.NO_ERROR, responses=parts)
        case _ if request.expects_response:
            response = LegacyOffsetsResponse(error_code=code, offsets=())
        case _:
            raise ConnectionRefused(f"{request.request_type.name}: {code.name}, which cannot be answered")
    return FramedReply(pieces=[encode_legacy_response(response)])
