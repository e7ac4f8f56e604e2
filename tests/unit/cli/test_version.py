# SPDX-License-Identifier: Apache-2.0
"""``consumerd version`` and what it says for a bug report."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import consumerd
from consumerd.admin import installation
from consumerd.admin.installation import hide_paths
from consumerd.cli.main import DONE, main
from consumerd.wire import kernel
from tests.support.tools import require_tool


def test_json_names_everything_that_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing that somebody would have to take out of it first."""
    assert main(["version", "--json"]) == DONE
    out = capsys.readouterr().out
    found = json.loads(out)
    assert found["consumerd"] == consumerd.__version__
    assert found["kernel"] == hide_paths(kernel.describe())
    assert found["libraries"]["aiozk"] == metadata.version("aiozk")
    assert {"pyarrow", "lz4", "zstandard", "python-snappy", "pyspark"} <= found["libraries"].keys()
    assert {"python", "platform", "machine", "libc", "loop", "commit", "changed"} <= found.keys()
    assert {"jsonl", "parquet"} <= set(found["sinks"])
    assert str(Path(consumerd.__file__).parent.parent) not in out
    assert f'"{socket.gethostname()}"' not in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "uvloop is not installed (pip install -e '/home/me/consumerd[speed]')",
            "uvloop is not installed (pip install -e '(path)')",
        ),
        ("cannot load uvloop: /srv/venv/lib/loop.so: undefined symbol", "cannot load uvloop: (path) undefined symbol"),
        ("pip install 'consumerd @ git+https://git.corp/c@1f'", "pip install 'consumerd @ git+https:(path)'"),
        ("native (CRC-32C: sse4.2)", "native (CRC-32C: sse4.2)"),
    ],
)
def test_paths_are_not_shown(text: str, shown: str) -> None:
    """Advice on installing names the place where the package came from, and an import error its file."""
    assert shown == hide_paths(text)


def test_library_that_is_missing_is_null(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An extra that is not installed is part of the report."""
    monkeypatch.setattr(installation, "_LIBRARIES", ("aiozk", "no-such-distribution"))
    assert main(["version", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["libraries"]["no-such-distribution"] is None


def test_checkout_tells_its_commit_and_whether_it_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version alone does not say which code runs there."""
    require_tool("git", "git")
    (tmp_path / "consumerd").mkdir()
    file = tmp_path / "consumerd" / "__init__.py"
    file.write_text("")

    def git(*arguments: str) -> str:
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        done = subprocess.run(
            ("git", "-C", str(tmp_path), *identity, *arguments),
            check=True, capture_output=True, text=True, env=environment,
        )  # fmt: skip
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setattr(consumerd, "__file__", str(file))
    found = installation.read_installation()
    assert (found.commit, found.changed) == (git("rev-parse", "HEAD"), False)
    file.write_text("changed = True\n")
    assert installation.read_installation().changed is True
