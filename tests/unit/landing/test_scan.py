# SPDX-License-Identifier: Apache-2.0
"""What names tell of a landing zone."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from consumerd.errors import ConfigError
from consumerd.landing.findings import FindingKind
from consumerd.landing.footers import read_all
from consumerd.landing.scan import scan_landing
from tests.support.faulty_files import MemoryFileSystem
from tests.support.landing_zone import LandingZone


def test_names_tell_chains_and_where_files_end(tmp_path: Path) -> None:
    """A file's name is where its predecessor ends."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 100, files=2)
    zone.land("orders", 0, 30, 60, request="again")
    zone.land("web.x", 1, 5, 6)

    landing = scan_landing([zone.path])

    assert [("orders/0", 1), ("orders/0", 2), ("web.x/1", 1)] == [
        (str(chain.partition), chain.number) for chain in landing.chains
    ]
    first, second, third = landing.chains
    assert [(0, 50), (50, 100), (100, None)] == [(file.position, file.name_end) for file in first.files]
    assert [(30, None)] == [(file.position, file.name_end) for file in second.files]
    assert first.log == second.log
    made = f"7:5:{third.record.writer}"
    assert f"{landing.roots[0].record.root}:topic=web.x/partition=1/chain=1:{made}" == third.ref
    assert 5 == landing.file_count
    assert () == landing.findings
    assert ["orders", "orders"] == [
        chain.partition.topic for chain in scan_landing([zone.path], topics=["orders"]).chains
    ]


def test_several_roots_are_one_zone(tmp_path: Path) -> None:
    """Replicas with paths of their own land parts of the same logs."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 10)
    other = zone.replica("b")
    other.land("orders", 0, 5, 15)

    landing = scan_landing([zone.path, other.path])

    assert [(0, 1), (1, 1)] == [(chain.root.order, chain.number) for chain in landing.chains]
    assert 2 == len({chain.ref for chain in landing.chains})
    assert 1 == len({chain.log for chain in landing.chains})


def test_path_that_is_no_root_is_refused(tmp_path: Path) -> None:
    """An unmounted volume must not look like a zone in which nothing has landed."""
    with pytest.raises(ConfigError, match=r"no _consumerd\.json \(is the volume mounted\?\)"):
        scan_landing([tmp_path])
    with pytest.raises(ConfigError, match="no landing path is given"):
        scan_landing([])
    (tmp_path / "_consumerd.json").write_text("{")
    with pytest.raises(ConfigError, match=r"_consumerd\.json is damaged"):
        scan_landing([tmp_path])


def test_roots_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    """Offsets of two clusters mean different records; a root named twice would overlap itself."""
    zone = LandingZone(tmp_path / "a")
    zone.land("orders", 0, 0, 10)
    foreign = LandingZone(tmp_path / "b", cluster="3-5")
    foreign.land("orders", 0, 0, 10)
    shutil.copytree(zone.path, tmp_path / "copy")

    with pytest.raises(ConfigError, match="different clusters"):
        scan_landing([zone.path, foreign.path])
    with pytest.raises(ConfigError, match="name it once"):
        scan_landing([zone.path, tmp_path / "copy"])


def test_foreign_names_are_told(tmp_path: Path) -> None:
    """What is passed over is said; what begins with a dot or an underscore is nobody's business."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 10)
    home = zone.home("orders", 0)
    for name in ["copy of orders", "topic=orders/backup", "topic=orders/partition=00", "topic=orders/_tmp"]:
        (zone.path / name).mkdir()
    (home / "chain=01").mkdir()
    (home / "chain=1" / "00000000000000000010.jsonl").touch()
    (home / "chain=1" / ".00000000000000000010.parquet.m-1.tmp").touch()

    landing = scan_landing([zone.path])

    found = {Path(finding.where or "").name for finding in landing.findings}
    assert {"copy of orders", "backup", "partition=00", "chain=01", "00000000000000000010.jsonl"} == found
    assert {FindingKind.FOREIGN_NAME} == {finding.kind for finding in landing.findings}


def test_chain_without_its_record(tmp_path: Path) -> None:
    """Files whose making nobody knows are told of; a folder whose maker died before it landed anything is not."""
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 10)
    zone.land("orders", 1, 0, 10)
    (zone.chain("orders", 0) / "_chain.json").unlink()
    (zone.chain("orders", 1) / "_chain.json").write_text("[]")
    zone.chain("orders", 2).mkdir(parents=True)

    landing = scan_landing([zone.path])

    assert () == landing.chains
    assert {
        (FindingKind.CHAIN_RECORD_MISSING, "0"),
        (FindingKind.CHAIN_RECORD_DAMAGED, "1"),
    } == {(finding.kind, finding.partition) for finding in landing.findings}


def test_a_zone_in_another_store_reads_as_the_same_on_this_machine(tmp_path: Path) -> None:
    """Names, records beside the data and footers are read through the port alone."""
    disk = MemoryFileSystem(random.Random(0))
    zone = LandingZone(tmp_path / "landing")
    zone.land("orders", 0, 0, 10)
    lines = LandingZone(tmp_path / "lines", kind="jsonl")
    lines.land("orders", 0, 0, 5)
    for path in sorted(one for one in tmp_path.rglob("*") if one.is_file()):
        disk.make_folders(Path("/store") / path.parent.relative_to(tmp_path))
        descriptor = disk.create(Path("/store") / path.relative_to(tmp_path))
        disk.write(descriptor, path.read_bytes())
        disk.close(descriptor)

    [here] = read_all(scan_landing([zone.path])).chains
    [there] = read_all(scan_landing([Path("/store/landing")], files=disk)).chains
    assert [file.metadata for file in here.files] == [file.metadata for file in there.files]
    [beside] = read_all(scan_landing([Path("/store/lines")], files=disk)).chains
    assert [5] == [file.metadata.count for file in beside.files if file.metadata is not None]
