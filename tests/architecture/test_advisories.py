# SPDX-License-Identifier: Apache-2.0
"""Known vulnerabilities of pinned versions are found, by rules of OSV; each exception to a security rule has a reason."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.package.advisories import FILE, OLD_AFTER, find_vulnerable, read_advisories, read_export, read_pins, report
from tests.package.constraints import FILE as PINS

ROOT = Path(__file__).resolve().parents[2]
KEPT = read_advisories(FILE.read_text(encoding="utf-8"))
HTTP_OF_3_8_6 = ["PYSEC-2023-250", "PYSEC-2023-251", "PYSEC-2024-24", "PYSEC-2024-26"]
A_DAY = dt.timedelta(days=1)


def advisory(*events: tuple[str, str], **more: Any) -> dict[str, Any]:
    """Return an advisory on the package lz4, with one range of these events."""
    package = {"ecosystem": "PyPI", "name": "lz4"}
    ranges = [{"type": "ECOSYSTEM", "events": [{kind: version} for kind, version in events]}]
    return {"id": "TEST-1", "affected": [{"package": package, "ranges": ranges}], **more}


def names(package: str, version: str) -> list[str]:
    """Return the identifiers of the kept advisories that name a version."""
    return [found.advisory.split(",")[0] for found in find_vulnerable({package: version}, KEPT.entries)]


def test_no_pinned_version_has_a_known_vulnerability() -> None:
    """What the image and the documents install; `make check` says how old the advisories are."""
    pins = read_pins(PINS.read_text(encoding="utf-8"))

    assert len(pins) > 30
    assert [] == find_vulnerable(pins, KEPT.entries)


@pytest.mark.parametrize(
    ("package", "version", "advisories"),
    [
        ("aiohttp", "3.9.1", ["PYSEC-2024-24", "PYSEC-2024-26"]),
        ("aiohttp", "3.9.2", []),
        ("aiohttp", "3.8.4", ["PYSEC-2023-120", "PYSEC-2023-246", *HTTP_OF_3_8_6]),
        ("aiohttp", "3.8.5", ["PYSEC-2023-246", *HTTP_OF_3_8_6]),
        ("pyspark", "3.1.1", ["PYSEC-2023-72"]),  # one part of the range ends where another begins
        ("pyspark", "3.2.1", ["PYSEC-2023-72"]),
        ("pyspark", "3.2.2", []),
        ("pyarrow", "0.13.0", []),
        ("pyarrow", "14.0.0", ["PYSEC-2023-238"]),
        ("idna", "3.6", ["PYSEC-2024-60"]),
    ],
)
def test_real_advisories_name_the_versions_that_they_are_about(
    package: str, version: str, advisories: list[str]
) -> None:
    """Versions before, in and after their ranges; one that was withdrawn names every aiohttp, and does not count."""
    assert advisories == names(package, version)


@pytest.mark.parametrize(
    ("events", "is_vulnerable"),
    [
        ([("introduced", "0")], True),
        ([("introduced", "0"), ("fixed", "4.4.5")], False),
        ([("introduced", "0"), ("fixed", "4.4.5.post1")], True),
        ([("introduced", "0"), ("last_affected", "4.4.5")], True),
        ([("introduced", "0"), ("last_affected", "4.4.5rc1")], False),
        ([("introduced", "4.4.10")], False),  # by number, not by text
        ([("fixed", "4.4.6"), ("introduced", "4.4.5")], True),
    ],
)
def test_a_range_is_evaluated_as_osv_says(events: list[tuple[str, str]], is_vulnerable: bool) -> None:
    """The version is 4.4.5."""
    assert is_vulnerable == bool(find_vulnerable({"lz4": "4.4.5"}, [advisory(*events)]))


def test_a_range_that_cannot_be_compared_is_a_finding() -> None:
    """Taken for harmless, it would hide what it says."""
    (found,) = find_vulnerable({"lz4": "4.4.5"}, [advisory(("introduced", "r12b"))])

    assert "cannot be compared" in found.reason


def test_old_advisories_are_a_warning_and_a_vulnerability_is_an_error() -> None:
    """No advisory service is reached from CI: age is told each time, and does not stop a change."""
    pins = {"aiohttp": "3.9.1"}

    fresh = report({"aiohttp": "3.14.5"}, KEPT, KEPT.taken + OLD_AFTER)
    old = report({"aiohttp": "3.14.5"}, KEPT, KEPT.taken + OLD_AFTER + A_DAY)
    vulnerable = report(pins, KEPT, KEPT.taken)

    assert (0, False) == (fresh[0], "warning" in fresh[1])
    assert (0, True) == (old[0], "warning: the advisories are of 2024-07-11, 31 days old" in old[1])
    assert 1 == vulnerable[0]
    assert "VULNERABLE aiohttp 3.9.1: PYSEC-2024-24, CVE-2024-23334, GHSA-5h86-8mv2-jq9f: its range is" in vulnerable[1]


def test_of_an_export_the_pinned_packages_are_kept() -> None:
    """As `make audit` fetches it: a file for each advisory, some of other ecosystems and with lists of versions."""
    package = {"ecosystem": "PyPI", "name": "LZ4"}
    listed = {"id": "TEST-2", "details": "long", "affected": [{"package": package, "versions": ["4.4.4", "4.4.5"]}]}
    foreign = {"id": "TEST-3", "affected": [{"package": {"ecosystem": "npm", "name": "lz4"}, "versions": ["4.4.5"]}]}
    export = io.BytesIO()
    with zipfile.ZipFile(export, "w") as archive:
        for one in (listed, foreign, advisory(("introduced", "5"))):
            archive.writestr(f"{one['id']}.json", json.dumps(one))

    kept = read_export(export.getvalue(), {"lz4"})

    assert ["TEST-1", "TEST-2"] == [one["id"] for one in kept]
    assert "details" not in kept[1]
    assert ["TEST-2"] == [found.advisory for found in find_vulnerable({"lz4": "4.4.5"}, kept)]


def test_a_line_that_pins_nothing_is_refused() -> None:
    """It would be left out of the check."""
    with pytest.raises(ValueError, match="expected NAME==VERSION, got 'lz4>=4'"):
        read_pins("# a comment\nlz4>=4\n")


def test_each_exception_to_a_rule_of_security_has_its_reason() -> None:
    """Ruff's S rules are those of bandit: the reason stands at the line, or in pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lint = project.partition("[tool.ruff.lint]")[2].partition("[tool.importlinter]")[0]
    in_project = [line for line in lint.partition("ignore = [")[2].splitlines() if re.search(r'"S(\d{3})?"', line)]
    folders = (ROOT / folder for folder in ("consumerd", "tests", "bench", "deploy"))
    files = [ROOT / "setup.py", *(file for folder in folders for file in folder.rglob("*.py"))]
    at_lines = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"# noqa: (?:[A-Z]+\d+, ?)*S\d{3}", line)
    ]

    assert len(in_project) > 3
    assert [] == [line for line in in_project if not re.search(r"#.* .*\w", line)]
    assert len(at_lines) > 3
    assert [] == [line for line in at_lines if not re.search(r"# noqa: [A-Z0-9, ]+ - \w", line)]
