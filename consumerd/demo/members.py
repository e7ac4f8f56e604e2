# SPDX-License-Identifier: Apache-2.0
"""The daemons of the demo: ``consumerd run``, observed through log and status API."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from consumerd.demo.children import Child
from consumerd.demo.lake import LAKE, pipeline_settings
from consumerd.demo.stream import CLICKS, ORDERS
from consumerd.model import PartitionKey, TopicPartition

GROUP: Final = "demo"
SESSION_TIMEOUT_MS: Final = 3000
"""Session timeout of the demo's members, in ms: half of the default.

So the partitions of a killed member are free sooner.
"""
_ROLL_MS: Final = 2000
_STATUS_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """A member's own report from its status API.

    ``acknowledged`` has, by partition, the offset after all records that are safe at the sink. ``behind`` is the number
    of offsets that are not safe there yet, of all its partitions; None if it is unknown.
    """

    ready: bool
    owned: frozenset[TopicPartition]
    acknowledged: Mapping[TopicPartition, int]
    behind: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRebalance:
    """One rebalance of one member, from its log.

    ``ended`` is in seconds since the Unix epoch, ``took_s`` in seconds. ``gained``, ``lost`` and ``stayed`` are numbers
    of partitions.
    """

    member: str
    ended: float
    took_s: float
    cause: str
    gained: int
    lost: int
    stayed: int


class DemoDaemon(Child):
    """A daemon of the demo, as a child process.

    Args:
        command: ``run`` or ``mirror``.
        settings: Content of its settings file.
    """

    def __init__(self, name: str, command: str, settings: Mapping[str, Any], *, folder: Path) -> None:
        self.config = folder / f"{name}.yaml"
        self._settings = settings
        self._url: str | None = None
        super().__init__(name, command, "--config", str(self.config), folder=folder)

    def write_settings(self) -> None:
        """Write the settings file of this member."""
        self.config.write_text(yaml.safe_dump(dict(self._settings), sort_keys=False))

    def find_url(self) -> str | None:
        """Return the URL of the member's status page; None until its log shows the port."""
        if self._url is None:
            self._url = next((str(entry["url"]) for entry in self._events("http_started")), None)
        return self._url

    async def find_status(self) -> MemberStatus | None:
        """Return the member's report; None if it does not respond within two seconds."""
        url = self.find_url()
        if url is None or not self.running:
            return None
        # a member killed while it responds sends an incomplete response
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            return _parse_status(await asyncio.to_thread(_get, f"{url}/api/v1/status"))
        return None

    def _events(self, name: str) -> Iterator[dict[str, Any]]:
        with self.log.open("rb") as lines:
            for line in lines:
                # the last line of a process that was killed may be cut
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if entry.get("event") == name:
                        yield entry


class DemoMember(DemoDaemon):
    """One daemon (``consumerd run``) of the demo's group.

    It writes orders to Parquet and clicks to JSON lines, in folders that all members share.

    Args:
        sasl: Settings ``cluster.sasl``; None for brokers without SASL.
    """

    def __init__(self, name: str, *, zookeeper: str, folder: Path, sasl: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, "run", _settings(zookeeper, folder, sasl), folder=folder)

    def rebalances(self) -> list[ObservedRebalance]:
        """Return the rebalances in the member's log that have moved at least one partition."""
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


def _settings(zookeeper: str, folder: Path, sasl: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "cluster": {"zookeeper": zookeeper} | ({} if sasl is None else {"sasl": dict(sasl)}),
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
    partitions = {
        TopicPartition(one["topic"], PartitionKey.parse(one["partition"])): one["acknowledged"]
        for one in status["partitions"]
    }
    return MemberStatus(
        ready=status["ready"],
        owned=frozenset(partitions),
        acknowledged={partition: position for partition, position in partitions.items() if position is not None},
        behind=_sum_behind(status["partitions"]),
    )


def _sum_behind(partitions: Iterable[Mapping[str, Any]]) -> int | None:
    total = 0
    for one in partitions:
        if None in (one["lag"], one["position"], one["acknowledged"]):
            return None
        total += one["lag"] + one["position"] - one["acknowledged"]
    return total
