# SPDX-License-Identifier: Apache-2.0
"""Screenshots of the status page of a real daemon and of an audit, for README and docs.

They are written into ``docs/images`` when ``CONSUMERD_SCREENSHOTS`` names that folder (`make screenshots`); else they are taken
all the same, and looked at.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.daemon import Daemon
from tests.support.documents import DOCS, TOP
from tests.support.embedded import EmbeddedThread
from tests.support.tools import require_tool

TOPICS = ("orders", "clicks")
RECORDS = 5_000
MOST_BYTES = 150_000
WIDTH, HEIGHT = 1200, 900


def take(url: str, picture: Path) -> None:
    """Let Chromium draw a page."""
    program = require_tool("chromium", "chromium")
    profile = tempfile.mkdtemp(prefix="consumerd-chromium-")
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    drawn = ("--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}")
    try:
        done = subprocess.run(
            [program, *flags, f"--user-data-dir={profile}", *drawn, url],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    finally:
        shutil.rmtree(profile, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-2000:]


def read_size(picture: Path) -> tuple[int, int]:
    """Return width and height of a PNG."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


@pytest.fixture(scope="module")
def own_cluster(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """A broker of its own: the names of topics and group are to be those of the documents."""
    with EmbeddedThread(tmp_path_factory.mktemp("cluster"), f"{zookeeper.connect_string}/screenshots") as broker:
        yield broker


@pytest.fixture(scope="module")
def pictures(own_cluster: EmbeddedThread, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the pictures: of a daemon that lands two topics, and of the audit of what it has landed."""
    require_tool("chromium", "chromium")
    folder = tmp_path_factory.mktemp("screenshots")
    wanted = os.environ.get("CONSUMERD_SCREENSHOTS")
    pictures = TOP / wanted if wanted else folder / "images"
    pictures.mkdir(exist_ok=True)
    for topic in TOPICS:
        own_cluster.create_topic(topic, 4)
        own_cluster.produce(topic, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(RECORDS)))
    landing = folder / "landing"
    settings = {
        "cluster": {"zookeeper": own_cluster.zookeeper},
        "group": {"id": "lake", "consumer_id": "lake-1"},  # else it has this machine's name
        "subscriptions": [{"topics": [*TOPICS], "sink": "files"}],
        "sinks": {"files": {"type": "parquet", "path": str(landing), "roll_ms": 500}},
        "offsets": {"commit_interval_ms": 100},
    }
    with Daemon(folder, "one", settings) as daemon:
        daemon.wait_ready()
        daemon.wait(lambda: sum(one["committed"] or 0 for one in daemon.status()["partitions"]) == 2 * RECORDS, "all")
        take(daemon.url, pictures / "status-page.png")
        assert daemon.terminate() == 0
    page = folder / "audit.html"
    subprocess.run(
        [sys.executable, "-m", "consumerd.spark", "audit", "--landing", str(landing), "--html", str(page)],
        check=True,
        capture_output=True,
    )
    page.write_text(page.read_text().replace(str(landing), "/data/landing"))
    take(page.as_uri(), pictures / "audit.png")
    return pictures


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["status-page.png", "audit.png"])
def test_screenshot_shows_a_page(pictures: Path, name: str) -> None:
    """One that is blank has a few kilobytes; one that is large makes the README slow."""
    picture = pictures / name

    assert read_size(picture) == (WIDTH, HEIGHT)
    assert 15_000 < picture.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("name", ["status-page.png", "audit.png"])
def test_committed_screenshot_is_one_of_these(name: str) -> None:
    """Made by this test, and no larger."""
    picture = DOCS / "images" / name

    assert read_size(picture) == (WIDTH, HEIGHT)
    assert picture.stat().st_size < MOST_BYTES
