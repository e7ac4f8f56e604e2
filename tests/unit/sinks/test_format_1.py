# SPDX-License-Identifier: Apache-2.0
"""Files that the release before has landed: chains go on in place, in format 2."""

import json
from pathlib import Path

import pytest

from consumerd.admin.doctor.facts import LandingFacts
from consumerd.admin.doctor.reading import read_landing as read_chains
from consumerd.admin.quarantined import find_units
from consumerd.model import Incarnation, TopicPartition
from consumerd.sinks.base import QuarantinedUnit, Start
from consumerd.sinks.quarantine import FileQuarantine
from tests.support import landed_1
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.landing_reader import read_landing
from tests.support.record_batches import build_batch, record
from tests.support.sinks import SinkRig

pytestmark = pytest.mark.records

ORDERS = TopicPartition.modern("orders", 0)
CLAIM = StubClaim(ORDERS, incarnation=Incarnation(landed_1.CZXID))


@pytest.fixture
def upgraded(kind: str, tmp_path: Path) -> SinkRig:
    """A member of this release over a folder of the one before."""
    path = landed_1.copy_landed(kind, tmp_path / "landing")
    return SinkRig(kind=kind, path=path, clock=ManualClock(), cluster=landed_1.CLUSTER, group=landed_1.GROUP)


async def test_chain_of_format_1_goes_on_in_place(upgraded: SinkRig):
    """An upgrade needs no new path, and no chain begins for it."""
    writer = await upgraded.member().open(CLAIM)
    assert writer.resume_position == landed_1.END

    await writer.start(Start(position=landed_1.END, reason="committed", truncation=1))
    await writer.write(build_batch(ORDERS, [record(offset) for offset in range(60, 70)]))
    assert await writer.flush() == 70
    await upgraded.close()

    landing = read_landing(upgraded.path)
    assert landing.problems == []
    chains = landing.partitions["orders", "0"].chains
    assert [(chain.log, chain.record["format"], chain.end) for chain in chains] == [("7", 1, 40), ("7.1", 1, 70)]
    assert [file.metadata["format"] for file in chains[1].files] == [1, 1, 2]
    added = chains[1].files[-1].metadata
    assert (added["incarnation"], added["truncation"], added["partition"]) == ("7", 1, 0)


async def test_doctor_finds_nothing_in_chains_of_both_formats(upgraded: SinkRig, kind: str):
    """Before the upgrade, in the middle of it, and after it."""
    facts = LandingFacts(setting="sinks.lake.path", path=upgraded.path)
    before = read_chains(facts, kind)
    writer = await upgraded.member().open(CLAIM)
    await writer.start(Start(position=landed_1.END, reason="committed", truncation=1))
    await writer.write(build_batch(ORDERS, [record(offset) for offset in range(60, 70)]))
    await writer.flush()
    await upgraded.close()
    after = read_chains(facts, kind)

    assert (before.problems, after.problems, after.leftovers) == ({}, {}, ())
    assert (before.chains[ORDERS].end, after.chains[ORDERS].end) == (landed_1.END, 70)
    other = TopicPartition.modern("orders", 1)
    assert before.chains[other].end == after.chains[other].end


async def test_chain_of_format_1_is_sealed_and_succeeded(upgraded: SinkRig):
    """The next truncation counts on from the text of the chain before."""
    writer = await upgraded.member().open(CLAIM)
    await writer.start(Start(position=50, reason="truncated", truncation=2))
    await writer.write(build_batch(ORDERS, [record(50)]))
    await writer.flush()
    await upgraded.close()

    landing = read_landing(upgraded.path)
    assert landing.problems == []
    before, newest = landing.partitions["orders", "0"].chains[1:]
    assert (before.is_sealed, before.files[-1].metadata["format"]) == (True, 2)
    assert (newest.log, newest.record["format"], newest.record["cluster"]) == ("7.2", 2, landed_1.CLUSTER)


async def test_request_of_format_1_is_not_carried_out_again(upgraded: SinkRig):
    """The chain's record bears the request's id, whatever its format."""
    partition = TopicPartition.modern("orders", 1)
    writer = await upgraded.member().open(StubClaim(partition, incarnation=Incarnation(landed_1.CZXID)))
    assert (writer.resume_position, writer.request_id) == (9, "again")
    await writer.start(Start(position=5, reason="request", new_chain=True, request_id="again"))
    await upgraded.close()

    assert [chain.number for chain in read_landing(upgraded.path).partitions["orders", "1"].chains] == [1]


async def test_unit_quarantined_in_format_1_is_known_again(tmp_path: Path):
    """A unit that comes again after the upgrade is kept already; a listing shows it once."""
    path = tmp_path / "quarantine"
    path.mkdir()
    home = path / "orders" / "0" / "7.1"
    home.mkdir(parents=True)
    recorded = landed_1.RECORDED / "quarantine"
    (path / "_consumerd.json").write_bytes((recorded / "_consumerd.json").read_bytes())
    (kept,) = recorded.glob("orders/0/7.1/*.jsonl")
    (home / kept.name).write_bytes(kept.read_bytes())
    unit = QuarantinedUnit(
        partition=ORDERS,
        incarnation=Incarnation(landed_1.CZXID, 1),
        offset=50,
        next_offset=52,
        index=0,
        cause="corrupt",
        reason="CRC, met again",
        raw=b"broken",
        size=6,
    )
    quarantine = FileQuarantine(
        path,
        group=landed_1.GROUP,
        cluster_id=landed_1.CLUSTER,
        writer_id="member",
        wall_ms=lambda: 1,
    )
    await quarantine.put(unit, CLAIM)
    other = QuarantinedUnit(**{name: getattr(unit, name) for name in unit.__slots__} | {"raw": b"others"})
    await quarantine.put(other, CLAIM)
    await quarantine.close()

    assert sorted(file.name for file in home.iterdir()) == [kept.name.replace("-0.", "-0.1."), kept.name]
    assert [json.loads(file.read_bytes())["format"] for file in sorted(home.iterdir(), reverse=True)] == [1, 2]
    assert [found.kept is not None for found in find_units(path)] == [True, True]
