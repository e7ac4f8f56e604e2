# SPDX-License-Identifier: Apache-2.0
"""A byte that the broker's disk has changed, in each format, and a message above the limit: what each policy makes of them.

One group for each policy reads the same topics at the same time; the producer's ledger and the log file say what must land.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.daemon import Daemon, settings_for
from tests.support.damage import DamagedUnit, flip_byte
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Sent
from tests.support.landing_check import Place
from tests.support.landing_reader import LandedPartition, Landing, read_landing
from tests.support.ledger import Ledger

pytestmark = pytest.mark.records

POLICIES: Final = ("skip", "quarantine", "stop")
FORMATS: Final[Mapping[int, str]] = {0: "0.9.0", 1: "0.10.2", 2: "1.1"}
"""Magic to what the topic's ``message.format.version`` says."""
COUNT, FLIPPED = 30, 15
LIMIT_BYTES: Final = 2 << 20


@dataclass(slots=True, kw_only=True)
class Aftermath:
    """What is left when each group has done what it can."""

    ledger: Mapping[Place, Sent]
    damaged: Mapping[int, DamagedUnit]
    """By magic."""
    quarantine: Path
    landings: dict[str, Landing] = field(default_factory=dict)
    status: dict[str, dict[str, Any]] = field(default_factory=dict)

    def landed(self, policy: str, topic: str) -> LandedPartition:
        """Return what a group has of a topic's one partition; it must be whole."""
        partition = self.landings[policy].partitions[topic, "0"]
        assert partition.problems == []
        return partition

    def sent(self, topic: str) -> dict[int, bytes | None]:
        """Return offset and value of every record that was acknowledged."""
        return {offset: one.value for (name, _, offset), one in self.ledger.items() if name == topic}

    def stopped(self, topic: str) -> tuple[int, str]:
        """Return where the group that is told to has stopped, and why."""
        (one,) = (one for one in self.status["stop"]["partitions"] if one["topic"] == topic)
        assert one["state"] == "stopped"
        return one["committed"], one["reason"]

    def quarantined(self, topic: str) -> dict[str, Any]:
        """Return what is kept of a topic: one unit."""
        (path,) = self.quarantine.glob(f"{topic}/0/*/*.jsonl")
        kept: dict[str, Any] = json.loads(path.read_bytes())
        return kept


def values(landed: LandedPartition) -> dict[int, bytes | None]:
    return {record.offset: record.value for record in landed.records}


def gaps(landed: LandedPartition) -> list[tuple[int, int, str]]:
    return [(gap["start"], gap["end"], gap["reason"]) for gap in landed.gaps]


def send_large(bootstrap: str) -> Mapping[Place, Sent]:
    """Send one that is too large between two that are not, each in a batch of its own."""
    ledger: dict[Place, Sent] = {}
    for value in (b"before", bytes(LIMIT_BYTES + 1), b"behind"):
        producer = Ledger(bootstrap, message_max_bytes="8000000")
        producer.send([Sent("large", 0, None, value)])
        ledger |= producer.finish()
    return ledger


def settled(member: Daemon, ends: Mapping[str, int], *, stopped: bool) -> bool:
    """Whether every partition is committed up to its end, given by topic, and has stopped there if it is to."""
    partitions = member.status()["partitions"]
    return len(partitions) == len(ends) and all(
        one["committed"] == ends[one["topic"]] and (one["state"] == "stopped" or not stopped) for one in partitions
    )


