# SPDX-License-Identifier: Apache-2.0
"""Paths of sinks and of the quarantine that get in each other's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.config.load import load_settings
from consumerd.config.settings import Settings
from consumerd.config.sink_paths import check_paths
from consumerd.daemon.assemble import check_assembly
from consumerd.errors import ConfigError


def settings(folder: Path, *sinks: tuple[str, str, Path | None]) -> Settings:
    lines = ["cluster: {zookeeper: 'zk:2181'}", "group: {id: lake}"]
    lines.append(f"subscriptions: [{{topics: [orders], sink: {sinks[0][0]}}}]")
    lines.append("sinks:")
    for name, kind, path in sinks:
        lines.append(f"  {name}: {{type: {kind}" + ("}" if path is None else f", path: '{path}'}}"))
    config = folder / "config.yaml"
    config.write_text("\n".join(lines))
    return load_settings(config=config, environment={})


def test_one_path_for_two_sinks_is_refused(tmp_path: Path):
    """Each would take the other's chains for its own; check-config says so before anything runs."""
    both = settings(tmp_path, ("a", "parquet", tmp_path / "x"), ("b", "jsonl", tmp_path / "y" / ".." / "x"))

    with pytest.raises(ConfigError, match=r"sinks.b.path: .*/x is the path of sink 'a': give each a path of its own"):
        check_assembly(both)


@pytest.mark.parametrize(("a", "b", "inner"), [("x", "x/y/z", "b"), ("x/y", "x", "a")])
def test_path_within_anothers_is_refused(tmp_path: Path, a: str, b: str, inner: str):
    """Readers and auditors take everything below a path for one sink's."""
    both = settings(tmp_path, ("a", "jsonl", tmp_path / a), ("b", "jsonl", tmp_path / b))

    with pytest.raises(ConfigError, match=rf"sinks.{inner}.path: .* lies within the path of sink"):
        check_paths(both)


def test_path_behind_a_symbolic_link_is_seen_through(tmp_path: Path):
    """It is the folder that counts, not what it is called."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    both = settings(tmp_path, ("a", "jsonl", tmp_path / "real"), ("b", "jsonl", tmp_path / "link"))

    with pytest.raises(ConfigError, match="is the path of sink"):
        check_paths(both)


@pytest.mark.parametrize(
    ("quarantine", "message"),
    [
        ("landing", "quarantine.path: .* is the path of sink 'a'"),
        ("landing/q", "quarantine.path: .* lies within the path of sink 'a'"),
        (".", "sinks.a.path: .* lies within the path of the quarantine"),
    ],
)
def test_a_quarantine_in_the_way_of_a_sink_is_refused(tmp_path: Path, quarantine: str, message: str):
    """Readers of one would meet the files of the other; it is told before anything runs."""
    one = settings(tmp_path, ("a", "jsonl", tmp_path / "landing"))
    place = one.quarantine.model_copy(update={"path": tmp_path / quarantine})

    with pytest.raises(ConfigError, match=message):
        check_assembly(one.model_copy(update={"quarantine": place}))


def test_paths_beside_each_other_are_fine(tmp_path: Path):
    """A name that begins like another's is not within it, and some sinks have no path."""
    check_assembly(
        settings(tmp_path, ("a", "jsonl", tmp_path / "x"), ("b", "jsonl", tmp_path / "xy"), ("c", "stdout", None))
    )
