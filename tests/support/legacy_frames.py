# SPDX-License-Identifier: Apache-2.0
"""The frames under ``tests/vectors/legacy``: requests to Kafka 0.7.2 and Jafka 3.0.6, and their responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from consumerd.model import BrokerId, PartitionKey, TopicPartition
from consumerd.net.frames import FrameAssembler
from consumerd.wire.records import RecordBatch

VECTORS: Final = Path(__file__).parent.parent / "vectors" / "legacy"
PARTITION: Final = TopicPartition("t", PartitionKey(1, BrokerId(0)))
MALFORMED: Final = ("truncated_request", "unknown_request_type", "zero_length", "oversize_length")
"""Names, without their prefix, of recorded requests that no request class can express."""

Row = tuple[int, int, int, bytes]
"""A record: offset, index, offset after it, payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyExchange:
    """A recorded request and its response, whole frames with their sizes; None if there was no response.

    ``decoded`` is what another program than ours found in the response.
    """

    name: str
    request: bytes
    response: bytes | None
    outcome: str
    decoded: Any

    def __str__(self) -> str:
        return self.name

    @property
    def short_name(self) -> str:
        """The name without the prefix of the system."""
        return self.name.partition("_")[2]

    @property
    def is_malformed_response(self) -> bool:
        """True if the recorder, too, could not decode the response."""
        return isinstance(self.decoded, str)


@cache
def load_exchanges() -> tuple[LegacyExchange, ...]:
    """Read the exchanges with both systems."""
    return tuple(
        LegacyExchange(
            name=one["name"],
            request=bytes.fromhex(one["request_hex"]),
            response=None if one["response_hex"] is None else bytes.fromhex(one["response_hex"]),
            outcome=one["outcome"],
            decoded=one["decoded_response"],
        )
        for path in sorted(VECTORS.glob("*.json"))
        for one in json.loads(path.read_text())["frames"]
    )


def get_exchange(name: str) -> LegacyExchange:
    """Return the exchange of a name."""
    return next(one for one in load_exchanges() if one.name == name)


def split_frames(data: bytes, step: int, *, most: int = 1 << 20) -> list[bytes]:
    """Return the bodies of all whole frames of a stream that is received in steps of ``step`` bytes."""
    assembler = FrameAssembler(most)
    found: list[bytes] = []
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        while piece:
            room = assembler.buffer()
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            found += map(bytes, assembler.advance(count))
            piece = piece[count:]
    return found


def expect_rows(messages: Sequence[dict[str, Any]], start: int) -> list[Row]:
    """Return the records of decoded messages, as they follow from the document, for a fetch from ``start``."""
    rows = []
    for one in messages:
        if "partial_bytes" not in one:
            offset, following = start + one["at"], start + one["at"] + one["length"] + 4
            payloads = _list_payloads(one)
            rows += [(offset, index, following, payload) for index, payload in enumerate(payloads)]
    return rows


def _list_payloads(one: dict[str, Any]) -> list[bytes]:
    if "inner" not in one:
        return [bytes.fromhex(one["payload_hex"])]
    return [payload for inner in one["inner"] for payload in _list_payloads(inner)]


def list_rows(batch: RecordBatch) -> list[Row]:
    """Return the records of a batch."""
    rows = []
    for row, record in enumerate(batch.records()):
        assert record.value is not None
        rows.append((record.offset, record.index, batch.following(row), record.value))
    return rows
