# SPDX-License-Identifier: Apache-2.0
"""Finds known vulnerabilities of the versions in ``constraints.txt``.

    python -m tests.package.advisories [--fetch]

``tests/package/advisories.json`` has the advisories on the packages of ``constraints.txt`` in the format of OSV
(https://ossf.github.io/osv-schema/, sections "affected[].ranges[]" and "Evaluation"), cut down to identifiers and
versions. CI reads this file, since it reaches no advisory service. ``--fetch`` writes it anew from OSV's export of
PyPI's advisories, and needs the network.

Exit code 1 for a pinned version with a known vulnerability. Advisories that are older than 30 days are a warning: a
newer vulnerability would not be found.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import urllib.request
import zipfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tests.package.constraints import FILE as PINS

FILE: Final = Path(__file__).with_name("advisories.json")
EXPORT: Final = "https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip"
"""All advisories on packages of PyPI: one JSON file for each."""
OLD_AFTER: Final = dt.timedelta(days=30)

_ECOSYSTEM: Final = "PyPI"
_FETCH_TIMEOUT_S: Final = 60.0
_COMPLETE: Final = "all advisories on the packages of constraints.txt"
_ORDER: Final = {"fixed": 0, "introduced": 1, "last_affected": 2}
"""Order of events of one version: a range that ends where the next one begins leaves no gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisories:
    """Advisories in the format of OSV, as they were on a day.

    Attributes:
        taken: Day on which they were read from ``source``; of a copy, the day of its newest change.
        extent: Which advisories there are.
        entries: The advisories.
    """

    taken: dt.date
    source: str
    extent: str
    entries: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """A pinned version that an advisory names, or of which it cannot be told."""

    package: str
    version: str
    advisory: str
    reason: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}: {self.advisory}: {self.reason}"


def read_pins(text: str) -> dict[str, str]:
    """Return the version of each package of ``constraints.txt``. Raises ValueError for a line that is no pin."""
    pins = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, equals, version = line.partition("==")
        if not equals:
            raise ValueError(f"expected NAME==VERSION, got {line!r}")
        pins[canonicalize_name(name)] = version
    return pins


def read_advisories(text: str) -> Advisories:
    """Read ``advisories.json``."""
    found = json.loads(text)
    return Advisories(
        taken=dt.date.fromisoformat(found["taken"]),
        source=found["source"],
        extent=found["extent"],
        entries=tuple(found["advisories"]),
    )


