# SPDX-License-Identifier: Apache-2.0
"""Interface to a connection's protocol state: requests to frames, and responses to requests.

Generations of Kafka differ here. Brokers of 0.8 and later repeat a request's correlation id in the answer
(``wire.session.ClientSession``). Brokers of 0.6/0.7 send no ids: each answer belongs to the oldest pending request, and
some requests are never answered (``wire.legacy.session.LegacyClientSession``). The dialer creates the session, since it
knows the generation before it connects.

Pure. Frames are length-prefixed in both generations (``net.frames``).
"""

from __future__ import annotations

from typing import Any, Protocol

from consumerd.wire.schema import Request


class AnswerFrame(Protocol):
    """A complete response from a broker, not decoded yet."""

    @property
    def key(self) -> int:
        """Key of the answered request, as :meth:`ConnectionSession.send` returned it."""

    @property
    def body(self) -> memoryview:
        """Body of the response, for ``Request.decode_response``."""


class ConnectionSession(Protocol):
    """Protocol state of one connection: which requests wait for a response, and in which order."""

    @property
    def in_flight(self) -> int:
        """Number of requests without a response, including those whose caller was cancelled."""

    def send(self, request: Request[Any], version: int) -> tuple[int, bytes]:
        """Return a key for the request, and its frame; write the frames in call order.

        The key is unique among requests that wait for a response. A request that brokers do not answer does not wait.
        Raises LocalProtocolError, and then nothing has changed.
        """

    def receive_frame(self, body: memoryview) -> AnswerFrame:
        """Find the request that a received frame answers; the frame is given without its size.

        Returns the response's body and the request's key. Raises RemoteProtocolError if the frame answers no request
        that waits; the session is then unusable.
        """


class SpokenVersions(Protocol):
    """Versions of each request to send on one connection."""

    def choose(self, request: type[Request[Any]], *, at_most: int | None = None) -> int:
        """Return the newest version of a request that both sides support, up to ``at_most``.

        None for ``at_most`` sets no limit. Raises UnsupportedVersion if there is no such version.
        """

    @property
    def mutes_after_answer(self) -> bool:
        """True if a throttling broker responds at once, then reads nothing for the throttle time.

        False if such a broker delays the response by the throttle time instead.
        """
