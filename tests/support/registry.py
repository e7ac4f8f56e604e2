"""What is in ZooKeeper, by a client that is not ours (kazoo), and the assignment by arithmetic that is not ours either."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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

    def expected_range(self, group: str, topic: str, partitions: int) -> dict[int, str]:
        """The range rule by arithmetic: threads sorted as strings, contiguous chunks, extras to the earliest."""
        threads = sorted(
            f"{consumer}-{stream}"
            for consumer, payload in self.members(group).items()
            for stream in range(payload["subscription"].get(topic, 0))
        )
        plan: dict[int, str] = {}
        for position, thread in enumerate(threads):
            share, extra = divmod(partitions, len(threads))
            start = share * position + min(position, extra)
            for partition in range(start, start + share + (1 if position < extra else 0)):
                plan[partition] = thread
        return plan

    def is_settled(self, group: str, topic: str, partitions: int) -> bool:
        """Whether owners are exactly those of the range rule, each held by its own member's session."""
        members = self.members(group)
        owners = self.owners(group, topic)
        if {partition: owner.thread for partition, owner in owners.items()} != self.expected_range(
            group, topic, partitions
        ):
            return False
        return all(members[owner.thread.rpartition("-")[0]]["session"] == owner.session for owner in owners.values())


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