def find_vulnerable(pins: Mapping[str, str], advisories: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Return the pinned versions that advisories name. Withdrawn advisories do not count."""
    found = []
    for advisory in advisories:
        if "withdrawn" in advisory:
            continue
        for affected in _of_packages(advisory, pins):
            package = canonicalize_name(affected["package"]["name"])
            reason = _find_reason(pins[package], affected)
            if reason is not None:
                names = ", ".join((advisory["id"], *advisory.get("aliases", ())))
                found.append(Finding(package=package, version=pins[package], advisory=names, reason=reason))
    return sorted(found)


def _of_packages(advisory: Mapping[str, Any], packages: Collection[str]) -> list[Mapping[str, Any]]:
    return [
        one
        for one in advisory.get("affected", ())
        if one["package"]["ecosystem"] == _ECOSYSTEM and canonicalize_name(one["package"]["name"]) in packages
    ]


def _find_reason(pinned: str, affected: Mapping[str, Any]) -> str | None:
    if pinned in affected.get("versions", ()):
        return "names this version"
    for one in affected.get("ranges", ()):
        if one["type"] == "ECOSYSTEM":
            try:
                is_inside = _is_inside(Version(pinned), one["events"])
            except InvalidVersion as error:
                return f"cannot be compared: {error}"
            if is_inside:
                return f"its range is {_describe(one['events'])}"
    return None


def _is_inside(pinned: Version, events: Iterable[Mapping[str, str]]) -> bool:
    """Return True if a version is vulnerable by the events of one range.

    Example: introduced 0, fixed 3.1.1, introduced 3.2.0, fixed 3.2.2: 3.1.0 is vulnerable, 3.1.1 is not, 3.2.1 is.
    """
    steps = sorted(
        ((Version(version), _ORDER[kind], kind) for event in events for kind, version in event.items()),
        key=lambda step: step[:2],
    )
    is_vulnerable = False
    for version, _, kind in steps:
        if kind == "introduced" and pinned >= version:
            is_vulnerable = True
        elif (kind == "fixed" and pinned >= version) or (kind == "last_affected" and pinned > version):
            is_vulnerable = False
    return is_vulnerable


def _describe(events: Iterable[Mapping[str, str]]) -> str:
    return ", ".join(f"{kind} {version}" for event in events for kind, version in event.items())


def cut_down(advisory: Mapping[str, Any], packages: Collection[str]) -> dict[str, Any] | None:
    """Return what ``advisories.json`` keeps of an advisory; None if it is about none of the packages.

    Kept are identifiers and versions. A list of versions that stands beside a range is left out.
    """
    affected = []
    for one in _of_packages(advisory, packages):
        ranges = [
            {"type": each["type"], "events": each["events"]}
            for each in one.get("ranges", ())
            if each["type"] == "ECOSYSTEM"
        ]
        versions = {"ranges": ranges} if ranges else {"versions": one.get("versions", [])}
        package = {"ecosystem": _ECOSYSTEM, "name": canonicalize_name(one["package"]["name"])}
        affected.append({"package": package, **versions})
    if not affected:
        return None
    kept = {key: advisory[key] for key in ("id", "modified", "aliases", "withdrawn") if key in advisory}
    return {**kept, "affected": affected}


def read_export(export: bytes, packages: Collection[str]) -> tuple[Mapping[str, Any], ...]:
    """Return what to keep of OSV's export, a zip file, in the order of the identifiers."""
    with zipfile.ZipFile(BytesIO(export)) as archive:
        cut = (cut_down(json.loads(archive.read(name)), packages) for name in archive.namelist())
        return tuple(sorted((one for one in cut if one is not None), key=lambda one: str(one["id"])))


def render(advisories: Advisories) -> str:
    """Return the text of ``advisories.json``: one line for each advisory."""
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in advisories.entries)
    head = {"taken": advisories.taken.isoformat(), "source": advisories.source, "extent": advisories.extent}
    return (
        "{\n"
        + "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
        + (f'"advisories": [\n{lines}\n]\n}}\n')
    )


def report(pins: Mapping[str, str], advisories: Advisories, today: dt.date) -> tuple[int, str]:
    """Return the exit code and the text of the check."""
    found = find_vulnerable(pins, advisories.entries)
    lines = [f"VULNERABLE {one}" for one in found]
    age = today - advisories.taken
    if age > OLD_AFTER:
        lines.append(
            f"warning: the advisories are of {advisories.taken}, {age.days} days old, so newer vulnerabilities are not "
            "found: `make audit` fetches the newest"
        )
    lines.append(
        f"{len(found)} known vulnerabilities of {len(pins)} pinned packages, by {len(advisories.entries)} advisories "
        f"of {advisories.taken} ({advisories.extent}; {advisories.source})"
    )
    return (1 if found else 0), "".join(f"{line}\n" for line in lines)


def _fetch(packages: Collection[str], today: dt.date) -> Advisories:
    try:
        with urllib.request.urlopen(EXPORT, timeout=_FETCH_TIMEOUT_S) as answer:
            export = answer.read()
    except OSError as error:
        raise SystemExit(f"{EXPORT} cannot be read, and {FILE.name} stays as it is: {error}") from None
    entries = read_export(export, packages)
    if not entries:
        raise SystemExit(f"{EXPORT} has no advisory on any pinned package, and {FILE.name} stays as it is")
    return Advisories(taken=today, source=EXPORT, extent=_COMPLETE, entries=entries)


def main() -> int:
    """Check the pins; with ``--fetch`` by the newest advisories."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="fetch the newest advisories first (needs the network)")
    pins = read_pins(PINS.read_text(encoding="utf-8"))
    today = dt.datetime.now(dt.UTC).date()
    if parser.parse_args().fetch:
        FILE.write_text(render(_fetch(pins, today)), encoding="utf-8")
    code, text = report(pins, read_advisories(FILE.read_text(encoding="utf-8")), today)
    sys.stdout.write(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
