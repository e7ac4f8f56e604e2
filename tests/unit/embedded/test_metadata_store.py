# SPDX-License-Identifier: Apache-2.0
"""Metadata without ZooKeeper: nodes, watches and sessions behave as ZooKeeper's, and outlive the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from consumerd.embedded.metadata_store import LOG_NAME, MetadataStore
from consumerd.errors import ConfigError, SessionLost
from consumerd.zk.port import BadVersion, NodeExists, NoNode, NotEmpty, WatchKind
from tests.support.waiting import until


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[MetadataStore]:
    async with MetadataStore(directory, now_ms=lambda: 5) as store:
        yield store


async def test_nodes_outlive_the_process_and_ephemeral_ones_do_not(tmp_path: Path) -> None:
    """What a restart must not change: data, versions, the transaction that created a topic."""
    async with opened(tmp_path) as store, store.client(session_timeout_s=1) as client:
        await client.ensure_path("/brokers/topics/t", b"one")
        await client.set("/brokers/topics/t", b"two")
        await client.create("/brokers/ids", b"")
        await client.create("/brokers/ids/0", b"here", ephemeral=True)
        await client.create("/brokers/topics/gone", b"")
        await client.delete("/brokers/topics/gone")
        before = await client.get("/brokers/topics/t")
    with (tmp_path / LOG_NAME).open("ab") as file:
        file.write(b'{"path": "/brokers/topics/half')
    for _ in range(2):  # the second time from the compacted log
        async with opened(tmp_path) as store, store.client(session_timeout_s=1) as client:
            data, stat = await client.get("/brokers/topics/t")
            assert (b"two", 1, before[1].czxid) == (data, stat.version, stat.czxid)
            assert (["ids", "topics"], []) == ((await client.children("/brokers"))[0], store.children("/brokers/ids"))
            assert ["t"] == (await client.children("/brokers/topics"))[0]
    async with opened(tmp_path) as store, store.client(session_timeout_s=1) as client:
        await client.delete("/brokers/topics/t")
        await client.create("/brokers/topics/t", b"")
        assert (await client.get("/brokers/topics/t"))[1].czxid > before[1].czxid


async def test_what_zookeeper_refuses_is_refused(tmp_path: Path) -> None:
    """The same errors, so the same code handles them."""
    async with opened(tmp_path) as store, store.client(session_timeout_s=1) as client:
        await client.create("/a", b"")
        await client.create("/a/b", b"")
        for refused, error in (
            (client.create("/a", b""), NodeExists),
            (client.create("/x/y", b""), NoNode),
            (client.set("/x", b""), NoNode),
            (client.set("/a", b"", version=7), BadVersion),
            (client.delete("/a"), NotEmpty),
            (client.get("/x"), NoNode),
        ):
            with pytest.raises(error):
                await refused
        client.abandon()
        with pytest.raises(SessionLost):
            await client.create("/late", b"")


async def test_watches_are_told_of_what_happens(tmp_path: Path) -> None:
    """Once a turn of the loop, and not after they are closed."""
    async with opened(tmp_path) as store, store.client(session_timeout_s=1) as client:
        told: list[str] = []
        watch = client.watch("/a", WatchKind.CHILDREN, lambda: told.append("children"))
        client.watch("/a/b", WatchKind.DATA, lambda: told.append("data"))
        await client.ensure_path("/a/b")
        await client.set("/a/b", b"1")
        await until(lambda: told.count("data") >= 1)
        watch.close()
        told.clear()
        await client.delete("/a/b")
        await until(lambda: told == ["data"])


async def test_a_session_ends_with_its_nodes_at_once_or_when_it_expires(tmp_path: Path) -> None:
    """A killed broker stays registered for the session timeout."""
    async with opened(tmp_path) as store:
        async with store.client(session_timeout_s=60) as client:
            await client.create("/0", b"", ephemeral=True)
        at_once = store.find("/0")
        async with store.client(session_timeout_s=0.05) as client:
            await client.create("/1", b"", ephemeral=True)
            client.abandon()
        lingering = store.find("/1")
        await until(lambda: store.find("/1") is None)

    assert at_once is None
    assert lingering is not None


async def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """By the path, before a broker listens."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        async with opened(tmp_path / "file"):
            await asyncio.sleep(0)
