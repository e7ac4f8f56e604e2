# SPDX-License-Identifier: Apache-2.0
"""The package's own files agree: supported Pythons, version, changelog, constraints, and what make targets need."""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.package.constraints import EXTRAS, FILE

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = (ROOT / ".ci" / "pythons").read_text(encoding="utf-8").split()


def releases() -> list[tuple[str, str]]:
    """Return the releases in the changelog with their dates, as they stand there."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", text, re.MULTILINE)


def test_each_python_of_ci_is_named_in_the_package() -> None:
    """A new Python is one word in .ci/pythons; this test says where else it is told."""
    prefix = "Programming Language :: Python :: "
    classified = [one.removeprefix(prefix) for one in PROJECT["classifiers"] if one.startswith(prefix)]

    assert PYTHONS == classified
    assert f">={PYTHONS[0]}" == PROJECT["requires-python"]


@pytest.mark.parametrize("name", ["README.md", "Makefile", "Dockerfile", "docs/spark.md", "CONTRIBUTING.md"])
def test_the_documents_name_the_pythons_that_ci_tests(name: str) -> None:
    """The first and the last of them."""
    said = re.findall(r"\b(3\.\d+) to (3\.\d+)\b", (ROOT / name).read_text(encoding="utf-8"))

    assert said, name
    assert {(PYTHONS[0], PYTHONS[-1])} == set(said)


def test_the_workflow_tests_the_same_pythons() -> None:
    """Its matrix cannot read a file."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))

    assert PYTHONS == workflow["jobs"]["test"]["strategy"]["matrix"]["python"]


def test_the_changelog_begins_with_what_is_unreleased_and_then_this_version() -> None:
    """The newest release first, each with the day on which it was made."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    dates = [dt.date.fromisoformat(date) for _, date in releases()]

    assert headings[0] == "[Unreleased]"
    assert PROJECT["version"] == releases()[0][0]
    assert sorted(dates, reverse=True) == dates
    assert len(headings) - 1 == len(releases())


def test_each_release_has_only_the_sections_of_keep_a_changelog() -> None:
    """Readers and tools look for these six."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^### (.*)$", text, re.MULTILINE))

    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_constraints_hold_each_dependency_in_a_version_that_is_allowed() -> None:
    """What is not in there would be whatever is newest on the day."""
    pinned = dict(
        line.split("==") for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    )
    wanted = [*PROJECT["dependencies"], *(one for extra in EXTRAS for one in PROJECT["optional-dependencies"][extra])]
    requirements = [Requirement(line) for line in wanted if not line.startswith("consumerd[")]

    assert {canonicalize_name(one.name) for one in requirements} <= set(pinned)
    for one in requirements:
        assert one.specifier.contains(pinned[canonicalize_name(one.name)]), one


def test_image_and_unit_install_the_versions_that_were_tested() -> None:
    """A new release of a dependency cannot break an image that nobody has changed."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    deployment = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")

    assert "--constraint constraints.txt" in dockerfile
    assert "/opt/consumerd/bin/pip install -c constraints.txt" in deployment


@pytest.mark.parametrize(
    ("target", "needs"),
    [
        ("new-user", "needs root and debootstrap"),
        ("image-test", "needs root, debootstrap, buildah"),
        ("interop", "needs Java"),
        ("bench", "needs Java"),
        ("wheels", "needs gcc"),
        ("kernel", "needs gcc"),
        ("kernel-sanitized", "needs gcc"),
    ],
)
def test_make_help_says_what_a_target_needs(target: str, needs: str) -> None:
    """On a laptop without root one sees which targets to leave alone."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{target}:.*## (.*)$", makefile, re.MULTILINE)

    assert needs in line


def test_each_target_of_make_has_its_line_of_help_and_its_duration() -> None:
    """CONTRIBUTING.md says how long each takes, so that nobody waits for what will not end soon."""
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `make ([a-z-]+)", contributing, re.MULTILINE))

    assert set(targets) - {"help", "venv", "clean"} == told


def test_the_package_names_where_its_source_documents_and_issues_are() -> None:
    """An index shows them beside the description."""
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])
    assert {"LICENSE", "NOTICE"} == set(PROJECT["license-files"])