@pytest.fixture(scope="module")
def aftermath(cluster: EmbeddedThread, tmp_path_factory: pytest.TempPathFactory) -> Aftermath:
    """Fill the logs, change a byte of each, and let a group for each policy read them."""
    folder = tmp_path_factory.mktemp("damage")
    ledger: dict[Place, Sent] = {}
    damaged = {}
    for magic, version in FORMATS.items():
        cluster.create_topic(topic := f"magic-{magic}", message_format_version=version)
        producer = Ledger(cluster.bootstrap, batch_size="300")
        producer.send(Sent(topic, 0, b"k", b"value %d " % one + b"v" * 40) for one in range(COUNT))
        ledger |= producer.finish()
        (segment,) = cluster.segments(topic)
        damaged[magic] = flip_byte(segment, b"value %d " % FLIPPED)
    cluster.create_topic("large", max_message_bytes="8000000")
    ledger |= send_large(cluster.bootstrap)
    left = Aftermath(ledger=ledger, damaged=damaged, quarantine=folder / "kept")
    with contextlib.ExitStack() as running:
        members = {}
        for policy in POLICIES:
            settings = settings_for(
                cluster.zookeeper,
                f"damage-{policy}",
                topics=(*(f"magic-{magic}" for magic in FORMATS), "large"),
                sink={"type": "jsonl" if policy == "skip" else "parquet", "path": str(folder / policy), "roll_ms": 200},
                offsets={"commit_interval_ms": 200},
                fetch={
                    "on_corrupt": policy,
                    "on_oversized": policy,
                    "max_message_bytes": LIMIT_BYTES,
                    "max_partition_bytes": LIMIT_BYTES // 2,
                },
                quarantine={"path": str(left.quarantine)} if policy == "quarantine" else {},
            )
            members[policy] = running.enter_context(Daemon(folder, policy, settings))
        whole = {f"magic-{magic}": COUNT for magic in FORMATS} | {"large": 3}
        before = {f"magic-{magic}": unit.first for magic, unit in damaged.items()} | {"large": 1}
        for policy, member in members.items():
            stopped = policy == "stop"
            ends = before if stopped else whole
            member.wait(
                lambda member=member, ends=ends, stopped=stopped: settled(member, ends, stopped=stopped),
                f"{policy}: all that can be",
            )
            left.status[policy] = member.status()
        assert [member.terminate() for member in members.values()] == [0] * len(members)
    left.landings = {policy: read_landing(folder / policy) for policy in POLICIES}
    return left


@pytest.mark.timeout(120)
@pytest.mark.parametrize("magic", FORMATS)
@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_what_a_disk_has_changed_is_passed_over_and_never_delivered(
    aftermath: Aftermath, policy: str, magic: int
) -> None:
    """What is around it lands once, and it is a gap with its reason."""
    unit, sent = aftermath.damaged[magic], aftermath.sent(f"magic-{magic}")
    landed = aftermath.landed(policy, f"magic-{magic}")

    assert values(landed) == {one: sent[one] for one in sent if not unit.first <= one < unit.end}
    assert unit.first <= FLIPPED < unit.end < COUNT
    assert gaps(landed) == [(unit.first, unit.end, "corrupt")]
    assert not any(unit.changed_value in (value or b"") for value in values(landed).values())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("magic", FORMATS)
def test_quarantine_holds_it_byte_for_byte(aftermath: Aftermath, magic: int) -> None:
    """As it is in the broker's log."""
    unit, kept = aftermath.damaged[magic], aftermath.quarantined(f"magic-{magic}")

    assert (kept["offset"], kept["next_offset"], kept["complete"]) == (unit.first, unit.end, True)
    assert base64.b64decode(kept["raw_base64"]) == unit.raw


@pytest.mark.timeout(120)
@pytest.mark.parametrize("magic", FORMATS)
def test_it_stops_its_partition_where_that_is_the_policy(aftermath: Aftermath, magic: int) -> None:
    """All before it has landed and is committed; nothing behind it is."""
    first, end = aftermath.damaged[magic].first, aftermath.damaged[magic].end
    assert list(values(aftermath.landed("stop", f"magic-{magic}"))) == list(range(first))
    position, reason = aftermath.stopped(f"magic-{magic}")
    assert position == first
    assert "CRC" in reason
    assert f"position {end} passes over it, offset" in reason


@pytest.mark.timeout(120)
def test_a_message_above_the_limit_is_passed_over_alone_or_stops_its_partition(aftermath: Aftermath) -> None:
    """By the same policies; the page names the setting."""
    for policy in ("skip", "quarantine"):
        landed = aftermath.landed(policy, "large")
        assert values(landed) == {0: b"before", 2: b"behind"}
        assert gaps(landed) == [(1, 2, "skipped")]
    assert aftermath.quarantined("large")["size"] > LIMIT_BYTES
    assert values(aftermath.landed("stop", "large")) == {0: b"before"}
    position, reason = aftermath.stopped("large")
    assert position == 1
    assert "max_message_bytes" in reason
