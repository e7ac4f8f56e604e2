# SPDX-License-Identifier: Apache-2.0
"""The broker's listener; each connection is served in a task of its own.

Requests of a connection are handled one after the other, and their responses are sent in the same order (Kafka's
documentation, Implementation: Network Layer). A :class:`RequestDispatcher` handles their content.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

import structlog

from consumerd.aio.tasks import TaskSet
from consumerd.embedded.connection import ServedConnection
from consumerd.embedded.dispatch import SilenceWanted
from consumerd.embedded.handlers.context import ConnectionRefused, Hangup
from consumerd.embedded.reply import FramedReply
from consumerd.embedded.request_memory import RequestMemory
from consumerd.errors import ConfigError, ConnectionLost, RemoteProtocolError

DEFAULT_RECEIVED_BYTES: Final = 128 * 1024 * 1024
DEFAULT_IDLE_S: Final = 600.0
"""Time, in seconds, after which a silent client is disconnected: Kafka's ``connections.max.idle.ms``."""

_BACKLOG: Final = 512
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AGAIN_S: Final = 1.0

_log = structlog.get_logger(__name__)


class RequestDispatcher(Protocol):
    """Source of handlers for connections.

    Implemented by ``dispatch.Dispatcher``, by ``sasl.SaslDispatcher`` for connections that authenticate, and, for Kafka
    0.6 and 0.7, by ``legacy.dispatch.LegacyDispatcher``.
    """

    def connect(self) -> RequestHandler:
        """Return what handles the requests of a new connection."""


class RequestHandler(Protocol):
    """Handles the requests of one connection."""

    async def respond(self, frame: memoryview, *, peer_host: str, hangup: Hangup) -> FramedReply | None:
        """Return the response to a request; None if it has none.

        Raises ConnectionRefused or RemoteProtocolError if the connection must be closed, and SilenceWanted if it must
        be left open without further responses.

        Args:
            frame: The bytes of the request, without their size.
            peer_host: The client's address.
            hangup: Tells if the client disconnects meanwhile.
        """


class BrokerServer:
    """The broker's listener: accepts connections and passes their requests to a dispatcher.

    The server owns its listening socket. :func:`listen` creates a server.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        max_request_bytes: int,
        max_received_bytes: int,
        write_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        self._listener = listener
        self.port = int(listener.getsockname()[1])
        """The port it listens on."""
        self._max_request_bytes = max_request_bytes
        self._memory = RequestMemory(max_received_bytes)
        self._write_timeout_s = write_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._connections: dict[str, ServedConnection] = {}
        self._accepted = 0

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @asynccontextmanager
    async def serving(self, dispatcher: RequestDispatcher) -> AsyncIterator[None]:
        """Accept connections while the block runs; ``dispatcher`` handles their requests.

        At the end of the block, the server stops listening and closes all connections. An exception of the block is
        raised unchanged.
        """
        loop = asyncio.get_running_loop()
        failure: Exception | None = None
        try:
            async with TaskSet[str]() as tasks:
                resting: asyncio.TimerHandle | None = None

                def accept() -> None:
                    nonlocal resting
                    try:
                        self._accept(dispatcher, tasks)
                    except OSError as error:
                        _log.warning("accept_failed", error=str(error))
                        loop.remove_reader(self._listener)
                        resting = loop.call_later(_ACCEPT_AGAIN_S, loop.add_reader, self._listener, accept)

                loop.add_reader(self._listener, accept)
                try:
                    yield
                except Exception as error:  # noqa: BLE001 - raised again below, outside of the group that would wrap it
                    failure = error
                finally:
                    loop.remove_reader(self._listener)
                    if resting is not None:
                        resting.cancel()
                    self.close()
                    for key in tasks.keys:
                        tasks.cancel_soon(key)
        finally:
            while self._connections:  # accepted too late to be served
                self._connections.popitem()[1].close()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Stop listening for connections. Idempotent."""
        self._listener.close()

    def _accept(self, dispatcher: RequestDispatcher, tasks: TaskSet[str]) -> None:
        """Accept and serve waiting clients. Raises OSError if no more can be accepted now."""
        for _ in range(_BACKLOG):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    raise
                continue  # the peer has disconnected already
            sock.settimeout(0)
            with contextlib.suppress(OSError):  # as above; reading will report it
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._accepted += 1
            name = f"{address[0]}:{address[1]}-{self._accepted}"
            connection = self._connections[name] = ServedConnection(
                sock,
                name=name,
                peer_host=str(address[0]),
                max_frame_bytes=self._max_request_bytes,
                memory=self._memory,
                stall_s=self._write_timeout_s,
                idle_s=self._idle_timeout_s,
            )
            tasks.start(name, self._serve(connection, dispatcher), name=f"broker-connection-{name}")

    async def _serve(self, connection: ServedConnection, dispatcher: RequestDispatcher) -> None:
        """Serve one connection until the client or an error ends it."""
        name = connection.name
        try:
            await _respond_to_all(connection, dispatcher.connect())
        except SilenceWanted as error:
            _log.debug("connection_silenced", connection=name, reason=str(error))
            with contextlib.suppress(RemoteProtocolError, ConnectionLost):
                await connection.fall_silent()
        except (ConnectionRefused, RemoteProtocolError) as error:
            _log.info("connection_closed", connection=name, reason=str(error))
        except ConnectionLost as error:
            _log.debug("connection_lost", connection=name, reason=str(error))
        except Exception as error:  # noqa: BLE001 - ends its connection only, as in SocketServer.processException
            _log.exception("connection_failed", connection=name, error=str(error))
        finally:
            self._connections.pop(name, None)
            connection.close()


async def _respond_to_all(connection: ServedConnection, handler: RequestHandler) -> None:
    """Handle requests until the peer ends the stream, or a reply ends the connection."""
    while (frame := await connection.next_frame()) is not None:
        reply = await handler.respond(frame, peer_host=connection.peer_host, hangup=connection.hangup)
        del frame
        if reply is not None:
            await connection.send(reply)
            if reply.then_close:
                return
        if connection.has_frame:
            # a client with requests always pending must not keep others waiting
            await asyncio.sleep(0)


def listen(
    host: str,
    port: int,
    *,
    max_request_bytes: int,
    max_received_bytes: int = DEFAULT_RECEIVED_BYTES,
    write_timeout_s: float,
    idle_timeout_s: float = DEFAULT_IDLE_S,
) -> BrokerServer:
    """Listen on ``host``, an address or name of this machine; return the server.

    Clients can connect from now on, and are served from :meth:`BrokerServer.serving` on. Port 0 chooses a free port.
    Raises ConfigError if it cannot listen.

    Args:
        max_request_bytes: Largest size of one request, in bytes.
        max_received_bytes: Limit, in bytes, of the memory of all requests that are being received or handled.
        write_timeout_s: Seconds after which a client that accepts no bytes of a response is disconnected.
        idle_timeout_s: Seconds after which a silent client without a pending request is disconnected.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        dual_stack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=dual_stack)
    except OSError as error:
        raise ConfigError(f"the broker cannot listen on {host}:{port}: {error}") from error
    listener.settimeout(0)
    return BrokerServer(
        listener,
        max_request_bytes=max_request_bytes,
        max_received_bytes=max_received_bytes,
        write_timeout_s=write_timeout_s,
        idle_timeout_s=idle_timeout_s,
    )
