# SPDX-License-Identifier: Apache-2.0
"""What ``consumerd demo`` prints at its end, where the figures are not what one hopes for."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.cli.demo import describe_downloads, render_report
from consumerd.demo.audit import TopicAudit
from consumerd.demo.lake import Contents, Lake
from consumerd.demo.members import ObservedRebalance
from consumerd.demo.show import DemoOutcome, Files


def lake(rows: int = 9, *findings: str) -> Lake:
    held = Contents(rows={"orders": rows}, heads=["offset", "value"], first=[["0", "{}"]])
    return Lake(
        summaries={"audit": {"job": "audit", "findings": list(findings)}},
        tables={
            "bronze": held,
            "silver/orders": Contents(rows={"orders": 7}, heads=[], first=[]),
            "quarantine": Contents(rows={"orders": 2}, heads=[], first=[]),
        },
        settings=Path("/data/worker-1.yaml"),
    )


def outcome(*findings: str, tables: Lake | None = None) -> DemoOutcome:
    lost = len(findings)
    audited = TopicAudit(
        topic="orders", produced=9, landed=9 - lost, lost=lost, twice=0, changed=0, misplaced=0, unknown=0, findings=findings
    )  # fmt: skip
    moved = ObservedRebalance(member="worker-1", ended=1012.5, took_s=0.254, cause="joined", gained=8, lost=2, stayed=6)
    files = Files(folder=Path("/data/parquet"), count=1, size_bytes=3 << 20)
    return DemoOutcome(
        audits=[audited], rebalances=[moved], files=[files], lake=tables or lake(), ledger=Path("/data/ledger.tsv"),
        began=1000.0, seconds=21.6,
    )  # fmt: skip


def test_a_sound_outcome_says_so_with_its_figures() -> None:
    """Audit, rebalances with their times, places."""
    text = render_report(outcome())

    assert outcome().sound
    assert "orders         9       9     0      0        0          0        0\n" in text
    assert "12.5 s  worker-1  joined       8     2       6  0.25 s\n" in text
    assert "/data/parquet (1 file, 3.0 MiB)\n" in text
    assert text.endswith("every record has landed exactly once, and is in the tables once; the demo took 22 s\n")
    assert "  bronze: 9 rows\n    OFFSET  VALUE\n    0       {}\n" in text
    assert "-m consumerd.spark audit --config /data/worker-1.yaml\n" in text


def test_findings_are_told_and_no_success_is() -> None:
    """Figures alone are easily overlooked."""
    text = render_report(outcome("orders: 1 lost: orders/0@2"))

    assert not outcome("x").sound
    assert "  orders: 1 lost: orders/0@2\n" in text
    assert "THE AUDIT HAS FOUND FAULTS" in text
    assert "exactly once" not in text


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        (lake(8), "orders: 9 landed, 8 in bronze"),
        (lake(9, "orders/0: file damaged"), "audit: orders/0: file damaged"),
        (Lake(summaries={"bronze": {"error": "no room"}}, tables={}, settings=Path("x")), "bronze: no room"),
    ],
)
def test_what_the_pipeline_gets_wrong_is_a_fault(tables: Lake, told: str) -> None:
    """All has landed, and the tables do not hold it: nothing to be content with."""
    found = outcome(tables=tables)

    assert not found.sound
    text = render_report(found)
    assert f"  ! {told}\n" in text
    assert "THE AUDIT HAS FOUND FAULTS" in text


def test_downloads_are_summed_and_the_largest_named(tmp_path: Path) -> None:
    """What set-up costs is told, with why."""
    log = tmp_path / "pip.log"
    log.write_text("Downloading big-1.tar.gz (400.5 MB)\nDownloading small-1-py3-none-any.whl (600 kB)\n")

    assert describe_downloads(log) == (
        "set-up has downloaded 401 MB in 2 files: big-1.tar.gz 400 MB, small-1-py3-none-any.whl 1 MB\n"
    )
    log.write_text("Using cached built-1-py3-none-any.whl\nUsing cached small-1-py3-none-any.whl (2.0 MB)\n")
    assert describe_downloads(log) == (
        "set-up has downloaded 2 MB in 1 file: small-1-py3-none-any.whl 2 MB; without what pip has built before: "
        "built-1-py3-none-any.whl\n"
    )
    assert describe_downloads(tmp_path / "none") == "set-up had nothing to download\n"
