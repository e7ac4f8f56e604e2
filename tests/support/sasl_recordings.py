# SPDX-License-Identifier: Apache-2.0
"""Authentications under ``tests/vectors/sasl``: what clients, real brokers and a real ZooKeeper said to each other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from consumerd.wire.framing import SIZE_BYTES
from tests.support.frames import SASL_VECTORS

BROKERS: Final = ("0.9.0.1", "0.10.2.2", "1.1.1", "3.9.1")
PASSWORDS: Final = {"alice": "alice-secret", "bob": "bob-secret"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFrame:
    """A frame of the client, without its size, and what it was answered with.

    ``api`` and ``version`` are None for a token in a frame of its own. ``response`` is None without an answer; then
    ``closed`` says if the connection ended.
    """

    api: int | None
    version: int | None
    request: bytes
    response: bytes | None
    closed: bool


def _read(path: Path) -> dict[str, list[RecordedFrame]]:
    found: dict[str, list[RecordedFrame]] = {}
    for one in json.loads(path.read_text())["frames"]:
        response = one["response_hex"]
        found.setdefault(one["client"], []).append(
            RecordedFrame(
                api=one.get("api_key"),
                version=one.get("api_version"),
                request=bytes.fromhex(one["request_hex"])[SIZE_BYTES:],
                response=None if response is None else bytes.fromhex(response)[SIZE_BYTES:],
                closed="outcome" in one,
            )
        )
    return found


@cache
def read_broker(release: str) -> dict[str, list[RecordedFrame]]:
    """Return what was said on each connection to a broker of a release, by the name of the scenario."""
    return _read(SASL_VECTORS / f"kafka-{release}-sasl.json")


@cache
def read_zookeeper() -> dict[str, list[RecordedFrame]]:
    """Return what was said on each connection to ZooKeeper 3.4.10."""
    return _read(SASL_VECTORS / "zookeeper-3.4.10-sasl.json")


def list_tokens(frames: list[RecordedFrame]) -> list[tuple[bytes, bytes | None]]:
    """Return the client's tokens in frames of their own, each with the broker's."""
    return [(frame.request, frame.response) for frame in frames if frame.api is None]
