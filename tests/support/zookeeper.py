# SPDX-License-Identifier: Apache-2.0
"""What tests against a real ZooKeeper share: servers, clients of the adapter, and waiting for what another process does.

The server is the one in pyspark; with ``CONSUMERD_ZOOKEEPER_OF=0.8.2.2`` it is the one that this Kafka release brings.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import ssl
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from consumerd.aio.clock import boottime
from consumerd.embedded.zookeeper import EmbeddedZooKeeper, get_zookeeper_jars
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.authentication import SaslTokens
from consumerd.zk.node_acl import AclProfile
from tests.support.kafka import four_letter, jars
from tests.support.tcp_proxy import Action, Direction, FrameHook

CREATE: Final = 1
DELETE: Final = 2
EXISTS: Final = 3
GET: Final = 4
LIST: Final = 8
SYNC: Final = 9
"""What the session's probe asks."""
LIST_WITH_STAT: Final = 12
MULTI: Final = 14
AUTH: Final = 100
SET_WATCHES: Final = 101
SASL: Final = 102


def server_jars() -> tuple[Path, ...]:
    """Return the jars of the server that tests run against. Raises ConfigError, KafkaUnavailable."""
    release = os.environ.get("CONSUMERD_ZOOKEEPER_OF")
    return tuple(sorted(jars(release).glob("*.jar"))) if release else get_zookeeper_jars()


def make_server(
    directory: Path | None = None,
    *,
    port: int | None = None,
    tick_ms: int = 500,
    users: Mapping[str, str] | None = None,
) -> EmbeddedZooKeeper:
    """Return a server that is not entered yet. Without ``directory``, it has a temporary folder, removed on leaving."""
    if directory is None:
        return _TemporaryZooKeeper(jars=server_jars(), port=port, tick_ms=tick_ms, users=users)
    return EmbeddedZooKeeper(directory, jars=server_jars(), port=port, tick_ms=tick_ms, users=users)


class _TemporaryZooKeeper(EmbeddedZooKeeper):
    def __init__(
        self, *, jars: Sequence[Path], port: int | None, tick_ms: int, users: Mapping[str, str] | None
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="consumerd-zookeeper-"))
        super().__init__(self._folder, jars=jars, port=port, tick_ms=tick_ms, users=users)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def run_server(users: Mapping[str, str] | None = None) -> Iterator[EmbeddedZooKeeper]:
    """Run a real server from synchronous code: for fixtures that outlive the event loop of one test."""
    with asyncio.Runner() as runner:
        zookeeper = make_server(tick_ms=250, users=users)
        runner.run(zookeeper.__aenter__())
        try:
            yield zookeeper
        finally:
            runner.run(zookeeper.__aexit__(None, None, None))


def make_client(
    connect_string: str,
    *,
    session_timeout_s: float = 6.0,
    now: Callable[[], float] = boottime,
    auth: tuple[str, bytes] | None = None,
    acl: AclProfile = AclProfile.OPEN,
    sasl: SaslTokens | None = None,
    tls: ssl.SSLContext | None = None,
    call_timeout_s: float | None = None,
    random: Callable[[], float] = random.random,
) -> AiozkClient:
    """Return a client that is not entered yet."""
    return AiozkClient(
        connect_string,
        session_timeout_s=session_timeout_s,
        now=now,
        random=random,
        auth=auth,
        acl=acl,
        sasl=sasl,
        tls=tls,
        call_timeout_s=call_timeout_s,
    )


def live_sessions(port: int) -> set[int]:
    """Return the ids of the sessions that a server keeps. Blocks."""
    sets = four_letter(port, b"dump").decode().partition("ephemeral nodes dump")[0]
    return {int(word, 16) for word in sets.split() if word.startswith("0x")}


def opcode(frame: bytes) -> int:
    """Return the opcode of a request's frame; of a connection's first one it is half of a zxid, which is 0 in tests."""
    return int(struct.unpack_from("!i", frame, 8)[0]) if len(frame) >= 12 else 0


def xid(frame: bytes) -> int:
    """Return the xid of a request's or an answer's frame."""
    return int(struct.unpack_from("!i", frame, 4)[0])


def at_answer_to(wanted: int, action: Action) -> FrameHook:
    """Act once, at the server's answer to the next request of that opcode.

    ``at_answer_to(SYNC, Action.BLACKHOLE_AFTER)`` begins a partition at the worst moment: right after an answered probe.
    """
    asked: list[int] = []
    done: list[bool] = []

    def decide(direction: Direction, frame: bytes) -> Action:
        if direction is Direction.TO_SERVER:
            if opcode(frame) == wanted and not asked:
                asked.append(xid(frame))
        elif asked and not done and xid(frame) == asked[0]:
            done.append(True)
            return action
        return Action.FORWARD

    return decide
