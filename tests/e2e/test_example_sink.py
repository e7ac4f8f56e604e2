# SPDX-License-Identifier: Apache-2.0
"""The example of docs/writing-a-sink.md, installed as users install it, keeps each record once."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.support.daemon import Daemon
from tests.support.documents import DOCS, TOP, find_blocks
from tests.support.embedded import EmbeddedThread
from tests.support.offset_commands import offsets, rows

pytestmark = pytest.mark.records

EXAMPLE = DOCS / "examples" / "consumerd-sink-sqlite"
PAGE = DOCS / "writing-a-sink.md"
COUNT = 2_000


def install(folder: Path) -> Path:
    """Install the example into a folder for ``PYTHONPATH``, by pip and without a network, and return it."""
    source = shutil.copytree(EXAMPLE, folder / "source")  # builds leave files beside it
    target = folder / "installed"
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return target


def count(database: Path) -> int:
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database)) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM records").fetchone()[0])
        except sqlite3.OperationalError:  # the table is not there yet
            return 0


def lags(daemon: Daemon) -> list[int | None]:
    """Return those of the partitions that it owns."""
    return [one["lag"] for one in daemon.status()["partitions"]]


def test_page_declares_the_sink_as_the_package_does() -> None:
    """What people copy from the page."""
    (block,) = find_blocks(PAGE, "toml")

    assert block.text in (EXAMPLE / "pyproject.toml").read_text()


@pytest.mark.timeout(120)
def test_example_lands_each_record_once_over_a_kill_and_a_reset(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Position and records are one transaction, and a record that is given again is passed over."""
    topic, group = unique("example"), unique("example")
    cluster.create_topic(topic, 2)
    cluster.produce(topic, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(COUNT)))
    (block,) = find_blocks(PAGE, "yaml", "tests/e2e/test_example_sink.py")
    database = tmp_path / "orders.db"
    documented = yaml.safe_load(block.text.replace("/data/orders.db", str(database)))
    documented["subscriptions"][0]["topics"] = [topic]
    settings = {
        "cluster": {"zookeeper": cluster.zookeeper},
        "group": {"id": group, "session_timeout_ms": 6000},
        **documented,
    }
    path = (str(install(tmp_path)), str(TOP))

    with Daemon(tmp_path, "killed", settings, python_path=path) as daemon:
        daemon.wait(lambda: count(database) > 0, "some records")
        daemon.kill()
    with Daemon(tmp_path, "next", settings, python_path=path) as daemon:
        # the first one may have landed all of them: then nobody owns the partitions yet, and a reset would not need an owner
        daemon.wait(
            lambda: count(database) == COUNT and lags(daemon) == [0, 0], "all records, and both claims", timeout_s=60
        )
        (*moved,) = rows(offsets(cluster.zookeeper, group, "reset", topic, "--to", "earliest", "--yes", "--json"))
        daemon.wait(lambda: lags(daemon) == [0, 0], "all again")
        assert daemon.terminate() == 0

    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT partition, offset, value FROM records").fetchall()
        positions = connection.execute("SELECT partition, next_offset FROM positions").fetchall()
    assert {row["outcome"] for row in moved} == {"carried out"}
    assert sorted(value for *_, value in found) == sorted(b"v%d" % number for number in range(COUNT))
    assert len({(partition, offset) for partition, offset, _ in found}) == COUNT
    assert sum(next_offset for _, next_offset in positions) == COUNT
    assert re.search(r"sink_faulted|Traceback", daemon.log()) is None
