# SPDX-License-Identifier: Apache-2.0
"""What is in ZooKeeper, by a client that is not ours (kazoo), and the assignment by arithmetic that is not ours either."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner node: the thread in it, and the session that keeps it."""

    thread: str
    session: int


class Registry:
    """A group's nodes."""

    def __init__(self, client: KazooClient) -> None:
        self.client = client

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(self.client.get_children(path))
        except NoNodeError:
            return []

    def members(self, group: str) -> dict[str, dict[str, Any]]:
        """Consumer id to its payload, with ``session`` added."""
        found = {}
        for name in self._children(f"/consumers/{group}/ids"):
            try:
                data, stat = self.client.get(f"/consumers/{group}/ids/{name}")
            except NoNodeError:
                continue
            found[name] = {**json.loads(data), "session": stat.ephemeralOwner}
        return found

    def owners(self, group: str, topic: str) -> dict[int, Owner]:
        """Partition to its owner node."""
        found = {}
        for partition in self._children(f"/consumers/{group}/owners/{topic}"):
            try:
                data, stat = self.client.get(f"/consumers/{group}/owners/{topic}/{partition}")
            except NoNodeError:
                continue
            found[int(partition)] = Owner(data.decode(), stat.ephemeralOwner)
        return found

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """Partition to the stored position."""
        return {
            int(partition): int(self.client.get(f"/consumers/{group}/offsets/{topic}/{partition}")[0])
            for partition in self._children(f"/consumers/{group}/offsets/{topic}")
        }

    def offsets_written(self, group: str, topic: str) -> float:
        """Return when a position was stored last, by the server's clock, in seconds of the calendar."""
        paths = [
            f"/consumers/{group}/offsets/{topic}/{one}" for one in self._children(f"/consumers/{group}/offsets/{topic}")
        ]
        return max(float(self.client.get(path)[1].mtime) for path in paths) / 1000

    def threads(self, group: str, topic: str) -> list[str]:
        """The threads that subscribe to a topic, by name or by a list that it matches, sorted as strings."""
        return sorted(
            f"{consumer}-{stream}"
            for consumer, payload in self.members(group).items()
            for stream in range(_streams(payload, topic))
        )

    def expected_range(self, group: str, topic: str, partitions: int) -> dict[int, str]:
        """The range rule by arithmetic: contiguous chunks, extras to the earliest."""
        threads = self.threads(group, topic)
        plan: dict[int, str] = {}
        for position, thread in enumerate(threads):
            share, extra = divmod(partitions, len(threads))
            start = share * position + min(position, extra)
            for partition in range(start, start + share + (1 if position < extra else 0)):
                plan[partition] = thread
        return plan

    def expected_roundrobin(
        self, group: str, topics: Mapping[str, int], name: Callable[[str, int], str]
    ) -> dict[str, dict[int, str]]:
        """The round robin rule where everybody subscribes to all of ``topics``: partitions in the order of the hash code
        of their ``name``, dealt to the threads in turn.
        """
        threads = self.threads(group, next(iter(topics)))
        partitions = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
        partitions.sort(key=lambda one: _hash_code(name(*one)))
        plan: dict[str, dict[int, str]] = {topic: {} for topic in topics}
        for (topic, partition), thread in zip(partitions, itertools.cycle(threads), strict=False):
            plan[topic][partition] = thread
        return plan

    def is_settled(self, group: str, topic: str, partitions: int) -> bool:
        """Whether owners are exactly those of the range rule, each held by its own member's session."""
        return self.owns(group, topic, self.expected_range(group, topic, partitions))

    def owns(self, group: str, topic: str, plan: Mapping[int, str]) -> bool:
        """Whether owners are exactly those of a plan, each held by its own member's session."""
        members = self.members(group)
        owners = self.owners(group, topic)
        if {partition: owner.thread for partition, owner in owners.items()} != plan:
            return False
        return all(
            members.get(consumer_of(owner.thread), {}).get("session") == owner.session for owner in owners.values()
        )


class Positions(Protocol):
    """Where the positions of a group are read: in ZooKeeper, or of its coordinator."""

    def offsets(self, group: str, topic: str, /) -> Mapping[int, int]:
        """Return the positions by partition."""


class CommitWatch:
    """Reads the stored positions again and again, and remembers every one that went backwards. A context manager.

    Leaving raises what reading failed with: a watch that has died has seen nothing.
    """

    def __init__(self, registry: Positions, group: str, topic: str) -> None:
        self._registry, self._group, self._topic = registry, group, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)
        self._error: Exception | None = None
        self.seen: dict[int, int] = {}
        self.regressions: list[tuple[int, int, int]] = []
        self.count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join(10)
        if self._thread.is_alive():
            raise TimeoutError("reading the positions does not end")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - raised where it is heard
            self._error = error

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            for partition, position in self._registry.offsets(self._group, self._topic).items():
                before = self.seen.get(partition, 0)
                if position < before:
                    self.regressions.append((partition, before, position))
                self.count += position != before
                self.seen[partition] = position


def consumer_of(thread: str) -> str:
    """Return the member that a thread is of."""
    return thread.rpartition("-")[0]


def _streams(payload: Mapping[str, Any], topic: str) -> int:
    """How many threads of a member subscribe to a topic."""
    if payload["pattern"] == "static":
        return int(payload["subscription"].get(topic, 0))
    ((expression, streams),) = payload["subscription"].items()
    return int(streams) if (re.fullmatch(expression, topic) is not None) == (payload["pattern"] == "white_list") else 0


def _hash_code(text: str) -> int:
    """Java's String.hashCode, for ASCII."""
    value = 0
    for letter in text.encode("ascii"):
        value = value * 31 + letter
    return (value + 2**31) % 2**32 - 2**31


@contextmanager
def open_registry(zookeeper: str) -> Iterator[Registry]:
    """Connect; ``zookeeper`` is a connect string with or without a chroot."""
    client = KazooClient(hosts=zookeeper, timeout=20)
    client.start(15)
    try:
        yield Registry(client)
    finally:
        client.stop()
        client.close()
