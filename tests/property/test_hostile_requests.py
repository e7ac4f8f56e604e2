# SPDX-License-Identifier: Apache-2.0
"""All handlers of the embedded broker under requests whose values were chosen to hurt.

Damaged bytes are tested over its socket (``tests/fuzz/broker.py``). Here every frame can be read: names, counts, offsets, times
and record sets are what a hostile client would say.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from consumerd.aio.timeouts import timeout
from consumerd.embedded.appending import Appender
from consumerd.embedded.coordinator.coordinator import GroupCoordinator
from consumerd.embedded.coordinator.handlers import group_handlers
from consumerd.embedded.coordinator.settings import CoordinatorSettings
from consumerd.embedded.coordinator.zookeeper_positions import ZooKeeperPositions
from consumerd.embedded.dispatch import Dispatcher
from consumerd.embedded.faults import BrokerFaults
from consumerd.embedded.handlers.context import ConnectionRefused, Hangup
from consumerd.embedded.handlers.table import log_handlers
from consumerd.embedded.log.settings import LogSettings
from consumerd.embedded.releases import get_imitation
from consumerd.embedded.reply import read_piece
from consumerd.embedded.topics import Topics
from consumerd.embedded.znodes import BrokerAddress
from consumerd.errors import RemoteProtocolError
from consumerd.model import BrokerId
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.metadata import MetadataBroker
from consumerd.wire.modern.offset_commit import CommitPartition, CommitTopic, OffsetCommitRequest
from consumerd.wire.modern.produce import ProduceRequest
from consumerd.wire.schema import Request
from consumerd.wire.server_session import read_request
from consumerd.wire.session import encode_request
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.frames import VERSIONS, load_frames
from tests.support.group_log import MemoryLog
from tests.support.messages import Values, messages
from tests.support.served_logs import FolderTopics

RELEASE: Final = get_imitation("1.1")
SPOKEN: Final = [
    (request, version)
    for request, version in VERSIONS
    if (known := RELEASE.ranges.get(request.api)) and known.first <= version <= known.last
]
TOPIC: Final = "t"
NAMES: Final = (
    TOPIC,
    "g",
    "range",
    "",
    ".",
    "..",
    "a/b",
    "lake/ids/evil",
    "x" * 300,
    "\0",
    "\u2028",
    "__consumer_offsets",
)
EDGES: Final = (
    -2,
    -1,
    0,
    1,
    2,
    1000,
    6000,
    1 << 15,
    1 << 24,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 31,
    (1 << 62),
    253402300800000,
)


def produced_sets() -> list[bytes]:
    """Return the record sets that real clients sent, without doubles."""
    accepted = {ProduceRequest: ProduceRequest.versions}
    requests = [
        read_request(memoryview(frame.request)[4:], accepted).request
        for frame in load_frames()
        if frame.request_class is ProduceRequest
    ]
    sets = {
        bytes(one.record_set)
        for request in requests
        for topic in cast("ProduceRequest", request).topics
        for one in topic.partitions
        if one.record_set
    }
    return sorted(sets)


SETS: Final = produced_sets()
RECORDS: Final = (
    st.sampled_from(SETS)
    | st.binary(max_size=40)
    | st.tuples(
        st.sampled_from(SETS), st.integers(0, 80), st.sampled_from([b"\xff" * 4, b"\x7f" + b"\xff" * 7, b"\0" * 4])
    ).map(lambda drawn: drawn[0][: drawn[1]] + drawn[2] + drawn[0][drawn[1] + len(drawn[2]) :])
)
# the name of what is there is drawn as often as all others together, or most requests would fail at their first look
TEXTS: Final = st.just(TOPIC) | st.sampled_from(NAMES)
VALUES: Final = Values(texts=TEXTS, records=RECORDS, edges=EDGES)
COUNTS: Final = Values(texts=TEXTS, records=RECORDS, edges=tuple(edge for edge in EDGES if edge != 1000))
"""Values without a number of partitions that is allowed and takes seconds: each partition is a folder."""


APIS: Final = sorted({request.api for request, _ in SPOKEN})


def requests(*apis: ApiKey) -> st.SearchStrategy[list[tuple[Request[Any], int]]]:
    """Return a strategy of lists of requests of these APIs, each with its version."""
    spoken = [one for one in SPOKEN if one[0].api in apis]

    def values(request: type[Request[Any]]) -> Values:
        return COUNTS if request.api is ApiKey.CREATE_PARTITIONS else VALUES

    one = st.sampled_from(spoken).flatmap(
        lambda one: st.tuples(messages(one[0], one[1], values(one[0])), st.just(one[1]))
    )
    return st.lists(one, min_size=1, max_size=12)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Dispatcher]:
    """Make every handler that a broker has, over logs in a folder, a coordinator, and ZooKeeper in memory."""
    faults = BrokerFaults()
    topics = FolderTopics(directory, faults, LogSettings())
    server = FakeZooKeeper()
    zk = server.client("broker")
    ids = itertools.count()
    async with AsyncExitStack() as stack:
        stack.callback(topics.close)
        zk.connect()
        stack.callback(zk.close)
        appender = await stack.enter_async_context(Appender())
        coordinator = await stack.enter_async_context(
            GroupCoordinator(
                MemoryLog(),
                settings=CoordinatorSettings(),
                now=asyncio.get_running_loop().time,
                now_ms=lambda: 1_700_000_000_000,
                new_id=lambda: str(next(ids)),
            )
        )
        topics.add(TOPIC, 2)
        await asyncio.sleep(0)
        logs = log_handlers(
            topics,
            appender,
            faults,
            broker=MetadataBroker(node_id=BrokerId(0), host="127.0.0.1", port=9092),
            cluster_id=lambda: "c",
            partitions_of_new=1,
        )
        groups = group_handlers(
            coordinator,
            ZooKeeperPositions(zk),
            topics=cast("Topics", topics),
            address=BrokerAddress(broker_id=0, host="127.0.0.1", port=9092),
            now_ms=lambda: 1_700_000_000_000,
        )
        yield Dispatcher({**logs, **groups}, RELEASE, faults)


async def ask(dispatcher: Dispatcher, request: Request[Any], version: int) -> bytes | None:
    """Return the frame of the answer, None where the connection would be closed; the client does not wait for long."""
    frame = encode_request(request, version, correlation_id=1, client_id="c")
    hangup = Hangup()
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(give_answer(dispatcher, frame, hangup))
        await asyncio.wait({answer}, timeout=0.02)
        hangup.happen()
    return answer.result()


async def give_answer(dispatcher: Dispatcher, frame: bytes, hangup: Hangup) -> bytes | None:
    with suppress(ConnectionRefused, RemoteProtocolError):
        reply = await dispatcher.respond(memoryview(frame)[4:], peer_host="h", hangup=hangup)
        if reply is not None:
            try:
                return b"".join(map(read_piece, reply.pieces))
            finally:
                reply.close()
    return None


async def converse(directory: Path, asked: Sequence[tuple[Request[Any], int]]) -> None:
    """Send requests one after the other; each answer can be read, and a sane request is answered in the end."""
    async with timeout(30), serving(directory) as dispatcher:
        for request, version in asked:
            answer = await ask(dispatcher, request, version)
            if answer is not None:
                request.decode_response(version, memoryview(answer)[8:])
        sane = OffsetCommitRequest(
            group_id="sane",
            topics=(CommitTopic(topic=TOPIC, partitions=(CommitPartition(partition=0, offset=7, metadata=""),)),),
        )
        answer = await ask(dispatcher, sane, 2)
        assert answer is not None
        committed = sane.decode_response(2, memoryview(answer)[8:])
        assert ErrorCode.NONE == committed.topics[0].partitions[0].error_code


def check(asked: list[tuple[Request[Any], int]]) -> None:
    """Ask a broker of its own; a handler that fails says so as an error."""
    with tempfile.TemporaryDirectory() as directory, capture_logs() as said:
        asyncio.run(converse(Path(directory), asked))
    assert [] == [one for one in said if one["log_level"] in ("error", "critical")]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name.lower())
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_value_in_a_request_makes_its_handler_fail(api: ApiKey, data: st.DataObject) -> None:
    """Each request is answered, or its connection is closed on purpose; any other exception is a defect."""
    check(data.draw(requests(api)))


@settings(max_examples=100, deadline=None)
@given(asked=requests(*APIS))
def test_no_sequence_of_requests_makes_a_handler_fail(asked: list[tuple[Request[Any], int]]) -> None:
    """One request leaves behind topics, members and positions that the next one meets."""
    check(asked)
