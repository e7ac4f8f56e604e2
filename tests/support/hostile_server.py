# SPDX-License-Identifier: Apache-2.0
"""A broker that answers every request with something hostile, chosen by a seed: for whole clients, not for decoders."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from typing import Final, Self

_HUGE: Final = (2**31 - 1, -(2**31), -1, 2**24)


class HostileServer:
    """Listens on loopback; ``with`` starts and stops it. Each connection is a thread of its own."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.requests = 0

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_exc: object) -> None:
        # a thread in accept() is not woken by a close alone
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)

    def _begin(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="hostile server", daemon=True)  # type: ignore[arg-type]  # a method
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._begin(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, struct.error):
            while len(head := connection.recv(4, socket.MSG_WAITALL)) == 4:
                request = connection.recv(struct.unpack("!i", head)[0], socket.MSG_WAITALL)
                self.requests += 1
                connection.sendall(self._answer(request))
                if self._random.random() < 0.2:
                    return

    def _answer(self, request: bytes) -> bytes:
        correlation, rest = request[4:8], request[8:]
        chance = self._random
        noise = chance.randbytes(chance.randrange(200))
        counts = b"".join(struct.pack("!i", chance.choice(_HUGE)) for _ in range(chance.randrange(1, 6)))
        body = chance.choice((noise, counts, counts + rest, rest + counts, b"", bytes(chance.randrange(64)), rest))
        said = len(body) + 4
        if chance.random() < 0.2:
            said = chance.choice((*_HUGE, 0, 3, said + 1, said - 1))
        known = correlation if chance.random() < 0.9 else noise[:4].ljust(4, b"\0")
        return struct.pack("!i", said) + known + body
