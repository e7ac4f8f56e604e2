# SPDX-License-Identifier: Apache-2.0
"""The daemons of the demo: ``consumerd run``, observed through log and status API."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from consumerd.demo.children import Child
from consumerd.demo.lake import LAKE, pipeline_settings
from consumerd.demo.stream import CLICKS, ORDERS

GROUP: Final = "demo"
SESSION_TIMEOUT_MS: Final = 3000
"""Half of the default, so the partitions of a killed member are free sooner."""
_ROLL_MS: Final = 2000
_STATUS_TIMEOUT_S: Final = 2.0

Partition = tuple[str, int]
"""Topic and partition number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """A member's own report.

    ``acknowledged`` has, by partition, the offset after all records that are safe in files.
    """

    ready: bool
    owned: frozenset[Partition]
    acknowledged: dict[Partition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRebalance:
    """One rebalance of one member, from its log.

    ``ended`` is in seconds since the epoch, ``took_s`` in seconds.
    """

    member: str
    ended: float
    took_s: float
    cause: str
    gained: int
    lost: int
    stayed: int


class DemoMember(Child):
    """One daemon of the group.

    It writes orders to Parquet and clicks to JSON lines, in folders that all members share.
    """

    def __init__(self, name: str, *, zookeeper: str, folder: Path) -> None:
        self.config = folder / f"{name}.yaml"
        self._settings = _settings(zookeeper, folder)
        self._url: str | None = None
        super().__init__(name, "run", "--config", str(self.config), folder=folder)

    def write_settings(self) -> None:
        """Write its settings file."""
        self.config.write_text(yaml.safe_dump(self._settings, sort_keys=False))

    def find_url(self) -> str | None:
        """Return the URL of its status page, once it is in the log."""
        if self._url is None:
            self._url = next((str(entry["url"]) for entry in self._events("http_started")), None)
        return self._url

    async def find_status(self) -> MemberStatus | None:
        """Return its status, or None if it does not respond within two seconds."""
        url = self.find_url()
        if url is None or not self.running:
            return None
        # a member killed while it responds sends an incomplete response
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            return _parse_status(await asyncio.to_thread(_get, f"{url}/api/v1/status"))
        return None

    def rebalances(self) -> list[ObservedRebalance]:
        """Return the rebalances that moved partitions, from its log."""
        return [
            ObservedRebalance(
                member=self.name,
                ended=datetime.fromisoformat(entry["timestamp"]).timestamp(),
                took_s=entry["seconds"],
                cause=entry["causes"][0],
                gained=entry["gained"],
                lost=entry["lost"],
                stayed=entry["stayed"],
            )
            for entry in self._events("rebalance_finished")
        ]

    def _events(self, name: str) -> Iterator[dict[str, Any]]:
        with self.log.open("rb") as lines:
            for line in lines:
                # the last line of a process that was killed may be cut
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if entry.get("event") == name:
                        yield entry


def _settings(zookeeper: str, folder: Path) -> dict[str, Any]:
    return {
        "cluster": {"zookeeper": zookeeper},
        "group": {"id": GROUP, "session_timeout_ms": SESSION_TIMEOUT_MS},
        "subscriptions": [{"topics": [ORDERS], "sink": "parquet"}, {"topics": [CLICKS], "sink": "jsonl"}],
        "sinks": {
            kind: {"type": kind, "path": str(folder / kind), "roll_ms": _ROLL_MS} for kind in ("parquet", "jsonl")
        },
        "offsets": {"commit_interval_ms": 1000},
        "fetch": {"max_wait_ms": 250},
        "http": {"listen": "127.0.0.1:0"},
        "log": {"format": "json"},
        "pipeline": pipeline_settings(folder / LAKE),
    }


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_STATUS_TIMEOUT_S) as answer:  # noqa: S310 - http, from our child's log
        return json.loads(answer.read())


def _parse_status(status: dict[str, Any]) -> MemberStatus:
    partitions = {(one["topic"], int(one["partition"])): one["acknowledged"] for one in status["partitions"]}
    return MemberStatus(
        ready=status["ready"],
        owned=frozenset(partitions),
        acknowledged={partition: position for partition, position in partitions.items() if position is not None},
    )
