# SPDX-License-Identifier: Apache-2.0
"""Record sets that were sent to real brokers: refused is what they refused, and stored what they stored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from consumerd.errors import CorruptMessageError
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.modern.assigning import assign_offsets
from consumerd.wire.modern.checking import Rules, TimestampRefused, check
from consumerd.wire.modern.conversion import convert, convert_down
from consumerd.wire.records import Limits
from tests.support import naive_records
from tests.support.units import walk_units

VECTORS: Final = Path(__file__).parents[2] / "vectors" / "produced"
NEAR_MS: Final = 3_600_000
STRICTER: Final = {
    # Kafka cuts these off, so that it acknowledges what it does not keep
    "bytes behind the last message",
    "bytes behind the batch",
    "wrapper around cut data",
    # Kafka stores some of these as they are, for its consumers to fail on
    "key longer than the message",
    "key of length -2",
    "value longer than the message",
    "value shorter than the message",
    # Kafka refuses these since 2.4
    "gap, as many as deltas",
    "codec 1 with a gap",
}
"""What is refused here although brokers take it."""
MISCOUNTED: Final = {"more records than there are", "fewer records than there are"}
"""Kafka looks at their timestamps first."""
OLD_STRICTER: Final = STRICTER | {
    "inner message with a wrong checksum",
    "magic 3",
    "the broker's time in a wrapper",
    "wrapper around nothing",
    "wrapper around the other magic",
    "wrapper in a wrapper",
    "wrapper's offset 1",
}
"""What is refused although brokers before 0.11 take it, some of them into some topics; later ones do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """A set, the topic that it was sent to, and what came of it."""

    release: str
    now_ms: int
    settings: dict[str, Any]
    case: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.release}-{self.case['topic']}-magic {self.case['magic']}-{self.case['name']}"

    @property
    def sent(self) -> bytes:
        """The set."""
        return bytes.fromhex(self.case["sent_hex"])

    @property
    def is_taken(self) -> bool:
        """Whether we take it."""
        stricter = STRICTER if self.is_newest else OLD_STRICTER
        return self.case["error"] == ErrorCode.NONE and self.case["name"] not in stricter

    @property
    def is_newest(self) -> bool:
        """Whether it is of the release whose rules are ours."""
        return self.release == "1.1.1"

    @property
    def rules(self) -> Rules:
        """What the topic asks for."""
        return Rules(
            keys_required=self.settings.get("cleanup_policy") == "compact",
            now_ms=self.now_ms,
            max_difference_ms=NEAR_MS if "message_timestamp_difference_max_ms" in self.settings else None,
            stored_magic=self.settings["magic"],
        )


def load() -> list[Produced]:
    produced = []
    for path in sorted(VECTORS.glob("kafka-*.json")):
        document = json.loads(path.read_text())
        produced += [
            Produced(
                release=document["release"],
                now_ms=document["now_ms"],
                settings=document["topics"][case["topic"]],
                case=case,
            )
            for case in document["cases"]
            if case["error"] is not None  # the request was not even read: two batches in one
            # to 0.10 a timestamp that is not there is too far away
            and (document["release"], case["topic"], case["magic"]) != ("0.10.2.2", "near", 0)
        ]
    return produced


ALL: Final = load()
STORED: Final = [one for one in ALL if one.is_taken and "stored_hex" in one.case]


def rows(data: bytes) -> list[naive_records.Row]:
    found = naive_records.decode(data, 0, Limits())
    assert not found.faulty
    return found.rows


def store(one: Produced) -> bytes:
    """Do what a log does with a set."""
    parts = check(one.sent, one.rules)
    magic, offset = one.settings["magic"], one.case["base_offset"]
    time_ms = rows(bytes.fromhex(one.case["stored_hex"]))[0][1] if "message_timestamp_type" in one.settings else None
    if {part.magic for part in parts} == {magic}:
        return bytes(assign_offsets(bytearray(one.sent), offset, log_append_time_ms=time_ms, parts=parts))
    numbered = assign_offsets(bytearray(one.sent), offset, parts=parts)
    return convert(numbered, magic=magic, log_append_time_ms=time_ms)


@pytest.mark.parametrize("one", ALL, ids=str)
def test_what_brokers_refuse_is_refused(one: Produced) -> None:
    """And what they take is taken, but for what is known to be wrong with it."""
    if one.is_taken:
        assert check(one.sent, one.rules)
        return
    with pytest.raises(CorruptMessageError, match=r"byte \d+ of \d+") as caught:
        check(one.sent, one.rules)
    if one.is_newest and one.case["error"] == ErrorCode.INVALID_TIMESTAMP:
        assert isinstance(caught.value, TimestampRefused) or one.case["name"] in STRICTER | MISCOUNTED


@pytest.mark.parametrize("one", STORED, ids=str)
def test_what_brokers_store_is_stored(one: Produced) -> None:
    """The same records, offsets, timestamps and types; the same bytes unless they are compressed anew."""
    theirs, ours = bytes.fromhex(one.case["stored_hex"]), store(one)

    assert rows(theirs) == rows(ours)
    if not any(unit.codec for unit in walk_units(theirs)) or "codec" in one.case["name"]:
        assert heads(theirs) == heads(ours)
    if not any(unit.codec for unit in walk_units(theirs)):
        assert theirs == ours


def heads(data: bytes) -> list[tuple[int, ...]]:
    return [
        (unit.magic, unit.attributes, unit.base_offset, unit.last_offset, unit.count, unit.max_timestamp)
        for unit in walk_units(data)
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("one", [one for one in STORED if "as_magic_0_hex" in one.case], ids=str)
def test_older_clients_get_what_brokers_give_them(one: Produced, magic: int) -> None:
    """Down-converted from what the broker stored, not from what we would have."""
    if f"as_magic_{magic}_hex" not in one.case:
        return
    theirs = bytes.fromhex(one.case[f"as_magic_{magic}_hex"])

    ours = convert_down(bytes.fromhex(one.case["stored_hex"]), magic=magic, start=one.case["base_offset"])

    assert rows(theirs) == rows(ours)
    assert heads(theirs) == heads(ours)
    if not any(unit.codec for unit in walk_units(theirs)):
        assert theirs == ours


def test_there_is_something_to_compare() -> None:
    """Of every release, both taken and refused, and of 1.1 in all directions of conversion."""
    assert {"0.8.2.2", "0.10.2.2", "1.1.1"} == {one.release for one in STORED}
    stored = {(one.case["magic"], one.settings["magic"]) for one in STORED if one.release == "1.1.1"}
    assert {(sent, kept) for sent in range(3) for kept in range(3)} == stored
    refused = {one.case["error"] for one in ALL if one.release == "1.1.1"}
    assert {ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_TIMESTAMP} <= refused
